//! What systemd is told (`sd_notify`): that the gateway serves, takes a configuration over, stops,
//! and still lives. Where nobody listens (no `NOTIFY_SOCKET`), nothing is said.

use std::time::Duration;

use sd_notify::NotifyState;
use tokio::time::{MissedTickBehavior, interval};

use crate::context::Gateway;
use crate::scheduler::fleet::Totals;

/// How often the status is looked at, and how often a sign of life is given at least.
const LOOK: Duration = Duration::from_secs(5);
/// The shortest watchdog that makes sense.
const LOOK_MIN: Duration = Duration::from_millis(10);

/// Clients are served, with a configuration that is in force.
pub fn ready(status: &str) {
    tell(&[NotifyState::Ready, NotifyState::Status(&line(status))]);
}

/// A configuration is being read; [`ready`] follows.
pub fn reloading() {
    let Ok(now) = NotifyState::monotonic_usec_now() else { return };
    tell(&[NotifyState::Reloading, now, NotifyState::Status("loading the configuration")]);
}

/// Nothing new is taken from here on.
pub fn stopping() {
    tell(&[NotifyState::Stopping, NotifyState::Status("finishing requests")]);
}

/// Tells how the fleet is, and that we live, until requests are done.
pub async fn run(gateway: Gateway) {
    if std::env::var_os("NOTIFY_SOCKET").is_none() {
        return;
    }
    let watchdog = sd_notify::watchdog_enabled();
    let mut looks = interval(pace(watchdog));
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut told = String::new();
    loop {
        tokio::select! {
            _ = looks.tick() => {}
            () = gateway.links.cancelled() => return,
        }
        // Takes the lock that every request takes: a gateway where nobody gets it is dead.
        let status = status(gateway.dispatcher.summary());
        if watchdog.is_some() {
            tell(&[NotifyState::Watchdog]);
        }
        if status != told && !gateway.stop.is_cancelled() {
            tell(&[NotifyState::Status(&status)]);
            told = status;
        }
    }
}

/// Twice within a watchdog's time.
fn pace(watchdog: Option<Duration>) -> Duration {
    watchdog.map_or(LOOK, |within| (within / 2).clamp(LOOK_MIN, LOOK))
}

fn status((totals, waiting): (Totals, usize)) -> String {
    format!(
        "{} of {} nodes ready, {} of {} slots busy, {} requests wait",
        totals.ready, totals.nodes, totals.busy, totals.slots, waiting
    )
}

/// A status is one line.
fn line(text: &str) -> String {
    text.replace(char::is_control, " ")
}

fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!(%error, "systemd was not told");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sign_of_life_is_given_twice_within_its_time() {
        let seconds = Duration::from_secs;
        assert_eq!(pace(None), LOOK);
        assert_eq!(pace(Some(seconds(30))), LOOK);
        assert_eq!(pace(Some(seconds(2))), seconds(1));
        assert_eq!(pace(Some(Duration::ZERO)), LOOK_MIN);
    }

    #[test]
    fn a_status_is_one_line() {
        assert_eq!(line("a\nREADY=1"), "a READY=1");
    }
}
