//! PURE. Tracks usage and spend: per external endpoint and day, and per tenant and month.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU64;

use inference_protocol::resume::Usage;
use serde::{Deserialize, Serialize};

use crate::types::budget::{BudgetId, billionths};
use crate::types::limits::BudgetLimit;
use crate::types::usage::{Date, Used};
use crate::types::user::UserId;

mod allotments;
mod payments;
mod reservations;

use allotments::Allotment;
pub use payments::{Bill, Payment};
use reservations::Reservations;
pub(crate) use reservations::{Need, Shortage};

const MILLION: f64 = 1e6;

/// Prices of an external endpoint, in the operator's currency.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Prices {
    /// Per million prompt tokens.
    pub prompt: f64,
    /// Per million completion tokens.
    pub completion: f64,
    /// Per hour, used or not.
    pub hour: f64,
    /// Daily limit (UTC) on spend for tokens.
    pub day_max: Option<f64>,
}

impl Prices {
    /// Price of these tokens.
    pub fn of(&self, usage: Usage) -> f64 {
        (usage.prompt as f64 * self.prompt + usage.completion as f64 * self.completion) / MILLION
    }

    /// True if tokens have a price.
    pub(crate) fn are_by_token(&self) -> bool {
        self.prompt > 0.0 || self.completion > 0.0
    }
}

/// A tenant's monthly budget (UTC); `None` is unlimited.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Budget {
    /// Prompt and completion tokens.
    pub tokens: Option<NonZeroU64>,
    /// Spend at external endpoints.
    pub spend: Option<f64>,
}

impl Budget {
    /// True if any limit is set.
    pub(crate) fn is_set(&self) -> bool {
        *self != Self::default()
    }

    fn check(&self, used: Used) -> Result<(), BudgetLimit> {
        if self.tokens.is_some_and(|max| used.tokens >= max.get()) {
            return Err(BudgetLimit::Tokens);
        }
        match self.spend.is_some_and(|max| used.spend >= max) {
            true => Err(BudgetLimit::Spend),
            false => Ok(()),
        }
    }
}

/// What all gateways that share a store have counted together.
#[derive(Debug, Clone, Default)]
pub(crate) struct Totals {
    /// By tenant, in the month.
    pub tenants: HashMap<String, Used>,
    /// Spend by endpoint, on the day.
    pub endpoints: HashMap<String, f64>,
    /// What this gateway may still grant of budgets of the day and of the month.
    pub allotted: HashMap<BudgetId, u64>,
}

/// Past days and months to remember, in case the clock is set back.
const PAST_MAX: usize = 4;

/// Today's spend by endpoint and this month's usage by tenant. Both are names from the
/// configuration, so the maps are bounded.
///
/// Setting the clock back refunds nothing: the day and month continue, together with what was
/// booked under dates that are now in the future. They end at the next midnight or with the date
/// they had, so a clock that was years ahead by mistake does not block budgets for years.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ledger {
    date: Date,
    /// The last date from the clock, if it is behind `date`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    seen: Option<Date>,
    spent: BTreeMap<String, f64>,
    used: BTreeMap<String, Used>,
    /// Spend of the last few days, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    past_spent: Vec<(u64, BTreeMap<String, f64>)>,
    /// Usage of the last few months, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    past_used: Vec<(u64, BTreeMap<String, Used>)>,
    /// This month's usage by tenant and user. A new month starts empty.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    users: BTreeMap<String, BTreeMap<UserId, Used>>,
    /// What running requests may still use. Not saved: after a restart, none run.
    #[serde(skip)]
    reserved: Reservations,
    /// What this gateway may grant of the budgets of this day and month; `None` without a store.
    #[serde(skip)]
    allotments: Option<HashMap<BudgetId, Allotment>>,
}

