//! What is known of work in the background, and what of it is encrypted.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::store::deliveries::Delivery;
use crate::store::keyring::{Binding, Keyring};
use crate::store::sql::Row;
use crate::store::{StoreError, documents};

/// How long after its request a task must have ended, in seconds.
const AGE_S_MAX: u64 = 24 * 60 * 60;

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

    pub(super) const COLUMNS: &str =
        "id, tenant, created_at, is_active, has_begun, bytes, document";

    pub(super) fn read(mut row: Row, keyring: &Keyring) -> Result<Self, StoreError> {
        Self::take(&mut row, keyring)
    }

    pub(super) fn take(row: &mut Row, keyring: &Keyring) -> Result<Self, StoreError> {
        let document: String = row.take("document")?;
        let (tenant, id): (String, String) = (row.take("tenant")?, row.take("id")?);
        let binding = Binding::new("tasks.document", &tenant, &id);
        let mut task: Self = documents::open(keyring, &binding, &document)?;
        (task.id, task.tenant) = (id, tenant);
        (task.created_at, task.is_active) = (row.take("created_at")?, row.take("is_active")?);
        (task.bytes, task.has_begun) = (row.take("bytes")?, row.take("has_begun")?);
        Ok(task)
    }

    pub(super) fn document(&self, keyring: &Keyring) -> Result<String, StoreError> {
        let binding = Binding::new("tasks.document", &self.tenant, &self.id);
        documents::seal(keyring, &binding, self, &["headers", "metadata"])
    }

    pub(super) fn request_binding(&self) -> Binding {
        Binding::new("tasks.request", &self.tenant, &self.id)
    }

    pub(super) fn progress_binding(&self) -> Binding {
        Binding::new("tasks.progress", &self.tenant, &self.id)
    }

    pub(super) fn result_binding(&self) -> Binding {
        Binding::new("tasks.result", &self.tenant, &self.id)
    }
}

/// A task with its result as it is stored.
pub(super) fn read_with_result(
    mut row: Row,
    keyring: &Keyring,
) -> Result<(BackgroundTask, Vec<u8>), StoreError> {
    Ok((BackgroundTask::take(&mut row, keyring)?, row.take("result")?))
}

/// Of events of a task that has not ended, the first of which has this number.
pub(super) fn events_binding(tenant: &str, id: &str, first: u64) -> Binding {
    Binding::numbered("task_events.data", tenant, id, first)
}
