//! Records of batches, and results of their lines.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::deliveries::{self, Delivery};
use super::files::FileRecord;
use super::gateways::check_owner;
use super::keyring::{Binding, Keyring};
use super::page::Page;
use super::sql::{Fault, Row, Transaction, values};
use super::{Store, StoreError, Upload, documents, lines};

mod messages;

pub use messages::BatchApi;

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
    /// As it is written at OpenAI.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Validating => "validating",
            Self::Failed => "failed",
            Self::InProgress => "in_progress",
            Self::Finalizing => "finalizing",
            Self::Completed => "completed",
            Self::Expired => "expired",
            Self::Cancelling => "cancelling",
            Self::Cancelled => "cancelled",
        }
    }

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

    fn read(mut row: Row, keyring: &Keyring) -> Result<Self, StoreError> {
        let document: String = row.take("document")?;
        let (tenant, id): (String, String) = (row.take("tenant")?, row.take("id")?);
        let mut batch: Self = documents::open(keyring, &binding(&tenant, &id), &document)?;
        (batch.id, batch.tenant) = (id, tenant);
        (batch.completed, batch.failed) = (row.take("completed")?, row.take("failed")?);
        Ok(batch)
    }

    fn document(&self, keyring: &Keyring) -> Result<String, StoreError> {
        let binding = binding(&self.tenant, &self.id);
        documents::seal(keyring, &binding, self, &["errors", "metadata"])
    }

    fn result_binding(&self, line: u64) -> Binding {
        Binding::numbered("results.text", &self.tenant, &self.id, line)
    }

    /// Adds it, unless its tenant has so many that have not ended.
    fn insert(
        &self,
        active_max: usize,
        owner: &str,
        transaction: &mut Transaction<'_>,
    ) -> Result<(), StoreError> {
        let sql = "SELECT count(*) AS count FROM batches WHERE is_active = 1 AND tenant = ?1";
        if transaction.count(sql, values![&self.tenant])? >= active_max as u64 {
            return Err(StoreError::TooMany(active_max));
        }
        let Self { id, tenant, input_file_id, times, .. } = self;
        let sql = "INSERT INTO batches (id, tenant, is_active, input_file, created_at, owner, \
                   document) VALUES (?1, ?2, 1, ?3, ?4, ?5, ?6)";
        let (created_at, document) = (times.created_at, self.document(transaction.keyring())?);
        let of_batch = values![id, tenant, input_file_id, created_at, owner, &document];
        transaction.execute(sql, of_batch)?;
        Ok(())
    }

    fn save(&self, transaction: &mut Transaction<'_>) -> Result<(), StoreError> {
        let sql = "UPDATE batches SET is_active = ?1, document = ?2 WHERE id = ?3";
        let document = self.document(transaction.keyring())?;
        let is_active = self.status.is_active();
        transaction.execute(sql, values![is_active, &document, &self.id])?;
        Ok(())
    }
}