impl Ledger {
    /// Sets the date. A new day and a new month start at zero.
    pub(crate) fn set_date(&mut self, now: Date) {
        let Self { date, spent, used, past_spent, past_used, .. } = self;
        let seen = self.seen.unwrap_or(*date);
        let day = Period { date: date.day, seen: seen.day };
        let month = Period { date: date.month, seen: seen.month };
        let before = *date;
        date.day = day.advance(now.day, (past_spent, spent), |sum, amount| *sum += amount);
        date.month = month.advance(now.month, (past_used, used), Used::add);
        let after = *date;
        self.seen = (now != after).then_some(now);
        if after.day != before.day {
            self.forget_allotments(true);
        }
        if after.month != before.month {
            self.users.clear();
            self.forget_allotments(false);
        }
    }

    /// Books a tenant's token usage, and what an endpoint was paid for it.
    pub fn book_usage(&mut self, tenant: &str, usage: Usage, paid: Option<(&str, f64)>) {
        let amount = paid.map_or(0.0, |(_, amount)| amount);
        let tokens = usage.prompt.saturating_add(usage.completion);
        let more = Used { tokens, spend: amount };
        change(&mut self.used, tenant, |used: &mut Used| used.add(more));
        self.use_allotment(&BudgetId::Tokens(tenant.into()), tokens);
        if let Some((endpoint, amount)) = paid {
            self.use_allotment(&BudgetId::Spend(tenant.into()), billionths(amount));
            self.use_allotment(&BudgetId::EndpointSpend(endpoint.into()), billionths(amount));
            change(&mut self.spent, endpoint, |spent| *spent += amount);
        }
    }

    /// Sets what tenants have used this month and what endpoints were paid today, as all gateways
    /// together have counted it on `date`. Names that are not in there keep what they have. Does
    /// nothing while the clock is behind: what was booked since then counts, too.
    pub(crate) fn set_totals(&mut self, date: Date, totals: Totals) {
        if self.date == date && self.seen.is_none() {
            self.used.extend(totals.tenants);
            self.spent.extend(totals.endpoints);
            self.set_allotments(totals.allotted);
        }
    }

    /// What tenants have used this month, and its date.
    pub(crate) fn month_totals(&self) -> (Vec<(String, Used)>, Date) {
        (self.used.iter().map(|(name, used)| (name.clone(), *used)).collect(), self.date)
    }

    /// Books the usage of a tenant's user. If the ledger has `users_max` users of the tenant, it
    /// forgets the one who used the least: a flood of new users does not push out the heavy ones.
    pub(crate) fn book_user_usage(
        &mut self,
        tenant: &str,
        (user, users_max): (UserId, usize),
        usage: Usage,
        amount: f64,
    ) {
        let tokens = usage.prompt.saturating_add(usage.completion);
        self.use_allotment(&BudgetId::UserTokens(tenant.into(), user), tokens);
        self.use_allotment(&BudgetId::UserSpend(tenant.into(), user), billionths(amount));
        let users = self.users.entry(tenant.to_string()).or_default();
        if !users.contains_key(&user) && users.len() >= users_max.max(1) {
            let least = users.iter().min_by_key(|(_, used)| used.tokens);
            if let Some(least) = least.map(|(user, _)| *user) {
                users.remove(&least);
            }
        }
        users.entry(user).or_default().add(Used { tokens, spend: amount });
    }

    /// The users of a tenant who used the most tokens this month, most first.
    pub(crate) fn heaviest_users(&self, tenant: &str, count: usize) -> Vec<(UserId, Used)> {
        let users = self.users.get(tenant).into_iter().flatten();
        let mut users: Vec<_> = users.map(|(user, used)| (*user, *used)).collect();
        users.sort_by_key(|(_, used)| Reverse(used.tokens));
        users.truncate(count);
        users
    }

    /// Checks the monthly budget of a tenant's user.
    ///
    /// # Errors
    /// What is used up.
    pub(crate) fn check_user_budget(
        &self,
        tenant: &str,
        user: UserId,
        budget: &Budget,
    ) -> Result<(), BudgetLimit> {
        budget.check(self.user_usage(tenant, user))
    }

