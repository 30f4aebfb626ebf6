//! PURE. Reserves what requests may cost at external endpoints while they run, so that requests
//! side by side cannot exceed a budget together: the endpoint's of the day, and those of the month
//! of the tenant and its user.
//!
//! A request that runs alone gets what is left, and may exceed it by what it costs: endpoints say
//! that at the end. Beside gateways that share the store, it is alone if none of them can grant
//! anything of the budget.

use std::sync::Arc;

use inference_protocol::resume::Usage;

use super::{Ledger, Prices};
use crate::types::budget::{Ask, BudgetId, billionths, billionths_up};
use crate::types::user::UserId;

/// What a request may cost, and who pays.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Bill {
    /// The tenant.
    pub tenant: Arc<str>,
    /// Tokens that the request is likely to have in its prompt, and the most of its response.
    pub most: Usage,
    /// The tenant's budget of the month.
    pub tenant_max: Option<f64>,
    /// The user, and its budget of the month.
    pub user: Option<(UserId, f64)>,
}

/// What is reserved for a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Payment {
    /// In billionths of the currency's unit.
    amount: u64,
    budgets: Vec<BudgetId>,
}

impl Payment {
    /// What is reserved, in billionths of the currency's unit.
    pub(crate) fn amount(&self) -> u64 {
        self.amount
    }

    /// Of which budgets.
    pub(crate) fn budgets(&self) -> &[BudgetId] {
        &self.budgets
    }
}

impl Bill {
    /// What the request may cost, in billionths of the currency's unit.
    fn amount(&self, prices: &Prices) -> u64 {
        billionths_up(prices.of(self.most))
    }

    /// The budgets that limit it at an endpoint.
    fn budgets(&self, endpoint: &str, prices: &Prices) -> impl Iterator<Item = (BudgetId, u64)> {
        let of_endpoint = prices.day_max.map(|max| (BudgetId::EndpointSpend(endpoint.into()), max));
        let of_tenant = self.tenant_max.map(|max| (BudgetId::Spend(self.tenant.to_string()), max));
        let user = |(user, max)| (BudgetId::UserSpend(self.tenant.to_string(), user), max);
        let all = [of_endpoint, of_tenant, self.user.map(user)].into_iter().flatten();
        all.map(|(id, max)| (id, billionths(max)))
    }
}

impl Ledger {
    /// Checks whether the budgets of an endpoint, of the tenant and of the user allow the request.
    ///
    /// # Errors
    /// They do not. If they would once the gateway is allotted more: what it should ask for.
    pub(crate) fn check_payment(
        &self,
        endpoint: &str,
        prices: &Prices,
        bill: &Bill,
    ) -> Result<(), Vec<Ask>> {
        let amount = bill.amount(prices);
        let mut asks = Vec::new();
        for (id, budget) in bill.budgets(endpoint, prices) {
            match self.check_amount(id, budget, amount) {
                Ok(()) => {}
                Err(Some(ask)) => asks.push(ask),
                Err(None) => return Err(Vec::new()),
            }
        }
        if asks.is_empty() { Ok(()) } else { Err(asks) }
    }

    fn check_amount(&self, id: BudgetId, budget: u64, amount: u64) -> Result<(), Option<Ask>> {
        let (left, reserved) = (self.left(&id, budget), self.reserved.of(&id));
        let needed = reserved.saturating_add(amount);
        let is_first = reserved == 0;
        if left == 0 || (needed > left && !is_first) {
            return Err(None);
        }
        let Some(allotment) = self.allotment(&id) else { return Ok(()) };
        let is_alone = is_first && allotment.is_sole && allotment.amount > 0;
        match needed <= left.min(allotment.amount) || is_alone {
            true => Ok(()),
            false if allotment.is_exhausted => Err(None),
            false => {
                let amount = needed.saturating_sub(allotment.amount);
                Err(Some(Ask { id, budget, amount, least: amount }))
            }
        }
    }

