//! Stored work for operators: batches, and responses and jobs in the background, of all tenants.
//! Lists of them, and their cancellation. Prompts, results and metadata are never shown.

use std::time::SystemTime;

use hyper::{Request, Response};
use inference_protocol::openai::to_json;
use inference_protocol::time::unix_seconds;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::context::Gateway;
use crate::control::only;
use crate::store::{
    BatchStatus, Filter, ListedBatch, ListedTask, Store, StoreError, TaskKind, Times,
};
use crate::types::error::Error;
use crate::types::query::{limit, parameter};
use crate::types::response::{self, Body};

/// Path of the batches; each one's cancellation is below it.
pub const BATCHES_PATH: &str = "/admin/v1/batches";
/// Path of the responses and jobs in the background; each one's cancellation is below it.
pub const TASKS_PATH: &str = "/admin/v1/tasks";

/// Entries of a list unless the request says how many.
pub const LIMIT_DEFAULT: usize = 100;
/// Most entries of a list.
pub const LIMIT_MAX: usize = 1000;

/// Batches of all tenants.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BatchList {
    /// Id of the gateway that responds, as in `gateway` of what it runs itself.
    pub gateway: String,
    /// Those that have not ended and the latest that have, newest first.
    pub batches: Vec<BatchView>,
    /// True if there are more.
    pub has_more: bool,
}

/// A batch, as operators see it. Times are in seconds since 1970.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BatchView {
    /// Its id.
    pub id: String,
    /// Its tenant.
    pub tenant: String,
    /// `validating`, `failed`, `in_progress`, `finalizing`, `completed`, `expired`, `cancelling` or
    /// `cancelled`.
    pub status: String,
    /// Path of the API that its lines call.
    pub endpoint: String,
    /// When it was created.
    pub created_at: u64,
    /// When it ends, whether or not it is done.
    pub expires_at: u64,
    /// When it has ended.
    pub ended_at: Option<u64>,
    /// When it would end at the mean pace since its first line; null until a line is done.
    pub predicted_end_at: Option<u64>,
    /// Lines; 0 until its input is checked.
    pub lines: u64,
    /// Lines with a response.
    pub completed: u64,
    /// Lines with an error.
    pub failed: u64,
    /// Id of the gateway that runs it, or has run it. Null if that gateway has stopped.
    pub gateway: Option<String>,
}

/// Responses and jobs in the background, of all tenants.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TaskList {
    /// Id of the gateway that responds, as in `gateway` of what it does itself.
    pub gateway: String,
    /// Those that have not ended and the latest that have, newest first.
    pub tasks: Vec<TaskView>,
    /// True if there are more.
    pub has_more: bool,
}

/// A response or job in the background, as operators see it. Times are in seconds since 1970.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TaskView {
    /// Its id.
    pub id: String,
    /// Its tenant.
    pub tenant: String,
    /// `response`, `job` or `stream`.
    pub kind: String,
    /// `queued`, `in_progress`, `cancelling`, `completed`, `incomplete`, `failed` or `cancelled`;
    /// `ended` if an earlier version of the gateway has not stored how it ended.
    pub status: String,
    /// Path of the API that makes it.
    pub endpoint: String,
    /// Its model.
    pub model: String,
    /// When the client asked for it.
    pub created_at: u64,
    /// Id of the gateway that does it, or has done it. Null if that gateway has stopped.
    pub gateway: Option<String>,
}

/// Kinds of stored work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Batches,
    Tasks,
}

/// A path of stored work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct WorkPath<'a> {
    kind: Kind,
    /// What is below the list; empty for the list itself.
    below: &'a str,
}

impl<'a> WorkPath<'a> {
    /// The path, if it is one of these.
    pub(super) fn at(path: &'a str) -> Option<Self> {
        let kinds = [(Kind::Batches, BATCHES_PATH), (Kind::Tasks, TASKS_PATH)];
        let found =
            kinds.into_iter().find_map(|(kind, root)| Some((kind, path.strip_prefix(root)?)));
        let (kind, below) = found?;
        (below.is_empty() || below.starts_with('/')).then_some(Self { kind, below })
    }
}

/// Handles a request of an operator whose key was checked.
pub(super) async fn serve<B>(
    gateway: &Gateway,
    request: &Request<B>,
    WorkPath { kind, below }: WorkPath<'_>,
) -> Result<Response<Body>, Error> {
    if below.is_empty() {
        only(request, "GET, HEAD")?;
        return list(gateway, kind, request.uri().query()).await;
    }
    let id = below.strip_prefix('/').and_then(|below| below.strip_suffix("/cancel"));
    let id = id.filter(|id| !id.contains('/')).ok_or(Error::UnknownPath)?;
    only(request, "POST")?;
    let store = store(gateway)?;
    let canceled = match kind {
        Kind::Batches => cancel_batch(store, id).await.map(|batch| to_json(&batch)),
        Kind::Tasks => cancel_task(store, id).await.map(|task| to_json(&task)),
    };
    canceled.map(response::json).map_err(|error| error.of(id))
}

fn store(gateway: &Gateway) -> Result<&Store, Error> {
    gateway.store.as_ref().ok_or(Error::StoreOff)
}

