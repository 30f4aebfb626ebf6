//! Reports the engine's state to systemd and signals its watchdog.

use std::convert::Infallible;

use flotilla_listeners::systemd::{Heartbeat, notify_ready, notify_status};
use tokio_util::sync::CancellationToken;

use crate::engine::client::{EngineClient, EngineState};

/// Reports the engine's state until `stop`. The service is ready when the engine first is.
pub(crate) async fn report_state(engine: EngineClient, model: String, stop: CancellationToken) {
    let mut states = engine.watch_state();
    loop {
        let state = states.borrow_and_update().clone();
        match state {
            EngineState::Loading => notify_status(&format!("loading {model}")),
            EngineState::Ready(facts) => {
                notify_ready(&format!("serving {model}, {} slots", facts.slots));
            }
            EngineState::Restarting => {
                notify_status("the engine died and is being started again");
            }
            // Reported by the caller of drain.
            EngineState::Draining => return,
        }
        tokio::select! {
            changed = states.changed() => if changed.is_err() { return },
            () = stop.cancelled() => return,
        }
    }
}

/// Signals the watchdog from the task that supervises the engine: the signals stop if it hangs, or
/// if no one can get the lock that every request takes.
pub(crate) async fn signal_watchdog(engine: &EngineClient) -> Infallible {
    let mut heartbeat = Heartbeat::start();
    if !heartbeat.has_watchdog() {
        return std::future::pending().await;
    }
    loop {
        heartbeat.wait().await;
        let _ = engine.figures();
        heartbeat.signal_watchdog();
    }
}
