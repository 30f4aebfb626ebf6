//! PURE. Sums over all endpoints, and the models that ready ones serve. Both change with the
//! endpoints: who only looks costs nothing that grows with the fleet.

use std::collections::BTreeMap;
use std::sync::Arc;

use inference_protocol::fleet::ModelStatus;

use super::Endpoint;

/// Sums over all nodes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Nodes with a link.
    pub nodes: usize,
    /// Of those, ready.
    pub ready: usize,
    /// Of those, without requests for a while, because they failed.
    pub ejected: usize,
    /// Slots of the ready ones.
    pub slots: u32,
    /// Busy ones of those.
    pub busy: u32,
    /// Slots that we hold, anywhere.
    pub leases: u32,
    /// External endpoints that are ready.
    pub externals: usize,
}

/// What one endpoint adds to the sums.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Part {
    is_external: bool,
    is_ready: bool,
    is_out: bool,
    slots: u32,
    busy: u32,
    leases: u32,
}

impl Part {
    pub(super) fn of<L>(endpoint: &Endpoint<L>) -> Self {
        Self {
            is_external: endpoint.external.is_some(),
            is_ready: endpoint.is_ready(),
            is_out: endpoint.health.is_out(),
            slots: endpoint.status.slots,
            busy: endpoint.busy(),
            leases: endpoint.leases(),
        }
    }
}

/// See the module. What nodes say of slots is theirs: sums of it have room for any number.
#[derive(Debug, Default)]
pub(super) struct Figures {
    nodes: usize,
    ready: usize,
    ejected: usize,
    slots: u64,
    busy: u64,
    leases: u64,
    externals: usize,
    /// When each model was loaded, and at how many endpoints then.
    models: BTreeMap<String, BTreeMap<u64, usize>>,
    version: u64,
}

impl Figures {
    pub(super) fn add(&mut self, part: Part) {
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

    /// Takes off what [`Figures::add`] was called with before.
    pub(super) fn subtract(&mut self, part: Part) {
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

    /// A ready endpoint serves these models.
    pub(super) fn list(&mut self, models: &[Arc<ModelStatus>]) {
        for model in models {
            let first = self.created(&model.id);
            let loaded = self.models.entry(model.id.clone()).or_default();
            *loaded.entry(model.created).or_default() += 1;
            self.version += u64::from(self.created(&model.id) != first);
        }
    }

    /// It does not any more.
    pub(super) fn unlist(&mut self, models: &[Arc<ModelStatus>]) {
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

    /// Models of ready endpoints and when they were loaded first, by name.
    pub(super) fn models(&self) -> impl Iterator<Item = (&str, u64)> {
        let first = |loaded: &BTreeMap<u64, usize>| loaded.keys().next().copied();
        self.models.iter().filter_map(move |(name, loaded)| Some((name.as_str(), first(loaded)?)))
    }

    /// Another number whenever the models are others.
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
