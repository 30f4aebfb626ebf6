//! Notifies systemd (`sd_notify`): ready, reloading, stopping, status, and watchdog. Does nothing
//! without `NOTIFY_SOCKET`.

use std::time::Duration;

use sd_notify::NotifyState;
use tokio::time::{MissedTickBehavior, interval};

use crate::context::Gateway;
use crate::scheduler::fleet::Totals;

/// How often the status is updated; also the longest watchdog interval.
const LOOK: Duration = Duration::from_secs(5);
/// Shortest useful watchdog interval.
const LOOK_MIN: Duration = Duration::from_millis(10);

/// Clients are served under a valid configuration.
pub fn ready(status: &str) {
    tell(&[NotifyState::Ready, NotifyState::Status(&line(status))]);
}

/// A configuration is being read; [`ready`] follows.
pub fn reloading() {
    let Ok(now) = NotifyState::monotonic_usec_now() else { return };
    tell(&[NotifyState::Reloading, now, NotifyState::Status("loading the configuration")]);
}

/// No new requests are accepted from here on.
pub fn stopping() {
    tell(&[NotifyState::Stopping, NotifyState::Status("finishing requests")]);
}

/// Reports the fleet's status and feeds the watchdog until all requests are done.
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
        // Takes the lock that every request needs: if that hangs, the gateway is dead and the
        // watchdog must fire.
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

/// Twice per watchdog timeout.
fn pace(watchdog: Option<Duration>) -> Duration {
    watchdog.map_or(LOOK, |within| (within / 2).clamp(LOOK_MIN, LOOK))
}

fn status((totals, waiting): (Totals, usize)) -> String {
    format!(
        "{} of {} nodes ready, {} of {} slots busy, {} requests wait",
        totals.ready, totals.nodes, totals.busy, totals.slots, waiting
    )
}

/// A status must be a single line.
fn line(text: &str) -> String {
    text.replace(char::is_control, " ")
}

fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!(%error, "cannot notify systemd");
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
