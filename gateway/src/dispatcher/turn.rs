//! A request's turn: what it was charged, until it is known what it used.

use std::sync::Arc;

use inference_protocol::fleet::ModelStatus;

use super::Dispatcher;
use crate::scheduler::charge::{ActualWork, Charge};

/// What a request was charged for its turn. Dropping it corrects that by what was done for the
/// request: nothing, until it has begun; from then on the estimate stands until more is known.
#[derive(Debug)]
pub struct Turn {
    pub(super) dispatcher: Dispatcher,
    pub(super) charge: Charge,
    pub(super) model: Arc<ModelStatus>,
    /// Absent: the estimate stands.
    pub(super) done: Option<ActualWork>,
}

impl Turn {
    /// The request is sent to an endpoint.
    pub(super) fn begins(mut self) -> Self {
        self.done = None;
        self
    }

    /// Notes what was done for the request.
    pub fn settle(&mut self, done: ActualWork) {
        self.done = Some(done);
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(done) = self.done {
            self.dispatcher.lock().scheduler.correct(&self.charge, &self.model, done);
        }
    }
}
