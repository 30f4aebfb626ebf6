//! PURE. Cordoned nodes, which get no new requests because an operator said so.

use std::collections::BTreeSet;

use super::{EndpointId, Fleet};

/// Most names kept, of nodes that were linked at some time.
const NAMES_MAX: usize = 100_000;

/// Names of cordoned nodes. A node that reconnects stays cordoned.
#[derive(Debug, Default)]
pub(super) struct Cordon(BTreeSet<String>);

impl Cordon {
    /// True if the node is cordoned.
    pub(super) fn contains(&self, node: &str) -> bool {
        self.0.contains(node)
    }
}

impl<L> Fleet<L> {
    /// Names of cordoned nodes, linked or not.
    pub fn cordoned(&self) -> &BTreeSet<String> {
        &self.cordon.0
    }

    /// Adds names of nodes that need not be linked yet.
    pub(crate) fn restore_cordoned(&mut self, names: BTreeSet<String>) {
        let room = NAMES_MAX.saturating_sub(self.cordon.0.len());
        self.cordon.0.extend(names.into_iter().take(room));
    }

    /// Cordons a node until [`Fleet::uncordon`]. `None` if no node has this name.
    pub fn cordon(&mut self, node: &str) -> Option<EndpointId> {
        let id = *self.names.get(node)?;
        if self.cordon.0.len() < NAMES_MAX {
            self.cordon.0.insert(node.to_string());
        }
        self.retire(id);
        Some(id)
    }

    /// Uncordons a node; it need not be linked. Renews its link with `renew`. Returns false if no
    /// such node is linked or cordoned.
    pub fn uncordon(&mut self, node: &str, renew: impl FnOnce(&mut L)) -> bool {
        let was_cordoned = self.cordon.0.remove(node);
        let Some(id) = self.names.get(node).copied() else { return was_cordoned };
        if let Some(endpoint) = self.endpoints.get_mut(&id) {
            endpoint.is_cordoned = false;
            renew(&mut endpoint.link);
        }
        self.reindex(id);
        true
    }

    /// Stops sending new requests over this link.
    pub(crate) fn retire(&mut self, id: EndpointId) {
        if let Some(endpoint) = self.endpoints.get_mut(&id) {
            endpoint.is_cordoned = true;
        }
        self.reindex(id);
    }
}
