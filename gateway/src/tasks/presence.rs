//! Sends a sign of life once a second to the gateways of the same store, and wakes the tasks that
//! look for work when there is some.

use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};

use crate::context::Gateway;

const INTERVAL: Duration = Duration::from_secs(1);

/// Runs until the gateway stops.
pub(crate) async fn run(gateway: Gateway) {
    let Some(store) = gateway.store.clone().filter(|store| store.is_shared()) else { return };
    let mut ticks = interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = gateway.stop.cancelled() => return,
        }
        // The database logs what is wrong.
        let _ = store.attend().await;
    }
}
