//! What tenants have used, of all gateways: by minute, later by hour, for bills, and by day and
//! month for budgets.

use std::ops::Range;

use super::allotments;
use super::gateways::is_new;
use super::sql::{Fault, Row, Transaction, values};
use super::usage_book::{Booked, UsageKey, UsageSum, UserKey};
use super::{Store, StoreError};
use crate::types::budget::{BudgetId, user_name};
use crate::types::usage::{Date, Used};

/// Users that a new one may push out at once, after the most users of a tenant were set lower.
const USERS_FORGOTTEN_MAX: usize = 1000;

/// What a row is about, besides its time.
const KEYS: &str = "tenant, class, model, endpoint";
/// What rows have together.
const SUMS: &str = "CAST(sum(prompt) AS BIGINT) AS prompt, CAST(sum(cached) AS BIGINT) AS cached, \
                    CAST(sum(completion) AS BIGINT) AS completion, \
                    CAST(sum(cost) AS BIGINT) AS cost";
/// What a row has, and what is added.
const ADDED: &str = "prompt = usage.prompt + excluded.prompt, \
                     cached = usage.cached + excluded.cached, \
                     completion = usage.completion + excluded.completion, \
                     cost = usage.cost + excluded.cost";

/// How long a row of the usage lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UsageStep {
    /// A minute.
    Minute,
    /// An hour.
    Hour,
}

impl UsageStep {
    /// An expression for the minute in which the row of a minute begins.
    fn begin(self) -> &'static str {
        match self {
            Self::Minute => "minute",
            Self::Hour => "minute / 60 * 60",
        }
    }
}

/// What was used of all tenants and endpoints.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct UsageTotals {
    /// By tenant, in the month.
    pub tenants: Vec<(String, Used)>,
    /// Spend by endpoint, on the day.
    pub endpoints: Vec<(String, f64)>,
    /// What this gateway was allotted of budgets of the day and of the month and has not stored as
    /// used.
    pub allotted: Vec<(BudgetId, u64)>,
}

/// A row of the usage that is exported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UsageRecord {
    /// Minutes since 1970.
    pub minute: u64,
    /// The tenant.
    pub tenant: String,
    /// Name of the class.
    pub class: String,
    /// The model.
    pub model: String,
    /// The external endpoint; empty for our nodes.
    pub endpoint: String,
    /// What was used.
    pub sum: UsageSum,
}

