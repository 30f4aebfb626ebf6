//! Responses in the background: what they need until they have ended, and what they are then.

use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, Row, params};
use serde::{Deserialize, Serialize};

use super::live::Live;
use super::{Store, StoreError};

/// A response of a tenant that is made in the background.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BackgroundResponse {
    /// Its id.
    #[serde(skip)]
    pub id: String,
    /// Whose it is.
    #[serde(skip)]
    pub tenant: String,
    /// When it was asked for, in seconds since 1970.
    #[serde(skip)]
    pub created_at: u64,
    /// False once it has ended.
    #[serde(skip)]
    pub is_active: bool,
    /// The user of the tenant who asked for it.
    pub user: Option<u64>,
    /// The random number of its ids, in hex.
    pub random: String,
    /// Headers of the request on which the response depends.
    pub headers: Vec<(String, String)>,
    /// True if its events may be read.
    pub is_streamed: bool,
    /// True if only the node that made a token can make its events.
    pub is_bound: bool,
    /// True if somebody has asked for its end.
    #[serde(default)]
    pub is_canceled: bool,
}

/// What makes a response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task {
    /// The body of the request.
    pub request: Vec<u8>,
    /// What a node needs to continue it, as JSON.
    pub progress: Option<Vec<u8>>,
    /// The response, which has not begun, with the turns before it.
    pub conversation: Vec<u8>,
}

impl BackgroundResponse {
    /// The random number of its ids.
    pub(crate) fn number(&self) -> u128 {
        u128::from_str_radix(&self.random, 16).unwrap_or_default()
    }

    const COLUMNS: &str = "id, tenant, created_at, is_active, document";

    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        let document: String = row.get("document")?;
        let broken = |error| {
            let kind = rusqlite::types::Type::Text;
            rusqlite::Error::FromSqlConversionFailure(0, kind, Box::new(error))
        };
        let mut response: Self = serde_json::from_str(&document).map_err(broken)?;
        (response.id, response.tenant) = (row.get("id")?, row.get("tenant")?);
        (response.created_at, response.is_active) = (row.get("created_at")?, row.get("is_active")?);
        Ok(response)
    }

    fn document(&self) -> Result<String, StoreError> {
        serde_json::to_string(self).map_err(|_| StoreError::Unavailable)
    }
}

impl Store {
    /// A response that is made in this process, or will be: whoever enters it first begins it.
    pub(crate) fn live(&self, response: &BackgroundResponse) -> Arc<Live> {
        self.0.live.enter(&response.id, response.is_streamed)
    }

    /// Adds a response, unless its tenant has so many that have not ended.
    pub(crate) async fn insert_response(
        &self,
        response: BackgroundResponse,
        request: Vec<u8>,
        conversation: Vec<u8>,
        active_max: usize,
    ) -> Result<(), StoreError> {
        let mut claim = self.claim(&response.tenant);
        let bytes = (request.len() + conversation.len()) as u64;
        claim.grow(bytes)?;
        let insert = move |connection: &Connection| {
            let BackgroundResponse { id, tenant, created_at, .. } = &response;
            let sql = "SELECT count(*) FROM responses WHERE is_active = 1 AND tenant = ?";
            let active: usize =
                connection.prepare_cached(sql)?.query_row([tenant], |row| row.get(0))?;
            if active >= active_max {
                return Err(StoreError::TooMany(active_max));
            }
            let sql = "INSERT INTO responses (id, tenant, is_active, bytes, created_at, document, \
                       request, conversation) VALUES (?, ?, 1, ?, ?, ?, ?, ?)";
            let document = response.document()?;
            let values = params![id, tenant, bytes, created_at, document, request, conversation];
            connection.prepare_cached(sql)?.execute(values)?;
            Ok(())
        };
        self.0.database.run(insert).await?;
        claim.keep();
        self.0.changes.send_replace(());
        Ok(())
    }

