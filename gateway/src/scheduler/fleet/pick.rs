//! PURE. Picks the node for a request.

use std::time::Duration;

use super::{EndpointId, Fleet, RouteConstraints};
use crate::scheduler::routing::{Candidate, Policy, choose};

/// Inputs of a choice besides the state of the endpoints.
#[derive(Debug, Clone, Copy)]
pub struct RoutingInputs<'a> {
    /// The routing policy.
    pub policy: Policy,
    /// Endpoints that have part of the prompt cached, with the share (0 to 1).
    pub cached: &'a [(EndpointId, f64)],
    /// The current time.
    pub now: Duration,
    /// Seed for breaking ties.
    pub seed: u64,
}

impl RoutingInputs<'_> {
    pub(super) fn cached_share(&self, id: EndpointId) -> f64 {
        self.cached.iter().find(|(holder, _)| *holder == id).map_or(0.0, |(_, part)| *part)
    }
}

/// Most open endpoints that are compared for a request. They are visited in order of load, until
/// none that follows can win.
pub(super) const CONTENDERS_MAX: usize = 32;

impl<L> Fleet<L> {
    /// Picks a node with a free slot that serves `model` and meets the constraints.
    pub fn pick(
        &self,
        model: &str,
        constraints: &RouteConstraints,
        inputs: RoutingInputs<'_>,
    ) -> Option<EndpointId> {
        let open = self.index.of(model)?.open();
        let suits = |id: EndpointId| self.candidate(id, model, constraints, &inputs);
        let candidates = match inputs.policy {
            Policy::LeastConnections => {
                let cached = inputs.cached.iter().filter_map(|(id, _)| suits(*id)).collect();
                contenders(cached, open.map(|(rank, id)| (rank.share(), id)), suits)
            }
            _ => open.filter_map(|(_, id)| suits(id)).collect(),
        };
        choose(inputs.policy, &candidates, inputs.seed)
    }

    /// Like [`Fleet::pick`], for a request that no endpoint suited as of `change`.
    pub(crate) fn pick_since(
        &self,
        model: &str,
        constraints: &RouteConstraints,
        inputs: RoutingInputs<'_>,
        change: u64,
    ) -> Option<EndpointId> {
        let changed = self.changes.since(change);
        let candidates = changed.filter_map(|id| self.candidate(id, model, constraints, &inputs));
        choose(inputs.policy, &candidates.collect::<Vec<_>>(), inputs.seed)
    }

    /// The number of the last change after which an endpoint may suit requests that it did not suit
    /// before.
    pub(crate) fn last_change(&self) -> u64 {
        self.changes.last()
    }

    /// The endpoint as a candidate, if it can take the request now.
    fn candidate(
        &self,
        id: EndpointId,
        model: &str,
        constraints: &RouteConstraints,
        inputs: &RoutingInputs<'_>,
    ) -> Option<Candidate<EndpointId>> {
        #[cfg(test)]
        self.looks.set(self.looks.get() + 1);
        let endpoint = self.endpoints.get(&id).filter(|e| e.has_free_slot())?;
        let suits = endpoint.external.is_none()
            && endpoint.can_serve(model, constraints)
            && !endpoint.has_failed(id, &constraints.tried);
        suits.then(|| endpoint.candidate(id, inputs.cached_share(id), inputs.now))
    }
}

/// Candidates for the least load: endpoints that have part of the prompt cached, and open endpoints
/// in order of their share of busy slots.
fn contenders(
    cached: Vec<Candidate<EndpointId>>,
    open: impl Iterator<Item = (f64, EndpointId)>,
    suits: impl Fn(EndpointId) -> Option<Candidate<EndpointId>>,
) -> Vec<Candidate<EndpointId>> {
    let best = cached.iter().map(Candidate::load).min_by(f64::total_cmp);
    let (mut best, mut all) = (best.unwrap_or(f64::INFINITY), cached);
    let most = all.len() + CONTENDERS_MAX;
    for (share, id) in open {
        // Endpoints further on have at least this share, and nothing lowers it.
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