    /// Reserves what the request may cost at an endpoint. `None` if it costs nothing, or nothing
    /// limits it.
    pub(crate) fn reserve_payment(
        &mut self,
        endpoint: &str,
        prices: &Prices,
        bill: &Bill,
    ) -> Option<Payment> {
        let amount = bill.amount(prices);
        let budgets: Vec<BudgetId> = bill.budgets(endpoint, prices).map(|(id, _)| id).collect();
        if amount == 0 || budgets.is_empty() {
            return None;
        }
        for id in &budgets {
            self.keep_allotment(id);
            self.reserved.add(id, amount);
        }
        Some(Payment { amount, budgets })
    }

    /// Releases a payment, once what was paid is booked.
    pub(crate) fn release_payment(&mut self, Payment { amount, budgets }: &Payment) {
        self.release(budgets, *amount);
    }
}

#[cfg(test)]
mod tests {
    use super::super::Reservations;
    use super::*;
    use crate::types::budget::Allotted;

    /// 1 for a million completion tokens, 10 on a day.
    const PRICES: Prices = Prices { prompt: 0.0, completion: 1.0, hour: 0.0, day_max: Some(10.0) };

    fn bill(tenant: &str, completion: u64, tenant_max: Option<f64>) -> Bill {
        let most = Usage { prompt: 9, completion, cached: 0 };
        Bill { tenant: tenant.into(), most, tenant_max, user: None }
    }

    fn reserve(ledger: &mut Ledger, bill: &Bill) -> Option<Payment> {
        let may = ledger.check_payment("gpu", &PRICES, bill);
        may.ok().and_then(|()| ledger.reserve_payment("gpu", &PRICES, bill))
    }

    #[test]
    fn requests_side_by_side_never_reserve_more_than_a_day_allows() {
        let (mut ledger, four) = (Ledger::default(), bill("ada", 4_000_000, None));
        let first = reserve(&mut ledger, &four).unwrap();
        let second = reserve(&mut ledger, &four).unwrap();
        assert_eq!(reserve(&mut ledger, &four), None, "8 of 10 are reserved");
        let two = bill("bob", 2_000_000, None);
        let third = reserve(&mut ledger, &two).unwrap();
        assert!(ledger.check_payment("other", &PRICES, &four).is_ok(), "another endpoint");
        let cheap = Usage { prompt: 0, completion: 500_000, cached: 0 };
        ledger.book_usage("ada", cheap, Some(("gpu", 0.5)));
        ledger.release_payment(&first);
        assert_eq!(reserve(&mut ledger, &four), None, "6.5 are spent or reserved");
        let fourth = reserve(&mut ledger, &two).unwrap();
        for payment in [second, third, fourth] {
            ledger.release_payment(&payment);
        }
        assert_eq!(ledger.reserved, Reservations::default());
    }

    #[test]
    fn a_request_alone_gets_what_is_left_and_none_when_it_is_used_up() {
        let (mut ledger, twenty) = (Ledger::default(), bill("ada", 20_000_000, None));
        let alone = reserve(&mut ledger, &twenty).unwrap();
        assert_eq!(reserve(&mut ledger, &bill("bob", 1, None)), None);
        ledger.book_usage("ada", Usage::default(), Some(("gpu", 10.0)));
        ledger.release_payment(&alone);
        assert_eq!(reserve(&mut ledger, &bill("bob", 1, None)), None, "used up");
    }

    #[test]
    fn a_tenant_has_a_budget_of_its_own() {
        let (mut ledger, one) = (Ledger::default(), bill("ada", 1_000_000, Some(2.5)));
        let first = reserve(&mut ledger, &one).unwrap();
        reserve(&mut ledger, &one).unwrap();
        assert_eq!(reserve(&mut ledger, &one), None);
        assert!(reserve(&mut ledger, &bill("bob", 1_000_000, Some(2.5))).is_some());
        ledger.release_payment(&first);
        assert!(reserve(&mut ledger, &one).is_some());
    }

    #[test]
    fn what_costs_nothing_is_not_reserved() {
        let mut ledger = Ledger::default();
        let free = Prices { day_max: Some(0.0), ..Prices::default() };
        assert!(ledger.check_payment("gpu", &Prices::default(), &bill("ada", 9, None)).is_ok());
        let refused = ledger.check_payment("gpu", &free, &bill("ada", 9, None));
        assert_eq!(refused, Err(Vec::new()), "as the operator said");
        let payment = ledger.reserve_payment("gpu", &Prices::default(), &bill("ada", 9, None));
        assert_eq!(payment, None);
    }

