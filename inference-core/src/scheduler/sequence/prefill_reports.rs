//! PURE. When to report how much of a prompt is computed.

use std::time::Duration;

/// Least time between two reports, except for the last one.
const INTERVAL: Duration = Duration::from_millis(100);

/// The reports about one prompt: at its start, at its end, and now and then in between.
#[derive(Debug, Default)]
pub(crate) struct PrefillReports {
    started: Option<Duration>,
    /// The time of the last report, and its tokens.
    last: Option<(Duration, u32)>,
}

impl PrefillReports {
    /// Records that `tokens` of the prompt are computed. Returns the time since the start if this
    /// is to be reported.
    pub(crate) fn record(&mut self, tokens: u32, prompt: u32, now: Duration) -> Option<Duration> {
        let started = *self.started.get_or_insert(now);
        let is_due = self.last.is_none_or(|(at, reported)| {
            tokens > reported && (tokens == prompt || now.saturating_sub(at) >= INTERVAL)
        });
        if !is_due {
            return None;
        }
        self.last = Some((now, tokens));
        Some(now.saturating_sub(started))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_and_end_are_reported_and_not_every_step_between() {
        let mut reports = PrefillReports::default();
        let mut record = |ms, tokens| {
            let elapsed = reports.record(tokens, 100, Duration::from_millis(ms));
            elapsed.map(|elapsed| elapsed.as_millis())
        };
        assert_eq!(record(1000, 10), Some(0), "the start, with the cached prefix");
        assert_eq!(record(1200, 10), None, "nothing was computed");
        assert_eq!(record(1200, 20), Some(200));
        assert_eq!(record(1299, 30), None, "too soon");
        assert_eq!(record(1300, 30), Some(300));
        assert_eq!(record(1500, 0), None, "preempted: it computes the same again");
        assert_eq!(record(1510, 100), Some(510));
        assert_eq!(record(9999, 100), None, "once");
    }
}
