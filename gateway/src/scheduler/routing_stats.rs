//! PURE. Routing statistics: why endpoints were picked or ejected, and how accurate predicted waits
//! were.

use std::time::Duration;

use crate::scheduler::routing::Policy;

/// Why an endpoint was picked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// It has part of the prompt cached.
    Prefix,
    /// By the policy.
    Policy,
    /// The key prefers external endpoints.
    ExternalPreferred,
    /// No node could start the request in time.
    ExternalOverflow,
    /// No node serves the model.
    ExternalOnly,
}

impl Reason {
    /// All reasons, in declaration order.
    pub const ALL: [Self; 5] = [
        Self::Prefix,
        Self::Policy,
        Self::ExternalPreferred,
        Self::ExternalOverflow,
        Self::ExternalOnly,
    ];

    /// Label value.
    pub fn name(self) -> &'static str {
        match self {
            Self::Prefix => "prefix",
            Self::Policy => "policy",
            Self::ExternalPreferred => "external_preferred",
            Self::ExternalOverflow => "external_overflow",
            Self::ExternalOnly => "external_only",
        }
    }
}

/// Result of a prefix lookup when an endpoint was picked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lookup {
    /// The picked node received the prefix before.
    Hit,
    /// Only another node did.
    Elsewhere,
    /// No node did.
    Miss,
}

impl Lookup {
    /// All results, in declaration order.
    pub const ALL: [Self; 3] = [Self::Hit, Self::Elsewhere, Self::Miss];

    /// Label value.
    pub fn name(self) -> &'static str {
        match self {
            Self::Hit => "hit",
            Self::Elsewhere => "elsewhere",
            Self::Miss => "miss",
        }
    }
}

/// How an endpoint was picked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decision {
    /// Why.
    pub reason: Reason,
    /// Result of the prefix lookup; `None` if the prompt is too short for the index.
    pub lookup: Option<Lookup>,
}

impl Decision {
    /// Decision for an external endpoint, whose caches are unknown.
    pub fn external(reason: Reason) -> Self {
        Self { reason, lookup: None }
    }
}

/// Accuracy of a predicted wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Forecast {
    /// Within half of the prediction, or within one second.
    Right,
    /// The wait was shorter: we may refuse requests that could be served in time.
    TooLong,
    /// The wait was longer: requests may wait for their deadline in vain.
    TooShort,
}

impl Forecast {
    /// All values, in declaration order.
    pub const ALL: [Self; 3] = [Self::Right, Self::TooLong, Self::TooShort];

    /// Label value.
    pub fn name(self) -> &'static str {
        match self {
            Self::Right => "right",
            Self::TooLong => "too_long",
            Self::TooShort => "too_short",
        }
    }

    /// Compares a predicted wait with the actual one.
    pub fn of(predicted: Duration, waited: Duration) -> Self {
        let slack = (predicted / 2).max(Duration::from_secs(1));
        if predicted.abs_diff(waited) <= slack {
            return Self::Right;
        }
        if predicted > waited { Self::TooLong } else { Self::TooShort }
    }
}

/// Counts decisions and predictions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RoutingStats {
    decisions: [[u64; Reason::ALL.len()]; Policy::ALL.len()],
    lookups: [u64; Lookup::ALL.len()],
    forecasts: [u64; Forecast::ALL.len()],
}

impl RoutingStats {
    /// Counts a decision.
    pub(crate) fn record_decision(&mut self, policy: Policy, decision: Decision) {
        self.decisions[policy as usize][decision.reason as usize] += 1;
        if let Some(lookup) = decision.lookup {
            self.lookups[lookup as usize] += 1;
        }
    }

    /// Counts the prediction of a request that got a slot after `waited`.
    pub(crate) fn record_wait(&mut self, predicted: Option<Duration>, waited: Duration) {
        if let Some(predicted) = predicted {
            self.forecasts[Forecast::of(predicted, waited) as usize] += 1;
        }
    }

    /// Counts the prediction of a request that got no slot. Only a prediction that proved too short
    /// counts.
    pub(crate) fn record_abandoned_wait(&mut self, predicted: Option<Duration>, waited: Duration) {
        let is_late = |predicted: &Duration| Forecast::of(*predicted, waited) == Forecast::TooShort;
        self.record_wait(predicted.filter(is_late), waited);
    }

    /// Number of predictions with this accuracy.
    pub fn forecasts(&self, forecast: Forecast) -> u64 {
        self.forecasts[forecast as usize]
    }

    /// Number of decisions with this policy and reason.
    pub fn decisions(&self, policy: Policy, reason: Reason) -> u64 {
        self.decisions[policy as usize][reason as usize]
    }

    /// Number of lookups with this result.
    pub fn lookups(&self, lookup: Lookup) -> u64 {
        self.lookups[lookup as usize]
    }
}

/// Counts ejections by cause.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ejections {
    /// Consecutive failures.
    pub failures: u64,
    /// Much slower than before.
    pub slow: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_decision_is_counted_under_its_policy() {
        let mut stats = RoutingStats::default();
        let hit = Decision { reason: Reason::Prefix, lookup: Some(Lookup::Hit) };
        stats.record_decision(Policy::LeastConnections, hit);
        stats.record_decision(Policy::RoundRobin, Decision::external(Reason::ExternalOnly));
        assert_eq!(stats.decisions(Policy::LeastConnections, Reason::Prefix), 1);
        assert_eq!(stats.decisions(Policy::RoundRobin, Reason::Prefix), 0);
        assert_eq!(stats.decisions(Policy::RoundRobin, Reason::ExternalOnly), 1);
        assert_eq!(Lookup::ALL.map(|lookup| stats.lookups(lookup)), [1, 0, 0]);
        let order = Forecast::ALL.iter().enumerate().all(|(i, forecast)| *forecast as usize == i);
        assert!(order && Lookup::ALL.iter().enumerate().all(|(i, lookup)| *lookup as usize == i));
        let order = Reason::ALL.iter().enumerate().all(|(i, reason)| *reason as usize == i);
        assert!(order && Policy::ALL.iter().enumerate().all(|(i, p)| *p as usize == i));
    }

    #[test]
    fn waits_are_compared_with_what_was_foretold() {
        let mut stats = RoutingStats::default();
        let seconds = |seconds: f64| Duration::from_secs_f64(seconds);
        let right = [(10.0, 5.0), (10.0, 15.0), (0.1, 1.0), (1.0, 0.1)];
        let wrong = [(10.0, 4.9), (10.0, 15.1), (0.1, 1.2)];
        for (predicted, waited) in right.into_iter().chain(wrong) {
            stats.record_wait(Some(seconds(predicted)), seconds(waited));
        }
        stats.record_wait(None, seconds(9.0));
        // A request that gives up early shows nothing.
        stats.record_abandoned_wait(Some(seconds(10.0)), seconds(4.0));
        stats.record_abandoned_wait(Some(seconds(10.0)), seconds(11.0));
        stats.record_abandoned_wait(Some(seconds(10.0)), seconds(16.0));
        assert_eq!(Forecast::ALL.map(|forecast| stats.forecasts(forecast)), [4, 1, 3]);
    }
}
