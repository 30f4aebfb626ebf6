//! PURE. What a request was charged for its turn, and what it turns out to have used.

use inference_protocol::fleet::ModelStatus;
use inference_protocol::resume::Usage;

use super::Scheduler;
use crate::types::class::Class;

/// Most tokens of a context that is believed.
const CONTEXT_TOKENS_MAX: u32 = 1 << 24;

/// The estimated work that a tenant was charged in a class for one request, whatever becomes of the
/// request: attempts after the first are not charged.
#[derive(Debug, Clone, PartialEq)]
pub struct Charge {
    /// The class.
    pub class: Class,
    /// The tenant.
    pub tenant: String,
    /// In units of [`crate::scheduler::cost`].
    pub work: f64,
}

/// What was done for a request, once that is known.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ActualWork {
    /// Nothing: it left before it was sent anywhere.
    Nothing,
    /// So many tokens were computed, or about so many.
    Tokens(Usage),
}

impl<L> Scheduler<L> {
    /// A charged request is over, and what was done for it is known: the estimate is corrected.
    /// Returns by how much the times of its class and its tenant have moved.
    pub fn correct(&mut self, charge: &Charge, model: &ModelStatus, done: ActualWork) -> [f64; 2] {
        let work = match done {
            ActualWork::Nothing => 0.0,
            ActualWork::Tokens(usage) => {
                let tokens_max = model.context_tokens.clamp(1, CONTEXT_TOKENS_MAX);
                self.costs.units_used(&model.id, usage, tokens_max)
            }
        };
        let more = work - charge.work;
        match more.is_finite() {
            true => self.queue.correct(charge.class, &charge.tenant, more),
            false => [0.0; 2],
        }
    }
}
