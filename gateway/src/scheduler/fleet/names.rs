//! PURE. Whose a name is: the names of nodes tell them apart, so each has one link.

use super::Fleet;

/// How a node came to us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// It dialed.
    Joined,
    /// We dialed it, because it is configured.
    Configured,
}

impl<L> Fleet<L> {
    /// Whether a node may not have this name, because another one has a link under it. A node that
    /// joins again, as its epoch shows, takes the place of its own old link. One that we dialed has
    /// no old link left: whoever has its name, if only by another address, keeps it.
    ///
    /// A link without a heartbeat leaves the fleet, and its name is free.
    pub fn is_name_taken(&self, name: &str, epoch: u64, origin: Origin) -> bool {
        let holder = self.names.get(name).and_then(|id| self.endpoints.get(id));
        holder.is_some_and(|holder| origin == Origin::Configured || holder.status.epoch != epoch)
    }
}
