//! What tenants have used, of all gateways: by hour for bills, and by day and month for budgets.

use super::allotments;
use super::sql::{Fault, Row, Transaction, values};
use super::usage_book::{UsageKey, UsageSum};
use super::{Store, StoreError};
use crate::types::usage::{Date, Used};

/// What was used of all tenants and endpoints.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct UsageTotals {
    /// By tenant, in the month.
    pub tenants: Vec<(String, Used)>,
    /// Spend by endpoint, on the day.
    pub endpoints: Vec<(String, f64)>,
    /// Tokens of the month's budgets that this gateway was allotted and has not stored as used, by
    /// tenant.
    pub allotted: Vec<(String, u64)>,
}

/// A row of the usage that is exported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UsageRecord {
    /// Hours since 1970.
    pub hour: u64,
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
    /// Adds usage, each row with its date, gives back what this gateway does not need of its
    /// allotments, and returns what all gateways have stored for `today`.
    pub(crate) async fn add_usage(
        &self,
        rows: Vec<(UsageKey, UsageSum, Date)>,
        given_back: Vec<(String, u64)>,
        today: Date,
    ) -> Result<UsageTotals, StoreError> {
        let me = self.0.me.clone();
        let add = move |transaction: &mut Transaction<'_>| {
            for (key, sum, date) in &rows {
                insert(transaction, key, *sum)?;
                add_sums(transaction, key, *sum, *date)?;
                let of = (&*me, date.month, &*key.tenant);
                allotments::take(transaction, of, sum.tokens(), true)?;
            }
            for (tenant, tokens) in &given_back {
                let of = (&*me, today.month, &**tenant);
                allotments::take(transaction, of, *tokens, false)?;
            }
            let allotted = allotments::of(transaction, &me, today.month)?;
            Ok(UsageTotals { allotted, ..totals(transaction, today)? })
        };
        self.0.database.run(add).await
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

    /// Usage from one hour to before another: at most `limit` rows, oldest first.
    pub(crate) async fn usage(
        &self,
        hours: std::ops::Range<u64>,
        limit: usize,
    ) -> Result<Vec<UsageRecord>, StoreError> {
        let list = move |transaction: &mut Transaction<'_>| {
            let sql = "SELECT * FROM usage WHERE hour >= ?1 AND hour < ?2 \
                       ORDER BY hour, tenant, class, model, endpoint LIMIT ?3";
            let rows = transaction.query(sql, values![hours.start, hours.end, limit])?;
            Ok(rows.into_iter().map(read).collect::<Result<_, _>>()?)
        };
        self.0.database.run(list).await
    }

    /// Deletes usage of before an hour, and of before that day and month.
    pub(crate) async fn expire_usage(&self, hour: u64, date: Date) -> Result<(), StoreError> {
        let expire = move |transaction: &mut Transaction<'_>| {
            transaction.execute("DELETE FROM usage WHERE hour < ?1", values![hour])?;
            let sql = "DELETE FROM usage_sums WHERE (kind = 'day' AND period < ?1) \
                       OR (kind = 'month' AND period < ?2)";
            transaction.execute(sql, values![date.day, date.month])?;
            let sql = "DELETE FROM allotments WHERE period < ?1";
            transaction.execute(sql, values![date.month])?;
            Ok(())
        };
        self.0.database.run(expire).await
    }
}

fn cost(amount: f64) -> u64 {
    UsageSum::new(Default::default(), amount).cost
}

fn insert(
    transaction: &mut Transaction<'_>,
    key: &UsageKey,
    sum: UsageSum,
) -> Result<(), StoreError> {
    let UsageKey { hour, tenant, class, model, endpoint } = key;
    let UsageSum { prompt, cached, completion, cost } = sum;
    let sql = "INSERT INTO usage (hour, tenant, class, model, endpoint, prompt, cached, \
               completion, cost) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9) \
               ON CONFLICT (hour, tenant, class, model, endpoint) DO UPDATE SET \
               prompt = usage.prompt + excluded.prompt, cached = usage.cached + excluded.cached, \
               completion = usage.completion + excluded.completion, \
               cost = usage.cost + excluded.cost";
    let values =
        values![*hour, &**tenant, *class, &**model, &**endpoint, prompt, cached, completion, cost];
    transaction.execute(sql, values)?;
    Ok(())
}

fn add_sums(
    transaction: &mut Transaction<'_>,
    key: &UsageKey,
    sum: UsageSum,
    date: Date,
) -> Result<(), StoreError> {
    add_month(transaction, (date.month, &key.tenant), sum.tokens(), sum.cost)?;
    match &*key.endpoint {
        "" => Ok(()),
        endpoint => add_sum(transaction, ("day", date.day, endpoint), sum.tokens(), sum.cost),
    }
}

