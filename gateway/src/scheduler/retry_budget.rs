//! PURE. The retry budget: retries are limited to a share of requests, so that nodes which fail
//! under load do not get more of it. Modeled on Finagle's retry budget: each request earns a
//! fraction of a retry, a few retries per second are free, and unused ones are kept only up to a
//! limit.

use std::time::Duration;

/// Requests that earn one retry.
const REQUESTS: u32 = 10;
/// Free retries per second.
const PER_SECOND: f64 = 1.0;
/// Free retries are kept for up to this many seconds.
const KEPT_SECONDS: f64 = 10.0;
/// Earned retries are kept for up to this many requests.
const KEPT_REQUESTS: u32 = 1000;

/// Remaining retries.
#[derive(Debug, Clone)]
pub struct RetryBudget {
    /// Requests that have earned and not been spent.
    earned: u32,
    /// Free retries left.
    given: f64,
    /// When free retries were last added.
    since: Duration,
}

impl Default for RetryBudget {
    fn default() -> Self {
        Self { earned: 0, given: PER_SECOND * KEPT_SECONDS, since: Duration::ZERO }
    }
}

impl RetryBudget {
    /// Records the first attempt of a request.
    pub(crate) fn record_request(&mut self) {
        self.earned = (self.earned + 1).min(KEPT_REQUESTS);
    }

    /// Takes a retry, if one is left.
    pub fn take_retry(&mut self, now: Duration) -> bool {
        let passed = now.saturating_sub(self.since).as_secs_f64();
        self.since = self.since.max(now);
        self.given = (self.given + passed * PER_SECOND).min(PER_SECOND * KEPT_SECONDS);
        if self.earned >= REQUESTS {
            self.earned -= REQUESTS;
            return true;
        }
        let is_left = self.given >= 1.0;
        self.given -= f64::from(u8::from(is_left));
        is_left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(budget: &mut RetryBudget, asked: usize, now: Duration) -> usize {
        (0..asked).filter(|_| budget.take_retry(now)).count()
    }

    #[test]
    fn a_tenth_of_all_requests_may_be_tried_again() {
        let (mut budget, now) = (RetryBudget::default(), Duration::from_secs(1));
        assert_eq!(taken(&mut budget, 100, now), 10, "a few are there at any time");
        (0..205).for_each(|_| budget.record_request());
        assert_eq!(taken(&mut budget, 100, now), 20);
    }

    #[test]
    fn a_quiet_gateway_may_try_again_once_a_second() {
        let mut budget = RetryBudget::default();
        taken(&mut budget, 100, Duration::from_secs(60));
        assert_eq!(taken(&mut budget, 100, Duration::from_secs(63)), 3);
        assert_eq!(taken(&mut budget, 100, Duration::from_secs(600)), 10);
        assert_eq!(taken(&mut budget, 100, Duration::from_secs(5)), 0, "clocks that jump");
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut budget = RetryBudget::default();
        (0..1_000_000).for_each(|_| budget.record_request());
        assert_eq!(taken(&mut budget, 1000, Duration::ZERO), 110);
    }
}
