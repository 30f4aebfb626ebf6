//! PURE. Reserves what requests may cost at external endpoints while they run, so that requests
//! side by side cannot exceed a budget together: the endpoint's of the day, and the tenant's of the
//! month.
//!
//! A request that runs alone gets what is left, and may exceed it by what it costs: endpoints say
//! that at the end.

use std::collections::HashMap;
use std::sync::Arc;

use inference_protocol::resume::Usage;

use super::{Ledger, Prices};

/// Amounts are reserved in billionths of the currency's unit, which add up exactly.
const BILLION: f64 = 1e9;

/// What a request may cost, and who pays.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Bill {
    /// The tenant.
    pub tenant: Arc<str>,
    /// Tokens that the request is likely to have in its prompt, and the most of its response.
    pub most: Usage,
    /// The tenant's budget of the month.
    pub tenant_max: Option<f64>,
}

/// What is reserved for a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Payment {
    endpoint: String,
    tenant: Arc<str>,
    amount: u64,
}

/// What running requests may cost.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Payments {
    endpoints: HashMap<String, u64>,
    tenants: HashMap<Arc<str>, u64>,
}

impl Ledger {
    /// True if the budgets of an endpoint and of the tenant allow the request.
    pub(crate) fn can_pay(&self, endpoint: &str, prices: &Prices, bill: &Bill) -> bool {
        let amount = prices.of(bill.most);
        let fits = |max: Option<f64>, spent: f64, reserved: Option<&u64>| {
            let Some(max) = max else { return true };
            match reserved {
                None => spent < max,
                Some(reserved) => spent + *reserved as f64 / BILLION + amount <= max,
            }
        };
        let Payments { endpoints, tenants } = &self.payments;
        let spent = self.month_usage(&bill.tenant).spend;
        fits(prices.day_max, self.spent_today(endpoint), endpoints.get(endpoint))
            && fits(bill.tenant_max, spent, tenants.get(&bill.tenant))
    }

    /// Reserves what the request may cost at an endpoint. `None` if it costs nothing.
    pub(crate) fn reserve_payment(
        &mut self,
        endpoint: &str,
        prices: &Prices,
        bill: &Bill,
    ) -> Option<Payment> {
        let amount = (prices.of(bill.most) * BILLION).ceil() as u64;
        if amount == 0 {
            return None;
        }
        let Payments { endpoints, tenants } = &mut self.payments;
        let add = |sum: &mut u64| *sum = sum.saturating_add(amount);
        add(endpoints.entry(endpoint.into()).or_default());
        add(tenants.entry(bill.tenant.clone()).or_default());
        Some(Payment { endpoint: endpoint.into(), tenant: bill.tenant.clone(), amount })
    }

    /// Releases a payment, once what was paid is booked.
    pub(crate) fn release_payment(&mut self, Payment { endpoint, tenant, amount }: &Payment) {
        let Payments { endpoints, tenants } = &mut self.payments;
        // No entry stays of those who have nothing reserved.
        if let Some(sum) = endpoints.get_mut(endpoint) {
            *sum = sum.saturating_sub(*amount);
        }
        if let Some(sum) = tenants.get_mut(tenant) {
            *sum = sum.saturating_sub(*amount);
        }
        endpoints.retain(|_, sum| *sum > 0);
        tenants.retain(|_, sum| *sum > 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 1 for a million completion tokens, 10 on a day.
    const PRICES: Prices = Prices { prompt: 0.0, completion: 1.0, hour: 0.0, day_max: Some(10.0) };

    fn bill(tenant: &str, completion: u64, tenant_max: Option<f64>) -> Bill {
        let most = Usage { prompt: 9, completion, cached: 0 };
        Bill { tenant: tenant.into(), most, tenant_max }
    }

    fn reserve(ledger: &mut Ledger, bill: &Bill) -> Option<Payment> {
        let may = ledger.can_pay("gpu", &PRICES, bill);
        may.then(|| ledger.reserve_payment("gpu", &PRICES, bill)).flatten()
    }

    #[test]
    fn requests_side_by_side_never_reserve_more_than_a_day_allows() {
        let (mut ledger, four) = (Ledger::default(), bill("ada", 4_000_000, None));
        let first = reserve(&mut ledger, &four).unwrap();
        let second = reserve(&mut ledger, &four).unwrap();
        assert_eq!(reserve(&mut ledger, &four), None, "8 of 10 are reserved");
        let two = bill("bob", 2_000_000, None);
        let third = reserve(&mut ledger, &two).unwrap();
        assert!(ledger.can_pay("other", &PRICES, &four), "another endpoint");
        let cheap = Usage { prompt: 0, completion: 500_000, cached: 0 };
        ledger.book_usage("ada", cheap, Some(("gpu", 0.5)));
        ledger.release_payment(&first);
        assert_eq!(reserve(&mut ledger, &four), None, "6.5 are spent or reserved");
        let fourth = reserve(&mut ledger, &two).unwrap();
        for payment in [second, third, fourth] {
            ledger.release_payment(&payment);
        }
        assert_eq!(ledger.payments, Payments::default());
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
        assert!(ledger.can_pay("gpu", &Prices::default(), &bill("ada", 9, None)));
        assert!(!ledger.can_pay("gpu", &free, &bill("ada", 9, None)), "as the operator said");
        let payment = ledger.reserve_payment("gpu", &Prices::default(), &bill("ada", 9, None));
        assert_eq!(payment, None);
    }
}
