//! Records of files.

use std::collections::HashSet;

use rusqlite::{Connection, OptionalExtension, Row, params};
use serde_json::{Value, json};

use super::batches::Page;
use super::contents::{Upload, remove};
use super::{Store, StoreError};

/// A file of a tenant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileRecord {
    /// Its id.
    pub id: String,
    /// The name that the client gave it.
    pub name: String,
    /// What it is for: `batch`, or `batch_output`.
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

    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            id: row.get("id")?,
            name: row.get("name")?,
            purpose: row.get("purpose")?,
            bytes: row.get("bytes")?,
            created_at: row.get("created_at")?,
            expires_at: row.get("expires_at")?,
        })
    }

    pub(super) fn insert(&self, tenant: &str, connection: &Connection) -> Result<(), StoreError> {
        let Self { id, name, purpose, bytes, created_at, expires_at } = self;
        connection.execute(
            "INSERT INTO files (id, tenant, name, purpose, bytes, created_at, expires_at) \
             VALUES (?, ?, ?, ?, ?, ?, ?)",
            params![id, tenant, name, purpose, bytes, created_at, expires_at],
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
        self.0.database.run(move |connection| inserted.insert(&tenant, connection)).await?;
        upload.keep();
        Ok(record)
    }

    /// A tenant's file.
    pub(crate) async fn file(&self, tenant: &str, id: &str) -> Result<FileRecord, StoreError> {
        let (tenant, id) = (tenant.to_string(), id.to_string());
        self.0.database.run(move |connection| find(connection, &tenant, &id)).await
    }

    /// A tenant's files with this purpose, or any, and whether there are more.
    pub(crate) async fn files(
        &self,
        tenant: &str,
        purpose: Option<String>,
        page: Page,
    ) -> Result<(Vec<FileRecord>, bool), StoreError> {
        let tenant = tenant.to_string();
        self.0.database.run(move |connection| list(connection, &tenant, purpose, &page)).await
    }

    /// Deletes a tenant's file.
    pub(crate) async fn delete_file(&self, tenant: &str, id: &str) -> Result<(), StoreError> {
        let (owner, key) = (tenant.to_string(), id.to_string());
        let deleted = move |connection: &Connection| {
            let record = find(connection, &owner, &key)?;
            if is_used(connection, &key)? {
                return Err(StoreError::InUse);
            }
            connection.execute("DELETE FROM files WHERE id = ?", [&key])?;
            Ok(record)
        };
        let record = self.0.database.run(deleted).await?;
        self.forget(tenant, &record).await;
        Ok(())
    }

    /// Deletes files whose time is over, unless a batch that has not ended uses them.
    pub(crate) async fn expire_files(&self, now: u64) -> Result<usize, StoreError> {
        let expired =
            self.0.database.run(move |connection| delete_expired(connection, now)).await?;
        for (tenant, record) in &expired {
            self.forget(tenant, record).await;
        }
        Ok(expired.len())
    }

    async fn forget(&self, tenant: &str, record: &FileRecord) {
        remove(&self.content(&record.id)).await;
        self.0.quota.release(tenant, record.bytes);
    }
}

fn find(connection: &Connection, tenant: &str, id: &str) -> Result<FileRecord, StoreError> {
    let sql = "SELECT * FROM files WHERE id = ? AND tenant = ?";
    Ok(connection.query_row(sql, [id, tenant], FileRecord::read)?)
}

fn list(
    connection: &Connection,
    tenant: &str,
    purpose: Option<String>,
    page: &Page,
) -> Result<(Vec<FileRecord>, bool), StoreError> {
    let after = page.after("files", tenant, connection)?;
    let (sign, order) = page.direction();
    let mut statement = connection.prepare_cached(&format!(
        "SELECT * FROM files WHERE tenant = ?1 AND (?2 IS NULL OR number {sign} ?2) \
         AND (?3 IS NULL OR purpose = ?3) ORDER BY number {order} LIMIT ?4"
    ))?;
    let found = params![tenant, after, purpose, page.limit as i64 + 1];
    let files = statement.query_map(found, FileRecord::read)?;
    page.cut(files.collect::<rusqlite::Result<_>>()?)
}

/// True if a batch that has not ended reads the file.
fn is_used(connection: &Connection, id: &str) -> Result<bool, StoreError> {
    let sql = "SELECT 1 FROM batches WHERE is_active = 1 AND document ->> 'input_file_id' = ?";
    Ok(connection.query_row(sql, [id], |_| Ok(())).optional()?.is_some())
}

/// Deleted in one transaction; more wait for the next.
const EXPIRED_MAX: usize = 1000;

fn delete_expired(
    connection: &Connection,
    now: u64,
) -> Result<Vec<(String, FileRecord)>, StoreError> {
    let sql = format!("SELECT * FROM files WHERE expires_at <= ? LIMIT {EXPIRED_MAX}");
    let mut statement = connection.prepare_cached(&sql)?;
    let read = |row: &Row<'_>| Ok((row.get("tenant")?, FileRecord::read(row)?));
    let expired = statement.query_map([now], read)?.collect::<rusqlite::Result<Vec<_>>>()?;
    let mut deleted = Vec::new();
    for (tenant, record) in expired {
        if !is_used(connection, &record.id)? {
            connection.execute("DELETE FROM files WHERE id = ?", [&record.id])?;
            deleted.push((tenant, record));
        }
    }
    Ok(deleted)
}

/// Bytes of each tenant's files and results.
pub(super) fn usage(connection: &Connection) -> Result<Vec<(String, u64)>, StoreError> {
    let mut statement =
        connection.prepare("SELECT tenant, sum(bytes) FROM files GROUP BY tenant")?;
    let usage = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    Ok(usage.collect::<rusqlite::Result<_>>()?)
}

/// Ids of all files.
pub(super) fn ids(connection: &Connection) -> Result<HashSet<String>, StoreError> {
    let mut statement = connection.prepare("SELECT id FROM files")?;
    let ids = statement.query_map([], |row| row.get(0))?;
    Ok(ids.collect::<rusqlite::Result<_>>()?)
}
