//! PURE. The node for a request, of all that could take it.

use std::time::Duration;

use super::{EndpointId, Fleet, RouteConstraints};
use crate::scheduler::routing::{Candidate, Policy, choose};

/// What an endpoint is chosen by, beside what is known of the endpoints.
#[derive(Debug, Clone, Copy)]
pub struct Choice<'a> {
    /// How.
    pub policy: Policy,
    /// Endpoints that hold some of the prompt, and how much of it.
    pub held: &'a [(EndpointId, f64)],
    /// When.
    pub now: Duration,
    /// Draws among equals.
    pub seed: u64,
}

impl Choice<'_> {
    pub(super) fn held_by(&self, id: EndpointId) -> f64 {
        self.held.iter().find(|(holder, _)| *holder == id).map_or(0.0, |(_, part)| *part)
    }
}

/// Endpoints that suit a request and are compared for it: those in order of load, until none
/// that follows can win, and no more than this.
pub(super) const CONTENDERS_MAX: usize = 32;

impl<L> Fleet<L> {
    /// The node for a request for `model`, of those that have a free slot and suit it.
    pub fn pick(
        &self,
        model: &str,
        constraints: &RouteConstraints,
        choice: Choice<'_>,
    ) -> Option<EndpointId> {
        let open = self.index.of(model)?.open();
        let suits = |id: EndpointId| self.candidate(id, model, constraints, &choice);
        let candidates = match choice.policy {
            Policy::LeastConnections => {
                let held = choice.held.iter().filter_map(|(id, _)| suits(*id)).collect();
                contenders(held, open.map(|(rank, id)| (rank.share(), id)), suits)
            }
            _ => open.filter_map(|(_, id)| suits(id)).collect(),
        };
        choose(choice.policy, &candidates, choice.seed)
    }

    /// The same for a request that no endpoint suited after that change of the fleet.
    pub fn pick_since(
        &self,
        model: &str,
        constraints: &RouteConstraints,
        choice: Choice<'_>,
        change: u64,
    ) -> Option<EndpointId> {
        let changed = self.changes.since(change);
        let candidates = changed.filter_map(|id| self.candidate(id, model, constraints, &choice));
        choose(choice.policy, &candidates.collect::<Vec<_>>(), choice.seed)
    }

    /// The number of the last change by which an endpoint may suit requests that it did not suit
    /// before.
    pub fn last_change(&self) -> u64 {
        self.changes.last()
    }

    /// A node that could take a request now.
    fn candidate(
        &self,
        id: EndpointId,
        model: &str,
        constraints: &RouteConstraints,
        choice: &Choice<'_>,
    ) -> Option<Candidate<EndpointId>> {
        #[cfg(test)]
        self.looks.set(self.looks.get() + 1);
        let endpoint = self.endpoints.get(&id).filter(|e| e.has_free_slot())?;
        let suits = endpoint.external.is_none()
            && endpoint.suits(model, constraints)
            && !endpoint.has_failed(id, &constraints.tried);
        suits.then(|| endpoint.candidate(id, choice.held_by(id), choice.now))
    }
}

/// Of the endpoints that hold some of a prompt and those that are open, in order of their share of
/// busy slots, those that may be the least busy for it.
fn contenders(
    held: Vec<Candidate<EndpointId>>,
    open: impl Iterator<Item = (f64, EndpointId)>,
    suits: impl Fn(EndpointId) -> Option<Candidate<EndpointId>>,
) -> Vec<Candidate<EndpointId>> {
    let best = held.iter().map(Candidate::load).min_by(f64::total_cmp);
    let (mut best, mut all) = (best.unwrap_or(f64::INFINITY), held);
    let most = all.len() + CONTENDERS_MAX;
    for (share, id) in open {
        // What may still come only adds to the share.
        if share >= best || all.len() >= most {
            break;
        }
        if let Some(candidate) = suits(id) {
            best = best.min(candidate.load());
            all.push(candidate);
        }
    }
    all
}
