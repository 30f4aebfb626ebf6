//! Notifies systemd (`sd_notify`): the model is loaded, the engine's state, the agent stops, and
//! watchdog keep-alives. Does nothing without `NOTIFY_SOCKET`.

use std::convert::Infallible;
use std::time::Duration;

use sd_notify::NotifyState;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::engine::client::{EngineClient, EngineState};

/// Maximum interval of keep-alives.
const BEAT: Duration = Duration::from_secs(5);
const BEAT_MIN: Duration = Duration::from_millis(10);

/// Reports that the agent is stopping and accepts no new requests.
pub(crate) fn stopping() {
    tell(&[NotifyState::Stopping, NotifyState::Status("finishing requests")]);
}

/// Reports the engine's state until `stop`. The service is ready when the engine first is.
pub(crate) async fn follow(engine: EngineClient, model: String, stop: CancellationToken) {
    let mut states = engine.watch_state();
    loop {
        let state = states.borrow_and_update().clone();
        match state {
            EngineState::Loading => tell(&[NotifyState::Status(&format!("loading {model}"))]),
            EngineState::Ready(facts) => {
                let status = format!("serving {model}, {} slots", facts.slots);
                tell(&[NotifyState::Ready, NotifyState::Status(&status)]);
            }
            EngineState::Restarting => {
                tell(&[NotifyState::Status("the engine died and is being started again")]);
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

/// Sends keep-alives from the task that supervises the engine: they stop if it hangs, or if no one
/// can get the lock that every request takes.
pub(crate) async fn live(engine: &EngineClient) -> Infallible {
    let Some(within) = sd_notify::watchdog_enabled() else { return std::future::pending().await };
    let mut beats = interval((within / 2).clamp(BEAT_MIN, BEAT));
    beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        beats.tick().await;
        let _ = engine.figures();
        tell(&[NotifyState::Watchdog]);
    }
}

fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!(%error, "systemd notification failed");
    }
}
