//! Work in the background, responses and jobs: what it needs until it has ended, and its result.

use std::sync::Arc;
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Row, params};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio::time::timeout;

use super::batches::Page;
use super::live::Live;
use super::{Store, StoreError};

/// How long after its request a task must have ended, in seconds.
const AGE_S_MAX: u64 = 24 * 60 * 60;

/// Longest wait for the end of a task that was canceled.
const END_TIMEOUT: Duration = Duration::from_secs(10);

/// A response or a job of a tenant, made in the background.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BackgroundTask {
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
    /// Bytes of what is stored of it.
    #[serde(skip)]
    pub bytes: u64,
    /// The API that makes it.
    pub path: String,
    /// The model, with aliases resolved.
    pub model: String,
    /// The client's notes.
    #[serde(default)]
    pub metadata: Option<Map<String, Value>>,
    /// The user of the tenant who asked for it.
    pub user: Option<u64>,
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

/// What a task needs to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskInput {
    /// The body of the request.
    pub request: Vec<u8>,
    /// What a node needs to continue it, as JSON.
    pub progress: Option<Vec<u8>>,
    /// Its result, before it has one: a response that waits, with the turns before it.
    pub result: Vec<u8>,
}

impl BackgroundTask {
    /// The random number in its id.
    pub(crate) fn number(&self) -> u128 {
        let digits = self.id.split_once('_').map_or("", |(_, digits)| digits);
        u128::from_str_radix(digits, 16).unwrap_or_default()
    }

    /// True if it is a job; otherwise it is a response.
    pub(crate) fn is_job(&self) -> bool {
        self.id.starts_with("job_")
    }

    /// When it must have ended, in seconds since 1970.
    pub(crate) fn expires_at(&self) -> u64 {
        self.created_at + AGE_S_MAX
    }

    const COLUMNS: &str = "id, tenant, created_at, is_active, bytes, document";

    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        let document: String = row.get("document")?;
        let broken = |error| {
            let kind = rusqlite::types::Type::Text;
            rusqlite::Error::FromSqlConversionFailure(0, kind, Box::new(error))
        };
        let mut task: Self = serde_json::from_str(&document).map_err(broken)?;
        (task.id, task.tenant) = (row.get("id")?, row.get("tenant")?);
        (task.created_at, task.is_active) = (row.get("created_at")?, row.get("is_active")?);
        task.bytes = row.get("bytes")?;
        Ok(task)
    }

    fn document(&self) -> Result<String, StoreError> {
        serde_json::to_string(self).map_err(|_| StoreError::Unavailable)
    }
}

impl Store {
    /// How far a task is in this process, for the one that does it and those that read it.
    pub(crate) fn live(&self, task: &BackgroundTask) -> Arc<Live> {
        self.0.live.enter(&task.id, task.is_streamed)
    }

    /// Adds a task, unless its tenant has so many that have not ended.
    pub(crate) async fn insert_task(
        &self,
        task: BackgroundTask,
        request: Vec<u8>,
        result: Vec<u8>,
        active_max: usize,
    ) -> Result<(), StoreError> {
        let mut claim = self.claim(&task.tenant);
        let bytes = (request.len() + result.len()) as u64;
        claim.grow(bytes)?;
        let insert = move |connection: &Connection| {
            let BackgroundTask { id, tenant, created_at, .. } = &task;
            let sql = "SELECT count(*) FROM tasks WHERE is_active = 1 AND tenant = ?";
            let active: usize =
                connection.prepare_cached(sql)?.query_row([tenant], |row| row.get(0))?;
            if active >= active_max {
                return Err(StoreError::TooMany(active_max));
            }
            let sql = "INSERT INTO tasks (id, tenant, is_active, bytes, created_at, document, \
                       request, result) VALUES (?, ?, 1, ?, ?, ?, ?, ?)";
            let document = task.document()?;
            let values = params![id, tenant, bytes, created_at, document, request, result];
            connection.prepare_cached(sql)?.execute(values)?;
            Ok(())
        };
        self.0.database.run(insert).await?;
        claim.keep();
        self.0.changes.send_replace(());
        Ok(())
    }

