//! PURE. Nodes that get nothing new, because the operator says so.

use std::collections::BTreeSet;

use super::{EndpointId, Fleet};

/// Names that are kept; those of nodes that were linked once.
const NAMES_MAX: usize = 100_000;

/// Names of nodes that are cordoned. A node that comes back is still cordoned.
#[derive(Debug, Default)]
pub struct Cordon(BTreeSet<String>);

impl Cordon {
    /// Whether a node of that name gets nothing new.
    pub fn holds(&self, node: &str) -> bool {
        self.0.contains(node)
    }
}

impl<L> Fleet<L> {
    /// Names of nodes that are cordoned, linked or not.
    pub fn cordoned(&self) -> &BTreeSet<String> {
        &self.cordon.0
    }

    /// Nodes that were cordoned before there was a fleet.
    pub fn expect_cordoned(&mut self, names: BTreeSet<String>) {
        self.cordon.0.extend(names.into_iter().take(NAMES_MAX));
    }

    /// Sends a node nothing new, until [`Fleet::uncordon`]. `None`: there is none of that name.
    pub fn cordon(&mut self, node: &str) -> Option<EndpointId> {
        let id = *self.names.get(node)?;
        if self.cordon.0.len() < NAMES_MAX {
            self.cordon.0.insert(node.to_string());
        }
        self.retire(id);
        Some(id)
    }

    /// Sends a node requests again; one that is not linked may come back. Renews its link with
    /// `renew`. False: there is none of that name, and none was cordoned.
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

    /// Sends nothing new over this link.
    pub fn retire(&mut self, id: EndpointId) {
        if let Some(endpoint) = self.endpoints.get_mut(&id) {
            endpoint.is_cordoned = true;
        }
        self.reindex(id);
    }
}
