//! Reserves what a request may use of the monthly budgets of its key and user.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use super::Dispatcher;
use crate::access::spend::{Budget, Need, Payer, Shortage};
use crate::types::error::Error;
use crate::types::limits::{BudgetLimit, LimitScope, RateLimit};
use crate::types::user::UserId;

/// When to try again, if running requests have reserved what is left.
const RETRY: Duration = Duration::from_secs(1);

/// Tokens reserved for a request. Dropping it releases them: what was used is booked before.
#[derive(Debug)]
pub(crate) struct BudgetReservation {
    dispatcher: Dispatcher,
    tenant: Arc<str>,
    user: Option<UserId>,
    tokens: u64,
}

impl Dispatcher {
    /// Reserves tokens of the budgets of a key and of its user; `None` if neither limits tokens, or
    /// the request needs none. Once `has_asked`, it makes do with what this gateway was allotted.
    ///
    /// # Errors
    /// Too few are left.
    pub(crate) fn reserve_budget(
        &self,
        (tenant, user): (&Arc<str>, Option<UserId>),
        (of_key, of_user): (&Budget, &Budget),
        need: Need,
        has_asked: bool,
    ) -> Result<Option<BudgetReservation>, Shortfall> {
        let of_user = user.and(of_user.tokens);
        let is_limited = of_key.tokens.is_some() || of_user.is_some();
        if !is_limited || need.most == 0 {
            return Ok(None);
        }
        let budgets = (of_key.tokens.map(NonZeroU64::get), of_user.map(NonZeroU64::get));
        let payer = Payer { tenant, user };
        let reserved = self.lock().scheduler.ledger.reserve(payer, budgets, need, has_asked);
        let tokens = reserved.map_err(|(shortage, scope)| Shortfall { shortage, scope })?;
        let (dispatcher, tenant) = (self.clone(), tenant.clone());
        Ok(Some(BudgetReservation { dispatcher, tenant, user, tokens }))
    }

    /// Grants no more than allotments from now on; see [`crate::store`].
    pub(crate) fn share_budgets(&self) {
        self.lock().scheduler.ledger.share_budgets();
    }

    /// Sets what this gateway may grant of a tenant's budget: its allotment, less what is booked
    /// and not stored, which `unstored` tells.
    pub(crate) fn set_allotment(
        &self,
        tenant: &str,
        allotted: u64,
        unstored: impl FnOnce() -> u64,
    ) {
        // What is booked meanwhile is taken off twice until the next time, which exceeds nothing.
        let mut core = self.lock();
        core.scheduler.ledger.set_allotment(tenant, allotted.saturating_sub(unstored()));
    }

    /// Gives back what is allotted and not needed: how much of which tenants' budgets.
    pub(crate) fn give_back(&self) -> Vec<(String, u64)> {
        self.lock().scheduler.ledger.give_back()
    }
}

/// Why a request gets no tokens, and of whose budget.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shortfall {
    shortage: Shortage,
    scope: LimitScope,
}

impl Shortfall {
    /// How many tokens the gateway should ask for.
    pub(crate) fn unallotted(&self) -> Option<u64> {
        match self.shortage {
            Shortage::Unallotted(tokens) => Some(tokens),
            Shortage::UsedUp | Shortage::Reserved => None,
        }
    }

    /// The error that the client receives.
    pub(crate) fn error(self) -> Error {
        let Self { shortage, scope } = self;
        match shortage {
            Shortage::UsedUp => Error::Quota(BudgetLimit::Tokens, scope),
            Shortage::Reserved | Shortage::Unallotted(_) => {
                Error::RateLimited { limit: RateLimit::Budget, scope, wait: RETRY }
            }
        }
    }
}

impl BudgetReservation {
    /// The tokens that the request may use: prompt and completion.
    pub(crate) fn tokens(&self) -> u64 {
        self.tokens
    }
}

impl Drop for BudgetReservation {
    fn drop(&mut self) {
        let payer = Payer { tenant: &self.tenant, user: self.user };
        self.dispatcher.lock().scheduler.ledger.release(payer, self.tokens);
    }
}
