//! What outlives the gateway: files, batches, and responses in the background. Records are in
//! SQLite, contents beside it.
//!
//! A reply of the store means that the change survives a power failure. While the store fails,
//! requests that need it are refused, and others are served.

use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::{OnceCell, watch};

mod background;
mod batches;
mod contents;
mod database;
mod files;
mod live;
mod quota;

pub use background::{BackgroundTask, TaskInput};
pub use batches::{Batch, BatchStatus, LineError, Page, Times};
pub use contents::Upload;
pub use files::FileRecord;
pub use quota::{Claim, StorageLimits};

use database::Database;
use live::LiveTasks;
pub(crate) use live::{Live, Read};
use quota::Quota;

use crate::types::error::Error;

/// Why the store did not do what it was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreError {
    /// It cannot be read or written now.
    Unavailable,
    /// The tenant has no such record.
    Unknown,
    /// A batch that has not ended needs the file.
    InUse,
    /// The batch has ended.
    Finished,
    /// The tenant has too many batches that have not ended.
    TooMany(usize),
    /// There is no room for more bytes of this tenant, or of all.
    Full,
}

impl StoreError {
    /// The error of a request about the record `id`.
    pub(crate) fn of(self, id: &str) -> Error {
        let id = || id.chars().take(inference_protocol::ids::ID_BYTES_MAX).collect();
        match self {
            Self::Unavailable => Error::StoreUnavailable,
            Self::Unknown => Error::UnknownRecord(id()),
            Self::InUse => Error::FileInUse(id()),
            Self::Finished => Error::BatchFinished(id()),
            Self::TooMany(max) => Error::TooManyBatches(max),
            Self::Full => Error::StorageFull,
        }
    }
}

/// The store. Clones share it.
#[derive(Debug, Clone)]
pub struct Store(Arc<Parts>);

#[derive(Debug)]
struct Parts {
    folder: PathBuf,
    database: Database,
    quota: Arc<Quota>,
    live: LiveTasks,
    /// Set once the quota knows what is stored.
    restored: OnceCell<()>,
    /// Changes when a batch or a response in the background is created or canceled.
    changes: watch::Sender<()>,
}

impl Store {
    /// A store in a folder, which is created if need be. Failures show when it is used.
    pub fn new(folder: PathBuf, limits: StorageLimits) -> Self {
        let database = Database::start(folder.clone());
        let quota = Arc::new(Quota::new(limits));
        let (restored, changes) = (OnceCell::new(), watch::Sender::new(()));
        let live = LiveTasks::default();
        Self(Arc::new(Parts { folder, database, quota, live, restored, changes }))
    }

    /// Applies other limits to what is added from now on.
    pub(crate) fn configure(&self, limits: StorageLimits) {
        self.0.quota.configure(limits);
    }

    /// Its folder.
    pub(crate) fn folder(&self) -> &PathBuf {
        &self.0.folder
    }

    /// Changes when a batch or a response in the background is created or canceled.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.0.changes.subscribe()
    }

    /// Once, before anything is added: counts what is stored, and deletes contents without a
    /// record, which an earlier run has left.
    pub(crate) async fn restore(&self) -> Result<(), StoreError> {
        let restore = async || {
            let mut stored = self.0.database.run(files::usage).await?;
            stored.extend(self.0.database.run(background::usage).await?);
            let ids = self.0.database.run(files::ids).await?;
            contents::remove_others(&self.0.folder, ids).await?;
            self.0.quota.restore(stored);
            Ok(())
        };
        self.0.restored.get_or_try_init(restore).await.copied()
    }

    /// Writes something, to know whether that works.
    pub(crate) async fn check(&self, now: u64) -> Result<(), StoreError> {
        let write = move |connection: &rusqlite::Connection| {
            connection.execute("INSERT OR REPLACE INTO checks (id, at) VALUES (1, ?)", [now])?;
            Ok(())
        };
        self.0.database.run(write).await
    }

    /// Bytes of all files, results and responses.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.quota.bytes()
    }

    /// False while the last use of the database has failed.
    pub(crate) fn is_available(&self) -> bool {
        self.0.database.is_available()
    }

    /// A claim on room for a tenant's bytes, of which there are none yet.
    pub(crate) fn claim(&self, tenant: &str) -> Claim {
        Claim::new(self.0.quota.clone(), tenant)
    }

    /// Ends the thread of the database after what it has been asked for.
    pub(crate) async fn close(&self) {
        self.0.database.close().await;
    }
}
