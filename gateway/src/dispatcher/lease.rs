//! A claimed slot.

use std::sync::Arc;
use std::time::Duration;

use inference_protocol::fleet::ModelStatus;
use inference_protocol::resume::Usage;

use super::{ChargeGuard, Dispatcher};
use crate::access::spend::Payment;
use crate::scheduler::cost::Size;
use crate::scheduler::fleet::{AttemptOutcome, EngineId, Terms};
use crate::scheduler::{Binding, ResponseUsage};
use crate::store::Mark;
use crate::types::budget::BudgetId;
use crate::upstream::Upstream;

/// A claimed slot of an endpoint. Dropping it frees the slot.
#[derive(Debug)]
pub struct Lease {
    pub(super) dispatcher: Dispatcher,
    pub(super) binding: Binding,
    pub(super) engine_restarts: u64,
    pub(super) node: Arc<str>,
    pub(super) upstream: Upstream,
    pub(super) terms: Option<Terms>,
    pub(super) outcome: AttemptOutcome,
    /// When the first token arrived.
    pub(super) first_token: Option<Duration>,
    pub(super) usage: Option<(Size, ResponseUsage)>,
    /// The request's charge, until the request is sent.
    pub(super) charge: Option<ChargeGuard>,
    /// Its number among those whose slots more urgent requests may take.
    pub(super) preemptible: Option<u64>,
    /// Where its payment is written down for the case that this gateway is killed.
    pub(super) marks: Vec<Arc<Mark>>,
}

impl Lease {
    /// The endpoint and its engine process.
    pub fn engine(&self) -> EngineId {
        EngineId { endpoint: self.binding.endpoint, engine_restarts: self.engine_restarts }
    }

    /// Name of the endpoint.
    pub fn node(&self) -> &str {
        &self.node
    }

    /// Name of the endpoint, shared.
    pub fn name(&self) -> Arc<str> {
        self.node.clone()
    }

    /// The model as the endpoint serves it.
    pub fn model(&self) -> &Arc<ModelStatus> {
        &self.binding.model
    }

    /// The budgets that its payment is reserved of.
    pub(crate) fn budgets(&self) -> &[BudgetId] {
        self.binding.payment.as_ref().map_or(&[], Payment::budgets)
    }

    /// Writes down, until the end, that all of its payment may have been spent.
    pub(crate) fn set_marks(&mut self, marks: Vec<Arc<Mark>>) {
        self.marks = marks;
        self.add_to_marks(self.payment());
    }

    /// Writes down what was paid, in billionths of the currency's unit.
    pub(crate) fn note_paid(&self, amount: u64) {
        self.add_to_marks(i64::try_from(amount).unwrap_or(i64::MAX));
    }

    fn payment(&self) -> i64 {
        let amount = self.binding.payment.as_ref().map_or(0, Payment::amount);
        i64::try_from(amount).unwrap_or(i64::MAX)
    }

    fn add_to_marks(&self, amount: i64) {
        self.marks.iter().for_each(|mark| mark.add(amount));
    }

    /// The handle that sends to the endpoint.
    pub fn upstream(&self) -> &Upstream {
        &self.upstream
    }

    /// Terms of an external endpoint; `None` for nodes.
    pub fn terms(&self) -> Option<Terms> {
        self.terms
    }

    /// Records that the request is being sent. Returns its charge, if this is its first slot.
    pub fn start(&mut self) -> Option<ChargeGuard> {
        self.charge.take().map(ChargeGuard::into_started)
    }

    /// True if the endpoint is running more requests than it has slots, including this one.
    pub(crate) fn is_beyond_slots(&self) -> bool {
        let core = self.dispatcher.lock();
        let endpoint = core.scheduler.fleet.endpoint(self.binding.endpoint);
        endpoint.is_some_and(|endpoint| endpoint.busy() > endpoint.status.slots)
    }

    /// Sets the outcome to record when the lease is dropped.
    pub(crate) fn set_outcome(&mut self, outcome: AttemptOutcome) {
        self.outcome = outcome;
    }

    /// Records the time of the first token.
    pub(crate) fn record_first_token(&mut self) {
        self.first_token.get_or_insert_with(|| self.dispatcher.now());
    }

    /// Records the usage of a request that this endpoint answered completely.
    pub(crate) fn record_usage(&mut self, size: Size, usage: Usage, choices: usize) {
        self.usage = Some((size, ResponseUsage { usage, choices, first_token: self.first_token }));
    }

    /// Records that the endpoint reported more tokens than the request can have used.
    pub(crate) fn record_misreport(&mut self) {
        let is_first =
            self.dispatcher.lock().scheduler.fleet.record_misreport(self.binding.endpoint);
        if is_first {
            tracing::warn!(
                node = &*self.node,
                "node reports more tokens than requests can have used; usage is capped"
            );
        }
    }

    /// Predicted prefill time of a request of this size. `None` until measured.
    pub(crate) fn predicted_prefill(&self, size: &Size) -> Option<Duration> {
        self.dispatcher.lock().scheduler.predicted_prefill(&self.binding, size)
    }

    /// Records the decoding speed in seconds per token.
    pub(crate) fn record_pace(&self, seconds: f64) {
        let (endpoint, now) = (self.binding.endpoint, self.dispatcher.now());
        if self.dispatcher.lock().scheduler.fleet.record_pace(endpoint, seconds, now) {
            tracing::warn!(node = &*self.node, "node ejected: decoding has become very slow");
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.add_to_marks(-self.payment());
        let now = self.dispatcher.now();
        let Self { dispatcher, binding, outcome, usage, preemptible, .. } = self;
        dispatcher.update(|core| {
            if let Some(id) = preemptible {
                core.preemptible.remove(*id);
            }
            if let Some((size, usage)) =
                usage.as_ref().filter(|_| *outcome == AttemptOutcome::Answered)
            {
                core.scheduler.learn(binding, size, usage, now);
            }
            core.scheduler.release(binding, *outcome, now);
        });
    }
}