impl Store {
    /// Adds usage, unless this gateway has just added it, gives back what this gateway does not
    /// need of its allotments today, and returns what all gateways have stored for `today`.
    pub(crate) async fn add_usage(
        &self,
        booked: Booked,
        given_back: Vec<(BudgetId, u64)>,
        today: Date,
    ) -> Result<UsageTotals, StoreError> {
        let me = self.0.me.clone();
        let add = move |transaction: &mut Transaction<'_>| {
            if !booked.is_empty() && is_new(transaction, &me, booked.number)? {
                add_booked(transaction, &me, &booked)?;
            }
            for (id, amount) in &given_back {
                allotments::take(transaction, (&me, id, today), *amount, false)?;
                allotments::forget(transaction, (&me, id, today))?;
            }
            let tenants = sums(transaction, "month", today.month)?;
            let endpoints = sums(transaction, "day", today.day)?;
            Ok((tenants, endpoints, allotments::of(transaction, &me)?))
        };
        let (tenants, endpoints, allotted) = self.0.database.run(add).await?;
        self.0.marks.keep(&allotted.iter().map(|(id, period, _)| (id, *period)).collect());
        let current = allotted.into_iter().filter(|(id, period, _)| id.period(today) == *period);
        let allotted = current.map(|(id, _, amount)| (id, amount)).collect();
        let endpoints = endpoints.into_iter().map(|(name, used)| (name, used.spend)).collect();
        Ok(UsageTotals { tenants, endpoints, allotted })
    }

    /// Adds what tenants had used in the month before there was a store, unless more than that is
    /// stored.
    pub(crate) async fn import_usage(
        &self,
        tenants: Vec<(String, Used)>,
        month: u64,
    ) -> Result<(), StoreError> {
        let import = move |transaction: &mut Transaction<'_>| {
            for (tenant, used) in &tenants {
                let sum = UsageSum { cost: cost(used.spend), ..UsageSum::default() };
                let sql = "INSERT INTO usage_sums (kind, period, name, tokens, cost) \
                           VALUES ('month', ?1, ?2, ?3, ?4) ON CONFLICT (kind, period, name) \
                           DO UPDATE SET tokens = CASE WHEN usage_sums.tokens < excluded.tokens \
                           THEN excluded.tokens ELSE usage_sums.tokens END, \
                           cost = CASE WHEN usage_sums.cost < excluded.cost \
                           THEN excluded.cost ELSE usage_sums.cost END";
                transaction.execute(sql, values![month, tenant, used.tokens, sum.cost])?;
            }
            Ok(())
        };
        self.0.database.run(import).await
    }

    /// Usage from one minute to before another, by minute or hour: at most `limit` rows, oldest
    /// first. Usage that was rolled up is in the first minute of its hour.
    pub(crate) async fn usage(
        &self,
        minutes: Range<u64>,
        step: UsageStep,
        limit: usize,
    ) -> Result<Vec<UsageRecord>, StoreError> {
        let list = move |transaction: &mut Transaction<'_>| {
            let begin = step.begin();
            let sql = format!(
                "SELECT {begin} AS minute, {KEYS}, {SUMS} FROM usage \
                 WHERE minute >= ?1 AND minute < ?2 GROUP BY 1, {KEYS} ORDER BY 1, {KEYS} LIMIT ?3"
            );
            let rows = transaction.query(&sql, values![minutes.start, minutes.end, limit])?;
            Ok(rows.into_iter().map(read).collect::<Result<_, _>>()?)
        };
        self.0.database.run(list).await
    }

    /// Puts usage of these minutes, which are whole hours, into one row for each hour.
    pub(crate) async fn roll_up_usage(&self, minutes: Range<u64>) -> Result<(), StoreError> {
        let roll_up = move |transaction: &mut Transaction<'_>| {
            let begin = UsageStep::Hour.begin();
            // What already is in the first minute of an hour stays there.
            let which = "minute >= ?1 AND minute < ?2 AND minute % 60 <> 0";
            let sql = format!(
                "INSERT INTO usage (minute, {KEYS}, prompt, cached, completion, cost) \
                 SELECT {begin}, {KEYS}, {SUMS} FROM usage WHERE {which} GROUP BY 1, {KEYS} \
                 ON CONFLICT (minute, {KEYS}) DO UPDATE SET {ADDED}"
            );
            let minutes = values![minutes.start, minutes.end];
            transaction.execute(&sql, minutes)?;
            transaction.execute(&format!("DELETE FROM usage WHERE {which}"), minutes)?;
            Ok(())
        };
        self.0.database.run(roll_up).await
    }

    /// Deletes usage of before a minute, and of before that day and month, and allotments of before
    /// the day and the month of `allotments`.
    pub(crate) async fn expire_usage(
        &self,
        (minute, date): (u64, Date),
        allotments: Date,
    ) -> Result<(), StoreError> {
        let expire = move |transaction: &mut Transaction<'_>| {
            transaction.execute("DELETE FROM usage WHERE minute < ?1", values![minute])?;
            let sql = "DELETE FROM usage_sums WHERE (kind = 'day' AND period < ?1) \
                       OR (kind <> 'day' AND period < ?2)";
            transaction.execute(sql, values![date.day, date.month])?;
            let sql = "DELETE FROM allotments WHERE (kind = 'endpoint_spend' AND period < ?1) \
                       OR (kind <> 'endpoint_spend' AND period < ?2)";
            transaction.execute(sql, values![allotments.day, allotments.month])?;
            Ok(())
        };
        self.0.database.run(expire).await
    }
}

fn cost(amount: f64) -> u64 {
    UsageSum::new(Default::default(), amount).cost
}

fn add_booked(
    transaction: &mut Transaction<'_>,
    me: &str,
    booked: &Booked,
) -> Result<(), StoreError> {
    for (key, sum) in &booked.rows {
        insert(transaction, key, *sum)?;
        add_sums(transaction, key, *sum)?;
    }
    for (key, sum) in &booked.users {
        add_user(transaction, key, *sum)?;
    }
    for (date, id, amount) in booked.of_budgets() {
        allotments::take(transaction, (me, &id, date), amount, true)?;
    }
    Ok(())
}