impl Store {
    /// Adds a batch, unless its tenant has so many that have not ended.
    pub(crate) async fn insert_batch(
        &self,
        batch: Batch,
        active_max: usize,
    ) -> Result<Batch, StoreError> {
        let me = self.0.me.clone();
        let insert = move |transaction: &mut Transaction<'_>| {
            batch.insert(active_max, &me, transaction)?;
            Ok(batch)
        };
        self.change(insert).await
    }

    /// A tenant's batch.
    pub(crate) async fn batch(&self, tenant: &str, id: &str) -> Result<Batch, StoreError> {
        let (tenant, id) = (tenant.to_string(), id.to_string());
        self.0.database.run(move |t| find(t, &tenant, &id)).await
    }

    /// A tenant's batches of this API, and whether there are more.
    pub(crate) async fn batches(
        &self,
        tenant: &str,
        api: BatchApi,
        page: Page,
    ) -> Result<(Vec<Batch>, bool), StoreError> {
        let tenant = tenant.to_string();
        let list = move |transaction: &mut Transaction<'_>| {
            let after = page.after("batches", &tenant, transaction)?;
            let ((sign, order), prefix) = (page.direction(), api.id_prefix());
            let sql = format!(
                "SELECT * FROM batches WHERE tenant = ?1 \
                 AND (CAST(?2 AS BIGINT) IS NULL OR number {sign} CAST(?2 AS BIGINT)) \
                 AND substr(id, 1, {length}) = ?4 ORDER BY number {order} LIMIT ?3",
                length = prefix.len()
            );
            let asked = values![&tenant, after, page.limit + 1, prefix];
            let rows = transaction.query(&sql, asked)?;
            let read = |row| Batch::read(row, transaction.keyring());
            page.cut(rows.into_iter().map(read).collect::<Result<_, _>>()?)
        };
        self.0.database.run(list).await
    }

    /// The batches that this gateway runs, oldest first. Those that no living gateway runs become
    /// its own.
    pub(crate) async fn own_batches(&self) -> Result<Vec<Batch>, StoreError> {
        self.claim_rows("batches", "*", Batch::read).await
    }

    /// Asks for the end of a batch. Asking twice is the same as once.
    pub(crate) async fn cancel_batch(
        &self,
        tenant: &str,
        id: &str,
        now: u64,
    ) -> Result<Batch, StoreError> {
        let (tenant, id) = (tenant.to_string(), id.to_string());
        let cancel = move |transaction: &mut Transaction<'_>| {
            let mut batch = find(transaction, &tenant, &id)?;
            match batch.status {
                BatchStatus::Cancelling => return Ok(batch),
                status if !status.is_active() => return Err(StoreError::Finished),
                _ => {}
            }
            batch.status = BatchStatus::Cancelling;
            batch.times.cancelling_at = Some(now);
            batch.save(transaction)?;
            Ok(batch)
        };
        self.change(cancel).await
    }

    /// Changes a batch that this gateway runs, and returns it as it is then. `change` returns
    /// messages about that.
    pub(crate) async fn update_batch(
        &self,
        batch: &Batch,
        change: impl FnOnce(&mut Batch) -> Vec<Delivery> + Send + 'static,
    ) -> Result<Batch, StoreError> {
        let (tenant, id) = (batch.tenant.clone(), batch.id.clone());
        let me = self.0.me.clone();
        let update = move |transaction: &mut Transaction<'_>| {
            check_owner(transaction, "batches", &id, &me)?;
            let mut batch = find(transaction, &tenant, &id)?;
            deliveries::add(transaction, &change(&mut batch))?;
            batch.save(transaction)?;
            Ok(batch)
        };
        self.0.database.run(update).await
    }

    /// Adds what became of a line, if nothing is known of it yet.
    pub(crate) async fn record_line(
        &self,
        batch: &Batch,
        line: u64,
        is_error: bool,
        text: Vec<u8>,
    ) -> Result<(), StoreError> {
        let text = self.keyring().seal(&batch.result_binding(line), text)?;
        let batch = batch.id.clone();
        let me = self.0.me.clone();
        let record = move |transaction: &mut Transaction<'_>| {
            check_owner(transaction, "batches", &batch, &me)?;
            let sql = "INSERT INTO results (batch, line, is_error, text) VALUES (?1, ?2, ?3, ?4) \
                       ON CONFLICT DO NOTHING";
            let added = transaction.execute(sql, values![&batch, line, is_error, &text])?;
            lines::forget(transaction, &batch, Some(line))?;
            let failed = if is_error { added } else { 0 };
            let sql = "UPDATE batches SET completed = completed + ?1, failed = failed + ?2 \
                       WHERE id = ?3";
            transaction.execute(sql, values![added - failed, failed, &batch])?;
            Ok(())
        };
        self.0.database.run(record).await
    }

    /// The lines of a batch of which is known what became of them, in order, and their bytes.
    pub(crate) async fn lines_done(&self, batch: &str) -> Result<(Vec<u64>, u64), StoreError> {
        let batch = batch.to_string();
        let list = move |transaction: &mut Transaction<'_>| {
            let sql = "SELECT line, length(text) AS bytes FROM results WHERE batch = ?1 \
                       ORDER BY line";
            let read = |mut row: Row| Ok((row.take("line")?, row.take("bytes")?));
            let rows = transaction.query(sql, values![&batch])?.into_iter().map(read);
            let rows: Vec<(u64, u64)> = rows.collect::<Result<_, Fault>>()?;
            let bytes = rows.iter().map(|(_, bytes)| bytes).sum();
            Ok((rows.into_iter().map(|(line, _)| line).collect(), bytes))
        };
        self.0.database.run(list).await
    }

    /// Responses or errors of lines after `after`, or both, in order: at most `limit`.
    pub(crate) async fn results(
        &self,
        batch: &Batch,
        is_error: Option<bool>,
        after: Option<u64>,
        limit: usize,
    ) -> Result<Vec<(u64, Vec<u8>)>, StoreError> {
        let id = batch.id.clone();
        let list = move |transaction: &mut Transaction<'_>| {
            let sql = "SELECT line, text FROM results WHERE batch = ?1 \
                       AND (CAST(?2 AS BIGINT) IS NULL OR is_error = CAST(?2 AS BIGINT)) \
                       AND line > CAST(?3 AS BIGINT) ORDER BY line LIMIT ?4";
            // A range, which an index finds.
            let after = after.map_or(-1, |after| i64::try_from(after).unwrap_or(i64::MAX));
            let rows = transaction.query(sql, values![&id, is_error, after, limit])?;
            let read = |mut row: Row| Ok((row.take("line")?, row.take("text")?));
            Ok(rows.into_iter().map(read).collect::<Result<Vec<(u64, Vec<u8>)>, Fault>>()?)
        };
        let results = self.0.database.run(list).await?.into_iter();
        let open =
            |(line, text)| Ok((line, self.keyring().open(&batch.result_binding(line), text)?));
        results.map(open).collect()
    }

    /// Ends a batch: its files get records, and its results are deleted. `change` returns messages
    /// about that.
    pub(crate) async fn finish_batch(
        &self,
        batch: &Batch,
        files: Vec<(Upload, FileRecord)>,
        change: impl FnOnce(&mut Batch) -> Vec<Delivery> + Send + 'static,
    ) -> Result<Batch, StoreError> {
        let (mut uploads, mut records) = (Vec::new(), Vec::new());
        for (mut upload, record) in files {
            upload.flush().await?;
            uploads.push(upload);
            records.push(record);
        }
        let (tenant, id) = (batch.tenant.clone(), batch.id.clone());
        let me = self.0.me.clone();
        let finish = move |transaction: &mut Transaction<'_>| {
            check_owner(transaction, "batches", &id, &me)?;
            let mut batch = find(transaction, &tenant, &id)?;
            deliveries::add(transaction, &change(&mut batch))?;
            for record in &records {
                record.insert(&tenant, transaction)?;
            }
            transaction.execute("DELETE FROM results WHERE batch = ?1", values![&id])?;
            lines::forget(transaction, &id, None)?;
            batch.save(transaction)?;
            Ok(batch)
        };
        let done = self.0.database.run(finish).await;
        uploads.into_iter().for_each(|upload| upload.finish(&done));
        done
    }

    /// Deletes batches that have ended and are older than `before`.
    pub(crate) async fn expire_batches(&self, before: u64) -> Result<usize, StoreError> {
        let expire = move |transaction: &mut Transaction<'_>| {
            let sql = "DELETE FROM batches WHERE is_active = 0 AND created_at < ?1";
            Ok(transaction.execute(sql, values![before])? as usize)
        };
        self.0.database.run(expire).await
    }
}

fn find(transaction: &mut Transaction<'_>, tenant: &str, id: &str) -> Result<Batch, StoreError> {
    let sql = "SELECT * FROM batches WHERE id = ?1 AND tenant = ?2";
    let found = transaction.first(sql, values![id, tenant])?.ok_or(StoreError::Unknown)?;
    Batch::read(found, transaction.keyring())
}

fn binding(tenant: &str, id: &str) -> Binding {
    Binding::new("batches.document", tenant, id)
}
