//! What this gateway may grant of budgets that it shares with others; see [`crate::store`].

use std::collections::HashMap;

use super::Dispatcher;
use crate::scheduler::SlotRequest;
use crate::types::budget::{Allotted, Ask, BudgetId};

impl Dispatcher {
    /// Grants no more than allotments from now on.
    pub(crate) fn share_budgets(&self) {
        self.lock().scheduler.ledger.share_budgets();
    }

    /// Sets what this gateway may grant of budgets that it has asked for. `unstored` tells what is
    /// booked of them and not stored.
    pub(crate) fn set_allotted(
        &self,
        allotted: Vec<Allotted>,
        unstored: impl FnOnce() -> HashMap<BudgetId, u64>,
    ) {
        // What is booked meanwhile is taken off twice until the next time, which exceeds nothing.
        self.update(|core| core.scheduler.ledger.set_allotted(allotted, &unstored()));
    }

    /// Records that the store does not answer.
    pub(crate) fn stop_asking(&self, asks: &[Ask]) {
        self.lock().scheduler.ledger.stop_asking(asks);
    }

    /// Gives back what is allotted and not needed: how much of which budgets.
    pub(crate) fn give_back(&self) -> Vec<(BudgetId, u64)> {
        self.lock().scheduler.ledger.give_back()
    }

    /// What this gateway lacks of budgets so that a request can go to an external endpoint: at
    /// once, or, if it `is_refused`, instead of being refused.
    pub(crate) fn unallotted(&self, request: &SlotRequest<'_>, is_refused: bool) -> Vec<Ask> {
        let core = self.lock();
        match is_refused {
            true => core.scheduler.unallotted(request.model, request.constraints),
            false => core.scheduler.unallotted_at_once(request),
        }
    }

    /// What it lacks so that queued requests can go to external endpoints.
    pub(crate) fn unallotted_in_queue(&self) -> Vec<Ask> {
        self.lock().scheduler.unallotted_in_queue()
    }
}
