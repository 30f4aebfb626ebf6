//! PURE. Text queries take no slot: a node answers them between the steps of its responses, with
//! its tokenizer or its chat template alone.

use std::time::Duration;

use super::{AttemptOutcome, EndpointId, Fleet, RouteConstraints};

/// Most text queries at a time on a node. More have to wait for a slot.
pub(super) const QUERIES_MAX: u32 = 8;

impl<L> Fleet<L> {
    /// True if a slot of an endpoint would suit a request once it is free.
    pub(crate) fn suits(
        &self,
        id: EndpointId,
        model: &str,
        constraints: &RouteConstraints,
    ) -> bool {
        self.endpoints.get(&id).is_some_and(|endpoint| {
            endpoint.is_ready()
                && !endpoint.health.is_ejected()
                && endpoint.busy() <= endpoint.status.slots
                && endpoint.can_serve(model, constraints)
                && !endpoint.has_failed(id, &constraints.tried)
        })
    }

    /// The node with the fewest text queries that can answer one more.
    pub(crate) fn pick_query(
        &self,
        model: &str,
        constraints: &RouteConstraints,
    ) -> Option<EndpointId> {
        let nodes = self.endpoints_of(model).filter(|(id, node)| {
            node.external.is_none()
                && node.is_ready()
                && !node.health.is_ejected()
                && node.queries < QUERIES_MAX
                && node.can_serve(model, constraints)
                && !node.has_failed(*id, &constraints.tried)
        });
        nodes.min_by_key(|(_, node)| (node.queries, node.busy())).map(|(id, _)| id)
    }

    /// Adds a text query to a node.
    pub(crate) fn claim_query(&mut self, id: EndpointId) {
        if let Some(node) = self.endpoints.get_mut(&id) {
            node.queries += 1;
        }
    }

    /// Removes a text query from a node, and records the outcome.
    pub(crate) fn release_query(&mut self, id: EndpointId, outcome: AttemptOutcome, now: Duration) {
        if let Some(node) = self.endpoints.get_mut(&id) {
            node.queries = node.queries.saturating_sub(1);
            self.record_outcome(id, outcome, now);
            self.reindex(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{NOW, ready, status};
    use super::*;
    use inference_protocol::fleet::NodeState;

    #[test]
    fn queries_spread_over_nodes_whose_slots_are_busy_and_have_a_bound() {
        let mut fleet = Fleet::default();
        let (a, _) = fleet.add("a", status("a", NodeState::Ready, 2), NOW);
        let (b, _) = fleet.add("b", ready("b"), NOW);
        let (_, _) = fleet.add("c", status("c", NodeState::Restarting, 0), NOW);
        let constraints = RouteConstraints::default();
        let mut picked = Vec::new();
        while let Some(id) = fleet.pick_query("m", &constraints) {
            fleet.claim_query(id);
            picked.push(id);
        }
        let count = |node| picked.iter().filter(|id| **id == node).count();
        assert_eq!((picked.len(), count(a), count(b)), (16, 8, 8));
        assert!(fleet.is_open("m"), "no slot is taken");
        assert!(!fleet.endpoint(a).unwrap().is_idle());
        (0..8).for_each(|_| fleet.release_query(a, AttemptOutcome::Answered, NOW));
        assert!(fleet.endpoint(a).unwrap().is_idle());
        assert_eq!(fleet.pick_query("m", &constraints), Some(a));
        assert_eq!(fleet.pick_query("other", &constraints), None);
        // Failures count as those of any request.
        (0..8).for_each(|_| fleet.release_query(b, AttemptOutcome::Failed, NOW));
        assert!(!fleet.is_open("m"), "the node is ejected");
    }
}
