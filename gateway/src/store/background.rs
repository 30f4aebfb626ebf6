//! Work in the background, responses and jobs: what it needs until it has ended, and its result.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::deliveries;
use super::documents::with_field;
use super::files::usage_of;
use super::gateways::check_owner;
use super::keyring::Binding;
use super::live::{Live, Part};
use super::page::Page;
use super::sql::{Fault, Row, Transaction, values};
use super::{Store, StoreError};

mod task;

pub use task::{BackgroundTask, TaskInput};
pub(crate) use task::{TaskEnd, TaskKind};

use task::{events_binding, read_with_result};

/// Longest wait for the end of a task that was canceled.
const END_TIMEOUT: Duration = Duration::from_secs(10);

/// How often to look what another gateway has stored of a task.
pub(crate) const FOLLOW_INTERVAL: Duration = Duration::from_millis(500);

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
        let request = self.keyring().seal(&task.request_binding(), request)?;
        let result = self.keyring().seal(&task.result_binding(), result)?;
        let document = task.document(self.keyring())?;
        let me = self.0.me.clone();
        let insert = move |transaction: &mut Transaction<'_>| {
            let BackgroundTask { id, tenant, created_at, .. } = &task;
            let sql = "SELECT count(*) AS count FROM tasks WHERE is_active = 1 AND tenant = ?1";
            if transaction.count(sql, values![tenant])? >= active_max as u64 {
                return Err(StoreError::TooMany(active_max));
            }
            let sql = "INSERT INTO tasks (id, tenant, is_active, bytes, created_at, owner, \
                       document, request, result) VALUES (?1, ?2, 1, ?3, ?4, ?5, ?6, ?7, ?8)";
            let of_task =
                values![id, tenant, bytes, *created_at, &*me, &document, &request, &result];
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
            read_with_result(found.ok_or(StoreError::Unknown)?, transaction.keyring())
        };
        let (task, result) = self.0.database.run(find).await?;
        let result = self.keyring().open(&task.result_binding(), result)?;
        Ok((task, result))
    }

    /// The events of a task that has ended.
    pub(crate) async fn task_events(&self, id: &str) -> Result<Vec<u8>, StoreError> {
        let id = id.to_string();
        let find = move |transaction: &mut Transaction<'_>| {
            let sql = "SELECT tenant, events FROM tasks WHERE id = ?1";
            let mut row = transaction.first(sql, values![&id])?.ok_or(StoreError::Unknown)?;
            let events: Option<Vec<u8>> = row.take("events")?;
            let binding = Binding::new("tasks.events", &row.take::<String>("tenant")?, &id);
            Ok((binding, events.unwrap_or_default()))
        };
        let (binding, events) = self.0.database.run(find).await?;
        self.keyring().open(&binding, events)
    }

    /// The tasks that this gateway does, oldest first. Those that no living gateway does become its
    /// own.
    pub(crate) async fn own_tasks(&self) -> Result<Vec<BackgroundTask>, StoreError> {
        self.claim_rows("tasks", BackgroundTask::COLUMNS, BackgroundTask::read).await
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
        let TaskInput { request, progress, result } = self.0.database.run(find).await?;
        let open = |binding: &Binding, value| self.keyring().open(binding, value);
        Ok(TaskInput {
            request: open(&task.request_binding(), request)?,
            progress: progress.map(|value| open(&task.progress_binding(), value)).transpose()?,
            result: open(&task.result_binding(), result)?,
        })
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
            let read = |row| read_with_result(row, transaction.keyring());
            page.cut(rows.into_iter().map(read).collect::<Result<Vec<_>, _>>()?)
        };
        let (jobs, has_more) = self.0.database.run(list).await?;
        let open = |(job, result): (BackgroundTask, _)| {
            let result = self.keyring().open(&job.result_binding(), result)?;
            Ok((job, result))
        };
        let jobs: Result<_, StoreError> = jobs.into_iter().map(open).collect();
        Ok((jobs?, has_more))
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
        task: &BackgroundTask,
        progress: Vec<u8>,
        events: Option<Part>,
    ) -> Result<(), StoreError> {
        let progress = self.keyring().seal(&task.progress_binding(), progress)?;
        let mut events = events.filter(|part| part.next > part.first);
        if let Some(Part { first, data, .. }) = &mut events {
            let binding = events_binding(&task.tenant, &task.id, *first as u64);
            *data = self.keyring().seal(&binding, std::mem::take(data))?;
        }
        let (id, me) = (task.id.clone(), self.0.me.clone());
        let record = move |transaction: &mut Transaction<'_>| {
            check_owner(transaction, "tasks", &id, &me)?;
            let sql = "UPDATE tasks SET progress = ?1, has_begun = 1 \
                       WHERE id = ?2 AND is_active = 1";
            let changed = transaction.execute(sql, values![&progress, &id])?;
            if let Some(Part { first, data, .. }) = events
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
            let sql = "SELECT is_active, tenant FROM tasks WHERE id = ?1";
            let Some(mut task) = transaction.first(sql, values![&id])? else { return Ok(None) };
            let (is_active, tenant) = (task.take("is_active")?, task.take("tenant")?);
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
            let parts = rows.collect::<Result<Vec<(u64, Vec<u8>)>, Fault>>()?;
            Ok(Some((is_active, tenant, parts)))
        };
        let gone = || (false, String::new(), Vec::new());
        let (is_active, tenant, parts) = self.0.database.run(read).await?.unwrap_or_else(gone);
        for (number, events) in parts {
            let binding = match is_active {
                true => events_binding(&tenant, task, number),
                false => Binding::new("tasks.events", &tenant, task),
            };
            let events = self.keyring().open(&binding, events)?;
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
        if !self.cancel_task(&task.tenant, &task.id).await? {
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

    /// Asks for the end of a task. Asking twice is the same as once. Returns whether it was active.
    pub(super) async fn cancel_task(&self, tenant: &str, id: &str) -> Result<bool, StoreError> {
        let (tenant, id) = (tenant.to_string(), id.to_string());
        let cancel = move |transaction: &mut Transaction<'_>| {
            let sql = "SELECT is_active, document FROM tasks WHERE id = ?1 AND tenant = ?2";
            let found = transaction.first(sql, values![&id, &tenant])?;
            let mut row = found.ok_or(StoreError::Unknown)?;
            let is_active = row.take("is_active")?;
            if is_active {
                let document = row.take::<String>("document")?;
                let document = with_field(&document, "is_canceled", true.into())?;
                let sql = "UPDATE tasks SET document = ?1 WHERE id = ?2";
                transaction.execute(sql, values![&document, &id])?;
            }
            Ok(is_active)
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
        let result = self.keyring().seal(&task.result_binding(), result)?;
        let events = self.keyring().seal(&Binding::new("tasks.events", &tenant, &id), events)?;
        let me = self.0.me.clone();
        let finish = move |transaction: &mut Transaction<'_>| {
            let sql = "SELECT bytes, document FROM tasks WHERE id = ?1 AND is_active = 1";
            // It may have been deleted meanwhile.
            let Some(mut row) = transaction.first(sql, values![&id])? else { return Ok(None) };
            check_owner(transaction, "tasks", &id, &me)?;
            let document = with_field(&row.take::<String>("document")?, "status", status.into())?;
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

/// Bytes of each tenant's tasks.
pub(super) fn usage(transaction: &mut Transaction<'_>) -> Result<Vec<(String, u64)>, StoreError> {
    usage_of("tasks", transaction)
}
