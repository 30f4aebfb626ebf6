//! A request's charge, until its actual work is known.

use std::sync::Arc;

use inference_protocol::fleet::ModelStatus;

use super::Dispatcher;
use crate::scheduler::charge::{ActualWork, Charge};

/// The charge of a request. Dropping it corrects the charge by the work done: none until the
/// request is sent, and from then on the estimate until `settle` says more.
#[derive(Debug)]
pub struct ChargeGuard {
    pub(super) dispatcher: Dispatcher,
    pub(super) charge: Charge,
    pub(super) model: Arc<ModelStatus>,
    /// `None`: the estimate stands.
    pub(super) done: Option<ActualWork>,
}

impl ChargeGuard {
    /// Records that the request is being sent.
    pub(super) fn into_started(mut self) -> Self {
        self.done = None;
        self
    }

    /// Takes the charge for a further slot, if there is one: a request that has given up its slot
    /// waited for it as for its first one, and pays once.
    pub fn replace(charge: &mut Option<Self>, next: Option<Self>) {
        if let Some(next) = next
            && let Some(mut earlier) = charge.replace(next)
        {
            earlier.settle(ActualWork::Nothing);
        }
    }

    /// Sets the work done.
    pub fn settle(&mut self, done: ActualWork) {
        self.done = Some(done);
    }
}

impl Drop for ChargeGuard {
    fn drop(&mut self) {
        if let Some(done) = self.done {
            self.dispatcher.lock().scheduler.correct_charge(&self.charge, &self.model, done);
        }
    }
}
