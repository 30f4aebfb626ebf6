//! Forgets responses that were deleted at another gateway of the same store.

use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};

use crate::access::responses::Reader;
use crate::context::Gateway;

/// How often to look, whether or not something has changed.
const INTERVAL: Duration = Duration::from_secs(10);

/// Looks until the gateway stops.
pub(crate) async fn run(gateway: Gateway) {
    let Some(store) = gateway.store.clone().filter(|store| store.is_shared()) else { return };
    let (mut last, mut changes) = (None, store.changes());
    let mut ticks = interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            _ = changes.changed() => {}
            () = gateway.stop.cancelled() => return,
        }
        let Ok((deleted, number)) = store.deletions(last).await else { continue };
        last = Some(number);
        for (tenant, id) in deleted {
            gateway.responses.delete(&tenant, Reader::Unnamed, &id);
        }
    }
}