    /// A tenant's task with its result.
    pub(crate) async fn task(
        &self,
        tenant: &str,
        id: &str,
    ) -> Result<(BackgroundTask, Vec<u8>), StoreError> {
        let (tenant, id) = (tenant.to_string(), id.to_string());
        let find = move |connection: &Connection| {
            let sql = "SELECT * FROM tasks WHERE id = ? AND tenant = ?";
            let mut statement = connection.prepare_cached(sql)?;
            let found = statement.query_row([id, tenant], read_with_result).optional()?;
            found.ok_or(StoreError::Unknown)
        };
        self.0.database.run(find).await
    }

    /// The events of a task that has ended.
    pub(crate) async fn task_events(&self, id: &str) -> Result<Vec<u8>, StoreError> {
        let id = id.to_string();
        let find = move |connection: &Connection| {
            let sql = "SELECT events FROM tasks WHERE id = ?";
            let read = |row: &Row<'_>| row.get::<_, Option<Vec<u8>>>(0);
            Ok(connection.query_row(sql, [id], read)?.unwrap_or_default())
        };
        self.0.database.run(find).await
    }

    /// All tasks that have not ended, oldest first.
    pub(crate) async fn active_tasks(&self) -> Result<Vec<BackgroundTask>, StoreError> {
        let list = |connection: &Connection| {
            let columns = BackgroundTask::COLUMNS;
            let sql = format!("SELECT {columns} FROM tasks WHERE is_active = 1 ORDER BY number");
            let mut statement = connection.prepare_cached(&sql)?;
            let tasks = statement.query_map([], BackgroundTask::read)?;
            Ok(tasks.collect::<rusqlite::Result<_>>()?)
        };
        self.0.database.run(list).await
    }

