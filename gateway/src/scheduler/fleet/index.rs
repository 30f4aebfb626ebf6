//! PURE. Indexes endpoints by model, and those with a free slot by rank, so that a choice among
//! thousands of nodes examines only a few.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use inference_protocol::fleet::ModelStatus;

use super::endpoint::{EndpointId, Rank};

/// The endpoints of one model.
#[derive(Debug, Default)]
pub(super) struct ModelEndpoints {
    all: BTreeSet<EndpointId>,
    open: BTreeSet<(Rank, EndpointId)>,
}

impl ModelEndpoints {
    /// All endpoints, ready or not.
    pub(super) fn all(&self) -> impl Iterator<Item = EndpointId> {
        self.all.iter().copied()
    }

    /// Endpoints with a free slot, best rank first.
    pub(super) fn open(&self) -> impl Iterator<Item = (Rank, EndpointId)> {
        self.open.iter().copied()
    }
}

/// Endpoints by model name.
#[derive(Debug, Default)]
pub(super) struct Index(HashMap<String, ModelEndpoints>);

impl Index {
    /// The endpoints of a model.
    pub(super) fn of(&self, model: &str) -> Option<&ModelEndpoints> {
        self.0.get(model)
    }

    /// True if an endpoint of the model has a free slot.
    pub(super) fn is_open(&self, model: &str) -> bool {
        self.of(model).is_some_and(|serving| !serving.open.is_empty())
    }

    /// True if any endpoint has a free slot.
    pub(super) fn is_any_open(&self) -> bool {
        self.0.values().any(|serving| !serving.open.is_empty())
    }

    /// True if another model is served.
    pub(super) fn has_others(&self, model: &str) -> bool {
        self.0.len() > usize::from(self.0.contains_key(model))
    }

    /// True if no model is served.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds an endpoint with its models and rank.
    pub(super) fn insert(&mut self, id: EndpointId, models: &[Arc<ModelStatus>], at: Option<Rank>) {
        for model in models {
            let serving = match self.0.get_mut(&model.id) {
                Some(serving) => serving,
                None => self.0.entry(model.id.clone()).or_default(),
            };
            serving.all.insert(id);
            serving.put(id, at);
        }
    }

    /// Removes an endpoint from these models.
    pub(super) fn remove(&mut self, id: EndpointId, models: &[Arc<ModelStatus>], at: Option<Rank>) {
        for model in models {
            let Some(serving) = self.0.get_mut(&model.id) else { continue };
            serving.take(id, at);
            serving.all.remove(&id);
            if serving.all.is_empty() {
                self.0.remove(&model.id);
            }
        }
    }

    /// Changes the rank of an endpoint.
    pub(super) fn change_rank(
        &mut self,
        id: EndpointId,
        models: &[Arc<ModelStatus>],
        from: Option<Rank>,
        to: Option<Rank>,
    ) {
        for model in models {
            let Some(serving) = self.0.get_mut(&model.id) else { continue };
            serving.take(id, from);
            serving.put(id, to);
        }
    }
}

impl ModelEndpoints {
    fn put(&mut self, id: EndpointId, at: Option<Rank>) {
        self.open.extend(at.map(|rank| (rank, id)));
    }

    fn take(&mut self, id: EndpointId, at: Option<Rank>) {
        if let Some(rank) = at {
            self.open.remove(&(rank, id));
        }
    }
}