    #[test]
    fn a_user_has_a_budget_of_its_own() {
        let user = UserId::new(&crate::types::secret::KeyDigest::of("key"), b"x");
        let mut ledger = Ledger::default();
        let one = Bill { user: Some((user, 1.5)), ..bill("ada", 1_000_000, None) };
        let first = reserve(&mut ledger, &one).unwrap();
        assert_eq!(reserve(&mut ledger, &one), None, "two would cost 2");
        assert!(reserve(&mut ledger, &bill("ada", 1_000_000, None)).is_some(), "another user");
        ledger.book_user_usage("ada", (user, 9), Usage::default(), 1.5);
        ledger.release_payment(&first);
        assert_eq!(reserve(&mut ledger, &one), None, "used up");
    }

    /// What the store answers.
    fn allotted(id: BudgetId, amount: f64, is_exhausted: bool, is_sole: bool) -> Vec<Allotted> {
        vec![Allotted { id, amount: billionths(amount), used: 0, is_exhausted, is_sole }]
    }

    #[test]
    fn a_gateway_pays_what_it_was_allotted_and_asks_for_the_rest() {
        let mut ledger = Ledger::default();
        ledger.share_budgets();
        let id = BudgetId::EndpointSpend("gpu".into());
        let four = bill("ada", 4_000_000, None);
        let ask = |amount| {
            let (id, budget, amount) = (id.clone(), billionths(10.0), billionths(amount));
            Err(vec![Ask { id, budget, amount, least: amount }])
        };
        let check = |ledger: &Ledger| ledger.check_payment("gpu", &PRICES, &four);
        assert_eq!(check(&ledger), ask(4.0));
        ledger.set_allotted(allotted(id.clone(), 5.0, false, true), &Default::default());
        let first = reserve(&mut ledger, &four).unwrap();
        assert_eq!(check(&ledger), ask(3.0));
        ledger.set_allotted(allotted(id.clone(), 6.0, true, false), &Default::default());
        assert_eq!(check(&ledger), Err(Vec::new()), "others have the rest");
        let dear = bill("ada", 7_000_000, None);
        assert_eq!(ledger.check_payment("gpu", &PRICES, &dear), Err(Vec::new()), "11 of 10");
        ledger.book_usage("ada", Usage::default(), Some(("gpu", 1.0)));
        ledger.release_payment(&first);
        assert!(ledger.give_back().is_empty(), "a request has needed it");
        assert_eq!(ledger.give_back(), [(id, billionths(5.0))], "6 less what was paid");
    }

    #[test]
    fn a_request_alone_may_exceed_what_is_left_only_if_no_other_gateway_has_any_of_it() {
        let mut ledger = Ledger::default();
        ledger.share_budgets();
        let id = BudgetId::EndpointSpend("gpu".into());
        let twenty = bill("ada", 20_000_000, None);
        ledger.set_allotted(allotted(id.clone(), 3.0, true, false), &Default::default());
        assert_eq!(reserve(&mut ledger, &twenty), None);
        assert_eq!(ledger.give_back().len(), 1, "so that one of them gets all");
        ledger.set_allotted(allotted(id, 3.0, true, true), &Default::default());
        assert!(reserve(&mut ledger, &twenty).is_some());
        assert_eq!(reserve(&mut ledger, &twenty), None, "it is not alone");
    }

    #[test]
    fn without_the_store_nothing_is_asked_for_until_it_answers_again() {
        let mut ledger = Ledger::default();
        ledger.share_budgets();
        let one = bill("ada", 1_000_000, None);
        let asks = ledger.check_payment("gpu", &PRICES, &one).unwrap_err();
        ledger.stop_asking(&asks);
        assert_eq!(ledger.check_payment("gpu", &PRICES, &one), Err(Vec::new()));
        ledger.set_allotments(Default::default());
        assert_eq!(ledger.check_payment("gpu", &PRICES, &one), Err(asks));
    }
}
