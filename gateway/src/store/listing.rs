//! Lists of stored work for operators: batches, and responses and jobs in the background, of all
//! tenants. They hold no prompts, results or metadata.

use serde::Deserialize;

use super::batches::{BatchStatus, Times};
use super::sql::{Fault, Row, Transaction, values};
use super::{Store, StoreError};

/// Which work to list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Filter {
    /// The tenant; `None` for all.
    pub(crate) tenant: Option<String>,
    /// Most entries.
    pub(crate) limit: usize,
}

/// Entries, and whether there are more.
type Listed<T> = Result<(Vec<T>, bool), StoreError>;

/// A batch, as operators see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ListedBatch {
    pub(crate) id: String,
    pub(crate) tenant: String,
    pub(crate) status: BatchStatus,
    /// The path of the API that its lines call.
    pub(crate) endpoint: String,
    pub(crate) times: Times,
    /// Lines; 0 until the input is checked.
    pub(crate) total: u64,
    pub(crate) completed: u64,
    pub(crate) failed: u64,
    /// The id of the gateway that runs it.
    pub(crate) owner: Option<String>,
}

/// A response or a job in the background, as operators see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ListedTask {
    pub(crate) id: String,
    pub(crate) tenant: String,
    pub(crate) status: String,
    /// True until it has ended.
    pub(crate) is_active: bool,
    /// The path of the API that makes it.
    pub(crate) endpoint: String,
    pub(crate) model: String,
    /// In seconds since 1970.
    pub(crate) created_at: u64,
    /// The id of the gateway that does it.
    pub(crate) owner: Option<String>,
}

/// What an operator may see of the document of a batch.
#[derive(Deserialize)]
struct BatchDocument {
    endpoint: String,
    status: BatchStatus,
    times: Times,
    total: u64,
}

/// What an operator may see of the document of a task.
#[derive(Deserialize)]
struct TaskDocument {
    path: String,
    model: String,
    #[serde(default)]
    is_canceled: bool,
    /// How it has ended.
    status: Option<String>,
}

impl ListedBatch {
    const COLUMNS: &str = "id, tenant, completed, failed, owner, document";

    fn read(mut row: Row) -> Result<Self, Fault> {
        let document: String = row.take("document")?;
        let BatchDocument { endpoint, status, times, total } =
            serde_json::from_str(&document).map_err(Fault::of)?;
        Ok(Self {
            id: row.take("id")?,
            tenant: row.take("tenant")?,
            status,
            endpoint,
            times,
            total,
            completed: row.take("completed")?,
            failed: row.take("failed")?,
            owner: row.take("owner")?,
        })
    }
}

impl ListedTask {
    const COLUMNS: &str = "id, tenant, created_at, is_active, has_begun, owner, document";

    fn read(mut row: Row) -> Result<Self, Fault> {
        let document: String = row.take("document")?;
        let TaskDocument { path, model, is_canceled, status } =
            serde_json::from_str(&document).map_err(Fault::of)?;
        let (is_active, has_begun) = (row.take("is_active")?, row.take("has_begun")?);
        let status = match (is_active, is_canceled, has_begun) {
            (true, true, _) => "cancelling".into(),
            (true, false, true) => "in_progress".into(),
            (true, false, false) => "queued".into(),
            (false, ..) => status.unwrap_or_else(|| "ended".into()),
        };
        Ok(Self {
            id: row.take("id")?,
            tenant: row.take("tenant")?,
            status,
            is_active,
            endpoint: path,
            model,
            created_at: row.take("created_at")?,
            owner: row.take("owner")?,
        })
    }
}

impl Store {
    /// Batches that have not ended and the latest that have, newest first.
    pub(crate) async fn list_batches(&self, filter: Filter) -> Listed<ListedBatch> {
        self.list("batches", ListedBatch::COLUMNS, filter, ListedBatch::read).await
    }

    /// Responses and jobs in the background that have not ended and the latest that have, newest
    /// first.
    pub(crate) async fn list_tasks(&self, filter: Filter) -> Listed<ListedTask> {
        let listed = self.list("tasks", ListedTask::COLUMNS, filter, ListedTask::read).await;
        let (mut tasks, has_more) = listed?;
        tasks.iter_mut().for_each(|task| self.add_progress(task));
        Ok((tasks, has_more))
    }

    /// The batch with this id, of any tenant.
    pub(crate) async fn any_batch(&self, id: &str) -> Result<ListedBatch, StoreError> {
        self.find_any("batches", ListedBatch::COLUMNS, id, ListedBatch::read).await
    }

    /// The response, job or stream with this id, of any tenant.
    pub(crate) async fn any_task(&self, id: &str) -> Result<ListedTask, StoreError> {
        let mut task = self.find_any("tasks", ListedTask::COLUMNS, id, ListedTask::read).await?;
        self.add_progress(&mut task);
        Ok(task)
    }

    /// A gateway that is alone does not store at once that a task has begun.
    fn add_progress(&self, task: &mut ListedTask) {
        if task.status == "queued" && self.0.live.has_begun(&task.id) {
            task.status = "in_progress".into();
        }
    }

    async fn list<T: Send + 'static>(
        &self,
        table: &'static str,
        columns: &'static str,
        filter: Filter,
        read: fn(Row) -> Result<T, Fault>,
    ) -> Listed<T> {
        let list = move |transaction: &mut Transaction<'_>| {
            let (rows, has_more) = rows(transaction, table, columns, &filter)?;
            Ok((rows.into_iter().map(read).collect::<Result<_, _>>()?, has_more))
        };
        self.0.database.run(list).await
    }

    async fn find_any<T: Send + 'static>(
        &self,
        table: &'static str,
        columns: &'static str,
        id: &str,
        read: fn(Row) -> Result<T, Fault>,
    ) -> Result<T, StoreError> {
        let id = id.to_string();
        let find = move |transaction: &mut Transaction<'_>| {
            let sql = format!("SELECT {columns} FROM {table} WHERE id = ?1");
            let found = transaction.first(&sql, values![&id])?;
            Ok(read(found.ok_or(StoreError::Unknown)?)?)
        };
        self.0.database.run(find).await
    }
}

/// The newest rows that have not ended; in what is left of the limit, the newest that have.
fn rows(
    transaction: &mut Transaction<'_>,
    table: &str,
    columns: &str,
    Filter { tenant, limit }: &Filter,
) -> Result<(Vec<Row>, bool), Fault> {
    let mut found: Vec<(i64, Row)> = Vec::new();
    for is_active in [1, 0] {
        let left = limit + 1 - found.len();
        // Written out, because only then indexes of some rows or of one tenant are used.
        let of_tenant = if tenant.is_some() { "AND tenant = ?2" } else { "" };
        let sql = format!(
            "SELECT number, {columns} FROM {table} WHERE is_active = {is_active} {of_tenant} \
             ORDER BY number DESC LIMIT ?1"
        );
        let rows = match tenant {
            Some(tenant) => transaction.query(&sql, values![left, tenant])?,
            None => transaction.query(&sql, values![left])?,
        };
        for mut row in rows {
            found.push((row.take("number")?, row));
        }
    }
    let has_more = found.len() > *limit;
    found.truncate(*limit);
    found.sort_by_key(|(number, _)| std::cmp::Reverse(*number));
    Ok((found.into_iter().map(|(_, row)| row).collect(), has_more))
}

#[cfg(test)]
mod tests;
