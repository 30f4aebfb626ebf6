//! Records of batches, and results of their lines.

use rusqlite::{Connection, OptionalExtension, Row, params};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::files::FileRecord;
use super::{Store, StoreError, Upload};

/// State of a batch, as at OpenAI.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BatchStatus {
    /// Its input is being checked.
    Validating,
    /// Its input is invalid.
    Failed,
    /// Its lines run.
    InProgress,
    /// All lines are done, and its output is being written.
    Finalizing,
    /// It has ended; its output is there.
    Completed,
    /// It was not done in time. The output has what was.
    Expired,
    /// Its lines are being stopped.
    Cancelling,
    /// It was canceled. The output has what was done before.
    Cancelled,
}

impl BatchStatus {
    /// True until it has ended.
    pub fn is_active(self) -> bool {
        match self {
            Self::Validating | Self::InProgress | Self::Finalizing | Self::Cancelling => true,
            Self::Failed | Self::Completed | Self::Expired | Self::Cancelled => false,
        }
    }
}

/// What is wrong with the input of a batch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LineError {
    /// A name of the kind of error.
    pub code: String,
    /// What is wrong.
    pub message: String,
    /// The field.
    pub param: Option<String>,
    /// The line, from 1; `None` if it is the whole file.
    pub line: Option<u64>,
}

/// A batch of a tenant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Batch {
    /// Its id.
    #[serde(skip)]
    pub id: String,
    /// Whose it is.
    #[serde(skip)]
    pub tenant: String,
    /// The path of the API that its lines call.
    pub endpoint: String,
    /// The file with its lines.
    pub input_file_id: String,
    /// Within which it should end, as the client wrote it.
    pub completion_window: String,
    /// Its state.
    pub status: BatchStatus,
    /// What is wrong with its input.
    pub errors: Vec<LineError>,
    /// The file with responses.
    pub output_file_id: Option<String>,
    /// The file with errors.
    pub error_file_id: Option<String>,
    /// How long these files are kept, in seconds.
    pub output_age_s: u64,
    /// When what happened, in seconds since 1970.
    pub times: Times,
    /// Lines.
    pub total: u64,
    /// Lines with a response.
    #[serde(skip)]
    pub completed: u64,
    /// Lines with an error.
    #[serde(skip)]
    pub failed: u64,
    /// The client's notes.
    pub metadata: Option<Map<String, Value>>,
}

/// When a batch came into its states, in seconds since 1970.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Times {
    /// It was created.
    pub created_at: u64,
    /// It will end unfinished.
    pub expires_at: u64,
    /// It had a valid input.
    pub in_progress_at: Option<u64>,
    /// All of its lines were done.
    pub finalizing_at: Option<u64>,
    /// It was done.
    pub completed_at: Option<u64>,
    /// Its input was found invalid.
    pub failed_at: Option<u64>,
    /// It ended unfinished.
    pub expired_at: Option<u64>,
    /// Its cancellation was requested.
    pub cancelling_at: Option<u64>,
    /// It was canceled.
    pub cancelled_at: Option<u64>,
}

impl Batch {
    /// The batch as clients see it.
    pub(crate) fn view(&self) -> Value {
        let errors =
            (!self.errors.is_empty()).then(|| json!({"object": "list", "data": self.errors}));
        let counts =
            json!({"total": self.total, "completed": self.completed, "failed": self.failed});
        let mut view = json!({"id": self.id, "object": "batch", "endpoint": self.endpoint,
            "errors": errors, "input_file_id": self.input_file_id,
            "completion_window": self.completion_window, "status": self.status,
            "output_file_id": self.output_file_id, "error_file_id": self.error_file_id,
            "request_counts": counts, "metadata": self.metadata});
        if let (Value::Object(view), Ok(Value::Object(times))) =
            (&mut view, serde_json::to_value(&self.times))
        {
            view.extend(times);
        }
        view
    }

    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        let document: String = row.get("document")?;
        let broken = |error| {
            let kind = rusqlite::types::Type::Text;
            rusqlite::Error::FromSqlConversionFailure(0, kind, Box::new(error))
        };
        let mut batch: Self = serde_json::from_str(&document).map_err(broken)?;
        (batch.id, batch.tenant) = (row.get("id")?, row.get("tenant")?);
        (batch.completed, batch.failed) = (row.get("completed")?, row.get("failed")?);
        Ok(batch)
    }

    fn document(&self) -> Result<String, StoreError> {
        serde_json::to_string(self).map_err(|_| StoreError::Unavailable)
    }

    fn save(&self, connection: &Connection) -> Result<(), StoreError> {
        let sql = "UPDATE batches SET is_active = ?, document = ? WHERE id = ?";
        connection.execute(sql, params![self.status.is_active(), self.document()?, self.id])?;
        Ok(())
    }
}

