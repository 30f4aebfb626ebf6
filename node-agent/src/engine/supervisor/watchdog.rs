//! Detects an engine that hangs: requests are in flight, it reports nothing, and its process uses
//! no CPU and loads no page. It is stopped, deadlocked, or stuck in the kernel; one that is merely
//! slow computes, or reads its model from a slow disk. Once it is killed, its requests fail over to
//! other nodes.

use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};

use crate::engine::client::EngineClient;

/// Interval of checks.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Consecutive checks without progress after which it hangs.
const STALLED_CHECKS_MAX: u32 = 4;

/// A snapshot of an engine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Snapshot {
    /// Reports it has sent.
    reports: u64,
    /// CPU time used, in ticks of 10 ms, plus pages loaded.
    work: u64,
}

/// Returns when the engine with that process id hangs.
pub(crate) async fn wait_until_hung(pid: u32, client: &EngineClient) {
    let mut checks = interval(CHECK_INTERVAL);
    // After a time in which the agent itself did not run, nothing is known of the engine.
    checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut watch = Watch::default();
    loop {
        checks.tick().await;
        let snapshot = Snapshot { reports: client.reports(), work: work(pid).unwrap_or(0) };
        if watch.record(snapshot, client.figures().in_flight > 0) {
            return;
        }
    }
}

#[derive(Debug, Default)]
struct Watch {
    last: Snapshot,
    stalled_checks: u32,
}

impl Watch {
    /// Records a snapshot; returns true once the engine hangs.
    fn record(&mut self, snapshot: Snapshot, has_requests: bool) -> bool {
        let is_stalled = has_requests && snapshot == self.last;
        self.stalled_checks = if is_stalled { self.stalled_checks + 1 } else { 0 };
        self.last = snapshot;
        self.stalled_checks >= STALLED_CHECKS_MAX
    }
}

/// CPU time and page loads of a process, all threads together.
fn work(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    work_of(&stat)
}

/// Fields 12 (pages from disk), 14 and 15 (user and system time); the name before them may contain
/// any character.
fn work_of(stat: &str) -> Option<u64> {
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    Some(field(12)? + field(14)? + field(15)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_that_is_asked_and_does_nothing_stands_still() {
        let snapshot = |reports, work| Snapshot { reports, work };
        let mut watch = Watch::default();
        assert!((0..10).all(|_| !watch.record(snapshot(1, 1), false)), "it is idle");
        assert!((0..10).all(|i| !watch.record(snapshot(1, i), true)), "it computes");
        assert!((0..10).all(|i| !watch.record(snapshot(i, 9), true)), "it reports");
        let checks = (1..10).find(|_| watch.record(snapshot(9, 9), true));
        assert_eq!(checks, Some(STALLED_CHECKS_MAX));
    }

    #[test]
    fn a_process_has_worked_by_its_time_and_the_pages_that_it_fetched() {
        let stat = "42 (a b) c) S 1 42 42 0 -1 4194560 1 2 3 4 70 30 0 0 20 0 1 0 5 6 7";
        assert_eq!(work_of(stat), Some(103));
        assert_eq!(work_of("42 (a"), None);
        assert!(work(std::process::id()).is_some());
    }
}
