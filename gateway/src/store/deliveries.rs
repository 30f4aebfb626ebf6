//! Messages to receivers of webhooks that were not taken yet.

use super::sql::{Fault, Row, Transaction, values};
use super::{Store, StoreError};

/// Messages of one receiver that wait. More are dropped.
const WAITING_MAX: u64 = 10_000;
/// Whoever sends a message has it to itself for so long, in seconds: longer than that takes.
const CLAIM_S: u64 = 60;

/// A message to a receiver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    /// The id of the event: of all messages about it.
    pub id: String,
    /// The name of the receiver.
    pub webhook: String,
    /// The event, as JSON.
    pub body: String,
    /// How often it was sent.
    pub attempts: u64,
    /// Where it is in the store.
    number: u64,
}

impl Delivery {
    /// One that was not sent yet.
    pub(crate) fn new(id: String, webhook: String, body: String) -> Self {
        Self { id, webhook, body, attempts: 0, number: 0 }
    }

    fn read(mut row: Row) -> Result<Self, Fault> {
        Ok(Self {
            id: row.take("id")?,
            webhook: row.take("webhook")?,
            body: row.take("body")?,
            attempts: row.take("attempts")?,
            number: row.take("number")?,
        })
    }
}

/// Adds messages, to be sent at once.
pub(super) fn add(
    transaction: &mut Transaction<'_>,
    deliveries: &[Delivery],
) -> Result<(), StoreError> {
    for Delivery { id, webhook, body, .. } in deliveries {
        let sql = "SELECT count(*) AS count FROM deliveries WHERE webhook = ?1";
        if transaction.count(sql, values![webhook])? >= WAITING_MAX {
            tracing::warn!(webhook, event = id, "webhook dropped: too many wait for this receiver");
            continue;
        }
        let now = transaction.now()?;
        let sql = "INSERT INTO deliveries (id, webhook, body, created_at, next_at) \
                   VALUES (?1, ?2, ?3, ?4, ?4)";
        transaction.execute(sql, values![id, webhook, body, now])?;
    }
    Ok(())
}

impl Store {
    /// The receivers for which messages are due.
    pub(crate) async fn due_webhooks(&self) -> Result<Vec<String>, StoreError> {
        let list = |transaction: &mut Transaction<'_>| {
            let clock = transaction.clock();
            let sql = format!("SELECT DISTINCT webhook FROM deliveries WHERE next_at <= {clock}");
            let rows = transaction.query(&sql, &[])?;
            rows.into_iter().map(|mut row| Ok(row.take("webhook")?)).collect()
        };
        self.0.database.run(list).await
    }

    /// Some messages of a receiver that are due, for this gateway to send within a minute.
    pub(crate) async fn claim_deliveries(
        &self,
        webhook: &str,
        limit: usize,
    ) -> Result<Vec<Delivery>, StoreError> {
        let webhook = webhook.to_string();
        let claim = move |transaction: &mut Transaction<'_>| {
            let now = transaction.now()?;
            let sql = "UPDATE deliveries SET next_at = ?1, attempts = attempts + 1 \
                       WHERE number IN (SELECT number FROM deliveries WHERE webhook = ?2 \
                       AND next_at <= ?3 ORDER BY next_at, number LIMIT ?4) \
                       RETURNING number, id, webhook, body, attempts";
            let rows = transaction.query(sql, values![now + CLAIM_S, &webhook, now, limit])?;
            Ok(rows.into_iter().map(Delivery::read).collect::<Result<_, _>>()?)
        };
        self.0.database.run(claim).await
    }

    /// Forgets a message: it was taken, or is given up.
    pub(crate) async fn end_delivery(&self, delivery: &Delivery) -> Result<(), StoreError> {
        let number = delivery.number;
        let end = move |transaction: &mut Transaction<'_>| {
            transaction.execute("DELETE FROM deliveries WHERE number = ?1", values![number])?;
            Ok(())
        };
        self.0.database.run(end).await
    }

    /// Sends a message again after some seconds.
    pub(crate) async fn delay_delivery(
        &self,
        delivery: &Delivery,
        pause_s: u64,
    ) -> Result<(), StoreError> {
        let number = delivery.number;
        let delay = move |transaction: &mut Transaction<'_>| {
            let next = transaction.now()? + pause_s;
            let sql = "UPDATE deliveries SET next_at = ?1 WHERE number = ?2";
            transaction.execute(sql, values![next, number])?;
            Ok(())
        };
        self.0.database.run(delay).await
    }

    /// How many messages wait.
    pub(crate) async fn deliveries_waiting(&self) -> Result<u64, StoreError> {
        let count = |transaction: &mut Transaction<'_>| {
            Ok(transaction.count("SELECT count(*) AS count FROM deliveries", &[])?)
        };
        self.0.database.run(count).await
    }

    /// Deletes messages to receivers that are no longer configured.
    pub(crate) async fn forget_webhook(&self, webhook: &str) -> Result<u64, StoreError> {
        let webhook = webhook.to_string();
        let forget = move |transaction: &mut Transaction<'_>| {
            let sql = "DELETE FROM deliveries WHERE webhook = ?1";
            Ok(transaction.execute(sql, values![&webhook])?)
        };
        self.0.database.run(forget).await
    }
}
