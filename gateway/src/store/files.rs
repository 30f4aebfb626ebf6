//! Records of files.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::contents::Upload;
use super::keyring::{Binding, Keyring};
use super::page::Page;
use super::sql::{Row, Transaction, values};
use super::{Store, StoreError};

/// Purposes of the files of message batches. Clients of `/v1/files` do not see them.
pub(crate) const MESSAGES_PURPOSE: &str = "message_batch";
pub(crate) const MESSAGES_OUTPUT_PURPOSE: &str = "message_batch_output";

/// A file of a tenant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileRecord {
    /// Its id.
    pub id: String,
    /// The name that the client gave it.
    pub name: String,
    /// What it is for: `batch`, `batch_output`, or one of those of message batches.
    pub purpose: String,
    /// Its size.
    pub bytes: u64,
    /// When it was made, in seconds since 1970.
    pub created_at: u64,
    /// When it will be deleted.
    pub expires_at: u64,
}

impl FileRecord {
    /// The file as clients see it.
    pub(crate) fn view(&self) -> Value {
        json!({"id": self.id, "object": "file", "bytes": self.bytes, "created_at": self.created_at,
            "expires_at": self.expires_at, "filename": self.name, "purpose": self.purpose,
            "status": "processed", "status_details": null})
    }

    fn read(mut row: Row, keyring: &Keyring) -> Result<Self, StoreError> {
        let (tenant, id): (String, String) = (row.take("tenant")?, row.take("id")?);
        let name = keyring.open_text(&binding(&tenant, &id), row.take("name")?)?;
        Ok(Self {
            id,
            name,
            purpose: row.take("purpose")?,
            bytes: row.take("bytes")?,
            created_at: row.take("created_at")?,
            expires_at: row.take("expires_at")?,
        })
    }

    pub(super) fn insert(
        &self,
        tenant: &str,
        transaction: &mut Transaction<'_>,
    ) -> Result<(), StoreError> {
        let Self { id, name, purpose, bytes, created_at, expires_at } = self;
        let name = transaction.keyring().seal_text(&binding(tenant, id), name)?;
        transaction.execute(
            "INSERT INTO files (id, tenant, name, purpose, bytes, created_at, expires_at) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
            values![id, tenant, &name, purpose, *bytes, *created_at, *expires_at],
        )?;
        Ok(())
    }
}

impl Store {
    /// Gives a whole upload a record: its file stays.
    pub(crate) async fn finish_upload(
        &self,
        mut upload: Upload,
        tenant: &str,
        record: FileRecord,
    ) -> Result<FileRecord, StoreError> {
        upload.flush().await?;
        let (tenant, inserted) = (tenant.to_string(), record.clone());
        let done = self.0.database.run(move |t| inserted.insert(&tenant, t)).await;
        upload.finish(&done);
        done.map(|()| record)
    }

    /// A tenant's file, unless it is one of a message batch.
    pub(crate) async fn file(&self, tenant: &str, id: &str) -> Result<FileRecord, StoreError> {
        let (tenant, id) = (tenant.to_string(), id.to_string());
        self.0.database.run(move |t| find_visible(t, &tenant, &id)).await
    }

    /// A tenant's file, whatever it is for.
    pub(crate) async fn any_file(&self, tenant: &str, id: &str) -> Result<FileRecord, StoreError> {
        let (tenant, id) = (tenant.to_string(), id.to_string());
        self.0.database.run(move |t| find(t, &tenant, &id)).await
    }

    /// A tenant's files with this purpose, or any, and whether there are more. Those of message
    /// batches are left out.
    pub(crate) async fn files(
        &self,
        tenant: &str,
        purpose: Option<String>,
        page: Page,
    ) -> Result<(Vec<FileRecord>, bool), StoreError> {
        let tenant = tenant.to_string();
        self.0.database.run(move |t| list(t, &tenant, purpose.as_deref(), &page)).await
    }

    /// Deletes a tenant's file.
    pub(crate) async fn delete_file(&self, tenant: &str, id: &str) -> Result<(), StoreError> {
        let (owner, key) = (tenant.to_string(), id.to_string());
        let delete = move |transaction: &mut Transaction<'_>| {
            let record = find_visible(transaction, &owner, &key)?;
            if is_used(transaction, &key)? {
                return Err(StoreError::InUse);
            }
            transaction.execute("DELETE FROM files WHERE id = ?1", values![&key])?;
            Ok(record)
        };
        let record = self.0.database.run(delete).await?;
        self.forget(tenant, id, record.bytes).await;
        Ok(())
    }

    /// Deletes files whose time is over, unless a batch that has not ended uses them.
    pub(crate) async fn expire_files(&self, now: u64) -> Result<usize, StoreError> {
        let expired = self.0.database.run(move |t| delete_expired(t, now)).await?;
        for Expired { tenant, id, bytes } in &expired {
            self.forget(tenant, id, *bytes).await;
        }
        Ok(expired.len())
    }

    pub(super) async fn forget(&self, tenant: &str, id: &str, bytes: u64) {
        self.remove(id).await;
        self.0.quota.release(tenant, bytes);
    }
}

