//! Who gets the saved prefixes of a leaving node.

use std::sync::Arc;

use super::Dispatcher;
use crate::scheduler::fleet::EndpointId;
use crate::upstream::Upstream;

/// The node that shall have the saved prefixes of another one.
#[derive(Debug, Clone)]
pub(crate) struct Heir {
    /// Its name.
    pub name: Arc<str>,
    /// Its link.
    pub upstream: Upstream,
    /// Prompt tokens per second, as it or the leaving node last measured.
    pub prefill_rate: Option<f32>,
}

impl Dispatcher {
    /// The node that can use what a leaving one has saved, if there is one.
    pub(crate) fn heir_of(&self, leaving: EndpointId) -> Option<Heir> {
        let core = self.lock();
        let fleet = &core.scheduler.fleet;
        let (_, heir) = fleet.heir_of(leaving)?;
        let own = heir.status.prefill_tokens_per_second;
        let others = || fleet.endpoint(leaving)?.status.prefill_tokens_per_second;
        Some(Heir {
            name: heir.name.clone(),
            upstream: heir.link.clone(),
            prefill_rate: own.or_else(others),
        })
    }

    /// Records that a node has from now on what a leaving one had cached.
    pub(crate) fn inherit_prefixes(&self, leaving: EndpointId, heir: &str) {
        self.lock().scheduler.inherit_prefixes(leaving, heir);
    }
}
