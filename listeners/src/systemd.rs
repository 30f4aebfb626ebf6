//! Notifies systemd (`sd_notify`): ready, reloading, stopping, status, and watchdog. Does nothing
//! without `NOTIFY_SOCKET`.

use std::time::Duration;

use sd_notify::NotifyState;
use tokio::time::{Interval, MissedTickBehavior, interval};

/// How often a program looks at its state; also the longest interval between watchdog signals.
const INTERVAL_MAX: Duration = Duration::from_secs(5);
/// Shortest useful interval.
const INTERVAL_MIN: Duration = Duration::from_millis(10);

/// True if systemd, or a program in its place, receives notifications.
pub fn is_present() -> bool {
    std::env::var_os("NOTIFY_SOCKET").is_some()
}

/// Reports that clients are served.
pub fn notify_ready(status: &str) {
    notify(&[NotifyState::Ready, NotifyState::Status(&single_line(status))]);
}

/// Reports that a configuration is being read; [`notify_ready`] follows.
pub fn notify_reloading() {
    let Ok(now) = NotifyState::monotonic_usec_now() else { return };
    notify(&[NotifyState::Reloading, now, NotifyState::Status("loading the configuration")]);
}

/// Reports that no new requests are accepted from here on.
pub fn notify_stopping() {
    notify(&[NotifyState::Stopping, NotifyState::Status("finishing requests")]);
}

/// Reports the state that `systemctl status` shows.
pub fn notify_status(status: &str) {
    notify(&[NotifyState::Status(&single_line(status))]);
}

/// Reports work that must precede the start, such as a download, and that it may take until
/// `timeout` from now. Repeat it while the work makes progress.
pub fn notify_starting(status: &str, timeout: Duration) {
    let micros = u32::try_from(timeout.as_micros()).unwrap_or(u32::MAX);
    notify(&[NotifyState::ExtendTimeoutUsec(micros), NotifyState::Status(&single_line(status))]);
}

/// The pace of status reports and watchdog signals.
#[derive(Debug)]
pub struct Heartbeat {
    interval: Interval,
    has_watchdog: bool,
}

impl Heartbeat {
    /// Starts the beats: two per watchdog timeout, and at least one every five seconds.
    pub fn start() -> Self {
        let watchdog = sd_notify::watchdog_enabled();
        let mut interval = interval(pace(watchdog));
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { interval, has_watchdog: watchdog.is_some() }
    }

    /// True if systemd expects watchdog signals.
    pub fn has_watchdog(&self) -> bool {
        self.has_watchdog
    }

    /// Waits for the next beat. Cancel-safe.
    pub async fn wait(&mut self) {
        self.interval.tick().await;
    }

    /// Sends a watchdog signal, if systemd expects one.
    pub fn signal_watchdog(&self) {
        if self.has_watchdog {
            notify(&[NotifyState::Watchdog]);
        }
    }
}

fn pace(watchdog: Option<Duration>) -> Duration {
    watchdog.map_or(INTERVAL_MAX, |timeout| (timeout / 2).clamp(INTERVAL_MIN, INTERVAL_MAX))
}

/// A status must be a single line.
fn single_line(text: &str) -> String {
    text.replace(char::is_control, " ")
}

fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!(%error, "cannot notify systemd");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_watchdog_is_signaled_twice_per_timeout() {
        let seconds = Duration::from_secs;
        assert_eq!(pace(None), INTERVAL_MAX);
        assert_eq!(pace(Some(seconds(30))), INTERVAL_MAX);
        assert_eq!(pace(Some(seconds(2))), seconds(1));
        assert_eq!(pace(Some(Duration::ZERO)), INTERVAL_MIN);
    }

    #[test]
    fn a_status_is_one_line() {
        assert_eq!(single_line("a\nREADY=1"), "a READY=1");
    }
}
