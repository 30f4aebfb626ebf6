//! PURE. What was used and not yet stored, by hour, tenant, class, model and endpoint.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use inference_protocol::resume::Usage;

/// Rows that wait for the store. Further models and endpoints of a tenant are booked together.
const ROWS_MAX: usize = 100_000;
/// The model and the endpoint of a row for those that have none of their own.
const OTHERS: &str = "(others)";
/// Billionths of the currency's unit, in which amounts are stored, so that they add up exactly.
const BILLION: f64 = 1e9;

/// What a row is about.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct UsageKey {
    /// Hours since 1970.
    pub hour: u64,
    /// The tenant.
    pub tenant: Arc<str>,
    /// Name of the class.
    pub class: &'static str,
    /// The model.
    pub model: Arc<str>,
    /// The external endpoint; empty for our nodes.
    pub endpoint: Arc<str>,
}

/// What was used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct UsageSum {
    /// Prompt tokens, cached ones included.
    pub prompt: u64,
    /// Prompt tokens that were cached.
    pub cached: u64,
    /// Completion tokens.
    pub completion: u64,
    /// Paid to the endpoint, in billionths of the currency's unit.
    pub cost: u64,
}

impl UsageSum {
    /// These tokens, for which an endpoint was paid `amount`.
    pub(crate) fn new(usage: Usage, amount: f64) -> Self {
        let Usage { prompt, completion, cached } = usage;
        Self { prompt, cached, completion, cost: (amount * BILLION).round() as u64 }
    }

    /// Prompt and completion tokens.
    pub(crate) fn tokens(&self) -> u64 {
        self.prompt.saturating_add(self.completion)
    }

    /// What was paid, in the currency's unit.
    pub(crate) fn amount(&self) -> f64 {
        self.cost as f64 / BILLION
    }

    /// Adds what else was used.
    pub(crate) fn add(&mut self, more: Self) {
        let sum = |a: &mut u64, b: u64| *a = a.saturating_add(b);
        sum(&mut self.prompt, more.prompt);
        sum(&mut self.cached, more.cached);
        sum(&mut self.completion, more.completion);
        sum(&mut self.cost, more.cost);
    }
}

/// Rows that wait for the store.
#[derive(Debug, Default)]
pub struct UsageBook(Mutex<HashMap<UsageKey, UsageSum>>);

impl UsageBook {
    /// True if nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Books what was used.
    pub(crate) fn book(&self, mut key: UsageKey, sum: UsageSum) {
        let mut rows = self.lock();
        if rows.len() >= ROWS_MAX && !rows.contains_key(&key) {
            (key.model, key.endpoint) = (OTHERS.into(), OTHERS.into());
        }
        rows.entry(key).or_default().add(sum);
    }

    /// Takes all rows.
    pub(crate) fn take(&self) -> Vec<(UsageKey, UsageSum)> {
        std::mem::take(&mut *self.lock()).into_iter().collect()
    }

    /// Tokens of a tenant.
    pub(crate) fn tokens_of(&self, tenant: &str) -> u64 {
        let rows = self.lock();
        let of = rows.iter().filter(|(key, _)| &*key.tenant == tenant);
        of.map(|(_, sum)| sum.tokens()).fold(0, u64::saturating_add)
    }

    /// All rows.
    pub(crate) fn rows(&self) -> Vec<(UsageKey, UsageSum)> {
        self.lock().iter().map(|(key, sum)| (key.clone(), *sum)).collect()
    }

    /// Books rows again that could not be stored.
    pub(crate) fn put_back(&self, rows: Vec<(UsageKey, UsageSum)>) {
        rows.into_iter().for_each(|(key, sum)| self.book(key, sum));
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<UsageKey, UsageSum>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The hour of a time in seconds since 1970, since then.
pub(crate) fn hour_of(seconds: u64) -> u64 {
    seconds / 3600
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(tenant: &str, model: usize) -> UsageKey {
        let (tenant, model) = (tenant.into(), model.to_string().into());
        UsageKey { hour: 7, tenant, class: "standard", model, endpoint: "".into() }
    }

    fn used(completion: u64) -> UsageSum {
        UsageSum::new(Usage { prompt: 9, completion, cached: 4 }, 0.25)
    }

    #[test]
    fn usage_of_the_same_kind_is_one_row_until_it_is_taken() {
        let book = UsageBook::default();
        book.book(key("ada", 1), used(1));
        book.book(key("ada", 1), used(2));
        book.book(key("bob", 1), used(3));
        let mut taken = book.take();
        taken.sort_by_key(|(key, _)| key.tenant.clone());
        let both = UsageSum { prompt: 18, cached: 8, completion: 3, cost: 500_000_000 };
        assert_eq!(taken[0], (key("ada", 1), both));
        assert_eq!((both.tokens(), both.amount()), (21, 0.5));
        assert!(book.rows().is_empty());
        book.book(key("bob", 1), used(1));
        book.put_back(taken);
        let of_bob = book.rows().into_iter().find(|(key, _)| &*key.tenant == "bob").unwrap();
        assert_eq!(of_bob.1.completion, 4, "nothing is lost or counted twice");
    }

    #[test]
    fn the_number_of_rows_is_bounded_and_no_token_is_lost() {
        let book = UsageBook::default();
        for model in 0..ROWS_MAX + 100 {
            book.book(key("ada", model), used(1));
        }
        let rows = book.take();
        assert_eq!(rows.len(), ROWS_MAX + 1);
        let tokens: u64 = rows.iter().map(|(_, sum)| sum.completion).sum();
        assert_eq!(tokens, ROWS_MAX as u64 + 100);
    }
}
