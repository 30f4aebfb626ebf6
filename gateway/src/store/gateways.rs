//! Which gateways use the store, and which of them does what.
//!
//! Work has an owner: the gateway that created it. While that gateway lives, no other one touches
//! the work; when it is dead, the first to notice owns it. With SQLite there is one gateway, and
//! all others are dead. With PostgreSQL each says once a second that it lives, by the server's
//! clock.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::keyring::Keyring;
use super::sql::{Row, Transaction, values};
use super::{Store, StoreError};

/// A gateway that was silent for longer is dead.
const LEASE: Duration = Duration::from_secs(10);

/// When this gateway last said that it lives, and since when it has done so without a gap.
#[derive(Debug, Default)]
pub(super) struct Presence(Mutex<Option<Heard>>);

#[derive(Debug, Clone, Copy)]
struct Heard {
    last: Instant,
    since: Instant,
}

impl Presence {
    /// Records a sign of life.
    fn record(&self, now: Instant) {
        let mut heard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let since = match *heard {
            Some(Heard { last, since }) if now - last < LEASE => since,
            _ => now,
        };
        *heard = Some(Heard { last: now, since });
    }

    /// True if the silence of others means something: not while this gateway was cut off as well,
    /// as all are when the server has failed.
    fn may_bury(&self, now: Instant) -> bool {
        let heard = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        heard.is_some_and(|heard| now - heard.last < LEASE && now - heard.since >= LEASE)
    }
}

/// How much work this gateway could not read when it last looked, in each table.
#[derive(Debug, Default)]
pub(super) struct Left(Mutex<HashMap<&'static str, usize>>);

impl Left {
    /// Logs changes only: it looks again and again.
    fn record(&self, table: &'static str, count: usize) {
        let before = self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(table, count);
        if count > 0 && before != Some(count) {
            tracing::error!(
                table,
                count,
                "stored work cannot be read and is left to other gateways: the lines before say why"
            );
        }
    }
}

impl Store {
    /// Records that this gateway lives, and reads whether work was created, canceled, or left. Uses
    /// few statements, because it runs once a second and the database may be far away.
    pub(crate) async fn attend(&self) -> Result<(), StoreError> {
        let me = self.0.me.clone();
        let buries = self.0.presence.may_bury(Instant::now());
        let attend = move |transaction: &mut Transaction<'_>| {
            let (number, has_dead) = say_alive(transaction, &me)?;
            if !buries || !has_dead {
                return Ok(number);
            }
            bury(transaction, &me, Some(LEASE))?;
            announce(transaction)?;
            Ok(number + 1)
        };
        let number = self.0.database.run(attend).await?;
        self.0.presence.record(Instant::now());
        self.0.notice(number);
        Ok(())
    }

    /// Runs `work`, and tells all gateways that there is something new.
    pub(super) async fn change<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Transaction<'_>) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let changed = move |transaction: &mut Transaction<'_>| {
            let done = work(transaction)?;
            announce(transaction)?;
            Ok(done)
        };
        let done = self.0.database.run(changed).await?;
        self.0.changes.send_replace(());
        Ok(done)
    }

    /// Makes this gateway the owner of what no living gateway does, and returns all that it owns
    /// and that has not ended, oldest first. What it cannot read it leaves to others, who may have
    /// the key.
    pub(super) async fn claim_rows<T: Send + 'static>(
        &self,
        table: &'static str,
        columns: &'static str,
        read: fn(Row, &Keyring) -> Result<T, StoreError>,
    ) -> Result<Vec<T>, StoreError> {
        let (me, is_shared) = (self.0.me.clone(), self.is_shared());
        let claim = move |transaction: &mut Transaction<'_>| {
            let (number, _) = say_alive(transaction, &me)?;
            if !is_shared {
                bury(transaction, &me, None)?;
            }
            let sql = format!(
                "UPDATE {table} SET owner = ?1 WHERE is_active = 1 \
                 AND (owner IS NULL OR owner NOT IN (SELECT id FROM gateways))"
            );
            transaction.execute(&sql, values![&*me])?;
            let sql = format!(
                "SELECT id AS row_id, {columns} FROM {table} \
                 WHERE is_active = 1 AND owner = ?1 ORDER BY number"
            );
            let (mut own, mut left) = (Vec::new(), 0);
            for mut row in transaction.query(&sql, values![&*me])? {
                let id: String = row.take("row_id")?;
                match read(row, transaction.keyring()) {
                    Ok(record) => own.push(record),
                    Err(_) => {
                        left += 1;
                        let sql = format!("UPDATE {table} SET owner = NULL WHERE id = ?1");
                        transaction.execute(&sql, values![&id])?;
                    }
                }
            }
            Ok((own, left, number))
        };
        let (own, left, number) = self.0.database.run(claim).await?;
        self.0.presence.record(Instant::now());
        self.0.left.record(table, left);
        self.0.notice(number);
        Ok(own)
    }

    /// Leaves this gateway's work to the others, and, if `is_settled`, returns its allotments.
    pub(super) async fn leave(&self, is_settled: bool) -> Result<(), StoreError> {
        let me = self.0.me.clone();
        let leave = move |transaction: &mut Transaction<'_>| {
            for table in ["tasks", "batches"] {
                let sql = format!("UPDATE {table} SET owner = NULL WHERE owner = ?1");
                transaction.execute(&sql, values![&*me])?;
            }
            transaction.execute("DELETE FROM gateways WHERE id = ?1", values![&*me])?;
            if is_settled {
                let sql = "DELETE FROM allotments WHERE gateway = ?1";
                transaction.execute(sql, values![&*me])?;
            }
            announce(transaction)
        };
        self.0.database.run(leave).await
    }
}