    /// The usage of a tenant's user this month.
    fn user_usage(&self, tenant: &str, user: UserId) -> Used {
        let used = self.users.get(tenant).and_then(|users| users.get(&user));
        used.copied().unwrap_or_default()
    }

    /// What an endpoint was paid today.
    pub fn spent_today(&self, endpoint: &str) -> f64 {
        self.spent.get(endpoint).copied().unwrap_or(0.0)
    }

    /// A tenant's usage this month.
    pub(crate) fn month_usage(&self, tenant: &str) -> Used {
        self.used.get(tenant).copied().unwrap_or_default()
    }

    /// Checks a tenant's monthly budget.
    ///
    /// # Errors
    /// What is used up.
    pub(crate) fn check_budget(&self, tenant: &str, budget: &Budget) -> Result<(), BudgetLimit> {
        budget.check(self.month_usage(tenant))
    }
}

/// Bookings of earlier periods, oldest first, and of the current one.
type Books<'a, V> = (&'a mut Vec<(u64, BTreeMap<String, V>)>, &'a mut BTreeMap<String, V>);

/// A day or a month.
#[derive(Debug, Clone, Copy)]
struct Period {
    /// The latest date that the clock has shown in it.
    date: u64,
    /// The last date that the clock has shown.
    seen: u64,
}

impl Period {
    /// Starts a new period if there is one, and returns the date of further bookings.
    fn advance<V: Default>(
        self,
        now: u64,
        (past, present): Books<'_, V>,
        add: impl Fn(&mut V, V),
    ) -> u64 {
        let Self { date, seen } = self;
        let is_later = now > date || (seen < now && now < date);
        if is_later {
            let booked = std::mem::take(present);
            if !booked.is_empty() {
                past.push((seen, booked));
            }
            let surplus = past.len().saturating_sub(PAST_MAX);
            past.drain(..surplus);
            return now;
        }
        while past.last().is_some_and(|(earlier, _)| *earlier >= now) {
            for (name, booked) in past.pop().into_iter().flat_map(|(_, booked)| booked) {
                add(present.entry(name).or_default(), booked);
            }
        }
        date
    }
}