/// A part of a list.
#[derive(Debug, Clone)]
pub struct Page {
    /// The id after which it begins.
    pub after: Option<String>,
    /// Most entries.
    pub limit: usize,
    /// Oldest first instead of newest first.
    pub is_ascending: bool,
}

impl Page {
    /// The number of the record after which it begins.
    pub(super) fn after(
        &self,
        table: &str,
        tenant: &str,
        connection: &Connection,
    ) -> Result<Option<i64>, StoreError> {
        let Some(after) = &self.after else { return Ok(None) };
        let sql = format!("SELECT number FROM {table} WHERE id = ? AND tenant = ?");
        Ok(Some(connection.query_row(&sql, [after, tenant], |row| row.get(0))?))
    }

    /// How numbers of its entries compare with [`Self::after`], and their order.
    pub(super) fn direction(&self) -> (&'static str, &'static str) {
        if self.is_ascending { (">", "ASC") } else { ("<", "DESC") }
    }

    /// Cuts off the entry that tells whether there are more.
    pub(super) fn cut<T>(&self, mut found: Vec<T>) -> Result<(Vec<T>, bool), StoreError> {
        let has_more = found.len() > self.limit;
        found.truncate(self.limit);
        Ok((found, has_more))
    }
}

impl Store {
    /// Adds a batch, unless its tenant has so many that have not ended.
    pub(crate) async fn insert_batch(
        &self,
        batch: Batch,
        active_max: usize,
    ) -> Result<Batch, StoreError> {
        let insert = move |connection: &Connection| {
            let sql = "SELECT count(*) FROM batches WHERE is_active = 1 AND tenant = ?";
            let active: usize = connection.query_row(sql, [&batch.tenant], |row| row.get(0))?;
            if active >= active_max {
                return Err(StoreError::TooMany(active_max));
            }
            let sql = "INSERT INTO batches (id, tenant, is_active, document) VALUES (?, ?, 1, ?)";
            connection.execute(sql, params![batch.id, batch.tenant, batch.document()?])?;
            Ok(batch)
        };
        let batch = self.0.database.run(insert).await?;
        self.0.changes.send_replace(());
        Ok(batch)
    }

    /// A tenant's batch.
    pub(crate) async fn batch(&self, tenant: &str, id: &str) -> Result<Batch, StoreError> {
        let (tenant, id) = (tenant.to_string(), id.to_string());
        self.0.database.run(move |connection| find(connection, &tenant, &id)).await
    }

    /// A tenant's batches, and whether there are more.
    pub(crate) async fn batches(
        &self,
        tenant: &str,
        page: Page,
    ) -> Result<(Vec<Batch>, bool), StoreError> {
        let tenant = tenant.to_string();
        let list = move |connection: &Connection| {
            let after = page.after("batches", &tenant, connection)?;
            let (sign, order) = page.direction();
            let mut statement = connection.prepare_cached(&format!(
                "SELECT * FROM batches WHERE tenant = ?1 AND (?2 IS NULL OR number {sign} ?2) \
                 ORDER BY number {order} LIMIT ?3"
            ))?;
            let found = params![tenant, after, page.limit as i64 + 1];
            let batches = statement.query_map(found, Batch::read)?;
            page.cut(batches.collect::<rusqlite::Result<_>>()?)
        };
        self.0.database.run(list).await
    }

    /// All batches that have not ended, oldest first.
    pub(crate) async fn active_batches(&self) -> Result<Vec<Batch>, StoreError> {
        let list = |connection: &Connection| {
            let sql = "SELECT * FROM batches WHERE is_active = 1 ORDER BY number";
            let mut statement = connection.prepare_cached(sql)?;
            let batches = statement.query_map([], Batch::read)?;
            Ok(batches.collect::<rusqlite::Result<_>>()?)
        };
        self.0.database.run(list).await
    }

    /// Asks for the end of a batch. Asking twice is the same as once.
    pub(crate) async fn cancel_batch(
        &self,
        tenant: &str,
        id: &str,
        now: u64,
    ) -> Result<Batch, StoreError> {
        let (tenant, id) = (tenant.to_string(), id.to_string());
        let cancel = move |connection: &Connection| {
            let mut batch = find(connection, &tenant, &id)?;
            match batch.status {
                BatchStatus::Cancelling => return Ok(batch),
                status if !status.is_active() => return Err(StoreError::Finished),
                _ => {}
            }
            batch.status = BatchStatus::Cancelling;
            batch.times.cancelling_at = Some(now);
            batch.save(connection)?;
            Ok(batch)
        };
        let batch = self.0.database.run(cancel).await?;
        self.0.changes.send_replace(());
        Ok(batch)
    }