fn announce(transaction: &mut Transaction<'_>) -> Result<(), StoreError> {
    transaction.execute("UPDATE changes SET number = number + 1", &[])?;
    Ok(())
}

/// Records that this gateway lives. Returns how many changes there were, and whether a gateway is
/// dead. All in one statement, because this runs often and the database may be far away.
pub(super) fn say_alive(
    transaction: &mut Transaction<'_>,
    me: &str,
) -> Result<(u64, bool), StoreError> {
    let clock = transaction.clock();
    let sql = format!(
        "INSERT INTO gateways (id, seen_at) VALUES (?1, {clock}) \
         ON CONFLICT (id) DO UPDATE SET seen_at = excluded.seen_at \
         RETURNING (SELECT number FROM changes) AS changes, \
         (SELECT count(*) FROM gateways WHERE id <> ?1 AND seen_at <= {clock} - ?2) AS dead"
    );
    let found = transaction.execute_returning(&sql, values![me, LEASE.as_secs()])?;
    let mut row = found.ok_or(StoreError::Unavailable)?;
    Ok((row.take("changes")?, row.take::<u64>("dead")? > 0))
}

/// False if this was the last usage that a gateway has added. It asks again if the connection
/// broke while it was stored.
pub(super) fn is_new(
    transaction: &mut Transaction<'_>,
    me: &str,
    number: u64,
) -> Result<bool, StoreError> {
    if number == 0 {
        return Ok(true);
    }
    say_alive(transaction, me)?;
    let sql = "UPDATE gateways SET added = ?2 WHERE id = ?1 AND added <> ?2";
    Ok(transaction.execute(sql, values![me, number])? > 0)
}

/// Forgets other gateways that were silent for this long; without a lease all of them, whatever the
/// clock was when they were heard of.
fn bury(
    transaction: &mut Transaction<'_>,
    me: &str,
    lease: Option<Duration>,
) -> Result<(), StoreError> {
    let before = match lease {
        Some(lease) => transaction.now()?.saturating_sub(lease.as_secs()),
        None => u64::MAX,
    };
    let sql = "DELETE FROM gateways WHERE id <> ?1 AND seen_at <= ?2";
    transaction.execute(sql, values![me, before])?;
    Ok(())
}

/// Fails unless this gateway owns a row: another one may have thought it dead.
pub(super) fn check_owner(
    transaction: &mut Transaction<'_>,
    table: &str,
    id: &str,
    me: &str,
) -> Result<(), StoreError> {
    let sql = format!("SELECT owner FROM {table} WHERE id = ?1");
    let found = transaction.first(&sql, values![id])?;
    let owner: Option<String> = found.ok_or(StoreError::Unknown)?.take("owner")?;
    if owner.as_deref() == Some(me) { Ok(()) } else { Err(StoreError::NotOwner) }
}

#[cfg(test)]
mod tests {
    use super::super::testing::with_store;
    use super::*;
    use crate::store::{Booked, UsageKey, UsageSum};
    use crate::types::usage::{Date, Used};

    #[tokio::test]
    async fn alone_a_gateway_owns_what_was_left_before_the_clock_went_back() {
        with_store(async |store| {
            // With PostgreSQL, a gateway does not know that it is alone.
            if store.is_shared() {
                return;
            }
            let left = |transaction: &mut Transaction<'_>| {
                let sql = "INSERT INTO gateways (id, seen_at) VALUES ('dead', 99999999999)";
                transaction.execute(sql, &[])?;
                let sql = "INSERT INTO batches (id, tenant, is_active, owner, document) \
                       VALUES ('a', 't', 1, 'dead', '{}')";
                Ok(transaction.execute(sql, &[])?)
            };
            store.0.database.run(left).await.unwrap();
            let read = |mut row: Row, _: &Keyring| Ok(row.take::<String>("id")?);
            assert_eq!(store.claim_rows("batches", "id", read).await.unwrap(), ["a"]);
        })
        .await;
    }

    #[tokio::test]
    async fn usage_counts_once_however_often_it_is_stored() {
        with_store(async |store| {
            let (tenant, today) = ("ada", Date::at(3600));
            for (number, tokens) in [(7, 15), (7, 15), (8, 30), (8, 30), (7, 45)] {
                let key = UsageKey {
                    minute: 1,
                    tenant: tenant.into(),
                    class: "batch",
                    model: "m".into(),
                    endpoint: "".into(),
                };
                let sum = UsageSum { prompt: 10, completion: 5, ..UsageSum::default() };
                let booked = Booked { rows: [(key, sum)].into(), number, ..Booked::default() };
                let totals = store.add_usage(booked, Vec::new(), today).await.unwrap();
                assert_eq!(totals.tenants, [(tenant.into(), Used { tokens, spend: 0.0 })]);
            }
        })
        .await;
    }

    #[test]
    fn a_gateway_that_was_cut_off_takes_nobody_for_dead_at_once() {
        let presence = Presence::default();
        let begun = Instant::now();
        let at = |s| begun + Duration::from_secs(s);
        assert!(!presence.may_bury(at(0)));
        (0..10).for_each(|s| presence.record(at(s)));
        assert!(!presence.may_bury(at(9)), "it has just started");
        presence.record(at(10));
        assert!(presence.may_bury(at(10)));
        assert!(!presence.may_bury(at(21)), "it was silent itself");
        presence.record(at(21));
        assert!(!presence.may_bury(at(22)));
        (22..32).for_each(|s| presence.record(at(s)));
        assert!(presence.may_bury(at(31)));
    }
}
