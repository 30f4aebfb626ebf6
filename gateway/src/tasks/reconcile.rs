//! Reconciles tasks with a list in the settings: one task per item.

use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::context::Gateway;

/// Starts a task for each new item and cancels the tasks of removed items, until the gateway stops.
/// A changed item counts as removed and new.
pub(crate) async fn follow<T, F>(
    gateway: Gateway,
    list: impl Fn(&Config) -> &[T],
    start: impl Fn(Gateway, T, CancellationToken) -> F,
) where
    T: Clone + PartialEq,
    F: Future<Output = ()> + Send + 'static,
{
    let mut changes = gateway.settings.changes();
    let mut kept: Vec<(T, CancellationToken)> = Vec::new();
    loop {
        let settings = changes.borrow_and_update().clone();
        let wanted = list(&settings.config);
        let (stay, gone): (Vec<_>, Vec<_>) =
            kept.into_iter().partition(|(item, _)| wanted.contains(item));
        gone.iter().for_each(|(_, retired)| retired.cancel());
        kept = stay;
        for item in wanted {
            if kept.iter().all(|(known, _)| known != item) {
                let retired = CancellationToken::new();
                kept.push((item.clone(), retired.clone()));
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
