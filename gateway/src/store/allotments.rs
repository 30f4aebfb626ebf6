//! Divides what is left of monthly budgets among the gateways that share the store, so that they
//! cannot exceed a budget together. What is used and what all gateways have been allotted is never
//! more than the budget. A gateway grants requests no more than its allotment, without asking the
//! database, and gives back what it does not need.

use super::gateways::say_alive;
use super::sql::{Row, Transaction, values};
use super::{Store, StoreError};

/// The part of what is left of a budget that a gateway gets beyond what it needs, so that it need
/// not ask for each request.
const SPARE_PART: u64 = 8;

/// What a gateway needs of a tenant's budget.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ask {
    /// The tenant.
    pub tenant: String,
    /// Tokens of the budget.
    pub budget: u64,
    /// Tokens needed.
    pub tokens: u64,
    /// The month, as [`crate::types::usage::Date`] counts.
    pub month: u64,
}

impl Store {
    /// Adds to this gateway's allotment of a budget what it asks for, or what is left. Returns its
    /// allotment, of which what it has not stored yet is used.
    pub(crate) async fn allot(&self, ask: Ask) -> Result<u64, StoreError> {
        let me = self.0.me.clone();
        let allot = move |transaction: &mut Transaction<'_>| {
            // A gateway that is not known to live has no allotment.
            say_alive(transaction, &me)?;
            let Ask { tenant, budget, tokens, month } = &ask;
            let used = "SELECT tokens AS count FROM usage_sums \
                        WHERE kind = 'month' AND period = ?1 AND name = ?2";
            let used = transaction.first(used, values![*month, tenant])?;
            let used: u64 = used.map_or(Ok(0), |mut row| row.take("count"))?;
            let held = "SELECT coalesce(CAST(sum(tokens) AS BIGINT), 0) AS count FROM allotments \
                        WHERE period = ?1 AND tenant = ?2 \
                        AND gateway IN (SELECT id FROM gateways)";
            let held = transaction.count(held, values![*month, tenant])?;
            let left = budget.saturating_sub(used).saturating_sub(held);
            let more = left.min(tokens + left.saturating_sub(*tokens) / SPARE_PART);
            let add = "INSERT INTO allotments (gateway, period, tenant, tokens) \
                       VALUES (?1, ?2, ?3, ?4) ON CONFLICT (gateway, period, tenant) \
                       DO UPDATE SET tokens = allotments.tokens + excluded.tokens";
            transaction.execute(add, values![&*me, *month, tenant, more])?;
            let mine = "SELECT tokens AS count FROM allotments \
                        WHERE gateway = ?1 AND period = ?2 AND tenant = ?3";
            Ok(transaction.count(mine, values![&*me, *month, tenant])?)
        };
        self.0.database.run(allot).await
    }
}

/// Takes tokens from the allotment of a gateway: they are used, or it gives them back.
pub(super) fn take(
    transaction: &mut Transaction<'_>,
    (me, month, tenant): (&str, u64, &str),
    tokens: u64,
) -> Result<(), StoreError> {
    let sql = "UPDATE allotments SET tokens = CASE WHEN tokens > ?4 THEN tokens - ?4 ELSE 0 END \
               WHERE gateway = ?1 AND period = ?2 AND tenant = ?3";
    transaction.execute(sql, values![me, month, tenant, tokens])?;
    Ok(())
}

/// The allotments of a gateway, by tenant.
pub(super) fn of(
    transaction: &mut Transaction<'_>,
    me: &str,
    month: u64,
) -> Result<Vec<(String, u64)>, StoreError> {
    let sql = "SELECT tenant, tokens FROM allotments WHERE gateway = ?1 AND period = ?2";
    let rows = transaction.query(sql, values![me, month])?.into_iter();
    let read = |mut row: Row| Ok((row.take("tenant")?, row.take("tokens")?));
    rows.map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::gateways::forget_allotments;
    use crate::store::testing::with_store;
    use crate::store::{UsageKey, UsageSum};
    use crate::types::usage::Date;

    const TODAY: Date = Date { day: 9, month: 3 };

    fn ask(tokens: u64) -> Ask {
        Ask { tenant: "ada".into(), budget: 1000, tokens, month: TODAY.month }
    }

    /// Another gateway has been allotted this many tokens.
    async fn other_has(store: &Store, tokens: u64, is_alive: bool) {
        let insert = move |transaction: &mut Transaction<'_>| {
            let sql = "INSERT INTO allotments VALUES ('other', 3, 'ada', ?1)";
            transaction.execute(sql, values![tokens])?;
            if is_alive {
                say_alive(transaction, "other")?;
            }
            Ok(())
        };
        store.0.database.run(insert).await.unwrap();
    }

    #[tokio::test]
    async fn gateways_are_never_allotted_more_than_what_is_left_of_a_budget() {
        with_store(async |store| {
            other_has(store, 300, true).await;
            assert_eq!(store.allot(ask(60)).await, Ok(60 + 80), "and an eighth of the rest");
            assert_eq!(store.allot(ask(500)).await, Ok(140 + 507));
            assert_eq!(store.allot(ask(500)).await, Ok(700), "what is left");
            assert_eq!(store.allot(ask(1)).await, Ok(700));
        })
        .await;
    }

    #[tokio::test]
    async fn what_a_gateway_has_stored_or_given_back_is_no_longer_allotted() {
        with_store(async |store| {
            store.allot(ask(1000)).await.unwrap();
            let key = UsageKey {
                hour: 1,
                tenant: "ada".into(),
                class: "batch",
                model: "m".into(),
                endpoint: "".into(),
            };
            let sum = UsageSum { prompt: 100, completion: 50, ..UsageSum::default() };
            let given = vec![("ada".to_string(), 600)];
            let totals = store.add_usage(vec![(key, sum, TODAY)], given, TODAY).await.unwrap();
            assert_eq!(totals.allotted, [("ada".into(), 250)]);
            assert_eq!(store.allot(ask(1000)).await, Ok(850), "1,000 less what is used");
        })
        .await;
    }

    #[tokio::test]
    async fn what_a_dead_gateway_was_allotted_is_free_again() {
        with_store(async |store| {
            other_has(store, 300, false).await;
            assert_eq!(store.allot(ask(1000)).await, Ok(1000));
            store.0.database.run(forget_allotments).await.unwrap();
            let count = |transaction: &mut Transaction<'_>| {
                Ok(transaction.count("SELECT count(*) AS count FROM allotments", &[])?)
            };
            assert_eq!(store.0.database.run(count).await, Ok(1));
        })
        .await;
    }
}
