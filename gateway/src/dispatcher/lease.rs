//! A claimed slot.

use std::sync::Arc;
use std::time::Duration;

use inference_protocol::fleet::ModelStatus;
use inference_protocol::resume::Usage;

use super::{Dispatcher, Turn};
use crate::scheduler::cost::Size;
use crate::scheduler::fleet::{EngineId, Outcome, Terms};
use crate::scheduler::{Binding, Used};
use crate::upstream::Upstream;

/// A claimed slot of a node. Dropping it gives the slot back.
#[derive(Debug)]
pub struct Lease {
    pub(super) dispatcher: Dispatcher,
    pub(super) binding: Binding,
    pub(super) engine_restarts: u64,
    pub(super) node: Arc<str>,
    pub(super) upstream: Upstream,
    pub(super) terms: Option<Terms>,
    pub(super) outcome: Outcome,
    /// When its first token came.
    pub(super) first: Option<Duration>,
    pub(super) used: Option<(Size, Used)>,
    /// What its request was charged, until that begins.
    pub(super) turn: Option<Turn>,
}

impl Lease {
    /// The engine behind it.
    pub fn engine(&self) -> EngineId {
        EngineId { endpoint: self.binding.endpoint, engine_restarts: self.engine_restarts }
    }

    /// The node's name.
    pub fn node(&self) -> &str {
        &self.node
    }

    /// The same, to keep.
    pub fn name(&self) -> Arc<str> {
        self.node.clone()
    }

    /// What it serves.
    pub fn model(&self) -> &Arc<ModelStatus> {
        &self.binding.model
    }

    /// How to send to it.
    pub fn upstream(&self) -> &Upstream {
        &self.upstream
    }

    /// Its terms, if it is no node of ours.
    pub fn terms(&self) -> Option<Terms> {
        self.terms
    }

    /// The request is sent there; what it was charged, if this is its first slot.
    pub fn begins(&mut self) -> Option<Turn> {
        self.turn.take().map(Turn::begins)
    }

    /// Whether its endpoint has more to do than slots, with this one.
    pub fn is_beyond_slots(&self) -> bool {
        let core = self.dispatcher.lock();
        let endpoint = core.scheduler.fleet.endpoint(self.binding.endpoint);
        endpoint.is_some_and(|endpoint| endpoint.busy() > endpoint.status.slots)
    }

    /// How what was sent there ended.
    pub fn ends(&mut self, outcome: Outcome) {
        self.outcome = outcome;
    }

    /// Its first token has come.
    pub fn speaks(&mut self) {
        self.first.get_or_insert_with(|| self.dispatcher.now());
    }

    /// A request of that size was answered here from its beginning to its end, and used that.
    pub fn used(&mut self, size: Size, usage: Usage, answers: usize) {
        self.used = Some((size, Used { usage, answers, first: self.first }));
    }

    /// It has reported tokens that it cannot have used.
    pub fn record_misreport(&mut self) {
        let is_first =
            self.dispatcher.lock().scheduler.fleet.record_misreport(self.binding.endpoint);
        if is_first {
            tracing::warn!(
                node = &*self.node,
                "node reports more tokens than requests can have used: only what is possible counts"
            );
        }
    }

    /// How long its node takes for the prompt of a request of that size, as far as it was measured.
    pub fn predicted_prefill(&self, size: &Size) -> Option<Duration> {
        self.dispatcher.lock().scheduler.predicted_prefill(&self.binding, size)
    }

    /// It has generated tokens, each in so many seconds.
    pub fn paced(&self, seconds: f64) {
        let (endpoint, now) = (self.binding.endpoint, self.dispatcher.now());
        if self.dispatcher.lock().scheduler.fleet.paced(endpoint, seconds, now) {
            tracing::warn!(node = &*self.node, "node ejected: it has become very slow");
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let now = self.dispatcher.now();
        let Self { dispatcher, binding, outcome, used, .. } = self;
        dispatcher.update(|core| {
            if let Some((size, used)) = used.as_ref().filter(|_| *outcome == Outcome::Answered) {
                core.scheduler.learn(binding, size, used, now);
            }
            core.scheduler.release(binding, *outcome, now);
        });
    }
}
