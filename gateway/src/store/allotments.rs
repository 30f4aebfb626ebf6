//! Divides what is left of budgets among the gateways that share the store, so that they cannot
//! exceed a budget together. What is used and what all gateways have been allotted is never more
//! than the budget. A gateway grants requests no more than its allotment, without asking the
//! database, and gives back what it does not need.
//!
//! What a killed gateway was allotted stays taken until [`super::marks`] says how much of it was
//! used, or the day or the month ends.

use super::gateways::say_alive;
use super::sql::{Row, Transaction, values};
use super::{Store, StoreError, usage};
use crate::types::budget::{Allotted, Ask, BudgetId};
use crate::types::usage::Date;

/// Which row is the allotment of a gateway.
pub(super) const ITS_ROW: &str = "gateway = ?1 AND kind = ?2 AND period = ?3 AND owner = ?4";

/// What a gateway gets beyond what it needs, so that it need not ask for each request: at most this
/// part of what is left of a budget,
const SPARE_PART: u64 = 8;
/// and so many times what it needs.
const SPARE_TIMES: u64 = 4;

impl Store {
    /// Adds to this gateway's allotments of budgets what it asks for, or what is left. Returns its
    /// allotments, of which what it has not stored yet is used.
    pub(crate) async fn allot(
        &self,
        asks: Vec<Ask>,
        today: Date,
    ) -> Result<Vec<Allotted>, StoreError> {
        // What is killed before it has a mark has used nothing.
        drop(self.marks(asks.iter().map(|ask| &ask.id), today));
        let me = self.0.me.clone();
        let allot = move |transaction: &mut Transaction<'_>| {
            // A gateway that is not known to live has no allotment.
            say_alive(transaction, &me)?;
            asks.iter().map(|ask| allot_one(transaction, &me, ask, today)).collect()
        };
        self.0.database.run(allot).await
    }
}

/// What is stored of a budget.
struct Taken {
    /// What all gateways have used.
    used: u64,
    /// What they have been allotted.
    allotted: u64,
    /// What this one has been allotted.
    mine: u64,
}

fn allot_one(
    transaction: &mut Transaction<'_>,
    me: &str,
    Ask { id, budget, amount, least }: &Ask,
    today: Date,
) -> Result<Allotted, StoreError> {
    let Taken { used, allotted, mine } = taken(transaction, me, id, today)?;
    let left = budget.saturating_sub(used).saturating_sub(allotted);
    let spare = left.saturating_sub(*amount) / SPARE_PART;
    let is_sole = allotted == mine;
    let more = match left < *least && !is_sole {
        // Gateways that take what is too little leave none of them enough.
        true => 0,
        false => left.min(amount + spare.min(amount.saturating_mul(SPARE_TIMES))),
    };
    if more > 0 {
        let add = "INSERT INTO allotments (gateway, kind, period, owner, amount) \
                   VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT (kind, period, owner, gateway) \
                   DO UPDATE SET amount = allotments.amount + excluded.amount";
        let (period, owner) = (id.period(today), id.owner());
        transaction.execute(add, values![me, id.kind(), period, &owner, more])?;
    }
    Ok(Allotted {
        id: id.clone(),
        amount: mine + more,
        used,
        is_exhausted: more < *amount || more == left,
        is_sole,
    })
}

/// In one statement, because the database may be far away.
fn taken(
    transaction: &mut Transaction<'_>,
    me: &str,
    id: &BudgetId,
    today: Date,
) -> Result<Taken, StoreError> {
    let column = if id.is_money() { "cost" } else { "tokens" };
    let sql = format!(
        "SELECT (SELECT coalesce(CAST(sum({column}) AS BIGINT), 0) FROM usage_sums \
         WHERE kind = ?1 AND period = ?2 AND name = ?3) AS used, \
         (SELECT coalesce(CAST(sum(amount) AS BIGINT), 0) FROM allotments \
         WHERE kind = ?4 AND period = ?2 AND owner = ?3) AS allotted, \
         (SELECT coalesce(CAST(sum(amount) AS BIGINT), 0) FROM allotments \
         WHERE kind = ?4 AND period = ?2 AND owner = ?3 AND gateway = ?5) AS mine"
    );
    let (period, owner) = (id.period(today), id.owner());
    let values = values![usage::sums_of(id), period, &owner, id.kind(), me];
    let mut row = transaction.first(&sql, values)?.ok_or(StoreError::Unavailable)?;
    Ok(Taken { used: row.take("used")?, allotted: row.take("allotted")?, mine: row.take("mine")? })
}

/// Takes an amount from the allotment of a gateway: it is used, or else it gives it back.
pub(super) fn take(
    transaction: &mut Transaction<'_>,
    (me, id, date): (&str, &BudgetId, Date),
    amount: u64,
    is_used: bool,
) -> Result<(), StoreError> {
    if amount == 0 {
        return Ok(());
    }
    let sql = format!(
        "UPDATE allotments SET amount = CASE WHEN amount > ?5 THEN amount - ?5 ELSE 0 END, \
         counted = counted + ?6 WHERE {ITS_ROW}"
    );
    let counted = if is_used { amount } else { 0 };
    let (period, owner) = (id.period(date), id.owner());
    transaction.execute(&sql, values![me, id.kind(), period, &owner, amount, counted])?;
    Ok(())
}

