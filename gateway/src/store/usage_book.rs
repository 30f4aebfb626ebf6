//! PURE. What was used and not yet stored: by minute, tenant, class, model and endpoint, and by
//! user.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use inference_protocol::resume::Usage;

use crate::types::budget::{BudgetId, billionths, money};
use crate::types::usage::Date;
use crate::types::user::UserId;

/// Rows that wait for the store. Further models and endpoints of a tenant are booked together.
const ROWS_MAX: usize = 100_000;
/// Users that wait for the store. What further ones use until then counts at this gateway only.
const USERS_MAX: usize = 100_000;
/// The model and the endpoint of a row for those that have none of their own.
const OTHERS: &str = "(others)";

/// What a row is about.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct UsageKey {
    /// Minutes since 1970.
    pub minute: u64,
    /// The tenant.
    pub tenant: Arc<str>,
    /// Name of the class.
    pub class: &'static str,
    /// The model.
    pub model: Arc<str>,
    /// The external endpoint; empty for our nodes.
    pub endpoint: Arc<str>,
}

/// A user with a budget.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct UserKey {
    /// The month, as [`Date`] counts.
    pub month: u64,
    /// The tenant.
    pub tenant: Arc<str>,
    /// Its user.
    pub user: UserId,
    /// Most users of the tenant that are kept.
    pub users_max: usize,
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
        Self { prompt, cached, completion, cost: billionths(amount) }
    }

    /// Prompt and completion tokens.
    pub(crate) fn tokens(&self) -> u64 {
        self.prompt.saturating_add(self.completion)
    }

    /// What was paid, in the currency's unit.
    pub(crate) fn amount(&self) -> f64 {
        money(self.cost)
    }

    /// What remains without a part; `None` if it is none.
    fn without(&self, part: &Self) -> Option<Self> {
        Some(Self {
            prompt: self.prompt.checked_sub(part.prompt)?,
            cached: self.cached.checked_sub(part.cached)?,
            completion: self.completion.checked_sub(part.completion)?,
            cost: self.cost.checked_sub(part.cost)?,
        })
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

/// What waits for the store.
#[derive(Debug, Default)]
pub struct UsageBook(Mutex<Booked>);

/// What was used, by row and by user.
#[derive(Debug, Clone, Default)]
pub(crate) struct Booked {
    /// For bills, and for budgets of tenants and endpoints.
    pub rows: HashMap<UsageKey, UsageSum>,
    /// For budgets of users.
    pub users: HashMap<UserKey, UsageSum>,
    /// Identifies it while it is stored, so that it counts once, however often that is tried. 0 is
    /// not checked.
    pub number: u64,
}

impl UsageBook {
    /// True if nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Books what was used.
    pub(crate) fn book(&self, mut key: UsageKey, sum: UsageSum) {
        let rows = &mut self.lock().rows;
        if rows.len() >= ROWS_MAX && !rows.contains_key(&key) {
            (key.model, key.endpoint) = (OTHERS.into(), OTHERS.into());
        }
        rows.entry(key).or_default().add(sum);
    }

    /// Books what a user with a budget has used.
    pub(crate) fn book_user(&self, key: UserKey, sum: UsageSum) {
        let users = &mut self.lock().users;
        if users.len() < USERS_MAX || users.contains_key(&key) {
            users.entry(key).or_default().add(sum);
        }
    }

    /// Takes everything.
    pub(crate) fn take(&self) -> Booked {
        std::mem::take(&mut *self.lock())
    }

    /// What waits of each budget of a day and its month.
    pub(crate) fn by_budget(&self, today: Date) -> HashMap<BudgetId, u64> {
        self.lock().by_budget(today)
    }

    /// Books again what could not be stored.
    pub(crate) fn put_back(
        &self,
        rows: impl IntoIterator<Item = (UsageKey, UsageSum)>,
        users: impl IntoIterator<Item = (UserKey, UsageSum)>,
    ) {
        rows.into_iter().for_each(|(key, sum)| self.book(key, sum));
        users.into_iter().for_each(|(key, sum)| self.book_user(key, sum));
    }

    fn lock(&self) -> MutexGuard<'_, Booked> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Booked {
    /// True if nothing was used.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.users.is_empty()
    }

    /// Takes out what is in another one. False if that is not all in here; nothing changes then.
    pub(crate) fn take_out(&mut self, other: &Self) -> bool {
        let rests = rests(&self.rows, &other.rows).zip(rests(&self.users, &other.users));
        let Some((rows, users)) = rests else { return false };
        set(&mut self.rows, rows);
        set(&mut self.users, users);
        true
    }

    /// How much was used of which budget, and when.
    pub(crate) fn of_budgets(&self) -> Vec<(Date, BudgetId, u64)> {
        let of_row = |(key, sum): (&UsageKey, &UsageSum)| {
            let (tenant, endpoint) = (key.tenant.to_string(), key.endpoint.to_string());
            let of_endpoint =
                (!endpoint.is_empty()).then_some((BudgetId::EndpointSpend(endpoint), sum.cost));
            let of_tenant = [
                (BudgetId::Tokens(tenant.clone()), sum.tokens()),
                (BudgetId::Spend(tenant), sum.cost),
            ];
            let date = key.date();
            of_tenant.into_iter().chain(of_endpoint).map(move |(id, amount)| (date, id, amount))
        };
        let of_user = |(key, sum): (&UserKey, &UsageSum)| {
            let (tenant, date) = (key.tenant.to_string(), Date { day: 0, month: key.month });
            [
                (date, BudgetId::UserTokens(tenant.clone(), key.user), sum.tokens()),
                (date, BudgetId::UserSpend(tenant, key.user), sum.cost),
            ]
        };
        self.rows.iter().flat_map(of_row).chain(self.users.iter().flat_map(of_user)).collect()
    }

    fn by_budget(&self, today: Date) -> HashMap<BudgetId, u64> {
        let mut sums: HashMap<BudgetId, u64> = HashMap::new();
        for (date, id, amount) in self.of_budgets() {
            if amount > 0 && id.period(date) == id.period(today) {
                let sum = sums.entry(id).or_default();
                *sum = sum.saturating_add(amount);
            }
        }
        sums
    }
}

