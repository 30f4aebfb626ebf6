//! What systemd is told (`sd_notify`): that the model is loaded, what the engine does, that the
//! agent stops, and that it still lives. Where nobody listens (no `NOTIFY_SOCKET`), nothing is
//! said.

use std::convert::Infallible;
use std::time::Duration;

use sd_notify::NotifyState;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::engine::client::{EngineClient, EngineState};

/// How often a sign of life is given at least.
const BEAT: Duration = Duration::from_secs(5);
const BEAT_MIN: Duration = Duration::from_millis(10);

/// Nothing new is taken from here on.
pub fn stopping() {
    tell(&[NotifyState::Stopping, NotifyState::Status("finishing requests")]);
}

/// Tells what becomes of the engine, until `stop`. We are ready when it is, for the first time.
pub async fn follow(engine: EngineClient, model: String, stop: CancellationToken) {
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
            // Told by who drains it.
            EngineState::Draining => return,
        }
        tokio::select! {
            changed = states.changed() => if changed.is_err() { return },
            () = stop.cancelled() => return,
        }
    }
}

/// Signs of life, from the task that supervises the engine: where that hangs, or where nobody gets
/// the lock that every request takes, there are none.
pub async fn live(engine: &EngineClient) -> Infallible {
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
        tracing::debug!(%error, "systemd was not told");
    }
}