    /// A task that has not ended, and what it needs.
    pub(crate) async fn task_input(
        &self,
        id: &str,
    ) -> Result<(BackgroundTask, TaskInput), StoreError> {
        let id = id.to_string();
        let find = move |connection: &Connection| {
            let sql = "SELECT * FROM tasks WHERE id = ? AND is_active = 1";
            let read = |row: &Row<'_>| {
                let task = TaskInput {
                    request: row.get("request")?,
                    progress: row.get("progress")?,
                    result: row.get("result")?,
                };
                Ok((BackgroundTask::read(row)?, task))
            };
            let found = connection.prepare_cached(sql)?.query_row([id], read).optional()?;
            found.ok_or(StoreError::Unknown)
        };
        self.0.database.run(find).await
    }

    /// A tenant's jobs, and whether there are more.
    pub(crate) async fn jobs(
        &self,
        tenant: &str,
        page: Page,
    ) -> Result<(Vec<(BackgroundTask, Vec<u8>)>, bool), StoreError> {
        let tenant = tenant.to_string();
        let list = move |connection: &Connection| {
            let after = page.after("tasks", &tenant, connection)?;
            let (sign, order) = page.direction();
            let mut statement = connection.prepare_cached(&format!(
                "SELECT * FROM tasks WHERE tenant = ?1 AND id GLOB 'job_*' \
                 AND (?2 IS NULL OR number {sign} ?2) ORDER BY number {order} LIMIT ?3"
            ))?;
            let found = params![tenant, after, page.limit as i64 + 1];
            let jobs = statement.query_map(found, read_with_result)?;
            page.cut(jobs.collect::<rusqlite::Result<_>>()?)
        };
        self.0.database.run(list).await
    }

    /// How many tasks of a tenant were asked for before this one and have not ended.
    pub(crate) async fn tasks_before(&self, task: &BackgroundTask) -> Result<u64, StoreError> {
        let (tenant, id) = (task.tenant.clone(), task.id.clone());
        let count = move |connection: &Connection| {
            let sql = "SELECT count(*) FROM tasks WHERE tenant = ?1 AND is_active = 1 \
                       AND number < (SELECT number FROM tasks WHERE id = ?2)";
            Ok(connection.prepare_cached(sql)?.query_row([tenant, id], |row| row.get(0))?)
        };
        self.0.database.run(count).await
    }

    /// Stores what a node needs to continue a task that has not ended.
    pub(crate) async fn record_progress(
        &self,
        id: String,
        progress: Vec<u8>,
    ) -> Result<(), StoreError> {
        let record = move |connection: &Connection| {
            let sql = "UPDATE tasks SET progress = ? WHERE id = ? AND is_active = 1";
            connection.prepare_cached(sql)?.execute(params![progress, id])?;
            Ok(())
        };
        self.0.database.run(record).await
    }

    /// Ends a task early: asks for its end, and waits for it a while.
    pub(crate) async fn end_task(&self, task: &BackgroundTask) -> Result<(), StoreError> {
        // Entered before whoever does it can have left it.
        let live = self.live(task);
        if self.cancel_task(&task.tenant, &task.id).await?.is_active {
            let _ = timeout(END_TIMEOUT, live.ended()).await;
        }
        Ok(())
    }

    /// Asks for the end of a task. Asking twice is the same as once. Returns the task as it
    /// was.
    async fn cancel_task(&self, tenant: &str, id: &str) -> Result<BackgroundTask, StoreError> {
        let (tenant, id) = (tenant.to_string(), id.to_string());
        let cancel = move |connection: &Connection| {
            let columns = BackgroundTask::COLUMNS;
            let sql = format!("SELECT {columns} FROM tasks WHERE id = ? AND tenant = ?");
            let found = connection.query_row(&sql, [&id, &tenant], BackgroundTask::read);
            let task = found.optional()?.ok_or(StoreError::Unknown)?;
            if task.is_active {
                let document = BackgroundTask { is_canceled: true, ..task.clone() }.document()?;
                let sql = "UPDATE tasks SET document = ? WHERE id = ?";
                connection.execute(sql, params![document, id])?;
            }
            Ok(task)
        };
        let task = self.0.database.run(cancel).await?;
        self.0.changes.send_replace(());
        Ok(task)
    }

    /// Ends a task: it has this result, and `events` can be read.
    pub(crate) async fn finish_task(
        &self,
        task: &BackgroundTask,
        result: Vec<u8>,
        events: Vec<u8>,
    ) -> Result<(), StoreError> {
        let (id, tenant) = (task.id.clone(), task.tenant.clone());
        let bytes = (result.len() + events.len()) as u64;
        let finish = move |connection: &Connection| {
            let sql = "SELECT bytes FROM tasks WHERE id = ? AND is_active = 1";
            let before: Option<u64> =
                connection.query_row(sql, [&id], |row| row.get(0)).optional()?;
            // It may have been deleted meanwhile.
            let Some(before) = before else { return Ok(0) };
            let sql = "UPDATE tasks SET is_active = 0, request = NULL, progress = NULL, \
                       bytes = ?, result = ?, events = ? WHERE id = ?";
            connection.prepare_cached(sql)?.execute(params![bytes, result, events, id])?;
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

    /// Deletes a tenant's task.
    pub(crate) async fn delete_task(&self, tenant: &str, id: &str) -> Result<(), StoreError> {
        let (owner, key) = (tenant.to_string(), id.to_string());
        let delete = move |connection: &Connection| {
            let sql = "DELETE FROM tasks WHERE id = ? AND tenant = ? RETURNING bytes";
            let bytes: Option<u64> =
                connection.query_row(sql, [key, owner], |row| row.get(0)).optional()?;
            bytes.ok_or(StoreError::Unknown)
        };
        let bytes = self.0.database.run(delete).await?;
        self.0.quota.release(tenant, bytes);
        Ok(())
    }

    /// Deletes tasks that have ended and are older than `before`.
    pub(crate) async fn expire_tasks(&self, before: u64) -> Result<usize, StoreError> {
        let expire = move |connection: &Connection| {
            let sql = "DELETE FROM tasks WHERE is_active = 0 AND created_at < ? \
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

fn read_with_result(row: &Row<'_>) -> rusqlite::Result<(BackgroundTask, Vec<u8>)> {
    Ok((BackgroundTask::read(row)?, row.get("result")?))
}

/// Bytes of each tenant's tasks.
pub(super) fn usage(connection: &Connection) -> Result<Vec<(String, u64)>, StoreError> {
    let mut statement =
        connection.prepare("SELECT tenant, sum(bytes) FROM tasks GROUP BY tenant")?;
    let usage = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    Ok(usage.collect::<rusqlite::Result<_>>()?)
}
