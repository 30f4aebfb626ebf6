//! PURE. Decides who may use a node name. Names identify nodes, so each name has one link.

use super::{EndpointId, Fleet};

/// How a node was linked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeOrigin {
    /// The node dialed the gateway.
    Joined,
    /// The gateway dialed the node, because it is configured.
    Configured,
}

impl<L> Fleet<L> {
    /// The link of the node with this name.
    pub(crate) fn id_of(&self, name: &str) -> Option<EndpointId> {
        self.names.get(name).copied()
    }

    /// True if a node may not use this name because another node has a link under it. A node that
    /// joins again, recognized by its epoch, replaces its own old link. A node that we dialed has
    /// no old link left, so whichever node has the name keeps it, even if it is the same node at
    /// another address.
    ///
    /// A link without a heartbeat is removed from the fleet, which frees the name.
    pub(crate) fn is_name_taken(&self, name: &str, epoch: u64, origin: NodeOrigin) -> bool {
        let holder = self.names.get(name).and_then(|id| self.endpoints.get(id));
        holder
            .is_some_and(|holder| origin == NodeOrigin::Configured || holder.status.epoch != epoch)
    }
}