/// Forgets an allotment of which nothing is left, so that there are no more than budgets in use.
pub(super) fn forget(
    transaction: &mut Transaction<'_>,
    (me, id, date): (&str, &BudgetId, Date),
) -> Result<(), StoreError> {
    let sql = format!("DELETE FROM allotments WHERE {ITS_ROW} AND amount = 0");
    transaction.execute(&sql, values![me, id.kind(), id.period(date), &id.owner()])?;
    Ok(())
}

/// The allotments of a gateway: budget, period, and amount.
pub(super) fn of(
    transaction: &mut Transaction<'_>,
    me: &str,
) -> Result<Vec<(BudgetId, u64, u64)>, StoreError> {
    let sql = "SELECT kind, owner, period, amount FROM allotments WHERE gateway = ?1";
    let rows = transaction.query(sql, values![me])?.into_iter();
    let read = |mut row: Row| {
        let (kind, owner): (String, String) = (row.take("kind")?, row.take("owner")?);
        let Some(id) = BudgetId::of(&kind, &owner) else { return Ok(None) };
        Ok(Some((id, row.take("period")?, row.take("amount")?)))
    };
    rows.filter_map(|row| read(row).transpose()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::testing::{store as open, with_store};
    use crate::store::{Booked, Keyring, UsageKey, UsageSum};
    use crate::types::usage::Date;

    fn today() -> Date {
        Date::at(3600)
    }

    fn ada() -> BudgetId {
        BudgetId::Tokens("ada".into())
    }

    /// Asks for tokens. Returns the allotment.
    async fn ask(store: &Store, amount: u64) -> u64 {
        let asks = vec![Ask { id: ada(), budget: 1000, amount, least: 1 }];
        store.allot(asks, today()).await.unwrap()[0].amount
    }

    /// Another gateway has been allotted this many tokens.
    async fn other_has(store: &Store, tokens: u64, is_alive: bool) {
        let insert = move |transaction: &mut Transaction<'_>| {
            let sql = "INSERT INTO allotments (gateway, kind, period, owner, amount) \
                       VALUES ('other', 'tokens', ?1, 'ada', ?2)";
            transaction.execute(sql, values![today().month, tokens])?;
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
            assert_eq!(ask(store, 10).await, 10 + 40, "and four times as much");
            assert_eq!(ask(store, 50).await, 50 + 50 + 75, "and an eighth of the rest");
            assert_eq!(ask(store, 500).await, 175 + 503);
            assert_eq!(ask(store, 500).await, 700, "what is left");
            assert_eq!(ask(store, 1).await, 700);
        })
        .await;
    }

    #[tokio::test]
    async fn what_is_too_little_for_any_request_is_left_until_one_gateway_can_have_all_of_it() {
        with_store(async |store| {
            let asks = || vec![Ask { id: ada(), budget: 1000, amount: 40, least: 40 }];
            other_has(store, 970, true).await;
            let expected =
                Allotted { id: ada(), amount: 0, used: 0, is_exhausted: true, is_sole: false };
            assert_eq!(store.allot(asks(), today()).await, Ok(vec![expected.clone()]));
            let used = |transaction: &mut Transaction<'_>| {
                usage::add_used(transaction, (&ada(), today().month), 970)?;
                Ok(transaction.execute("DELETE FROM allotments", &[])?)
            };
            store.0.database.run(used).await.unwrap();
            let sole = Allotted { amount: 30, used: 970, is_sole: true, ..expected };
            assert_eq!(store.allot(asks(), today()).await, Ok(vec![sole]));
        })
        .await;
    }

    #[tokio::test]
    async fn what_a_gateway_has_stored_or_given_back_is_no_longer_allotted() {
        with_store(async |store| {
            ask(store, 1000).await;
            let key = UsageKey {
                minute: 1,
                tenant: "ada".into(),
                class: "batch",
                model: "m".into(),
                endpoint: "".into(),
            };
            let sum = UsageSum { prompt: 100, completion: 50, ..UsageSum::default() };
            let booked = Booked { rows: [(key, sum)].into(), ..Booked::default() };
            let given = vec![(ada(), 600)];
            let totals = store.add_usage(booked, given, today()).await.unwrap();
            assert_eq!(totals.allotted, [(ada(), 250)]);
            assert_eq!(ask(store, 1000).await, 850, "1,000 less what is used");
        })
        .await;
    }

    #[tokio::test]
    async fn what_a_killed_gateway_was_allotted_stays_taken() {
        with_store(async |store| {
            other_has(store, 300, false).await;
            assert_eq!(ask(store, 1000).await, 700);
        })
        .await;
    }

    #[tokio::test]
    async fn a_gateway_that_stops_returns_what_it_was_allotted_if_all_use_is_stored() {
        for (is_settled, left) in [(true, 1000), (false, 400)] {
            let folder = tempfile::tempdir().unwrap();
            let first = open(folder.path(), Keyring::default());
            assert_eq!(ask(&first, 600).await, 650);
            let given = vec![(ada(), 50)];
            first.add_usage(Booked::default(), given, today()).await.unwrap();
            first.close(is_settled).await;
            let second = open(folder.path(), Keyring::default());
            // In tests all gateways have the same id.
            let rename = |transaction: &mut Transaction<'_>| {
                Ok(transaction.execute("UPDATE allotments SET gateway = 'first'", &[])?)
            };
            second.0.database.run(rename).await.unwrap();
            assert_eq!(ask(&second, 1000).await, left);
            second.close(true).await;
        }
    }
}
