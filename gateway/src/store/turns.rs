//! Responses of the Responses API that were sent to their clients, so that they can be continued
//! and read after a restart, and at another gateway. A conversation costs each of its turns once.

use inference_translation::store::Stored;

use super::keyring::Binding;
use super::sql::{Fault, Row, Transaction, values};
use super::{Store, StoreError};

/// Turns of a conversation that are read.
const TURNS_MAX: u64 = 10_000;
/// How long other gateways learn of a deletion, in seconds.
const DELETION_AGE_S: u64 = 60 * 60;

impl Store {
    /// Adds a tenant's response, and the turns before it that are not known. `now`: in seconds
    /// since 1970.
    pub(crate) async fn insert_turns(
        &self,
        tenant: &str,
        stored: Stored,
        now: u64,
    ) -> Result<(), StoreError> {
        let own = stored.saved_turns().next().and_then(|turn| turn.document);
        let mut claim = self.claim(tenant);
        claim.grow(own.map_or(0, |document| document.len()) as u64)?;
        let owner = tenant.to_string();
        let insert = move |transaction: &mut Transaction<'_>| {
            let mut more = 0;
            // Its client may have been faster.
            let sql = "SELECT count(*) AS count FROM deletions WHERE response = ?1";
            let own = stored.id();
            if transaction.count(sql, values![&own])? > 0 {
                return Err(StoreError::Unknown);
            }
            for (place, turn) in stored.saved_turns().enumerate() {
                let sql = "SELECT count(*) AS count FROM turns WHERE id = ?1";
                if transaction.count(sql, values![&turn.id])? > 0 {
                    // It came with those before it.
                    break;
                }
                let document = turn.document.ok_or(StoreError::Unavailable)?;
                let bytes = document.len() as u64;
                // Those before it were not stored here, or were deleted.
                let is_hidden = place > 0;
                more += if is_hidden { bytes } else { 0 };
                let sql = "INSERT INTO turns (id, tenant, previous, is_hidden, bytes, created_at, \
                           document) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
                let binding = binding(&owner, &turn.id);
                let document = transaction.keyring().seal(&binding, document)?;
                let previous = turn.previous.as_deref();
                let of_turn = values![&turn.id, &owner, previous, is_hidden, bytes, now, &document];
                transaction.execute(sql, of_turn)?;
            }
            Ok(more)
        };
        claim.force(self.0.database.run(insert).await?);
        claim.keep();
        Ok(())
    }

    /// A tenant's response with the turns before it, unless it is older than `since`.
    pub(crate) async fn conversation(
        &self,
        tenant: &str,
        id: &str,
        since: u64,
    ) -> Result<Stored, StoreError> {
        let (owner, id) = (tenant.to_string(), id.to_string());
        let find = move |transaction: &mut Transaction<'_>| {
            let sql = "WITH RECURSIVE chain (id, previous, document, depth) AS ( \
                       SELECT id, previous, document, CAST(0 AS BIGINT) FROM turns \
                       WHERE id = ?1 AND tenant = ?2 AND is_hidden = 0 AND created_at >= ?3 \
                       UNION ALL \
                       SELECT turns.id, turns.previous, turns.document, chain.depth + 1 \
                       FROM turns JOIN chain ON turns.id = chain.previous \
                       WHERE turns.tenant = ?2 AND chain.depth < ?4) \
                       SELECT id, document FROM chain ORDER BY depth DESC";
            let rows = transaction.query(sql, values![&id, &owner, since, TURNS_MAX])?;
            let read = |mut row: Row| Ok((row.take("id")?, row.take("document")?));
            Ok(rows.into_iter().map(read).collect::<Result<Vec<(String, Vec<u8>)>, Fault>>()?)
        };
        let open =
            |(id, document): (String, _)| self.keyring().open(&binding(tenant, &id), document);
        let turns = self.0.database.run(find).await?.into_iter().map(open);
        let turns: Vec<Vec<u8>> = turns.collect::<Result<_, _>>()?;
        Stored::from_turns(&turns).ok_or(StoreError::Unknown)
    }

    /// Deletes a tenant's response, which may not be here yet. Its turn stays as long as a later
    /// one needs it.
    pub(crate) async fn delete_turn(
        &self,
        tenant: &str,
        id: &str,
        now: u64,
    ) -> Result<(), StoreError> {
        let (owner, id) = (tenant.to_string(), id.to_string());
        let delete = move |transaction: &mut Transaction<'_>| {
            // Other gateways may have it in memory.
            let sql = "INSERT INTO deletions (tenant, response, at) VALUES (?1, ?2, ?3)";
            transaction.execute(sql, values![&owner, &id, now])?;
            let old = now.saturating_sub(DELETION_AGE_S);
            transaction.execute("DELETE FROM deletions WHERE at < ?1", values![old])?;
            let sql = "UPDATE turns SET is_hidden = 1 WHERE id = ?1 AND tenant = ?2";
            transaction.execute(sql, values![&id, &owner])?;
            let mut freed = 0;
            loop {
                let sql = "DELETE FROM turns WHERE tenant = ?1 AND is_hidden = 1 AND NOT EXISTS \
                           (SELECT 1 FROM turns AS later WHERE later.previous = turns.id) \
                           RETURNING bytes";
                let rows = transaction.query(sql, values![&owner])?;
                if rows.is_empty() {
                    break;
                }
                for mut row in rows {
                    freed += row.take::<u64>("bytes")?;
                }
            }
            Ok(freed)
        };
        let freed = self.change(delete).await?;
        self.0.quota.release(tenant, freed);
        Ok(())
    }

    /// Deletes turns that are older than `before`, and that no later one needs.
    pub(crate) async fn expire_turns(&self, before: u64) -> Result<usize, StoreError> {
        let mut count = 0;
        for _ in 0..TURNS_MAX {
            // Each round deletes the last turns of conversations.
            let expire = move |transaction: &mut Transaction<'_>| {
                let sql = "DELETE FROM turns WHERE created_at < ?1 AND NOT EXISTS \
                           (SELECT 1 FROM turns AS later WHERE later.previous = turns.id) \
                           RETURNING tenant, bytes";
                let read = |mut row: Row| Ok((row.take("tenant")?, row.take("bytes")?));
                let rows = transaction.query(sql, values![before])?.into_iter().map(read);
                Ok(rows.collect::<Result<Vec<(String, u64)>, Fault>>()?)
            };
            let deleted = self.0.database.run(expire).await?;
            if deleted.is_empty() {
                break;
            }
            count += deleted.len();
            for (tenant, bytes) in &deleted {
                self.0.quota.release(tenant, *bytes);
            }
        }
        Ok(count)
    }

    /// Responses that were deleted at any gateway after the deletion with the number `after`:
    /// tenant and id, and the number of the last. Without a number, there is only that.
    pub(crate) async fn deletions(
        &self,
        after: Option<u64>,
    ) -> Result<(Vec<(String, String)>, u64), StoreError> {
        let list = move |transaction: &mut Transaction<'_>| {
            let sql = "SELECT coalesce(max(number), 0) AS count FROM deletions";
            let last = transaction.count(sql, &[])?.max(after.unwrap_or_default());
            let Some(after) = after else { return Ok((Vec::new(), last)) };
            let sql = "SELECT tenant, response FROM deletions WHERE number > ?1";
            let read = |mut row: Row| Ok((row.take("tenant")?, row.take("response")?));
            let rows = transaction.query(sql, values![after])?.into_iter().map(read);
            Ok((rows.collect::<Result<_, Fault>>()?, last))
        };
        self.0.database.run(list).await
    }
}

fn binding(tenant: &str, id: &str) -> Binding {
    Binding::new("turns.document", tenant, id)
}