/// Changes the value of `name`. Copies the name only if it is new.
fn change<V: Default>(map: &mut BTreeMap<String, V>, name: &str, change: impl FnOnce(&mut V)) {
    match map.get_mut(name) {
        Some(value) => change(value),
        None => change(map.entry(name.to_string()).or_default()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Date = Date { day: 7, month: 3 };

    fn tokens(count: u64) -> Usage {
        Usage { prompt: count / 2, completion: count - count / 2, cached: 0 }
    }

    #[test]
    fn tokens_cost_what_their_kind_does() {
        let prices = Prices { prompt: 1.0, completion: 4.0, ..Prices::default() };
        let usage = Usage { prompt: 500_000, completion: 250_000, cached: 0 };
        assert_eq!(prices.of(usage), 1.5);
    }

    #[test]
    fn what_is_spent_today_is_spent_until_tomorrow() {
        let prices = Prices { day_max: Some(2.0), ..Prices::default() };
        let mut ledger = Ledger::default();
        ledger.set_date(DAY);
        ledger.book_usage("ada", tokens(1), Some(("gpu", 1.9)));
        assert!(ledger.check_payment("gpu", &prices, &Bill::default()).is_ok());
        ledger.book_usage("bob", tokens(1), Some(("gpu", 0.2)));
        assert!(ledger.check_payment("gpu", &prices, &Bill::default()).is_err());
        assert!(ledger.check_payment("other", &prices, &Bill::default()).is_ok());
        assert_eq!(ledger.check_payment("gpu", &Prices::default(), &Bill::default()), Ok(()));
        ledger.set_date(DAY);
        assert!(ledger.check_payment("gpu", &prices, &Bill::default()).is_err());
        ledger.set_date(Date { day: 8, ..DAY });
        assert!(ledger.check_payment("gpu", &prices, &Bill::default()).is_ok());
    }

    #[test]
    fn a_budget_lasts_until_the_month_is_over() {
        let budget = Budget { tokens: NonZeroU64::new(100), spend: Some(2.0) };
        let mut ledger = Ledger::default();
        ledger.set_date(DAY);
        ledger.book_usage("ada", tokens(99), None);
        assert_eq!(ledger.check_budget("ada", &budget), Ok(()));
        ledger.book_usage("ada", tokens(1), None);
        ledger.book_usage("bob", tokens(9), Some(("gpu", 2.0)));
        assert_eq!(ledger.check_budget("ada", &budget), Err(BudgetLimit::Tokens));
        assert_eq!(ledger.check_budget("bob", &budget), Err(BudgetLimit::Spend));
        assert_eq!(ledger.check_budget("ada", &Budget::default()), Ok(()));
        ledger.set_date(Date { day: 8, ..DAY });
        assert_eq!(ledger.month_usage("bob"), Used { tokens: 9, spend: 2.0 });
        ledger.set_date(Date { day: 40, month: 4 });
        assert_eq!(ledger.month_usage("bob"), Used::default());
    }

    #[test]
    fn a_clock_that_is_set_back_gives_nothing_back() {
        let mut ledger = Ledger::default();
        ledger.set_date(DAY);
        ledger.book_usage("ada", tokens(9), Some(("gpu", 2.0)));
        for date in [Date { day: 6, month: 2 }, DAY, Date { day: 3, month: 2 }, DAY] {
            ledger.set_date(date);
            assert_eq!(ledger.spent_today("gpu"), 2.0);
            assert_eq!(ledger.month_usage("ada"), Used { tokens: 9, spend: 2.0 });
        }
        ledger.set_date(Date { day: 8, month: 3 });
        assert_eq!((ledger.spent_today("gpu"), ledger.month_usage("ada").tokens), (0.0, 9));
        ledger.set_date(DAY);
        assert_eq!(ledger.spent_today("gpu"), 2.0, "midnight has not come yet");
    }

    #[test]
    fn a_clock_that_is_set_forward_and_back_has_reset_nothing_and_holds_nothing_up() {
        let mut ledger = Ledger::default();
        ledger.set_date(DAY);
        ledger.book_usage("ada", tokens(10), Some(("gpu", 2.0)));
        // Years ahead, past a midnight there, and back.
        for date in [Date { day: 4000, month: 130 }, Date { day: 4001, month: 131 }] {
            ledger.set_date(date);
            assert_eq!(
                (ledger.spent_today("gpu"), ledger.month_usage("ada")),
                (0.0, Used::default())
            );
            ledger.book_usage("ada", tokens(5), Some(("gpu", 1.0)));
        }
        // A ledger restored from the file behaves the same.
        let kept = serde_json::to_string(&ledger).unwrap();
        for mut ledger in [ledger, serde_json::from_str(&kept).unwrap()] {
            ledger.set_date(DAY);
            assert_eq!(ledger.spent_today("gpu"), 4.0);
            assert_eq!(ledger.month_usage("ada"), Used { tokens: 20, spend: 4.0 });
            ledger.set_date(DAY);
            assert_eq!(ledger.spent_today("gpu"), 4.0, "once");
            ledger.set_date(Date { day: 8, ..DAY });
            assert_eq!((ledger.spent_today("gpu"), ledger.month_usage("ada").tokens), (0.0, 20));
            ledger.set_date(Date { day: 40, month: 4 });
            assert_eq!(ledger.month_usage("ada"), Used::default());
        }
    }

    #[test]
    fn what_all_gateways_have_counted_replaces_what_one_has_unless_the_clock_is_behind() {
        let mut ledger = Ledger::default();
        ledger.set_date(DAY);
        ledger.book_usage("ada", tokens(9), Some(("gpu", 2.0)));
        ledger.book_usage("bob", tokens(5), None);
        let all = |tokens| Totals {
            tenants: [("ada".to_string(), Used { tokens, spend: 3.0 })].into(),
            ..Totals::default()
        };
        ledger.set_totals(DAY, Totals { endpoints: [("gpu".into(), 3.5)].into(), ..all(30) });
        assert_eq!(ledger.month_usage("ada"), Used { tokens: 30, spend: 3.0 });
        assert_eq!((ledger.spent_today("gpu"), ledger.month_usage("bob").tokens), (3.5, 5));
        ledger.set_totals(Date { day: 8, month: 3 }, all(1));
        ledger.set_date(Date { day: 6, month: 2 });
        ledger.set_totals(DAY, all(1));
        assert_eq!(ledger.month_usage("ada").tokens, 30);
    }

    #[test]
    fn few_days_are_remembered() {
        let mut ledger = Ledger::default();
        for day in 1..100 {
            ledger.set_date(Date { day, month: day });
            ledger.book_usage("ada", tokens(1), Some(("gpu", 1.0)));
        }
        assert_eq!((ledger.past_spent.len(), ledger.past_used.len()), (PAST_MAX, PAST_MAX));
        let older = r#"{"date":{"day":7,"month":3},"spent":{"gpu":1.5},"used":{}}"#;
        let older: Ledger = serde_json::from_str(older).unwrap();
        assert_eq!(older.spent_today("gpu"), 1.5, "a file of before");
    }

    fn user(id: &str) -> UserId {
        UserId::new(&crate::types::secret::KeyDigest::of("key"), id.as_bytes())
    }

    #[test]
    fn each_user_has_a_budget_of_its_own_until_the_month_is_over() {
        let budget = Budget { tokens: NonZeroU64::new(100), spend: Some(2.0) };
        let mut ledger = Ledger::default();
        ledger.set_date(DAY);
        ledger.book_user_usage("ada", (user("x"), 9), tokens(100), 0.0);
        ledger.book_user_usage("ada", (user("y"), 9), tokens(1), 2.0);
        let check =
            |ledger: &Ledger, tenant, id| ledger.check_user_budget(tenant, user(id), &budget);
        assert_eq!(check(&ledger, "ada", "x"), Err(BudgetLimit::Tokens));
        assert_eq!(check(&ledger, "ada", "y"), Err(BudgetLimit::Spend));
        assert_eq!((check(&ledger, "ada", "z"), check(&ledger, "bob", "x")), (Ok(()), Ok(())));
        assert_eq!(
            ledger.heaviest_users("ada", 1)[0],
            (user("x"), Used { tokens: 100, spend: 0.0 })
        );
        let kept = serde_json::to_string(&ledger).unwrap();
        assert_eq!(serde_json::from_str::<Ledger>(&kept).unwrap(), ledger);
        ledger.set_date(Date { day: 6, month: 2 });
        assert!(check(&ledger, "ada", "x").is_err(), "a clock that is set back gives nothing back");
        ledger.set_date(Date { day: 40, month: 4 });
        assert_eq!(check(&ledger, "ada", "x"), Ok(()));
    }

    #[test]
    fn a_hundred_thousand_users_stay_within_the_bound_and_the_heavy_ones_are_kept() {
        let mut ledger = Ledger::default();
        ledger.book_user_usage("ada", (user("heavy"), 50), tokens(1_000), 0.0);
        for number in 0..100_000 {
            ledger.book_user_usage("ada", (user(&number.to_string()), 50), tokens(9), 0.0);
        }
        assert_eq!(ledger.users["ada"].len(), 50);
        assert_eq!(ledger.heaviest_users("ada", 99)[0].0, user("heavy"));
    }
}
