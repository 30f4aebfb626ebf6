//! PURE. Tracks how well an endpoint handles requests.
//!
//! A node with a fine heartbeat may still fail its requests, or become slower and slower (gray
//! failure: Huang and others, "Gray Failure: The Achilles' Heel of Cloud-Scale Systems", HotOS
//! 2017). Consecutive failures eject it, each time for longer. A single health check, not a herd of
//! client requests, then decides whether it comes back. A node that decodes much slower than it
//! used to under the same load counts as busier, and is ejected if it gets worse.

use std::time::Duration;

mod decode_pace;

pub(crate) use decode_pace::DecodePace;
use decode_pace::Drift;

/// Consecutive failures that eject an endpoint.
const FAILURES_MAX: u32 = 5;
/// First and longest ejection; each ejection lasts twice as long as the one before.
const OUT_FIRST: Duration = Duration::from_secs(5);
const OUT_MAX: Duration = Duration::from_secs(300);
/// After this long without an ejection, the next one is short again.
const FORGIVEN_AFTER: Duration = Duration::from_secs(600);
/// Added to the share of busy slots of an endpoint that has become slow.
const SLOW_PENALTY: f64 = 0.5;

/// A node counts as hung if it was silent for this long, and for this many times as long as another
/// node needed for the same request. Anything less may be chance, or a prompt that the other node
/// had cached.
const HUNG_AFTER: Duration = Duration::from_secs(1);
const HUNG_TIMES: u32 = 3;

/// True if a node that sent nothing for `silent` counts as hung, given that another node began the
/// same response within `other`.
pub(crate) fn is_hung(silent: Duration, other: Duration) -> bool {
    silent >= HUNG_AFTER && silent >= other.saturating_mul(HUNG_TIMES)
}

/// Whether the endpoint gets requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    In,
    /// Ejected until this time, then due for a health check.
    Out {
        until: Duration,
    },
    /// A health check is in flight.
    Probed,
}

/// Health of one endpoint.
#[derive(Debug)]
pub struct Health {
    state: State,
    failures: u32,
    ejections: u32,
    ejected: Duration,
    /// When it last answered a request, or was added.
    answered: Duration,
    pace: DecodePace,
}

impl Health {
    /// Health of a new endpoint.
    pub fn new(now: Duration) -> Self {
        Self {
            state: State::In,
            failures: 0,
            ejections: 0,
            ejected: Duration::ZERO,
            answered: now,
            pace: DecodePace::default(),
        }
    }

    /// True if the endpoint gets no client requests.
    pub fn is_ejected(&self) -> bool {
        self.state != State::In
    }

    /// Added to its share of busy slots.
    pub fn penalty(&self) -> f64 {
        if self.pace.drift() == Drift::None { 0.0 } else { SLOW_PENALTY }
    }

    /// Records an answered request.
    pub(crate) fn record_success(&mut self, now: Duration) {
        (self.failures, self.answered) = (0, now);
        if self.state == State::Probed {
            self.state = State::In;
            self.pace = DecodePace::default();
        }
    }

    /// Records a failed request. Returns true if the endpoint should be ejected.
    #[must_use]
    pub(crate) fn record_failure(&mut self) -> bool {
        self.failures = self.failures.saturating_add(1);
        self.failures >= FAILURES_MAX || self.state == State::Probed
    }

    /// Records seconds per token while `busy` slots are busy. Returns true if the endpoint should
    /// be ejected.
    #[must_use]
    pub(crate) fn record_pace(&mut self, busy: u32, seconds: f64) -> bool {
        self.pace.observe(busy, seconds);
        self.pace.drift() == Drift::Far && self.state == State::In
    }

    /// Ejects the endpoint.
    pub(crate) fn eject(&mut self, now: Duration) {
        if now.saturating_sub(self.ejected) > FORGIVEN_AFTER {
            self.ejections = 0;
        }
        let out = OUT_FIRST.saturating_mul(1 << self.ejections.min(16)).min(OUT_MAX);
        self.state = State::Out { until: now + out };
        self.ejections = self.ejections.saturating_add(1);
        self.ejected = now;
        self.failures = 0;
    }

