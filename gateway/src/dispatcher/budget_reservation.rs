//! Reserves what a request may use of the monthly budgets of its key and user.

use std::num::NonZeroU64;
use std::sync::Arc;

use super::Dispatcher;
use crate::access::spend::{Budget, Need, Shortage};
use crate::store::Mark;
use crate::types::budget::BudgetId;
use crate::types::user::UserId;

/// Tokens reserved for a request. Dropping it releases them: what was used is booked before.
#[derive(Debug)]
pub(crate) struct BudgetReservation {
    dispatcher: Dispatcher,
    budgets: Vec<BudgetId>,
    tokens: u64,
    /// Where it is written down for the case that this gateway is killed.
    marks: Vec<Arc<Mark>>,
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
        (tenant, user): (&str, Option<UserId>),
        (of_key, of_user): (&Budget, &Budget),
        need: Need,
        has_asked: bool,
    ) -> Result<Option<BudgetReservation>, Shortage> {
        let of_user = user.zip(of_user.tokens);
        let of_user =
            of_user.map(|(user, budget)| (BudgetId::UserTokens(tenant.into(), user), budget));
        let of_key = of_key.tokens.map(|budget| (BudgetId::Tokens(tenant.into()), budget));
        let budgets = of_user.into_iter().chain(of_key);
        let budgets: Vec<_> = budgets.map(|(id, budget)| (id, NonZeroU64::get(budget))).collect();
        if budgets.is_empty() || need.most == 0 {
            return Ok(None);
        }
        let tokens = self.lock().scheduler.ledger.reserve(&budgets, need, has_asked)?;
        let budgets = budgets.into_iter().map(|(id, _)| id).collect();
        let dispatcher = self.clone();
        Ok(Some(BudgetReservation { dispatcher, budgets, tokens, marks: Vec::new(), noted: 0 }))
    }

    /// True if no request runs that has reserved anything.
    pub(crate) fn has_no_reservations(&self) -> bool {
        self.lock().scheduler.ledger.has_no_reservations()
    }
}

impl BudgetReservation {
    /// The tokens that the request may use: prompt and completion.
    pub(crate) fn tokens(&self) -> u64 {
        self.tokens
    }

    /// The budgets that they are reserved of.
    pub(crate) fn budgets(&self) -> &[BudgetId] {
        &self.budgets
    }

    /// Writes down from now on what is used.
    pub(crate) fn set_marks(&mut self, marks: Vec<Arc<Mark>>) {
        self.marks = marks;
    }

    /// Writes down that so many tokens are used.
    pub(crate) fn note(&mut self, tokens: u64) {
        if tokens != self.noted {
            self.marks.iter().for_each(|mark| mark.add(difference(tokens, self.noted)));
            self.noted = tokens;
        }
    }

    /// Leaves what was written down: so much is booked.
    pub(crate) fn settle(&mut self, tokens: u64) {
        self.note(tokens);
        self.marks.clear();
    }
}

fn difference(a: u64, b: u64) -> i64 {
    let signed = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    signed(a).saturating_sub(signed(b))
}

impl Drop for BudgetReservation {
    fn drop(&mut self) {
        self.note(0);
        self.dispatcher.lock().scheduler.ledger.release(&self.budgets, self.tokens);
    }
}
