//! PURE. Where conversations go whose node has left and has handed over what it had cached.

use super::Scheduler;
use crate::scheduler::fleet::EndpointId;

impl<L> Scheduler<L> {
    /// Records that a node has from now on what a leaving one had cached. Does nothing if no node
    /// has this name.
    pub(crate) fn inherit_prefixes(&mut self, leaving: EndpointId, heir: &str) {
        if let Some(heir) = self.fleet.id_of(heir).filter(|heir| *heir != leaving) {
            self.prefixes.inherit(leaving, heir);
        }
    }
}
