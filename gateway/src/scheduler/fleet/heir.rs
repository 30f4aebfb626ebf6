//! PURE. Which node can use the saved prefixes of a leaving one.

use super::{Endpoint, EndpointId, Fleet};

impl<L> Fleet<L> {
    /// The node that shall have what `leaving` has saved: the least busy one whose engine computes
    /// the same, which its key says.
    pub(crate) fn heir_of(&self, leaving: EndpointId) -> Option<(EndpointId, &Endpoint<L>)> {
        let key = &self.endpoints.get(&leaving)?.status.prefixes.as_ref()?.key;
        let takes = |node: &Endpoint<L>| {
            let saved = node.status.prefixes.as_ref();
            let is_well = node.is_ready() && !node.is_cordoned && !node.health.is_ejected();
            is_well && saved.is_some_and(|saved| saved.key == *key)
        };
        let others = self.endpoints.iter().filter(|(id, node)| **id != leaving && takes(node));
        let busy =
            |node: &Endpoint<L>| (node.busy() * 1024 / node.status.slots.max(1), node.leases);
        others.min_by_key(|(_, node)| busy(node)).map(|(id, node)| (*id, node))
    }
}

#[cfg(test)]
mod tests {
    use inference_protocol::fleet::{NodeState, NodeStatus, PrefixStatus};

    use super::super::tests::{NOW, ready, status};
    use super::*;

    fn saving(mut status: NodeStatus, key: &str) -> NodeStatus {
        status.prefixes = Some(PrefixStatus { key: key.into(), ..PrefixStatus::default() });
        status
    }

    #[test]
    fn the_heir_is_the_least_busy_ready_node_that_computes_the_same() {
        let mut fleet = Fleet::default();
        let add = |fleet: &mut Fleet<_>, status| fleet.add("link", status, NOW).0;
        let leaving = add(&mut fleet, saving(status("a", NodeState::Draining, 2), "k"));
        assert!(fleet.heir_of(leaving).is_none(), "it is alone");
        add(&mut fleet, saving(ready("other engine"), "other"));
        add(&mut fleet, ready("saves nothing"));
        add(&mut fleet, saving(status("loads", NodeState::Loading, 2), "k"));
        add(&mut fleet, saving(ready("cordoned"), "k"));
        fleet.cordon("cordoned");
        assert!(fleet.heir_of(leaving).is_none());
        let busy = add(&mut fleet, saving(ready("busy"), "k"));
        fleet.claim(busy);
        assert_eq!(fleet.heir_of(leaving).unwrap().0, busy);
        let idle = add(&mut fleet, saving(ready("idle"), "k"));
        assert_eq!(fleet.heir_of(leaving).unwrap().0, idle);
        assert!(fleet.heir_of(0).is_none(), "it is gone");
    }
}
