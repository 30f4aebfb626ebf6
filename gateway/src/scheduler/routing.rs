//! PURE. Picks one of the endpoints that could take a request now.
//!
//! The default is the smallest share of busy slots. An endpoint that has the beginning of the
//! prompt cached counts as less busy, and a new node as busier. Neither keeps a slot idle while
//! requests wait: the queue decides that earlier.

use std::time::Duration;

/// A fully cached prompt outweighs this share of busy slots. Computing it again would cost the
/// requests on that node more than one more decoding sequence does.
const PREFIX_WORTH: f64 = 0.5;
/// A new node counts as busier by this share, which shrinks to zero over this time: its model is
/// still being read from disk, and its speed is unknown.
const NEW_PENALTY: f64 = 0.5;
const NEW_FOR: Duration = Duration::from_secs(10);

/// Routing policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// The least busy endpoint by share of slots, with the corrections described in the module.
    #[default]
    LeastConnections,
    /// In turns.
    RoundRobin,
    /// The less busy of two random endpoints.
    PowerOfTwo,
    /// The shortest predicted time to first token, by the speed that nodes report.
    Fastest,
}

impl Policy {
    /// All policies.
    pub const ALL: [Self; 4] =
        [Self::LeastConnections, Self::RoundRobin, Self::PowerOfTwo, Self::Fastest];

    /// Name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::LeastConnections => "least_connections",
            Self::RoundRobin => "round_robin",
            Self::PowerOfTwo => "power_of_two",
            Self::Fastest => "fastest",
        }
    }

    /// True if the policy prefers endpoints that have part of the prompt cached.
    pub(crate) fn counts_prefixes(self) -> bool {
        matches!(self, Self::LeastConnections | Self::Fastest)
    }

    /// The policy with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|policy| policy.name() == name)
    }
}

/// An endpoint that could take the request now.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate<I> {
    /// The endpoint.
    pub id: I,
    /// Busy slots.
    pub busy: u32,
    /// Total slots; more than `busy`.
    pub capacity: u32,
    /// Added to its share of busy slots.
    pub penalty: f64,
    /// Share of the prompt that it has cached, 0 to 1.
    pub cached: f64,
    /// Time since it was linked.
    pub age: Duration,
    /// Prefill speed in tokens per second, if reported.
    pub prefill_rate: Option<f32>,
    /// Number of the last claim here; smaller is longer ago.
    pub last_chosen: u64,
}

impl<I> Candidate<I> {
    fn share(&self) -> f64 {
        f64::from(self.busy) / f64::from(self.capacity.max(1))
    }

    /// Load as it counts for this request.
    pub fn load(&self) -> f64 {
        let youth = 1.0 - (self.age.as_secs_f64() / NEW_FOR.as_secs_f64()).min(1.0);
        self.share() + self.penalty - PREFIX_WORTH * self.cached.clamp(0.0, 1.0)
            + NEW_PENALTY * youth
    }

    /// Estimated time to first token, in a unit that all candidates share.
    fn time_to_first_token(&self, rate_unknown: f64) -> f64 {
        let rate = self.prefill_rate.map_or(rate_unknown, f64::from).max(f64::MIN_POSITIVE);
        let rest = 1.0 - self.cached.clamp(0.0, 1.0);
        // Decoding sequences on the node slow down its prefill.
        (0.02 + rest) * (1.0 + self.share() + self.penalty) / rate
    }
}

/// Picks a candidate. `seed` breaks ties at random, so that idle nodes share the load.
pub fn choose<I: Copy>(policy: Policy, candidates: &[Candidate<I>], seed: u64) -> Option<I> {
    match policy {
        Policy::LeastConnections => least(candidates, seed, Candidate::load),
        Policy::RoundRobin => candidates.iter().min_by_key(|c| c.last_chosen).map(|c| c.id),
        Policy::PowerOfTwo => {
            let (first, second) = two(candidates.len(), seed)?;
            least(&[candidates[first], candidates[second]], seed, Candidate::share)
        }
        Policy::Fastest => {
            let rates = candidates.iter().filter_map(|c| c.prefill_rate.map(f64::from));
            // A node without a reported speed counts as the fastest, so that it gets requests and
            // can report one.
            let unknown = rates.fold(f64::MIN_POSITIVE, f64::max);
            least(candidates, seed, |c| c.time_to_first_token(unknown))
        }
    }
}

/// One of the candidates with the smallest `figure`.
fn least<I: Copy>(
    candidates: &[Candidate<I>],
    seed: u64,
    figure: impl Fn(&Candidate<I>) -> f64,
) -> Option<I> {
    let least = candidates.iter().map(&figure).min_by(f64::total_cmp)?;
    let equal = |c: &&Candidate<I>| figure(c) <= least;
    let count = candidates.iter().filter(equal).count();
    let drawn = (seed % count.max(1) as u64) as usize;
    candidates.iter().filter(equal).nth(drawn).map(|c| c.id)
}

