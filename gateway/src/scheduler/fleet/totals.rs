//! PURE. Running totals over all endpoints, and the models that ready endpoints serve. They are
//! updated with every change, so reading them costs the same for any fleet size.

use std::collections::BTreeMap;
use std::sync::Arc;

use inference_protocol::fleet::ModelStatus;

use super::Endpoint;

/// Totals over all endpoints.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Linked nodes.
    pub nodes: usize,
    /// Ready nodes.
    pub ready: usize,
    /// Ejected nodes.
    pub ejected: usize,
    /// Slots of ready nodes.
    pub slots: u32,
    /// Busy slots of ready nodes.
    pub busy: u32,
    /// Slots that we hold on any endpoint.
    pub leases: u32,
    /// Ready external endpoints.
    pub externals: usize,
}

/// Contribution of one endpoint to the totals.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Contribution {
    is_external: bool,
    is_ready: bool,
    is_out: bool,
    slots: u32,
    busy: u32,
    leases: u32,
}

impl Contribution {
    pub(super) fn of<L>(endpoint: &Endpoint<L>) -> Self {
        Self {
            is_external: endpoint.external.is_some(),
            is_ready: endpoint.is_ready(),
            is_out: endpoint.health.is_ejected(),
            slots: endpoint.status.slots,
            busy: endpoint.busy(),
            leases: endpoint.leases(),
        }
    }
}

/// The running totals. Nodes can report any number of slots, so the sums are 64 bits wide.
#[derive(Debug, Default)]
pub(super) struct RunningTotals {
    nodes: usize,
    ready: usize,
    ejected: usize,
    slots: u64,
    busy: u64,
    leases: u64,
    externals: usize,
    /// Load times of each model (Unix seconds), with the number of endpoints.
    models: BTreeMap<String, BTreeMap<u64, usize>>,
    version: u64,
}

impl RunningTotals {
    pub(super) fn add(&mut self, part: Contribution) {
        self.leases += u64::from(part.leases);
        if part.is_external {
            self.externals += usize::from(part.is_ready);
            return;
        }
        self.nodes += 1;
        self.ejected += usize::from(part.is_out);
        if part.is_ready {
            self.ready += 1;
            self.slots += u64::from(part.slots);
            self.busy += u64::from(part.busy);
        }
    }

    /// Removes a contribution that [`RunningTotals::add`] added before.
    pub(super) fn subtract(&mut self, part: Contribution) {
        self.leases -= u64::from(part.leases);
        if part.is_external {
            self.externals -= usize::from(part.is_ready);
            return;
        }
        self.nodes -= 1;
        self.ejected -= usize::from(part.is_out);
        if part.is_ready {
            self.ready -= 1;
            self.slots -= u64::from(part.slots);
            self.busy -= u64::from(part.busy);
        }
    }

    /// Adds the models of a ready endpoint.
    pub(super) fn add_models(&mut self, models: &[Arc<ModelStatus>]) {
        for model in models {
            let first = self.created(&model.id);
            let loaded = self.models.entry(model.id.clone()).or_default();
            *loaded.entry(model.created).or_default() += 1;
            self.version += u64::from(self.created(&model.id) != first);
        }
    }

    /// Removes models added by [`RunningTotals::add_models`].
    pub(super) fn remove_models(&mut self, models: &[Arc<ModelStatus>]) {
        for model in models {
            let first = self.created(&model.id);
            let Some(loaded) = self.models.get_mut(&model.id) else { continue };
            if let Some(count) = loaded.get_mut(&model.created) {
                *count -= 1;
                if *count == 0 {
                    loaded.remove(&model.created);
                }
            }
            if loaded.is_empty() {
                self.models.remove(&model.id);
            }
            self.version += u64::from(self.created(&model.id) != first);
        }
    }

    fn created(&self, model: &str) -> Option<u64> {
        self.models.get(model)?.keys().next().copied()
    }

    /// Models of ready endpoints, by name, and when each was first loaded.
    pub(super) fn models(&self) -> impl Iterator<Item = (&str, u64)> {
        let first = |loaded: &BTreeMap<u64, usize>| loaded.keys().next().copied();
        self.models.iter().filter_map(move |(name, loaded)| Some((name.as_str(), first(loaded)?)))
    }

    /// Changes whenever the models do.
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    pub(super) fn totals(&self) -> Totals {
        let few = |sum: u64| u32::try_from(sum).unwrap_or(u32::MAX);
        Totals {
            nodes: self.nodes,
            ready: self.ready,
            ejected: self.ejected,
            slots: few(self.slots),
            busy: few(self.busy),
            leases: few(self.leases),
            externals: self.externals,
        }
    }
}