async fn list(gateway: &Gateway, kind: Kind, query: Option<&str>) -> Result<Response<Body>, Error> {
    let store = store(gateway)?;
    let limit = limit(query, LIMIT_DEFAULT, LIMIT_MAX)?;
    let filter = Filter { tenant: parameter(query, "tenant"), limit };
    let id = gateway.id.to_str().unwrap_or_default().to_string();
    let failed = |error: StoreError| error.of("");
    Ok(response::json(match kind {
        Kind::Batches => {
            let (batches, has_more) = store.list_batches(filter).await.map_err(failed)?;
            let batches = batches.into_iter().map(BatchView::from).collect();
            to_json(&BatchList { gateway: id, batches, has_more })
        }
        Kind::Tasks => {
            let (tasks, has_more) = store.list_tasks(filter).await.map_err(failed)?;
            let tasks = tasks.into_iter().map(TaskView::from).collect();
            to_json(&TaskList { gateway: id, tasks, has_more })
        }
    }))
}

/// Cancels a batch, and returns it as it is then. Canceling one that is being canceled changes
/// nothing.
async fn cancel_batch(store: &Store, id: &str) -> Result<BatchView, StoreError> {
    let tenant = store.any_batch(id).await?.tenant;
    store.cancel_batch(&tenant, id, unix_seconds(SystemTime::now())).await?;
    tracing::info!(batch = id, tenant, "batch canceled by an operator");
    store.any_batch(id).await.map(BatchView::from)
}

/// Cancels a response or job, waits for its end for some seconds, and returns it as it is then.
async fn cancel_task(store: &Store, id: &str) -> Result<TaskView, StoreError> {
    let listed = store.any_task(id).await?;
    if !listed.is_active {
        return match &*listed.status {
            "cancelled" => Ok(listed.into()),
            _ => Err(StoreError::Finished),
        };
    }
    let (task, _) = store.task(&listed.tenant, id).await?;
    store.end_task(&task).await?;
    tracing::info!(task = id, tenant = listed.tenant, "task canceled by an operator");
    store.any_task(id).await.map(TaskView::from)
}

impl From<ListedBatch> for BatchView {
    fn from(batch: ListedBatch) -> Self {
        let predicted_end_at = predicted_end(&batch, unix_seconds(SystemTime::now()));
        let ListedBatch { times, completed, failed, .. } = batch;
        let Times { completed_at, failed_at, expired_at, cancelled_at, .. } = times;
        Self {
            id: batch.id,
            tenant: batch.tenant,
            status: batch.status.name().into(),
            endpoint: batch.endpoint,
            created_at: times.created_at,
            expires_at: times.expires_at,
            ended_at: completed_at.or(failed_at).or(expired_at).or(cancelled_at),
            predicted_end_at,
            lines: batch.total,
            completed,
            failed,
            gateway: batch.owner,
        }
    }
}

impl From<ListedTask> for TaskView {
    fn from(task: ListedTask) -> Self {
        let kind = TaskKind::of(&task.id).name();
        Self {
            id: task.id,
            tenant: task.tenant,
            kind: kind.into(),
            status: task.status,
            endpoint: task.endpoint,
            model: task.model,
            created_at: task.created_at,
            gateway: task.owner,
        }
    }
}

/// When a batch ends if its other lines take as long as those that are done.
fn predicted_end(batch: &ListedBatch, now: u64) -> Option<u64> {
    let done = batch.completed + batch.failed;
    let since = batch.times.in_progress_at.filter(|_| batch.status == BatchStatus::InProgress)?;
    let left = batch.total.saturating_sub(done) as f64;
    let taken = now.saturating_sub(since) as f64;
    (done > 0).then(|| now.saturating_add((left * taken / done as f64).round() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_stored_work_are_told_apart() {
        let at = |path| WorkPath::at(path).map(|WorkPath { kind, below }| (kind, below));
        assert_eq!(at("/admin/v1/batches"), Some((Kind::Batches, "")));
        assert_eq!(at("/admin/v1/tasks/job_1/cancel"), Some((Kind::Tasks, "/job_1/cancel")));
        assert_eq!(at("/admin/v1/tasksx"), None);
        assert_eq!(at("/admin/v1/nodes"), None);
    }

    #[test]
    fn the_end_of_a_batch_is_predicted_from_the_lines_that_are_done() {
        let times = Times { in_progress_at: Some(1000), ..Times::default() };
        let mut batch = ListedBatch {
            id: "batch_1".into(),
            tenant: "a".into(),
            status: BatchStatus::InProgress,
            endpoint: "/v1/embeddings".into(),
            times,
            total: 100,
            completed: 18,
            failed: 2,
            owner: None,
        };
        assert_eq!(predicted_end(&batch, 1060), Some(1060 + 240));
        assert_eq!(predicted_end(&batch, 900), Some(900), "another gateway's clock is ahead");
        batch.status = BatchStatus::Cancelling;
        assert_eq!(predicted_end(&batch, 1060), None);
        (batch.status, batch.completed, batch.failed) = (BatchStatus::InProgress, 0, 0);
        assert_eq!(predicted_end(&batch, 1060), None, "nothing is known of its pace");
    }
}