fn insert(
    transaction: &mut Transaction<'_>,
    key: &UsageKey,
    sum: UsageSum,
) -> Result<(), StoreError> {
    let UsageKey { minute, tenant, class, model, endpoint } = key;
    let UsageSum { prompt, cached, completion, cost } = sum;
    let sql = format!(
        "INSERT INTO usage (minute, {KEYS}, prompt, cached, completion, cost) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9) \
         ON CONFLICT (minute, {KEYS}) DO UPDATE SET {ADDED}"
    );
    let (tenant, model, endpoint) = (&**tenant, &**model, &**endpoint);
    let values =
        values![*minute, tenant, *class, model, endpoint, prompt, cached, completion, cost];
    transaction.execute(&sql, values)?;
    Ok(())
}

fn add_sums(
    transaction: &mut Transaction<'_>,
    key: &UsageKey,
    sum: UsageSum,
) -> Result<(), StoreError> {
    let (date, tokens) = (key.date(), sum.tokens());
    add_sum(transaction, ("month", date.month, &key.tenant), tokens, sum.cost)?;
    match &*key.endpoint {
        "" => Ok(()),
        endpoint => add_sum(transaction, ("day", date.day, endpoint), tokens, sum.cost),
    }
}

/// Adds what a user has used. Beyond the most users of a tenant, the one that has used the least
/// makes room for a new one.
fn add_user(
    transaction: &mut Transaction<'_>,
    key: &UserKey,
    sum: UsageSum,
) -> Result<(), StoreError> {
    let UserKey { month, tenant, user, users_max } = key;
    let name = user_name(tenant, *user);
    let sql = "SELECT count(*) AS count FROM usage_sums \
               WHERE kind = 'user' AND period = ?1 AND name = ?2";
    if transaction.count(sql, values![*month, &name])? == 0 {
        // Names of tenants may have an underscore, which would stand for any character.
        let all = format!("{}/%", tenant.replace('_', "!_"));
        let sql = "DELETE FROM usage_sums WHERE kind = 'user' AND period = ?1 AND name IN \
                   (SELECT name FROM usage_sums WHERE kind = 'user' AND period = ?1 \
                   AND name LIKE ?2 ESCAPE '!' ORDER BY tokens DESC, name LIMIT ?3 OFFSET ?4)";
        let kept = users_max.saturating_sub(1);
        transaction.execute(sql, values![*month, &all, USERS_FORGOTTEN_MAX, kept])?;
    }
    add_sum(transaction, ("user", *month, &name), sum.tokens(), sum.cost)
}

/// Adds what was used of a budget.
pub(super) fn add_used(
    transaction: &mut Transaction<'_>,
    (id, period): (&BudgetId, u64),
    amount: u64,
) -> Result<(), StoreError> {
    let (tokens, cost) = if id.is_money() { (0, amount) } else { (amount, 0) };
    add_sum(transaction, (sums_of(id), period, &id.owner()), tokens, cost)
}

/// The kind of the sums that a budget limits.
pub(super) fn sums_of(id: &BudgetId) -> &'static str {
    match id {
        BudgetId::Tokens(_) | BudgetId::Spend(_) => "month",
        BudgetId::EndpointSpend(_) => "day",
        BudgetId::UserTokens(..) | BudgetId::UserSpend(..) => "user",
    }
}

fn add_sum(
    transaction: &mut Transaction<'_>,
    (kind, period, name): (&str, u64, &str),
    tokens: u64,
    cost: u64,
) -> Result<(), StoreError> {
    let sql = "INSERT INTO usage_sums (kind, period, name, tokens, cost) \
               VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT (kind, period, name) DO UPDATE SET \
               tokens = usage_sums.tokens + excluded.tokens, \
               cost = usage_sums.cost + excluded.cost";
    transaction.execute(sql, values![kind, period, name, tokens, cost])?;
    Ok(())
}

/// The sums of a kind and period, by name.
fn sums(
    transaction: &mut Transaction<'_>,
    kind: &str,
    period: u64,
) -> Result<Vec<(String, Used)>, StoreError> {
    let sql = "SELECT name, tokens, cost FROM usage_sums WHERE kind = ?1 AND period = ?2";
    let read = |mut row: Row| {
        let sum = UsageSum { cost: row.take("cost")?, ..UsageSum::default() };
        Ok((row.take("name")?, Used { tokens: row.take("tokens")?, spend: sum.amount() }))
    };
    let rows = transaction.query(sql, values![kind, period])?.into_iter().map(read);
    Ok(rows.collect::<Result<_, Fault>>()?)
}

