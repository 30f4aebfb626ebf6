//! PURE. Which endpoints serve a model, and which of them have a free slot, in order: among
//! thousands of nodes a choice looks at a few.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use inference_protocol::fleet::ModelStatus;

use super::endpoint::{EndpointId, Rank};

/// The endpoints of one model.
#[derive(Debug, Default)]
pub struct Serving {
    all: BTreeSet<EndpointId>,
    open: BTreeSet<(Rank, EndpointId)>,
}

impl Serving {
    /// All of them, ready or not.
    pub fn all(&self) -> impl Iterator<Item = EndpointId> {
        self.all.iter().copied()
    }

    /// Those with a free slot, the first to be chosen first.
    pub fn open(&self) -> impl Iterator<Item = (Rank, EndpointId)> {
        self.open.iter().copied()
    }
}

/// By the models' names.
#[derive(Debug, Default)]
pub struct Index(HashMap<String, Serving>);

impl Index {
    /// The endpoints of a model.
    pub fn of(&self, model: &str) -> Option<&Serving> {
        self.0.get(model)
    }

    /// Whether an endpoint of a model has a free slot.
    pub fn is_open(&self, model: &str) -> bool {
        self.of(model).is_some_and(|serving| !serving.open.is_empty())
    }

    /// Whether any has.
    pub fn is_any_open(&self) -> bool {
        self.0.values().any(|serving| !serving.open.is_empty())
    }

    /// Whether another model is served.
    pub fn has_others(&self, model: &str) -> bool {
        self.0.len() > usize::from(self.0.contains_key(model))
    }

    /// Whether no endpoint serves anything.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// An endpoint serves these models now, and stands where it stood.
    pub fn insert(&mut self, id: EndpointId, models: &[Arc<ModelStatus>], at: Option<Rank>) {
        for model in models {
            let serving = match self.0.get_mut(&model.id) {
                Some(serving) => serving,
                None => self.0.entry(model.id.clone()).or_default(),
            };
            serving.all.insert(id);
            serving.put(id, at);
        }
    }

    /// An endpoint serves these models no more.
    pub fn remove(&mut self, id: EndpointId, models: &[Arc<ModelStatus>], at: Option<Rank>) {
        for model in models {
            let Some(serving) = self.0.get_mut(&model.id) else { continue };
            serving.take(id, at);
            serving.all.remove(&id);
            if serving.all.is_empty() {
                self.0.remove(&model.id);
            }
        }
    }

    /// An endpoint stands elsewhere.
    pub fn shift(
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

impl Serving {
    fn put(&mut self, id: EndpointId, at: Option<Rank>) {
        self.open.extend(at.map(|rank| (rank, id)));
    }

    fn take(&mut self, id: EndpointId, at: Option<Rank>) {
        if let Some(rank) = at {
            self.open.remove(&(rank, id));
        }
    }
}
