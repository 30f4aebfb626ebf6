//! PURE. What this gateway may grant of budgets that other gateways count on, too.
//!
//! Gateways with a store divide what is left of a budget among them: each grants no more than its
//! allotment, and asks for more when it needs it. A gateway alone does so, too, so that what was
//! granted outlives it.

use std::collections::HashMap;

use super::Ledger;
use crate::types::budget::{Allotted, Ask, BudgetId};

/// What this gateway may grant of a budget.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Allotment {
    /// How much, what running requests have reserved included.
    pub amount: u64,
    /// How much all gateways have used, as far as this one knows.
    pub used: u64,
    /// True if a request has got some of it since it was last looked at.
    is_needed: bool,
    /// True if there was nothing more to ask for lately.
    pub is_exhausted: bool,
    /// True if no other gateway can grant any of the budget.
    pub is_sole: bool,
}

impl Ledger {
    /// From now on, grants no more than allotments, which outlive this gateway: others may count on
    /// the same budgets, now or after its end.
    pub(crate) fn share_budgets(&mut self) {
        self.allotments.get_or_insert_default();
    }

    /// Sets what this gateway may grant of budgets of this day and month: nothing of others.
    pub(crate) fn set_allotments(&mut self, allotted: HashMap<BudgetId, u64>) {
        let Some(allotments) = &mut self.allotments else { return };
        for allotment in allotments.values_mut() {
            (allotment.amount, allotment.is_exhausted, allotment.is_sole) = (0, false, false);
        }
        for (id, amount) in allotted {
            allotments.entry(id).or_default().amount = amount;
        }
    }

    /// Sets what this gateway may grant of budgets that it has asked for, less what is booked and
    /// not stored.
    pub(crate) fn set_allotted(
        &mut self,
        allotted: Vec<Allotted>,
        unstored: &HashMap<BudgetId, u64>,
    ) {
        let Some(allotments) = &mut self.allotments else { return };
        for Allotted { id, amount, used, is_exhausted, is_sole } in allotted {
            let unstored = unstored.get(&id).copied().unwrap_or(0);
            let allotment = allotments.entry(id).or_default();
            allotment.amount = amount.saturating_sub(unstored);
            allotment.used = used.saturating_add(unstored);
            (allotment.is_exhausted, allotment.is_sole) = (is_exhausted, is_sole && is_exhausted);
        }
    }

    /// Records that the store does not answer, so that not each request waits for it.
    pub(crate) fn stop_asking(&mut self, asks: &[Ask]) {
        let Some(allotments) = &mut self.allotments else { return };
        for Ask { id, .. } in asks {
            allotments.entry(id.clone()).or_default().is_exhausted = true;
        }
    }

    /// Gives back what no request has needed since the last time. Returns how much of which
    /// budgets.
    pub(crate) fn give_back(&mut self) -> Vec<(BudgetId, u64)> {
        let Self { allotments, reserved, .. } = self;
        let Some(allotments) = allotments else { return Vec::new() };
        let mut given = Vec::new();
        allotments.retain(|id, allotment| {
            let reserved = reserved.of(id);
            if std::mem::take(&mut allotment.is_needed) {
                return true;
            }
            let spare = allotment.amount.saturating_sub(reserved);
            allotment.amount -= spare;
            given.push((id.clone(), spare));
            reserved > 0
        });
        given
    }

    /// What this gateway may grant of a budget; `None` if it need not ask.
    pub(super) fn allotment(&self, id: &BudgetId) -> Option<Allotment> {
        let allotments = self.allotments.as_ref()?;
        Some(allotments.get(id).cloned().unwrap_or_default())
    }

    /// Keeps an allotment for some time: a request got some of it. One that is too small for any is
    /// given back, so that the rests of several gateways are enough for a last request.
    pub(super) fn keep_allotment(&mut self, id: &BudgetId) {
        let allotments = self.allotments.as_mut();
        if let Some(allotment) = allotments.and_then(|allotments| allotments.get_mut(id)) {
            allotment.is_needed = true;
        }
    }

    /// Takes what was used from an allotment.
    pub(super) fn use_allotment(&mut self, id: &BudgetId, amount: u64) {
        let allotments = self.allotments.as_mut();
        if let Some(allotment) = allotments.and_then(|allotments| allotments.get_mut(id)) {
            allotment.amount = allotment.amount.saturating_sub(amount);
            allotment.used = allotment.used.saturating_add(amount);
        }
    }

    /// Forgets allotments of the day or of the month that is over.
    pub(super) fn forget_allotments(&mut self, are_daily: bool) {
        if let Some(allotments) = &mut self.allotments {
            allotments.retain(|id, _| id.is_daily() != are_daily);
        }
    }
}