impl UsageKey {
    /// The day and the month.
    pub(crate) fn date(&self) -> Date {
        Date::at(self.minute * 60)
    }
}

/// What remains of the sums that are in both, if all of the other one is in the first one.
fn rests<K: Hash + Eq + Clone>(
    all: &HashMap<K, UsageSum>,
    other: &HashMap<K, UsageSum>,
) -> Option<Vec<(K, UsageSum)>> {
    let rest = |(key, part): (&K, &UsageSum)| Some((key.clone(), all.get(key)?.without(part)?));
    other.iter().map(rest).collect()
}

fn set<K: Hash + Eq>(all: &mut HashMap<K, UsageSum>, sums: Vec<(K, UsageSum)>) {
    for (key, sum) in sums {
        if sum == UsageSum::default() {
            all.remove(&key);
        } else {
            all.insert(key, sum);
        }
    }
}

/// The minute of a time in seconds since 1970, since then.
pub(crate) fn minute_of(seconds: u64) -> u64 {
    seconds / 60
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(tenant: &str, model: usize) -> UsageKey {
        let (tenant, model) = (tenant.into(), model.to_string().into());
        UsageKey { minute: 7, tenant, class: "standard", model, endpoint: "".into() }
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
        let mut taken: Vec<_> = book.take().rows.into_iter().collect();
        taken.sort_by_key(|(key, _)| key.tenant.clone());
        let both = UsageSum { prompt: 18, cached: 8, completion: 3, cost: 500_000_000 };
        assert_eq!(taken[0], (key("ada", 1), both));
        assert_eq!((both.tokens(), both.amount()), (21, 0.5));
        assert!(book.is_empty());
        book.book(key("bob", 1), used(1));
        book.put_back(taken, Vec::new());
        let rows = book.take().rows;
        assert_eq!(rows[&key("bob", 1)].completion, 4, "nothing is lost or counted twice");
    }

    #[test]
    fn what_was_put_back_can_be_taken_out_again_as_it_was() {
        let book = UsageBook::default();
        book.book(key("ada", 1), used(1));
        book.book(key("bob", 1), used(2));
        let booked = book.take();
        book.put_back(booked.rows.clone(), booked.users.clone());
        book.book(key("ada", 1), used(5));
        let mut all = book.take();
        assert!(all.take_out(&booked));
        assert_eq!(all.rows, [(key("ada", 1), used(5))].into());
        assert!(!all.take_out(&booked), "it is not in there any more");
        assert_eq!(all.rows.len(), 1);
    }

    #[test]
    fn the_number_of_rows_is_bounded_and_no_token_is_lost() {
        let book = UsageBook::default();
        for model in 0..ROWS_MAX + 100 {
            book.book(key("ada", model), used(1));
        }
        let rows = book.take().rows;
        assert_eq!(rows.len(), ROWS_MAX + 1);
        let tokens: u64 = rows.values().map(|sum| sum.completion).sum();
        assert_eq!(tokens, ROWS_MAX as u64 + 100);
    }

    #[test]
    fn what_waits_is_known_by_budget() {
        let book = UsageBook::default();
        let today = Date::at(7 * 60);
        let user = UserId::new(&crate::types::secret::KeyDigest::of("key"), b"x");
        book.book(UsageKey { endpoint: "gpu".into(), ..key("ada", 1) }, used(1));
        book.book(key("ada", 2), used(2));
        book.book(UsageKey { minute: 60 * 24 * 40, ..key("ada", 2) }, used(100));
        let of_user = |month| UserKey { month, tenant: "ada".into(), user, users_max: 9 };
        book.book_user(of_user(today.month), used(3));
        book.book_user(of_user(today.month + 1), used(100));
        let waits = book.by_budget(today);
        let of = |id: BudgetId| waits.get(&id).copied();
        assert_eq!(of(BudgetId::Tokens("ada".into())), Some(21));
        assert_eq!(of(BudgetId::Spend("ada".into())), Some(500_000_000));
        assert_eq!(of(BudgetId::EndpointSpend("gpu".into())), Some(250_000_000));
        assert_eq!(of(BudgetId::UserTokens("ada".into(), user)), Some(12));
        assert_eq!(of(BudgetId::UserSpend("ada".into(), user)), Some(250_000_000));
        assert_eq!(waits.len(), 5);
    }
}
