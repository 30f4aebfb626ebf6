//! Reconciles tasks with a list in the settings: one task per item.

use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::context::Gateway;

/// Starts a task for each new item and cancels the tasks of removed items, until the gateway stops.
/// A changed item counts as removed and new.
pub(crate) async fn reconcile<T, F>(
    gateway: Gateway,
    list: impl Fn(&Config) -> &[T],
    start: impl Fn(Gateway, T, CancellationToken) -> F,
) where
    T: Clone + PartialEq,
    F: Future<Output = ()> + Send + 'static,
{
    let mut changes = gateway.settings.changes();
    let mut running: Vec<(T, CancellationToken)> = Vec::new();
    loop {
        let settings = changes.borrow_and_update().clone();
        let items = list(&settings.config);
        let (stay, gone): (Vec<_>, Vec<_>) =
            running.into_iter().partition(|(item, _)| items.contains(item));
        gone.iter().for_each(|(_, retired)| retired.cancel());
        running = stay;
        for item in items {
            if running.iter().all(|(known, _)| known != item) {
                let retired = CancellationToken::new();
                running.push((item.clone(), retired.clone()));
                gateway.tasks.spawn(start(gateway.clone(), item.clone(), retired));
            }
        }
        drop(settings);
        tokio::select! {
            _ = changes.changed() => {}
            () = gateway.links.cancelled() => return,
        }
    }
}
