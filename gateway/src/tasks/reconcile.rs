//! One task for each item of a list in the settings, as the list changes.

use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::context::Gateway;

/// Starts a task for each item that is new in the list, and tells the tasks of those that are not
/// there any more, until the gateway stops. A changed item is another one.
pub async fn follow<T, F>(
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
