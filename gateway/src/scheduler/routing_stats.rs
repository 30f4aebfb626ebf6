//! PURE. Counts why endpoints were chosen, why they were ejected, and whether waits were foretold
//! rightly.

use std::time::Duration;

use crate::scheduler::routing::Policy;

/// Why an endpoint was chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// It holds some of the prompt's beginning.
    Prefix,
    /// It came first by the policy's own figure.
    Policy,
    /// The key prefers external endpoints.
    ExternalPreferred,
    /// No node could begin it in time.
    ExternalOverflow,
    /// No node serves the model.
    ExternalOnly,
}

impl Reason {
    /// All of them, in order.
    pub const ALL: [Self; 5] = [
        Self::Prefix,
        Self::Policy,
        Self::ExternalPreferred,
        Self::ExternalOverflow,
        Self::ExternalOnly,
    ];

    /// Its name in metrics.
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

/// What is known of a prompt's beginning when its node is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lookup {
    /// The chosen node was sent it before.
    Hit,
    /// Another one was.
    Elsewhere,
    /// Nobody was.
    Miss,
}

impl Lookup {
    /// All of them, in order.
    pub const ALL: [Self; 3] = [Self::Hit, Self::Elsewhere, Self::Miss];

    /// Its name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Hit => "hit",
            Self::Elsewhere => "elsewhere",
            Self::Miss => "miss",
        }
    }
}

/// How an endpoint came to be chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decision {
    /// Why.
    pub reason: Reason,
    /// What was known of the prompt; nothing of one that is too short to be remembered.
    pub lookup: Option<Lookup>,
}

impl Decision {
    /// Of an external endpoint: what they hold is not known.
    pub fn external(reason: Reason) -> Self {
        Self { reason, lookup: None }
    }
}

/// How a wait that was foretold came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Forecast {
    /// As foretold, within half of it or a second.
    Right,
    /// Shorter: requests may be refused that could be answered in time.
    TooLong,
    /// Longer: requests may wait for their deadline in vain.
    TooShort,
}

impl Forecast {
    /// All of them, in order.
    pub const ALL: [Self; 3] = [Self::Right, Self::TooLong, Self::TooShort];

    /// Its name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Right => "right",
            Self::TooLong => "too_long",
            Self::TooShort => "too_short",
        }
    }

    /// Of a request that waited so long.
    pub fn of(foretold: Duration, waited: Duration) -> Self {
        let slack = (foretold / 2).max(Duration::from_secs(1));
        if foretold.abs_diff(waited) <= slack {
            return Self::Right;
        }
        if foretold > waited { Self::TooLong } else { Self::TooShort }
    }
}

/// Counts of decisions and forecasts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RoutingStats {
    decisions: [[u64; Reason::ALL.len()]; Policy::ALL.len()],
    lookups: [u64; Lookup::ALL.len()],
    forecasts: [u64; Forecast::ALL.len()],
}

impl RoutingStats {
    /// Counts one.
    pub fn count(&mut self, policy: Policy, decision: Decision) {
        self.decisions[policy as usize][decision.reason as usize] += 1;
        if let Some(lookup) = decision.lookup {
            self.lookups[lookup as usize] += 1;
        }
    }

    /// A request that waited so long got its slot.
    pub fn waited(&mut self, foretold: Option<Duration>, waited: Duration) {
        if let Some(foretold) = foretold {
            self.forecasts[Forecast::of(foretold, waited) as usize] += 1;
        }
    }

    /// One that waited so long got none. That tells something only if it was foretold sooner.
    pub fn gave_up(&mut self, foretold: Option<Duration>, waited: Duration) {
        let is_late = |foretold: &Duration| Forecast::of(*foretold, waited) == Forecast::TooShort;
        self.waited(foretold.filter(is_late), waited);
    }

    /// How often waits came out so.
    pub fn forecasts(&self, forecast: Forecast) -> u64 {
        self.forecasts[forecast as usize]
    }

    /// How often endpoints were chosen so.
    pub fn decisions(&self, policy: Policy, reason: Reason) -> u64 {
        self.decisions[policy as usize][reason as usize]
    }

    /// How often that was known.
    pub fn lookups(&self, lookup: Lookup) -> u64 {
        self.lookups[lookup as usize]
    }
}

/// How often endpoints were sent nothing for a while, because they failed again and again, or
/// because they almost stood still.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ejections {
    /// Failures in a row.
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
        stats.count(Policy::LeastConnections, hit);
        stats.count(Policy::RoundRobin, Decision::external(Reason::ExternalOnly));
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
        for (foretold, waited) in right.into_iter().chain(wrong) {
            stats.waited(Some(seconds(foretold)), seconds(waited));
        }
        stats.waited(None, seconds(9.0));
        // Who gives up early tells nothing.
        stats.gave_up(Some(seconds(10.0)), seconds(4.0));
        stats.gave_up(Some(seconds(10.0)), seconds(11.0));
        stats.gave_up(Some(seconds(10.0)), seconds(16.0));
        assert_eq!(Forecast::ALL.map(|forecast| stats.forecasts(forecast)), [4, 1, 3]);
    }
}
