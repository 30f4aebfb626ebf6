//! PURE. What the gateway should be allotted of budgets, so that requests can go to external
//! endpoints that they may go to.

use super::{Scheduler, SlotRequest};
use crate::access::spend::Prices;
use crate::scheduler::fleet::RouteConstraints;
use crate::types::budget::Ask;
use crate::types::class::Class;
use crate::types::external::ExternalPolicy;

impl<L> Scheduler<L> {
    /// What a request that would go to an external endpoint right away lacks. Nothing if it would
    /// not, if one can be paid, or if none can.
    pub(crate) fn unallotted_at_once(&self, request: &SlotRequest<'_>) -> Vec<Ask> {
        let SlotRequest { model, constraints, class, .. } = *request;
        let prefers = constraints.external == ExternalPolicy::Prefer && class == Class::Interactive;
        match prefers || self.fleet.is_external_only(model) {
            true => self.unallotted(model, constraints),
            false => Vec::new(),
        }
    }

    /// What the next queued requests lack that only external endpoints can serve.
    pub(crate) fn unallotted_in_queue(&self) -> Vec<Ask> {
        let mut seen: Vec<&str> = Vec::new();
        let mut asks = Vec::new();
        let next = |seen: &[&str]| {
            let may = |model: &str| self.fleet.is_external_only(model) && !seen.contains(&model);
            self.queue.next(may)
        };
        while let Some(ticket) = next(&seen) {
            asks.extend(self.unallotted(&ticket.model, &ticket.constraints));
            seen.push(&ticket.model);
        }
        asks
    }

    /// What a request lacks so that an external endpoint with a free slot can be paid. Nothing if
    /// one can be paid already, or if none can.
    pub(crate) fn unallotted(&self, model: &str, constraints: &RouteConstraints) -> Vec<Ask> {
        let mut lacking = Vec::new();
        let may_pay = |name: &str, prices: &Prices| match self.ledger.check_payment(
            name,
            prices,
            &constraints.bill,
        ) {
            Ok(()) => true,
            Err(asks) if lacking.is_empty() => {
                lacking = asks;
                false
            }
            Err(_) => false,
        };
        match self.fleet.pick_external(model, constraints, may_pay) {
            Some(_) => Vec::new(),
            None => lacking,
        }
    }
}
