//! Sends a sign of life once a second to the gateways of the same store, and wakes the tasks that
//! look for work when there is some.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::context::Gateway;

/// Pause between two signs, and the longest one. If the database is far away, most of its time
/// belongs to requests.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// Runs until the gateway stops.
pub(crate) async fn run(gateway: Gateway) {
    let Some(store) = gateway.store.clone().filter(|store| store.is_shared()) else { return };
    loop {
        let begun = Instant::now();
        // The database logs what is wrong.
        let _ = store.attend().await;
        let pause = (begun.elapsed() * 4).clamp(PAUSE, PAUSE_MAX);
        tokio::select! {
            () = sleep(pause) => {}
            () = gateway.stop.cancelled() => return,
        }
    }
}
