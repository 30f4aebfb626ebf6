//! What the fleet serves.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use inference_protocol::fleet::ModelStatus;

use super::Dispatcher;
use crate::scheduler::SlotRequest;
use crate::scheduler::fleet::Availability;
use crate::types::error::Error;
use crate::types::external::ExternalPolicy;
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

    /// Checks that an endpoint serves the model, or did so recently.
    ///
    /// # Errors
    /// Nobody serves it, or there are no nodes.
    pub(crate) fn check_available(
        &self,
        model: &str,
        external: ExternalPolicy,
    ) -> Result<(), Error> {
        match self.lock().scheduler.fleet.availability(model, external, self.now()) {
            Availability::Served => Ok(()),
            Availability::UnknownModel => Err(Error::UnknownModel(model.into())),
            Availability::NoNode => Err(Error::NoNode),
        }
    }

    /// The model file that most ready endpoints of a model serve, with the smallest context, and
    /// the number of these endpoints.
    pub(crate) fn commonest_file(&self, model: &str) -> Option<(Arc<ModelStatus>, usize)> {
        let core = self.lock();
        let mut files: BTreeMap<&str, (&Arc<ModelStatus>, usize)> = BTreeMap::new();
        for served in core.scheduler.fleet.served_as(model) {
            let (smallest, count) = files.entry(&served.digest).or_insert((served, 0));
            *count += 1;
            if served.context_tokens < smallest.context_tokens {
                *smallest = served;
            }
        }
        let (file, count) = files.into_values().max_by_key(|(_, count)| *count)?;
        Some((file.clone(), count))
    }

    /// The largest context of the ready endpoints of a model, in tokens; `None` if none tells it.
    pub(crate) fn context_tokens(&self, model: &str) -> Option<u32> {
        let core = self.lock();
        let served = core.scheduler.fleet.served_as(model);
        served.map(|served| served.context_tokens).max().filter(|tokens| *tokens > 0)
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

    /// How many slots of a model batches may take now. `are_preemptible`: more urgent requests can
    /// take them. `None` if nothing serves it.
    pub(crate) fn spare_slots(&self, model: &str, are_preemptible: bool) -> Option<u64> {
        let now = self.now();
        self.lock().scheduler.spare_slots(model, are_preemptible, now)
    }

    /// How long a request would wait for a slot now, if that can be predicted.
    pub(crate) fn predicted_wait(&self, request: &SlotRequest<'_>) -> Option<Duration> {
        let now = self.now();
        self.lock().scheduler.predicted_wait(request, now)
    }

    /// Version of the model list; it changes whenever the list does.
    pub(crate) fn models_version(&self) -> u64 {
        self.lock().scheduler.fleet.models_version()
    }
}
