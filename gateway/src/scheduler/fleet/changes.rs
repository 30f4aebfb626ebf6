//! PURE. Which endpoints may suit a request now that did not a while ago: they got a free slot
//! since, serve something else, or have started their engine again.

use std::collections::BTreeMap;

use super::EndpointId;

/// Endpoints by their last change; each is here once at most.
#[derive(Debug, Default)]
pub(super) struct Changes {
    last: u64,
    by_number: BTreeMap<u64, EndpointId>,
}

impl Changes {
    /// An endpoint has changed, whose last change had that number; its new one. Numbers grow.
    pub(super) fn note(&mut self, id: EndpointId, before: u64) -> u64 {
        self.by_number.remove(&before);
        self.last += 1;
        self.by_number.insert(self.last, id);
        self.last
    }

    /// An endpoint is gone, whose last change had that number. That is a change too: where no node
    /// is left, external endpoints may serve what they did not before.
    pub(super) fn forget(&mut self, before: u64) {
        self.by_number.remove(&before);
        self.last += 1;
    }

    /// The number of the last change.
    pub(super) fn last(&self) -> u64 {
        self.last
    }

    /// Endpoints that have changed after that one.
    pub(super) fn since(&self, number: u64) -> impl Iterator<Item = EndpointId> {
        self.by_number.range(number.saturating_add(1)..).map(|(_, id)| *id)
    }
}