/// Two different indexes below `count`; equal if `count` is 1.
fn two(count: usize, seed: u64) -> Option<(usize, usize)> {
    if count == 0 {
        return None;
    }
    // The seeds are consecutive numbers, so mix them (finalizer of MurmurHash3).
    let mut mixed = seed;
    for factor in [0xff51_afd7_ed55_8ccd, 0xc4ce_b9fe_1a85_ec53] {
        mixed = (mixed ^ (mixed >> 33)).wrapping_mul(factor);
    }
    mixed ^= mixed >> 33;
    let first = (mixed % count as u64) as usize;
    let step = 1 + (mixed >> 32) % (count.max(2) as u64 - 1);
    Some((first, (first + step as usize) % count))
}

#[cfg(test)]
mod tests {
    use super::*;
    use Policy::{Fastest, LeastConnections, PowerOfTwo, RoundRobin};

    fn candidate(id: u32, busy: u32, capacity: u32) -> Candidate<u32> {
        let age = Duration::from_secs(60);
        Candidate {
            id,
            busy,
            capacity,
            penalty: 0.0,
            cached: 0.0,
            age,
            prefill_rate: None,
            last_chosen: 0,
        }
    }

    #[test]
    fn the_smallest_share_of_busy_slots_wins_not_the_smallest_number() {
        let all = [candidate(1, 1, 2), candidate(2, 3, 8), candidate(3, 2, 4)];
        assert_eq!(choose(LeastConnections, &all, 0), Some(2));
    }

    #[test]
    fn equals_are_drawn_evenly() {
        let all = [candidate(1, 0, 4), candidate(2, 0, 4), candidate(3, 1, 4)];
        let ones = (0..100).filter(|s| choose(LeastConnections, &all, *s) == Some(1)).count();
        assert_eq!(ones, 50);
        assert!((0..100).all(|seed| choose(LeastConnections, &all, seed) != Some(3)));
    }

    #[test]
    fn nobody_is_chosen_from_nobody() {
        assert!(Policy::ALL.iter().all(|policy| choose::<u32>(*policy, &[], 7).is_none()));
    }

    #[test]
    fn an_endpoint_that_holds_the_prompt_may_be_busier_but_not_by_much() {
        let holds = |busy, cached| Candidate { cached, ..candidate(2, busy, 4) };
        let choose = |holder| choose(LeastConnections, &[candidate(1, 0, 4), holder], 0);
        assert_eq!(choose(holds(1, 1.0)), Some(2));
        assert_eq!(choose(holds(3, 1.0)), Some(1));
        assert_eq!(choose(holds(1, 0.2)), Some(1), "a little of it is not worth that");
        assert_eq!(choose(holds(0, 0.2)), Some(2));
    }

    #[test]
    fn a_node_that_has_just_come_gets_less_and_soon_its_share() {
        let of_age =
            |seconds| Candidate { age: Duration::from_secs(seconds), ..candidate(2, 0, 4) };
        let choose = |busy, new| choose(LeastConnections, &[candidate(1, busy, 4), new], 0);
        assert_eq!(choose(1, of_age(0)), Some(1));
        assert_eq!(choose(3, of_age(0)), Some(2), "it is not kept idle");
        assert_eq!(choose(1, of_age(9)), Some(2));
    }

    #[test]
    fn turns_go_round() {
        let mut all: Vec<_> = (0..3).map(|id| candidate(id, id, 4)).collect();
        let mut order = Vec::new();
        for turn in 1..=6 {
            let id = choose(RoundRobin, &all, 0).unwrap();
            all[id as usize].last_chosen = turn;
            order.push(id);
        }
        assert_eq!(order, [0, 1, 2, 0, 1, 2]);
    }

    #[test]
    fn of_two_that_are_drawn_the_less_busy_wins_and_all_are_drawn() {
        let all: Vec<_> = (0..10).map(|id| candidate(id, id, 20)).collect();
        let mut chosen = [0; 10];
        for seed in 0..10_000 {
            let (a, b) = two(10, seed).unwrap();
            assert_ne!(a, b);
            chosen[choose(PowerOfTwo, &all, seed).unwrap() as usize] += 1;
        }
        assert_eq!(chosen[9], 0, "it always loses");
        assert!(chosen[0] > 1_500 && chosen[8] > 50, "{chosen:?}");
        assert_eq!(two(1, 5), Some((0, 0)));
    }

    #[test]
    fn the_fastest_has_the_first_token_soonest() {
        let rate =
            |id, rate, busy| Candidate { prefill_rate: Some(rate), ..candidate(id, busy, 4) };
        assert_eq!(choose(Fastest, &[rate(1, 100.0, 0), rate(2, 300.0, 3)], 0), Some(2));
        assert_eq!(choose(Fastest, &[rate(1, 100.0, 0), candidate(2, 0, 4)], 1), Some(2));
        let holds = Candidate { cached: 0.9, ..rate(1, 100.0, 0) };
        assert_eq!(choose(Fastest, &[holds, rate(2, 300.0, 0)], 0), Some(1));
    }

    #[test]
    fn every_policy_is_found_by_its_name() {
        assert!(Policy::ALL.iter().all(|policy| Policy::named(policy.name()) == Some(*policy)));
        assert_eq!(Policy::named("random"), None);
    }
}