    /// A tenant's response with its conversation.
    pub(crate) async fn response(
        &self,
        tenant: &str,
        id: &str,
    ) -> Result<(BackgroundResponse, Vec<u8>), StoreError> {
        let (tenant, id) = (tenant.to_string(), id.to_string());
        let find = move |connection: &Connection| {
            let sql = "SELECT * FROM responses WHERE id = ? AND tenant = ?";
            let read = |row: &Row<'_>| {
                Ok((BackgroundResponse::read(row)?, row.get::<_, Vec<u8>>("conversation")?))
            };
            let found = connection.prepare_cached(sql)?.query_row([id, tenant], read).optional()?;
            found.ok_or(StoreError::Unknown)
        };
        self.0.database.run(find).await
    }

    /// The events of a response that has ended.
    pub(crate) async fn response_events(&self, id: &str) -> Result<Vec<u8>, StoreError> {
        let id = id.to_string();
        let find = move |connection: &Connection| {
            let sql = "SELECT events FROM responses WHERE id = ?";
            let read = |row: &Row<'_>| row.get::<_, Option<Vec<u8>>>(0);
            Ok(connection.query_row(sql, [id], read)?.unwrap_or_default())
        };
        self.0.database.run(find).await
    }

    /// All responses that have not ended, oldest first.
    pub(crate) async fn active_responses(&self) -> Result<Vec<BackgroundResponse>, StoreError> {
        let list = |connection: &Connection| {
            let columns = BackgroundResponse::COLUMNS;
            let sql =
                format!("SELECT {columns} FROM responses WHERE is_active = 1 ORDER BY number");
            let mut statement = connection.prepare_cached(&sql)?;
            let responses = statement.query_map([], BackgroundResponse::read)?;
            Ok(responses.collect::<rusqlite::Result<_>>()?)
        };
        self.0.database.run(list).await
    }

    /// What makes a response that has not ended, and the response as it is now.
    pub(crate) async fn response_task(
        &self,
        id: &str,
    ) -> Result<(BackgroundResponse, Task), StoreError> {
        let id = id.to_string();
        let find = move |connection: &Connection| {
            let sql = "SELECT * FROM responses WHERE id = ? AND is_active = 1";
            let read = |row: &Row<'_>| {
                let task = Task {
                    request: row.get("request")?,
                    progress: row.get("progress")?,
                    conversation: row.get("conversation")?,
                };
                Ok((BackgroundResponse::read(row)?, task))
            };
            let found = connection.prepare_cached(sql)?.query_row([id], read).optional()?;
            found.ok_or(StoreError::Unknown)
        };
        self.0.database.run(find).await
    }

    /// Stores what a node needs to continue a response that has not ended.
    pub(crate) async fn record_progress(
        &self,
        id: String,
        progress: Vec<u8>,
    ) -> Result<(), StoreError> {
        let record = move |connection: &Connection| {
            let sql = "UPDATE responses SET progress = ? WHERE id = ? AND is_active = 1";
            connection.prepare_cached(sql)?.execute(params![progress, id])?;
            Ok(())
        };
        self.0.database.run(record).await
    }

    /// Asks for the end of a response. Asking twice is the same as once. Returns the response as it
    /// was.
    pub(crate) async fn cancel_response(
        &self,
        tenant: &str,
        id: &str,
    ) -> Result<BackgroundResponse, StoreError> {
        let (tenant, id) = (tenant.to_string(), id.to_string());
        let cancel = move |connection: &Connection| {
            let columns = BackgroundResponse::COLUMNS;
            let sql = format!("SELECT {columns} FROM responses WHERE id = ? AND tenant = ?");
            let found = connection.query_row(&sql, [&id, &tenant], BackgroundResponse::read);
            let response = found.optional()?.ok_or(StoreError::Unknown)?;
            if response.is_active {
                let document =
                    BackgroundResponse { is_canceled: true, ..response.clone() }.document()?;
                let sql = "UPDATE responses SET document = ? WHERE id = ?";
                connection.execute(sql, params![document, id])?;
            }
            Ok(response)
        };
        let response = self.0.database.run(cancel).await?;
        self.0.changes.send_replace(());
        Ok(response)
    }

    /// Ends a response: it is as `conversation` says, and `events` can be read.
    pub(crate) async fn finish_response(
        &self,
        response: &BackgroundResponse,
        conversation: Vec<u8>,
        events: Vec<u8>,
    ) -> Result<(), StoreError> {
        let (id, tenant) = (response.id.clone(), response.tenant.clone());
        let bytes = (conversation.len() + events.len()) as u64;
        let finish = move |connection: &Connection| {
            let sql = "SELECT bytes FROM responses WHERE id = ? AND is_active = 1";
            let before: Option<u64> =
                connection.query_row(sql, [&id], |row| row.get(0)).optional()?;
            // It may have been deleted meanwhile.
            let Some(before) = before else { return Ok(0) };
            let sql = "UPDATE responses SET is_active = 0, request = NULL, progress = NULL, \
                       bytes = ?, conversation = ?, events = ? WHERE id = ?";
            connection.prepare_cached(sql)?.execute(params![bytes, conversation, events, id])?;
            Ok(before)
        };
        // Counted before, so that no limit is exceeded by what others add meanwhile.
        let mut claim = self.claim(&tenant);
        claim.force(bytes);
        let before = self.0.database.run(finish).await?;
        if before > 0 {
            claim.keep();
            self.0.quota.release(&tenant, before);
        }
        Ok(())
    }

    /// Deletes a tenant's response.
    pub(crate) async fn delete_response(&self, tenant: &str, id: &str) -> Result<(), StoreError> {
        let (owner, key) = (tenant.to_string(), id.to_string());
        let delete = move |connection: &Connection| {
            let sql = "DELETE FROM responses WHERE id = ? AND tenant = ? RETURNING bytes";
            let bytes: Option<u64> =
                connection.query_row(sql, [key, owner], |row| row.get(0)).optional()?;
            bytes.ok_or(StoreError::Unknown)
        };
        let bytes = self.0.database.run(delete).await?;
        self.0.quota.release(tenant, bytes);
        Ok(())
    }

    /// Deletes responses that have ended and are older than `before`.
    pub(crate) async fn expire_responses(&self, before: u64) -> Result<usize, StoreError> {
        let expire = move |connection: &Connection| {
            let sql = "DELETE FROM responses WHERE is_active = 0 AND created_at < ? \
                       RETURNING tenant, bytes";
            let mut statement = connection.prepare_cached(sql)?;
            let deleted = statement.query_map([before], |row| Ok((row.get(0)?, row.get(1)?)))?;
            Ok(deleted.collect::<rusqlite::Result<Vec<(String, u64)>>>()?)
        };
        let deleted = self.0.database.run(expire).await?;
        for (tenant, bytes) in &deleted {
            self.0.quota.release(tenant, *bytes);
        }
        Ok(deleted.len())
    }
}

/// Bytes of each tenant's responses.
pub(super) fn usage(connection: &Connection) -> Result<Vec<(String, u64)>, StoreError> {
    let mut statement =
        connection.prepare("SELECT tenant, sum(bytes) FROM responses GROUP BY tenant")?;
    let usage = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    Ok(usage.collect::<rusqlite::Result<_>>()?)
}