    /// Changes a batch in a state that `change` accepts, and returns it as it is then.
    pub(crate) async fn update_batch(
        &self,
        batch: &Batch,
        change: impl FnOnce(&mut Batch) + Send + 'static,
    ) -> Result<Batch, StoreError> {
        let (tenant, id) = (batch.tenant.clone(), batch.id.clone());
        let update = move |connection: &Connection| {
            let mut batch = find(connection, &tenant, &id)?;
            change(&mut batch);
            batch.save(connection)?;
            Ok(batch)
        };
        self.0.database.run(update).await
    }

    /// Adds what became of a line, if nothing is known of it yet.
    pub(crate) async fn record_line(
        &self,
        batch: &str,
        line: u64,
        is_error: bool,
        text: Vec<u8>,
    ) -> Result<(), StoreError> {
        let batch = batch.to_string();
        let record = move |connection: &Connection| {
            let sql =
                "INSERT OR IGNORE INTO results (batch, line, is_error, text) VALUES (?, ?, ?, ?)";
            let added =
                connection.prepare_cached(sql)?.execute(params![batch, line, is_error, text])?;
            let sql =
                "UPDATE batches SET completed = completed + ?, failed = failed + ? WHERE id = ?";
            let failed = if is_error { added } else { 0 };
            connection.prepare_cached(sql)?.execute(params![added - failed, failed, batch])?;
            Ok(())
        };
        self.0.database.run(record).await
    }

    /// The lines of a batch of which is known what became of them, in order, and their bytes.
    pub(crate) async fn lines_done(&self, batch: &str) -> Result<(Vec<u64>, u64), StoreError> {
        let batch = batch.to_string();
        let list = move |connection: &Connection| {
            let sql = "SELECT line, length(text) FROM results WHERE batch = ? ORDER BY line";
            let mut statement = connection.prepare_cached(sql)?;
            let rows = statement.query_map([&batch], |row| Ok((row.get(0)?, row.get(1)?)))?;
            let rows: Vec<(u64, u64)> = rows.collect::<rusqlite::Result<_>>()?;
            let bytes = rows.iter().map(|(_, bytes)| bytes).sum();
            Ok((rows.into_iter().map(|(line, _)| line).collect(), bytes))
        };
        self.0.database.run(list).await
    }

    /// Responses or errors of lines after `after`, in order: at most `limit`.
    pub(crate) async fn results(
        &self,
        batch: &str,
        is_error: bool,
        after: Option<u64>,
        limit: usize,
    ) -> Result<Vec<(u64, Vec<u8>)>, StoreError> {
        let batch = batch.to_string();
        let list = move |connection: &Connection| {
            let mut statement = connection.prepare_cached(
                "SELECT line, text FROM results WHERE batch = ?1 AND is_error = ?2 \
                 AND (?3 IS NULL OR line > ?3) ORDER BY line LIMIT ?4",
            )?;
            let found = params![batch, is_error, after, limit as i64];
            let rows = statement.query_map(found, |row| Ok((row.get(0)?, row.get(1)?)))?;
            Ok(rows.collect::<rusqlite::Result<_>>()?)
        };
        self.0.database.run(list).await
    }

    /// Ends a batch: its files get records, and its results are deleted.
    pub(crate) async fn finish_batch(
        &self,
        batch: &Batch,
        files: Vec<(Upload, FileRecord)>,
        change: impl FnOnce(&mut Batch) + Send + 'static,
    ) -> Result<Batch, StoreError> {
        let (mut uploads, mut records) = (Vec::new(), Vec::new());
        for (mut upload, record) in files {
            upload.flush().await?;
            uploads.push(upload);
            records.push(record);
        }
        let (tenant, id) = (batch.tenant.clone(), batch.id.clone());
        let finish = move |connection: &Connection| {
            let mut batch = find(connection, &tenant, &id)?;
            change(&mut batch);
            for record in &records {
                record.insert(&tenant, connection)?;
            }
            connection.execute("DELETE FROM results WHERE batch = ?", [&id])?;
            batch.save(connection)?;
            Ok(batch)
        };
        let batch = self.0.database.run(finish).await?;
        uploads.into_iter().for_each(Upload::keep);
        Ok(batch)
    }

    /// Deletes batches that have ended and are older than `before`.
    pub(crate) async fn expire_batches(&self, before: u64) -> Result<usize, StoreError> {
        let expire = move |connection: &Connection| {
            let sql = "DELETE FROM batches WHERE is_active = 0 \
                       AND document ->> '$.times.created_at' < ?";
            Ok(connection.execute(sql, [before])?)
        };
        self.0.database.run(expire).await
    }
}

fn find(connection: &Connection, tenant: &str, id: &str) -> Result<Batch, StoreError> {
    let sql = "SELECT * FROM batches WHERE id = ? AND tenant = ?";
    let found = connection.query_row(sql, [id, tenant], Batch::read).optional()?;
    found.ok_or(StoreError::Unknown)
}