pub(super) fn find(
    transaction: &mut Transaction<'_>,
    tenant: &str,
    id: &str,
) -> Result<FileRecord, StoreError> {
    let sql = "SELECT * FROM files WHERE id = ?1 AND tenant = ?2";
    let found = transaction.first(sql, values![id, tenant])?.ok_or(StoreError::Unknown)?;
    FileRecord::read(found, transaction.keyring())
}

fn binding(tenant: &str, id: &str) -> Binding {
    Binding::new("files.name", tenant, id)
}

fn find_visible(
    transaction: &mut Transaction<'_>,
    tenant: &str,
    id: &str,
) -> Result<FileRecord, StoreError> {
    let record = find(transaction, tenant, id)?;
    let is_hidden = [MESSAGES_PURPOSE, MESSAGES_OUTPUT_PURPOSE].contains(&&*record.purpose);
    if is_hidden { Err(StoreError::Unknown) } else { Ok(record) }
}

fn list(
    transaction: &mut Transaction<'_>,
    tenant: &str,
    purpose: Option<&str>,
    page: &Page,
) -> Result<(Vec<FileRecord>, bool), StoreError> {
    let after = page.after("files", tenant, transaction)?;
    let (sign, order) = page.direction();
    let sql = format!(
        "SELECT * FROM files WHERE tenant = ?1 \
         AND (CAST(?2 AS BIGINT) IS NULL OR number {sign} CAST(?2 AS BIGINT)) \
         AND (CAST(?3 AS TEXT) IS NULL OR purpose = ?3) AND purpose NOT IN (?5, ?6) \
         ORDER BY number {order} LIMIT ?4"
    );
    let hidden = (MESSAGES_PURPOSE, MESSAGES_OUTPUT_PURPOSE);
    let asked = values![tenant, after, purpose, page.limit + 1, hidden.0, hidden.1];
    let rows = transaction.query(&sql, asked)?;
    let read = |row| FileRecord::read(row, transaction.keyring());
    page.cut(rows.into_iter().map(read).collect::<Result<_, _>>()?)
}

/// True if a batch that has not ended reads the file.
fn is_used(transaction: &mut Transaction<'_>, id: &str) -> Result<bool, StoreError> {
    let sql = "SELECT count(*) AS count FROM batches WHERE is_active = 1 AND input_file = ?1";
    Ok(transaction.count(sql, values![id])? > 0)
}

/// Deleted in one transaction; more wait for the next.
const EXPIRED_MAX: usize = 1000;

/// A file that was deleted.
struct Expired {
    tenant: String,
    id: String,
    bytes: u64,
}

/// Needs no key.
fn delete_expired(transaction: &mut Transaction<'_>, now: u64) -> Result<Vec<Expired>, StoreError> {
    let sql = "SELECT tenant, id, bytes FROM files WHERE expires_at <= ?1 LIMIT ?2";
    let mut deleted = Vec::new();
    for mut row in transaction.query(sql, values![now, EXPIRED_MAX])? {
        let (tenant, id) = (row.take("tenant")?, row.take("id")?);
        let file = Expired { tenant, id, bytes: row.take("bytes")? };
        if !is_used(transaction, &file.id)? {
            transaction.execute("DELETE FROM files WHERE id = ?1", values![&file.id])?;
            deleted.push(file);
        }
    }
    Ok(deleted)
}

/// Bytes of each tenant's files and results.
pub(super) fn usage(transaction: &mut Transaction<'_>) -> Result<Vec<(String, u64)>, StoreError> {
    usage_of("files", transaction)
}

/// Bytes of each tenant's rows of a table.
pub(super) fn usage_of(
    table: &str,
    transaction: &mut Transaction<'_>,
) -> Result<Vec<(String, u64)>, StoreError> {
    let sql =
        format!("SELECT tenant, CAST(sum(bytes) AS BIGINT) AS bytes FROM {table} GROUP BY tenant");
    let read = |mut row: Row| Ok((row.take("tenant")?, row.take("bytes")?));
    transaction.query(&sql, &[])?.into_iter().map(read).collect()
}

/// Ids of all files.
pub(super) fn ids(transaction: &mut Transaction<'_>) -> Result<HashSet<String>, StoreError> {
    let rows = transaction.query("SELECT id FROM files", &[])?;
    rows.into_iter().map(|mut row| Ok(row.take("id")?)).collect()
}
