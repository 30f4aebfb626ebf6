//! PURE. Running totals over all endpoints, and the models that ready endpoints serve. They are
//! updated with every change, so reading them costs the same for any fleet size.

use std::collections::BTreeMap;
use std::sync::Arc;

use inference_protocol::fleet::ModelStatus;

use super::Endpoint;
use crate::types::served_model::ServedModel;

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

/// The endpoints of a model: how many have each load time, and each context.
#[derive(Debug, Default)]
struct Loaded {
    created: BTreeMap<u64, usize>,
    contexts: BTreeMap<u32, usize>,
}

impl Loaded {
    fn add(&mut self, model: &ModelStatus) {
        *self.created.entry(model.created).or_default() += 1;
        *self.contexts.entry(model.context_tokens).or_default() += 1;
    }

    fn remove(&mut self, model: &ModelStatus) {
        remove_one(&mut self.created, model.created);
        remove_one(&mut self.contexts, model.context_tokens);
    }

    /// `None` without endpoints.
    fn served(&self) -> Option<ServedModel> {
        let (created, context) = (self.created.keys().next()?, self.contexts.keys().next()?);
        Some(ServedModel { created: *created, context_tokens: *context })
    }
}

fn remove_one<K: Ord>(counts: &mut BTreeMap<K, usize>, key: K) {
    if let Some(count) = counts.get_mut(&key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&key);
        }
    }
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
    models: BTreeMap<String, Loaded>,
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
            let before = self.served(&model.id);
            self.models.entry(model.id.clone()).or_default().add(model);
            self.version += u64::from(self.served(&model.id) != before);
        }
    }

    /// Removes models added by [`RunningTotals::add_models`].
    pub(super) fn remove_models(&mut self, models: &[Arc<ModelStatus>]) {
        for model in models {
            let before = self.served(&model.id);
            let Some(loaded) = self.models.get_mut(&model.id) else { continue };
            loaded.remove(model);
            if loaded.served().is_none() {
                self.models.remove(&model.id);
            }
            self.version += u64::from(self.served(&model.id) != before);
        }
    }

    fn served(&self, model: &str) -> Option<ServedModel> {
        self.models.get(model)?.served()
    }

    /// Models of ready endpoints, by name.
    pub(super) fn models(&self) -> impl Iterator<Item = (&str, ServedModel)> {
        self.models.iter().filter_map(|(name, loaded)| Some((name.as_str(), loaded.served()?)))
    }

    /// True if a ready endpoint serves the model.
    pub(super) fn serves(&self, model: &str) -> bool {
        self.models.get(model).is_some_and(|loaded| loaded.served().is_some())
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
