//! Divides what is left of monthly budgets among the gateways that share the store, so that they
//! cannot exceed a budget together. What is used and what all gateways have been allotted is never
//! more than the budget. A gateway grants requests no more than its allotment, without asking the
//! database, and gives back what it does not need.
//!
//! What a killed gateway was allotted stays taken until [`super::marks`] says how much of it was
//! used, or the month ends.

use super::gateways::say_alive;
use super::sql::{Row, Transaction, values};
use super::{Store, StoreError};

/// What a gateway gets beyond what it needs, so that it need not ask for each request: at most this
/// part of what is left of a budget,
const SPARE_PART: u64 = 8;
/// and so many times what it needs.
const SPARE_TIMES: u64 = 4;

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
                        WHERE period = ?1 AND tenant = ?2";
            let held = transaction.count(held, values![*month, tenant])?;
            let left = budget.saturating_sub(used).saturating_sub(held);
            let spare = left.saturating_sub(*tokens) / SPARE_PART;
            let more = left.min(tokens + spare.min(tokens.saturating_mul(SPARE_TIMES)));
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

/// Takes tokens from the allotment of a gateway: they are used, or else it gives them back.
pub(super) fn take(
    transaction: &mut Transaction<'_>,
    (me, month, tenant): (&str, u64, &str),
    tokens: u64,
    is_used: bool,
) -> Result<(), StoreError> {
    let sql = "UPDATE allotments SET tokens = CASE WHEN tokens > ?4 THEN tokens - ?4 ELSE 0 END, \
               counted = counted + ?5 WHERE gateway = ?1 AND period = ?2 AND tenant = ?3";
    let counted = if is_used { tokens } else { 0 };
    transaction.execute(sql, values![me, month, tenant, tokens, counted])?;
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
    use crate::store::testing::{store as open, with_store};
    use crate::store::{Keyring, UsageKey, UsageSum};
    use crate::types::usage::Date;

    const TODAY: Date = Date { day: 9, month: 3 };

    fn ask(tokens: u64) -> Ask {
        Ask { tenant: "ada".into(), budget: 1000, tokens, month: TODAY.month }
    }

    /// Another gateway has been allotted this many tokens.
    async fn other_has(store: &Store, tokens: u64, is_alive: bool) {
        let insert = move |transaction: &mut Transaction<'_>| {
            let sql = "INSERT INTO allotments (gateway, period, tenant, tokens) \
                       VALUES ('other', 3, 'ada', ?1)";
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
            assert_eq!(store.allot(ask(10)).await, Ok(10 + 40), "and four times as much");
            assert_eq!(store.allot(ask(50)).await, Ok(50 + 50 + 75), "and an eighth of the rest");
            assert_eq!(store.allot(ask(500)).await, Ok(175 + 503));
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
    async fn what_a_killed_gateway_was_allotted_stays_taken() {
        with_store(async |store| {
            other_has(store, 300, false).await;
            assert_eq!(store.allot(ask(1000)).await, Ok(700));
        })
        .await;
    }

    #[tokio::test]
    async fn a_gateway_that_stops_returns_what_it_was_allotted_if_all_use_is_stored() {
        for (is_settled, left) in [(true, 1000), (false, 400)] {
            let folder = tempfile::tempdir().unwrap();
            let first = open(folder.path(), Keyring::default());
            assert_eq!(first.allot(ask(600)).await, Ok(650));
            let given = vec![("ada".to_string(), 50)];
            first.add_usage(Vec::new(), given, TODAY).await.unwrap();
            first.close(is_settled).await;
            let second = open(folder.path(), Keyring::default());
            // In tests all gateways have the same id.
            let rename = |transaction: &mut Transaction<'_>| {
                Ok(transaction.execute("UPDATE allotments SET gateway = 'first'", &[])?)
            };
            second.0.database.run(rename).await.unwrap();
            assert_eq!(second.allot(ask(1000)).await, Ok(left));
            second.close(true).await;
        }
    }
}
