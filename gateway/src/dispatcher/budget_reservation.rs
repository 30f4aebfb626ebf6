//! Reserves what a request may use of the monthly budgets of its key and user.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use super::Dispatcher;
use crate::access::spend::{Budget, Need, Payer, Shortage};
use crate::store::Mark;
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
    /// Where it is written down for the case that this gateway is killed.
    mark: Option<Arc<Mark>>,
    /// What is written down of it: tokens used so far.
    noted: u64,
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
        Ok(Some(BudgetReservation { dispatcher, tenant, user, tokens, mark: None, noted: 0 }))
    }

    /// True if no request runs that has reserved tokens.
    pub(crate) fn has_no_reservations(&self) -> bool {
        self.lock().scheduler.ledger.has_no_reservations()
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

    /// Writes down from now on what is used.
    pub(crate) fn set_mark(&mut self, mark: Option<Arc<Mark>>) {
        self.mark = mark;
    }

    /// Writes down that so many tokens are used.
    pub(crate) fn note(&mut self, tokens: u64) {
        if let Some(mark) = self.mark.as_ref().filter(|_| tokens != self.noted) {
            mark.add(difference(tokens, self.noted));
            self.noted = tokens;
        }
    }

    /// Leaves what was written down: so much is booked.
    pub(crate) fn settle(&mut self, tokens: u64) {
        self.note(tokens);
        self.mark = None;
    }
}

fn difference(a: u64, b: u64) -> i64 {
    let signed = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    signed(a).saturating_sub(signed(b))
}

impl Drop for BudgetReservation {
    fn drop(&mut self) {
        self.note(0);
        let payer = Payer { tenant: &self.tenant, user: self.user };
        self.dispatcher.lock().scheduler.ledger.release(payer, self.tokens);
    }
}
