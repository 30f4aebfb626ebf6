//! PURE. Tracks which endpoints may suit requests that they did not suit before: they got a free
//! slot, serve other models, or restarted their engine.

use std::collections::BTreeMap;

use super::EndpointId;

/// Endpoints by their last change; each appears at most once.
#[derive(Debug, Default)]
pub(super) struct Changes {
    last: u64,
    by_number: BTreeMap<u64, EndpointId>,
}

impl Changes {
    /// Records a change of an endpoint whose last change was number `before`. Returns the new
    /// number; numbers grow.
    pub(super) fn record(&mut self, id: EndpointId, before: u64) -> u64 {
        self.by_number.remove(&before);
        self.last += 1;
        self.by_number.insert(self.last, id);
        self.last
    }

    /// Removes an endpoint whose last change was number `before`. That is a change too: with the
    /// last node gone, external endpoints may serve requests that they did not serve before.
    pub(super) fn remove(&mut self, before: u64) {
        self.by_number.remove(&before);
        self.last += 1;
    }

    /// The number of the last change.
    pub(super) fn last(&self) -> u64 {
        self.last
    }

    /// Endpoints that changed after `number`.
    pub(super) fn since(&self, number: u64) -> impl Iterator<Item = EndpointId> {
        self.by_number.range(number.saturating_add(1)..).map(|(_, id)| *id)
    }
}