/// Adds to what a tenant has used in a month; `cost` is in billionths.
pub(super) fn add_month(
    transaction: &mut Transaction<'_>,
    (month, tenant): (u64, &str),
    tokens: u64,
    cost: u64,
) -> Result<(), StoreError> {
    add_sum(transaction, ("month", month, tenant), tokens, cost)
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

fn totals(transaction: &mut Transaction<'_>, today: Date) -> Result<UsageTotals, StoreError> {
    let mut of = |kind: &str, period: u64| {
        let sql = "SELECT name, tokens, cost FROM usage_sums WHERE kind = ?1 AND period = ?2";
        let read = |mut row: Row| {
            let sum = UsageSum { cost: row.take("cost")?, ..UsageSum::default() };
            Ok((row.take("name")?, Used { tokens: row.take("tokens")?, spend: sum.amount() }))
        };
        let rows = transaction.query(sql, values![kind, period])?.into_iter().map(read);
        rows.collect::<Result<Vec<(String, Used)>, Fault>>()
    };
    let tenants = of("month", today.month)?;
    let endpoints = of("day", today.day)?.into_iter().map(|(name, used)| (name, used.spend));
    Ok(UsageTotals { tenants, endpoints: endpoints.collect(), allotted: Vec::new() })
}

fn read(mut row: Row) -> Result<UsageRecord, Fault> {
    let sum = UsageSum {
        prompt: row.take("prompt")?,
        cached: row.take("cached")?,
        completion: row.take("completion")?,
        cost: row.take("cost")?,
    };
    let (hour, tenant, class) = (row.take("hour")?, row.take("tenant")?, row.take("class")?);
    let (model, endpoint) = (row.take("model")?, row.take("endpoint")?);
    Ok(UsageRecord { hour, tenant, class, model, endpoint, sum })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::testing::with_store;

    const TODAY: Date = Date { day: 9, month: 3 };

    fn row(hour: u64, tenant: &str, endpoint: &str, date: Date) -> (UsageKey, UsageSum, Date) {
        let (tenant, endpoint) = (tenant.into(), endpoint.into());
        let key = UsageKey { hour, tenant, class: "batch", model: "m".into(), endpoint };
        let paid = if key.endpoint.is_empty() { 0 } else { 500_000_000 };
        (key, UsageSum { prompt: 10, cached: 4, completion: 5, cost: paid }, date)
    }

    fn used(tokens: u64, spend: f64) -> Used {
        Used { tokens, spend }
    }

    #[tokio::test]
    async fn usage_adds_up_by_hour_and_for_the_month_and_the_day() {
        with_store(async |store| {
            let yesterday = Date { day: 8, ..TODAY };
            let last_month = Date { day: 1, month: 2 };
            let rows = vec![
                row(7, "ada", "", TODAY),
                row(7, "ada", "gpu", TODAY),
                row(6, "ada", "gpu", yesterday),
                row(1, "bob", "gpu", last_month),
            ];
            store.add_usage(rows, Vec::new(), TODAY).await.unwrap();
            let totals = store
                .add_usage(vec![row(7, "ada", "gpu", TODAY)], Vec::new(), TODAY)
                .await
                .unwrap();
            assert_eq!(totals.tenants, [("ada".into(), used(60, 1.5))]);
            assert_eq!(totals.endpoints, [("gpu".into(), 1.0)]);
            let listed = store.usage(6..8, 10).await.unwrap();
            let sums: Vec<_> =
                listed.iter().map(|row| (row.hour, &*row.endpoint, row.sum.tokens())).collect();
            assert_eq!(sums, [(6, "gpu", 15), (7, "", 15), (7, "gpu", 30)]);
            assert_eq!(store.usage(0..8, 1).await.unwrap()[0].tenant, "bob");
        })
        .await;
    }

    #[tokio::test]
    async fn usage_of_before_the_store_counts_once() {
        with_store(async |store| {
            let totals =
                async || store.add_usage(Vec::new(), Vec::new(), TODAY).await.unwrap().tenants;
            let import =
                async |tokens| store.import_usage(vec![("ada".into(), used(tokens, 0.5))], 3).await;
            import(100).await.unwrap();
            import(100).await.unwrap();
            assert_eq!(totals().await, [("ada".into(), used(100, 0.5))]);
            store.add_usage(vec![row(7, "ada", "", TODAY)], Vec::new(), TODAY).await.unwrap();
            import(100).await.unwrap();
            assert_eq!(totals().await, [("ada".into(), used(115, 0.5))]);
        })
        .await;
    }

    #[tokio::test]
    async fn old_usage_is_deleted() {
        with_store(async |store| {
            let rows =
                vec![row(7, "ada", "gpu", TODAY), row(1, "ada", "", Date { day: 1, month: 2 })];
            store.add_usage(rows, Vec::new(), TODAY).await.unwrap();
            store.expire_usage(7, TODAY).await.unwrap();
            assert_eq!(store.usage(0..100, 10).await.unwrap().len(), 1);
            let earlier =
                store.add_usage(Vec::new(), Vec::new(), Date { day: 1, month: 2 }).await.unwrap();
            assert!(earlier.tenants.is_empty());
        })
        .await;
    }
}