fn read(mut row: Row) -> Result<UsageRecord, Fault> {
    let sum = UsageSum {
        prompt: row.take("prompt")?,
        cached: row.take("cached")?,
        completion: row.take("completion")?,
        cost: row.take("cost")?,
    };
    let (minute, tenant, class) = (row.take("minute")?, row.take("tenant")?, row.take("class")?);
    let (model, endpoint) = (row.take("model")?, row.take("endpoint")?);
    Ok(UsageRecord { minute, tenant, class, model, endpoint, sum })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::testing::with_store;
    use crate::types::budget::Ask;
    use crate::types::secret::KeyDigest;
    use crate::types::user::UserId;

    /// The first minute of 10 February 1970, and of 2 January.
    const NOW: u64 = 40 * 24 * 60;
    const JANUARY: u64 = 24 * 60;

    fn today() -> Date {
        Date::at(NOW * 60)
    }

    fn row(minute: u64, tenant: &str, endpoint: &str) -> (UsageKey, UsageSum) {
        let (tenant, endpoint) = (tenant.into(), endpoint.into());
        let key = UsageKey { minute, tenant, class: "batch", model: "m".into(), endpoint };
        let paid = if key.endpoint.is_empty() { 0 } else { 500_000_000 };
        (key, UsageSum { prompt: 10, cached: 4, completion: 5, cost: paid })
    }

    fn booked(rows: impl IntoIterator<Item = (UsageKey, UsageSum)>) -> Booked {
        Booked { rows: rows.into_iter().collect(), ..Booked::default() }
    }

    async fn add(store: &Store, booked: Booked) -> UsageTotals {
        store.add_usage(booked, Vec::new(), today()).await.unwrap()
    }

    fn used(tokens: u64, spend: f64) -> Used {
        Used { tokens, spend }
    }

    #[tokio::test]
    async fn usage_adds_up_by_minute_and_for_the_month_and_the_day() {
        with_store(async |store| {
            let rows = [
                row(NOW, "ada", ""),
                row(NOW, "ada", "gpu"),
                row(NOW - 1, "ada", "gpu"),
                row(JANUARY, "bob", "gpu"),
            ];
            add(store, booked(rows)).await;
            let totals = add(store, booked([row(NOW, "ada", "gpu")])).await;
            assert_eq!(totals.tenants, [("ada".into(), used(60, 1.5))]);
            assert_eq!(totals.endpoints, [("gpu".into(), 1.0)], "one is of yesterday");
            let found = listed(store, NOW - 1..NOW + 1, UsageStep::Minute).await;
            assert_eq!(found, [(NOW - 1, "gpu", 15), (NOW, "", 15), (NOW, "gpu", 30)].map(owned));
            let first = store.usage(0..NOW, UsageStep::Hour, 1).await.unwrap();
            assert_eq!(first[0].tenant, "bob");
        })
        .await;
    }

    fn owned((minute, endpoint, tokens): (u64, &str, u64)) -> (u64, String, u64) {
        (minute, endpoint.into(), tokens)
    }

    /// Minute, endpoint and tokens of each row.
    async fn listed(
        store: &Store,
        minutes: Range<u64>,
        step: UsageStep,
    ) -> Vec<(u64, String, u64)> {
        let rows = store.usage(minutes, step, 10).await.unwrap().into_iter();
        rows.map(|row| (row.minute, row.endpoint, row.sum.tokens())).collect()
    }

    #[tokio::test]
    async fn minutes_are_rolled_up_into_hours_which_stay_the_same() {
        with_store(async |store| {
            let minutes = [NOW, NOW + 1, NOW + 59, NOW + 60, NOW + 61];
            let rows = minutes.map(|minute| row(minute, "ada", "gpu"));
            add(store, booked(rows)).await;
            let all = NOW..NOW + 120;
            let hours = [(NOW, "gpu", 45), (NOW + 60, "gpu", 30)].map(owned);
            assert_eq!(listed(store, all.clone(), UsageStep::Hour).await, hours);
            for _ in 0..2 {
                store.roll_up_usage(0..NOW + 60).await.unwrap();
                assert_eq!(listed(store, all.clone(), UsageStep::Hour).await, hours);
                let left = [(NOW, "gpu", 45), (NOW + 60, "gpu", 15), (NOW + 61, "gpu", 15)];
                let found = listed(store, all.clone(), UsageStep::Minute).await;
                assert_eq!(found, left.map(owned));
            }
        })
        .await;
    }

    #[tokio::test]
    async fn usage_of_before_the_store_counts_once() {
        with_store(async |store| {
            let import = async |tokens| {
                let tenants = vec![("ada".into(), used(tokens, 0.5))];
                store.import_usage(tenants, today().month).await.unwrap();
            };
            import(100).await;
            import(100).await;
            let totals = add(store, Booked::default()).await;
            assert_eq!(totals.tenants, [("ada".into(), used(100, 0.5))]);
            add(store, booked([row(NOW, "ada", "")])).await;
            import(100).await;
            let totals = add(store, Booked::default()).await;
            assert_eq!(totals.tenants, [("ada".into(), used(115, 0.5))]);
        })
        .await;
    }

    #[tokio::test]
    async fn old_usage_is_deleted() {
        with_store(async |store| {
            let mut all = booked([row(NOW, "ada", "gpu"), row(JANUARY, "ada", "")]);
            all.users.extend([user(JANUARY, "x", 9, 5), user(NOW, "x", 9, 5)]);
            add(store, all).await;
            let january = Date::at(JANUARY * 60);
            let ask = Ask { id: BudgetId::Spend("ada".into()), budget: 9, amount: 9, least: 9 };
            store.allot(vec![ask], january).await.unwrap();
            store.expire_usage((NOW, today()), today()).await.unwrap();
            assert_eq!(listed(store, 0..NOW + 9, UsageStep::Minute).await.len(), 1);
            let mine =
                |transaction: &mut Transaction<'_>| Ok(allotments::of(transaction, "me")?.len());
            assert_eq!(store.0.database.run(mine).await, Ok(0));
            let earlier = store.add_usage(Booked::default(), Vec::new(), january).await.unwrap();
            assert!(earlier.tenants.is_empty());
            assert_eq!(used_by(store, "x", january).await, 0);
            assert_eq!(used_by(store, "x", today()).await, 5);
        })
        .await;
    }

    fn user_id(id: &str) -> UserId {
        UserId::new(&KeyDigest::of("key"), id.as_bytes())
    }

    fn user(minute: u64, id: &str, users_max: usize, tokens: u64) -> (UserKey, UsageSum) {
        let (tenant, month) = ("a_a".into(), Date::at(minute * 60).month);
        let key = UserKey { month, tenant, user: user_id(id), users_max };
        (key, UsageSum { prompt: tokens, ..UsageSum::default() })
    }

    async fn used_by(store: &Store, id: &str, date: Date) -> u64 {
        let id = BudgetId::UserTokens("a_a".into(), user_id(id));
        let asks = vec![Ask { id, budget: 0, amount: 0, least: 0 }];
        store.allot(asks, date).await.unwrap()[0].used
    }

    #[tokio::test]
    async fn users_of_a_tenant_are_bounded_and_the_heavy_ones_are_kept() {
        with_store(async |store| {
            let (key, sum) = user(NOW, "b", 9, 1);
            let other = (UserKey { tenant: "aba".into(), ..key }, sum);
            let users = [other, user(NOW, "heavy", 3, 900)].into();
            add(store, Booked { users, ..Booked::default() }).await;
            for number in 0..20 {
                let users = [user(NOW, &number.to_string(), 3, 10 + number)].into();
                add(store, Booked { users, ..Booked::default() }).await;
            }
            let count = |transaction: &mut Transaction<'_>| {
                let sql = "SELECT count(*) AS count FROM usage_sums WHERE kind = 'user'";
                Ok(transaction.count(sql, &[])?)
            };
            assert_eq!(store.0.database.run(count).await, Ok(3 + 1), "and the other tenant's");
            assert_eq!(used_by(store, "heavy", today()).await, 900);
            assert_eq!(used_by(store, "19", today()).await, 29, "the last one");
        })
        .await;
    }
}
