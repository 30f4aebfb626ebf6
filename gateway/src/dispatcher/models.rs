//! What the fleet serves.

use std::collections::BTreeMap;

use super::Dispatcher;
use crate::types::served_model::ServedModel;

impl Dispatcher {
    /// Version of the model list, and the served models.
    pub fn models(&self) -> (u64, BTreeMap<String, ServedModel>) {
        let core = self.lock();
        let fleet = &core.scheduler.fleet;
        (
            fleet.models_version(),
            fleet.models().map(|(id, model)| (id.to_string(), model)).collect(),
        )
    }

    /// True if a ready endpoint serves the model.
    pub(crate) fn serves(&self, model: &str) -> bool {
        self.lock().scheduler.fleet.serves(model)
    }

    /// Number of ready endpoints that serve a model, counted up to `most`.
    pub(crate) fn count_endpoints(&self, model: &str, most: usize) -> usize {
        self.lock().scheduler.fleet.paces(model).take(most).count()
    }

    /// The model, if only one is served of those that `is_allowed`.
    pub(crate) fn only_model(&self, is_allowed: impl Fn(&str) -> bool) -> Option<String> {
        let core = self.lock();
        let mut models = core.scheduler.fleet.models().filter(|(id, _)| is_allowed(id));
        match (models.next(), models.next()) {
            (Some((id, _)), None) => Some(id.to_string()),
            _ => None,
        }
    }

    /// Slots of all ready endpoints that serve a model.
    pub(crate) fn slots_of(&self, model: &str) -> u64 {
        self.lock().scheduler.fleet.slots_of(model)
    }

    /// Version of the model list; it changes whenever the list does.
    pub(crate) fn models_version(&self) -> u64 {
        self.lock().scheduler.fleet.models_version()
    }
}