    /// True if the endpoint is due for a health check: its ejection is over, or it has answered
    /// nothing for `interval`.
    pub(crate) fn is_probe_due(&self, now: Duration, interval: Option<Duration>) -> bool {
        match self.state {
            State::Out { until } => now >= until,
            State::In => interval.is_some_and(|i| now.saturating_sub(self.answered) >= i),
            State::Probed => false,
        }
    }

    /// Records that a health check has started. An ejected endpoint gets no client requests until
    /// the check ends.
    pub(crate) fn start_probe(&mut self, now: Duration) {
        match self.state {
            State::In => self.answered = now,
            State::Out { .. } | State::Probed => self.state = State::Probed,
        }
    }

    /// Records a request that was canceled and shows nothing. If it was a health check, another one
    /// must follow, because until then the endpoint gets no client requests.
    pub(crate) fn cancel_probe(&mut self, now: Duration) {
        if self.state == State::Probed {
            self.state = State::Out { until: now + OUT_FIRST };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(1000);

    fn after(seconds: u64) -> Duration {
        NOW + Duration::from_secs(seconds)
    }

    fn ejected() -> Health {
        let mut health = Health::new(NOW);
        assert!((1..FAILURES_MAX).all(|_| !health.record_failure()));
        assert!(health.record_failure());
        health.eject(NOW);
        health
    }

    #[test]
    fn failures_in_a_row_eject_and_one_success_forgives_them() {
        let mut health = Health::new(NOW);
        for _ in 0..10 {
            assert!((1..FAILURES_MAX).all(|_| !health.record_failure()));
            health.record_success(NOW);
        }
        assert!(!health.is_ejected());
        assert!(ejected().is_ejected());
    }

    #[test]
    fn one_request_of_ours_lets_it_back_in() {
        let mut health = ejected();
        assert!(!health.is_probe_due(after(4), None));
        assert!(health.is_probe_due(after(5), None));
        health.start_probe(after(5));
        assert!(health.is_ejected() && !health.is_probe_due(after(5), None), "one, and not a herd");
        health.record_success(after(6));
        assert!(!health.is_ejected());
    }

    #[test]
    fn each_time_it_is_out_for_longer_and_in_time_that_is_forgiven() {
        let mut health = ejected();
        health.start_probe(after(5));
        assert!(health.record_failure());
        health.eject(after(5));
        assert!(!health.is_probe_due(after(14), None) && health.is_probe_due(after(15), None));
        (0..40).for_each(|_| health.eject(after(20)));
        assert!(health.is_probe_due(after(320), None), "and no longer than that");
        health.eject(after(2000));
        assert!(health.is_probe_due(after(2005), None));
    }

    #[test]
    fn a_node_hangs_that_is_silent_for_long_and_much_longer_than_another() {
        let ms = Duration::from_millis;
        assert!(is_hung(ms(1000), ms(333)) && is_hung(ms(60_000), ms(20_000)));
        assert!(!is_hung(ms(999), ms(1)), "a moment is chance");
        assert!(!is_hung(ms(1000), ms(334)), "the other one took its time too");
    }

    #[test]
    fn who_answers_nothing_for_a_while_is_asked() {
        let mut health = Health::new(NOW);
        let interval = Some(Duration::from_secs(30));
        assert!(!health.is_probe_due(after(29), interval) && !health.is_probe_due(after(99), None));
        assert!(health.is_probe_due(after(30), interval));
        health.start_probe(after(30));
        assert!(!health.is_ejected() && !health.is_probe_due(after(31), interval));
    }

    #[test]
    fn a_probe_that_is_given_up_comes_again() {
        let mut health = ejected();
        health.start_probe(after(5));
        health.cancel_probe(after(6));
        assert!(health.is_ejected() && health.is_probe_due(after(11), None));
    }

    #[test]
    fn who_becomes_slow_counts_as_busier_and_is_ejected_if_it_stands_almost_still() {
        let mut health = Health::new(NOW);
        assert!((0..50).all(|_| !health.record_pace(1, 0.1)));
        assert_eq!(health.penalty(), 0.0);
        assert!((0..20).all(|_| !health.record_pace(1, 0.5)));
        assert_eq!(health.penalty(), SLOW_PENALTY);
        assert!((0..20).any(|_| health.record_pace(1, 5.0)));
        health.eject(NOW);
        assert!(!health.record_pace(1, 5.0), "what it still has is no news");
    }
}
