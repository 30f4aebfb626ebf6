//! Work in the background, responses and jobs: what it needs until it has ended, and its result.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio::time::{Instant, sleep};

use super::deliveries::{self, Delivery};
use super::files::usage_of;
use super::gateways::check_owner;
use super::listing::with_status;
use super::live::{Live, Part};
use super::page::Page;
use super::sql::{Fault, Row, Transaction, values};
use super::{Store, StoreError};

/// How long after its request a task must have ended, in seconds.
const AGE_S_MAX: u64 = 24 * 60 * 60;

/// Longest wait for the end of a task that was canceled.
const END_TIMEOUT: Duration = Duration::from_secs(10);

/// How often to look what another gateway has stored of a task.
pub(crate) const FOLLOW_INTERVAL: Duration = Duration::from_millis(500);

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
    /// True once a gateway has said that it is being done.
    #[serde(skip)]
    pub has_begun: bool,
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

/// How a task has ended.
#[derive(Debug, Clone)]
pub(crate) struct TaskEnd {
    /// Its status, as clients see it.
    pub(crate) status: String,
    /// Its result.
    pub(crate) result: Vec<u8>,
    /// The events that can be read.
    pub(crate) events: Vec<u8>,
    /// Messages about that.
    pub(crate) messages: Vec<Delivery>,
}

/// Kinds of work in the background.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TaskKind {
    /// A response of the Responses API.
    Response,
    /// A request of any API, whose response is stored as a whole.
    Job,
    /// A stream of any API, which its client may read on.
    Stream,
}

impl TaskKind {
    /// The kind of the task with this id.
    pub(crate) fn of(id: &str) -> Self {
        match id.split_once('_') {
            Some(("job", _)) => Self::Job,
            Some(("stream", _)) => Self::Stream,
            _ => Self::Response,
        }
    }

    /// Its name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Response => "response",
            Self::Job => "job",
            Self::Stream => "stream",
        }
    }
}

impl BackgroundTask {
    /// The random number in its id.
    pub(crate) fn number(&self) -> u128 {
        let digits = self.id.split_once('_').map_or("", |(_, digits)| digits);
        u128::from_str_radix(digits, 16).unwrap_or_default()
    }

    /// What it is.
    pub(crate) fn kind(&self) -> TaskKind {
        TaskKind::of(&self.id)
    }

    /// When it must have ended, in seconds since 1970.
    pub(crate) fn expires_at(&self) -> u64 {
        self.created_at + AGE_S_MAX
    }

    const COLUMNS: &str = "id, tenant, created_at, is_active, has_begun, bytes, document";

