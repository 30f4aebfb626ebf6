//! PURE. Charges requests for their turns and corrects the charge by actual work.

use inference_protocol::fleet::ModelStatus;
use inference_protocol::resume::Usage;

use super::Scheduler;
use super::queue::Payer;
use crate::types::class::Class;
use crate::types::user::UserId;

/// Largest context size that we accept from a node, in tokens.
const CONTEXT_TOKENS_MAX: u32 = 1 << 24;

/// Estimated work charged to a tenant and class for one request. Attempts after the first are free.
#[derive(Debug, Clone, PartialEq)]
pub struct Charge {
    /// The class charged.
    pub class: Class,
    /// The tenant charged.
    pub tenant: String,
    /// The user of the tenant that is charged, if its requests name users.
    pub user: Option<UserId>,
    /// In units of [`crate::scheduler::cost`].
    pub work: f64,
}

impl Charge {
    fn payer(&self) -> Payer<'_> {
        Payer { class: self.class, tenant: &self.tenant, user: self.user }
    }
}

/// Work actually done for a request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ActualWork {
    /// None: the client left before the request was sent anywhere.
    Nothing,
    /// Measured or estimated tokens.
    Tokens(Usage),
}

impl<L> Scheduler<L> {
    /// Corrects the charge of a finished request by the work actually done. Returns by how much the
    /// virtual times of its class and tenant moved.
    pub fn correct_charge(
        &mut self,
        charge: &Charge,
        model: &ModelStatus,
        done: ActualWork,
    ) -> [f64; 2] {
        let work = match done {
            ActualWork::Nothing => 0.0,
            ActualWork::Tokens(usage) => {
                let tokens_max = model.context_tokens.clamp(1, CONTEXT_TOKENS_MAX);
                self.costs.actual_units(&model.id, usage, tokens_max)
            }
        };
        let more = work - charge.work;
        match more.is_finite() {
            true => self.queue.correct(charge.payer(), more),
            false => [0.0; 2],
        }
    }
}
