//! PURE. Counts why endpoints were chosen, and why they were ejected.

use crate::routing::Policy;

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

/// Counts of decisions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    decisions: [[u64; Reason::ALL.len()]; Policy::ALL.len()],
    lookups: [u64; Lookup::ALL.len()],
}

impl Tally {
    /// Counts one.
    pub fn count(&mut self, policy: Policy, decision: Decision) {
        self.decisions[policy as usize][decision.reason as usize] += 1;
        if let Some(lookup) = decision.lookup {
            self.lookups[lookup as usize] += 1;
        }
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

/// How often endpoints were sent nothing for a while, because they failed again and again, or because
/// they almost stood still.
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
        let mut tally = Tally::default();
        let hit = Decision { reason: Reason::Prefix, lookup: Some(Lookup::Hit) };
        tally.count(Policy::LeastConnections, hit);
        tally.count(Policy::RoundRobin, Decision::external(Reason::ExternalOnly));
        assert_eq!(tally.decisions(Policy::LeastConnections, Reason::Prefix), 1);
        assert_eq!(tally.decisions(Policy::RoundRobin, Reason::Prefix), 0);
        assert_eq!(tally.decisions(Policy::RoundRobin, Reason::ExternalOnly), 1);
        assert_eq!(Lookup::ALL.map(|lookup| tally.lookups(lookup)), [1, 0, 0]);
        let order = Reason::ALL.iter().enumerate().all(|(i, reason)| *reason as usize == i);
        assert!(order && Policy::ALL.iter().enumerate().all(|(i, p)| *p as usize == i));
    }
}