    fn read(row: &mut Row) -> Result<Self, Fault> {
        let document: String = row.take("document")?;
        let mut task: Self = serde_json::from_str(&document).map_err(Fault::of)?;
        (task.id, task.tenant) = (row.take("id")?, row.take("tenant")?);
        (task.created_at, task.is_active) = (row.take("created_at")?, row.take("is_active")?);
        (task.bytes, task.has_begun) = (row.take("bytes")?, row.take("has_begun")?);
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
        let me = self.0.me.clone();
        let insert = move |transaction: &mut Transaction<'_>| {
            let BackgroundTask { id, tenant, created_at, .. } = &task;
            let sql = "SELECT count(*) AS count FROM tasks WHERE is_active = 1 AND tenant = ?1";
            if transaction.count(sql, values![tenant])? >= active_max as u64 {
                return Err(StoreError::TooMany(active_max));
            }
            let sql = "INSERT INTO tasks (id, tenant, is_active, bytes, created_at, owner, \
                       document, request, result) VALUES (?1, ?2, 1, ?3, ?4, ?5, ?6, ?7, ?8)";
            let (document, created_at) = (task.document()?, *created_at);
            let of_task =
                values![id, tenant, bytes, created_at, &*me, &document, &request, &result];
            transaction.execute(sql, of_task)?;
            Ok(())
        };
        self.change(insert).await?;
        claim.keep();
        Ok(())
    }

    /// A tenant's task with its result.
    pub(crate) async fn task(
        &self,
        tenant: &str,
        id: &str,
    ) -> Result<(BackgroundTask, Vec<u8>), StoreError> {
        let (tenant, id) = (tenant.to_string(), id.to_string());
        let find = move |transaction: &mut Transaction<'_>| {
            let columns = BackgroundTask::COLUMNS;
            let sql = format!("SELECT {columns}, result FROM tasks WHERE id = ?1 AND tenant = ?2");
            let found = transaction.first(&sql, values![&id, &tenant])?;
            Ok(read_with_result(found.ok_or(StoreError::Unknown)?)?)
        };
        self.0.database.run(find).await
    }

    /// The events of a task that has ended.
    pub(crate) async fn task_events(&self, id: &str) -> Result<Vec<u8>, StoreError> {
        let id = id.to_string();
        let find = move |transaction: &mut Transaction<'_>| {
            let found =
                transaction.first("SELECT events FROM tasks WHERE id = ?1", values![&id])?;
            let events: Option<Vec<u8>> = found.ok_or(StoreError::Unknown)?.take("events")?;
            Ok(events.unwrap_or_default())
        };
        self.0.database.run(find).await
    }

    /// The tasks that this gateway does, oldest first. Those that no living gateway does become its
    /// own.
    pub(crate) async fn own_tasks(&self) -> Result<Vec<BackgroundTask>, StoreError> {
        let mut rows = self.claim_rows("tasks", BackgroundTask::COLUMNS).await?;
        Ok(rows.iter_mut().map(BackgroundTask::read).collect::<Result<_, _>>()?)
    }

    /// What a task needs that this gateway does.
    pub(crate) async fn task_input(&self, task: &BackgroundTask) -> Result<TaskInput, StoreError> {
        let (id, me) = (task.id.clone(), self.0.me.clone());
        let find = move |transaction: &mut Transaction<'_>| {
            check_owner(transaction, "tasks", &id, &me)?;
            let sql = "SELECT request, progress, result FROM tasks WHERE id = ?1 AND is_active = 1";
            let mut row = transaction.first(sql, values![&id])?.ok_or(StoreError::Unknown)?;
            let request = row.take("request")?;
            Ok(TaskInput { request, progress: row.take("progress")?, result: row.take("result")? })
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
        let list = move |transaction: &mut Transaction<'_>| {
            let after = page.after("tasks", &tenant, transaction)?;
            let (sign, order) = page.direction();
            let columns = BackgroundTask::COLUMNS;
            let sql = format!(
                "SELECT {columns}, result FROM tasks \
                 WHERE tenant = ?1 AND substr(id, 1, 4) = 'job_' \
                 AND (CAST(?2 AS BIGINT) IS NULL OR number {sign} CAST(?2 AS BIGINT)) \
                 ORDER BY number {order} LIMIT ?3"
            );
            let rows = transaction.query(&sql, values![&tenant, after, page.limit + 1])?;
            page.cut(rows.into_iter().map(read_with_result).collect::<Result<_, _>>()?)
        };
        self.0.database.run(list).await
    }

    /// How many tasks of a tenant were asked for before this one and have not ended.
    pub(crate) async fn tasks_before(&self, task: &BackgroundTask) -> Result<u64, StoreError> {
        let (tenant, id) = (task.tenant.clone(), task.id.clone());
        let count = move |transaction: &mut Transaction<'_>| {
            let sql = "SELECT count(*) AS count FROM tasks WHERE tenant = ?1 AND is_active = 1 \
                       AND number < (SELECT number FROM tasks WHERE id = ?2)";
            Ok(transaction.count(sql, values![&tenant, &id])?)
        };
        self.0.database.run(count).await
    }

    /// Stores that a task is being done.
    pub(crate) async fn record_begin(&self, id: &str) -> Result<(), StoreError> {
        let (id, me) = (id.to_string(), self.0.me.clone());
        let record = move |transaction: &mut Transaction<'_>| {
            check_owner(transaction, "tasks", &id, &me)?;
            let sql = "UPDATE tasks SET has_begun = 1 WHERE id = ?1 AND is_active = 1";
            transaction.execute(sql, values![&id])?;
            Ok(())
        };
        self.0.database.run(record).await
    }

    /// Stores what a node needs to continue a task that has not ended, and events for readers at
    /// other gateways.
    pub(crate) async fn record_progress(
        &self,
        id: &str,
        progress: Vec<u8>,
        events: Option<Part>,
    ) -> Result<(), StoreError> {
        let (id, me) = (id.to_string(), self.0.me.clone());
        let record = move |transaction: &mut Transaction<'_>| {
            check_owner(transaction, "tasks", &id, &me)?;
            let sql = "UPDATE tasks SET progress = ?1, has_begun = 1 \
                       WHERE id = ?2 AND is_active = 1";
            let changed = transaction.execute(sql, values![&progress, &id])?;
            if let Some(Part { first, data, .. }) = events.filter(|part| part.next > part.first)
                && changed > 0
            {
                // The first ones replace those of a gateway that has died.
                let sql = "DELETE FROM task_events WHERE task = ?1 AND number >= ?2";
                transaction.execute(sql, values![&id, first])?;
                let sql = "INSERT INTO task_events (task, number, data) VALUES (?1, ?2, ?3)";
                transaction.execute(sql, values![&id, first, &data])?;
            }
            Ok(())
        };
        self.0.database.run(record).await
    }

    /// Reads on what another gateway has stored of the events of a task, and whether it has ended.
    pub(crate) async fn follow(&self, task: &str, live: &Live) -> Result<(), StoreError> {
        if live.is_own() {
            return Ok(());
        }
        let (id, next) = (task.to_string(), live.len());
        let read = move |transaction: &mut Transaction<'_>| {
            let sql = "SELECT is_active FROM tasks WHERE id = ?1";
            let found = transaction.first(sql, values![&id])?;
            let is_active = found.map_or(Ok(false), |mut row| row.take("is_active"))?;
            let sql = if is_active {
                // From the part with the next event on.
                "SELECT number, data FROM task_events WHERE task = ?1 AND number >= \
                 (SELECT coalesce(max(number), 0) FROM task_events WHERE task = ?1 \
                 AND number <= ?2) ORDER BY number"
            } else {
                "SELECT CAST(0 AS BIGINT) AS number, events AS data FROM tasks WHERE id = ?1 \
                 AND events IS NOT NULL AND CAST(?2 AS BIGINT) IS NOT NULL"
            };
            let read = |mut row: Row| Ok((row.take("number")?, row.take("data")?));
            let rows = transaction.query(sql, values![&id, next])?.into_iter().map(read);
            Ok((is_active, rows.collect::<Result<Vec<(u64, Vec<u8>)>, Fault>>()?))
        };
        let (is_active, parts) = self.0.database.run(read).await?;
        for (number, events) in parts {
            live.push(number as usize, &events.into());
        }
        // Meanwhile this gateway may have become its owner.
        if !is_active && !live.is_own() {
            live.end();
        }
        Ok(())
    }

    /// Ends a task early: asks for its end, and waits for it a while.
    pub(crate) async fn end_task(&self, task: &BackgroundTask) -> Result<(), StoreError> {
        // Entered before whoever does it can have left it.
        let live = self.live(task);
        if !self.cancel_task(&task.tenant, &task.id).await?.is_active {
            return Ok(());
        }
        let begun = Instant::now();
        while begun.elapsed() < END_TIMEOUT {
            tokio::select! {
                () = live.ended() => break,
                () = sleep(FOLLOW_INTERVAL) => self.follow(&task.id, &live).await?,
            }
        }
        Ok(())
    }

    /// Asks for the end of a task. Asking twice is the same as once. Returns the task as it
    /// was.
    async fn cancel_task(&self, tenant: &str, id: &str) -> Result<BackgroundTask, StoreError> {
        let (tenant, id) = (tenant.to_string(), id.to_string());
        let cancel = move |transaction: &mut Transaction<'_>| {
            let columns = BackgroundTask::COLUMNS;
            let sql = format!("SELECT {columns} FROM tasks WHERE id = ?1 AND tenant = ?2");
            let found = transaction.first(&sql, values![&id, &tenant])?;
            let task = BackgroundTask::read(&mut found.ok_or(StoreError::Unknown)?)?;
            if task.is_active {
                let document = BackgroundTask { is_canceled: true, ..task.clone() }.document()?;
                let sql = "UPDATE tasks SET document = ?1 WHERE id = ?2";
                transaction.execute(sql, values![&document, &id])?;
            }
            Ok(task)
        };
        self.change(cancel).await
    }

    /// Ends a task.
    pub(crate) async fn finish_task(
        &self,
        task: &BackgroundTask,
        end: TaskEnd,
    ) -> Result<(), StoreError> {
        let (id, tenant) = (task.id.clone(), task.tenant.clone());
        let TaskEnd { status, result, events, messages } = end;
        let bytes = (result.len() + events.len()) as u64;
        let me = self.0.me.clone();
        let finish = move |transaction: &mut Transaction<'_>| {
            let sql = "SELECT bytes, document FROM tasks WHERE id = ?1 AND is_active = 1";
            // It may have been deleted meanwhile.
            let Some(mut row) = transaction.first(sql, values![&id])? else { return Ok(None) };
            check_owner(transaction, "tasks", &id, &me)?;
            let document = with_status(&row.take::<String>("document")?, &status)?;
            let sql = "UPDATE tasks SET is_active = 0, request = NULL, progress = NULL, \
                       bytes = ?1, result = ?2, events = ?3, document = ?4 WHERE id = ?5";
            transaction.execute(sql, values![bytes, &result, &events, &document, &id])?;
            transaction.execute("DELETE FROM task_events WHERE task = ?1", values![&id])?;
            deliveries::add(transaction, &messages)?;
            Ok(Some(row.take::<u64>("bytes")?))
        };
        // Counted before, so that no limit is exceeded by what others add meanwhile.
        let mut claim = self.claim(&tenant);
        claim.force(bytes);
        if let Some(before) = self.0.database.run(finish).await? {
            claim.keep();
            self.0.quota.release(&tenant, before);
        }
        Ok(())
    }

    /// Deletes a tenant's task.
    pub(crate) async fn delete_task(&self, tenant: &str, id: &str) -> Result<(), StoreError> {
        let (owner, key) = (tenant.to_string(), id.to_string());
        let delete = move |transaction: &mut Transaction<'_>| {
            let sql = "DELETE FROM tasks WHERE id = ?1 AND tenant = ?2 RETURNING bytes";
            let mut row =
                transaction.first(sql, values![&key, &owner])?.ok_or(StoreError::Unknown)?;
            transaction.execute("DELETE FROM task_events WHERE task = ?1", values![&key])?;
            Ok(row.take("bytes")?)
        };
        // Another gateway may be doing it.
        let bytes = self.change(delete).await?;
        self.0.quota.release(tenant, bytes);
        Ok(())
    }

    /// Deletes tasks that have ended and are older than `before`, and streams older than
    /// `streams_before`.
    pub(crate) async fn expire_tasks(
        &self,
        before: u64,
        streams_before: u64,
    ) -> Result<usize, StoreError> {
        let expire = move |transaction: &mut Transaction<'_>| {
            let sql = "DELETE FROM tasks WHERE is_active = 0 AND (created_at < ?1 \
                       OR (created_at < ?2 AND substr(id, 1, 7) = 'stream_')) \
                       RETURNING tenant, bytes";
            let read = |mut row: Row| Ok((row.take("tenant")?, row.take("bytes")?));
            let deleted =
                transaction.query(sql, values![before, streams_before])?.into_iter().map(read);
            Ok(deleted.collect::<Result<Vec<(String, u64)>, Fault>>()?)
        };
        let deleted = self.0.database.run(expire).await?;
        for (tenant, bytes) in &deleted {
            self.0.quota.release(tenant, *bytes);
        }
        Ok(deleted.len())
    }
}

fn read_with_result(mut row: Row) -> Result<(BackgroundTask, Vec<u8>), Fault> {
    Ok((BackgroundTask::read(&mut row)?, row.take("result")?))
}

/// Bytes of each tenant's tasks.
pub(super) fn usage(transaction: &mut Transaction<'_>) -> Result<Vec<(String, u64)>, StoreError> {
    usage_of("tasks", transaction)
}
