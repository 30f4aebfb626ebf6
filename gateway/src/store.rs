//! What outlives the gateway: files, batches, and responses in the background. Records are in
//! SQLite, or in PostgreSQL for several gateways; contents are in a folder or a bucket.
//!
//! With keys, what clients have written is encrypted before it gets there.
//!
//! A reply of the store means that the change survives a power failure. While the store fails,
//! requests that need it are refused, and others are served.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::{OnceCell, watch};

mod allotments;
mod background;
mod batches;
mod bucket;
mod contents;
mod database;
mod deliveries;
mod documents;
#[cfg(test)]
mod encryption_tests;
mod files;
mod gateways;
mod keyring;
mod lines;
mod listing;
mod live;
mod locked_file;
mod marks;
mod page;
mod postgres;
mod quota;
mod shared_settings;
mod sql;
mod sqlite;
#[cfg(test)]
mod testing;
mod turns;
mod usage;
mod usage_book;

pub use background::{BackgroundTask, TaskInput};
pub(crate) use background::{FOLLOW_INTERVAL, TaskEnd, TaskKind};
pub use batches::{Batch, BatchApi, BatchStatus, LineError, Times};
pub use bucket::{Bucket, BucketSettings};
pub use contents::{Content, Upload};
pub use deliveries::Delivery;
pub use files::FileRecord;
pub(crate) use files::{MESSAGES_OUTPUT_PURPOSE, MESSAGES_PURPOSE};
pub use keyring::Keyring;
pub(crate) use listing::{Filter, ListedBatch, ListedTask};
pub use page::Page;
pub use postgres::PostgresSettings;
pub use quota::{Claim, StorageLimits};
pub(crate) use shared_settings::{SettingName, SharedSetting};
pub(crate) use usage::{UsageRecord, UsageStep, UsageTotals};
pub use usage_book::UsageBook;
pub(crate) use usage_book::{Booked, UsageKey, UsageSum, UserKey, minute_of};

use database::Database;
use gateways::{Left, Presence};
use live::LiveTasks;
pub(crate) use live::{Live, Read};
pub(crate) use marks::Mark;
use marks::Marks;
use postgres::Postgres;
use quota::Quota;
use sql::{Transaction, values};
use sqlite::Sqlite;

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
    /// The batch has not ended.
    NotEnded,
    /// Another gateway does this work now.
    NotOwner,
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
            Self::Unavailable | Self::NotOwner => Error::StoreUnavailable,
            Self::Unknown => Error::UnknownRecord(id()),
            Self::InUse => Error::FileInUse(id()),
            Self::Finished => Error::BatchFinished(id()),
            Self::NotEnded => Error::BatchNotEnded(id()),
            Self::TooMany(max) => Error::TooManyBatches(max),
            Self::Full => Error::StorageFull,
        }
    }
}

/// The store. Clones share it.
#[derive(Debug, Clone)]
pub struct Store(Arc<Parts>);

/// Where a store is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The folder of contents, and of the database if it is SQLite. Gateways that share a database
    /// share it, too, unless contents are in a bucket.
    pub folder: PathBuf,
    /// The bucket of contents; `None` for the folder.
    pub bucket: Option<Bucket>,
    /// The server of the database; `None` for SQLite.
    pub postgres: Option<PostgresSettings>,
    /// What encrypts prompts, responses and what else clients have written.
    pub keyring: Keyring,
}

#[derive(Debug)]
struct Parts {
    place: Place,
    /// The id of this gateway among those that use the store.
    me: Arc<str>,
    database: Database,
    quota: Arc<Quota>,
    live: LiveTasks,
    presence: Presence,
    left: Left,
    marks: Marks,
    /// Set once contents without a record are deleted.
    cleared: OnceCell<()>,
    /// Changes when work is created, canceled or left, by whichever gateway.
    changes: watch::Sender<()>,
    /// How many of these changes are known.
    noticed: AtomicU64,
}

impl Parts {
    /// Learns how many changes there were.
    fn notice(&self, number: u64) {
        if self.noticed.swap(number, Ordering::Relaxed) != number {
            self.changes.send_replace(());
        }
    }
}

impl Store {
    /// The store at a place, whose folder is created if need be. Failures show when it is used.
    /// `me` tells this gateway from others.
    pub fn new(place: Place, me: &str, limits: StorageLimits) -> Self {
        place.keyring.log();
        let database = match place.postgres.clone() {
            Some(settings) => Database::start(Postgres::new(settings), place.keyring.clone()),
            None => Database::start(Sqlite(place.folder.clone()), place.keyring.clone()),
        };
        let marks = Marks::new(&place.folder, me);
        Self(Arc::new(Parts {
            place,
            me: me.into(),
            database,
            quota: Arc::new(Quota::new(limits)),
            live: LiveTasks::default(),
            presence: Presence::default(),
            left: Left::default(),
            marks,
            cleared: OnceCell::new(),
            changes: watch::Sender::new(()),
            noticed: AtomicU64::new(0),
        }))
    }

    /// Applies other limits to what is added from now on.
    pub(crate) fn configure(&self, limits: StorageLimits) {
        self.0.quota.configure(limits);
    }

    /// Where it is.
    pub(crate) fn place(&self) -> &Place {
        &self.0.place
    }

    fn keyring(&self) -> &Keyring {
        &self.0.place.keyring
    }

    fn folder(&self) -> &Path {
        &self.0.place.folder
    }

    /// True if other gateways may use it, too.
    pub(crate) fn is_shared(&self) -> bool {
        self.0.place.postgres.is_some()
    }

    /// Changes when work is created, canceled or left.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.0.changes.subscribe()
    }

    /// Before anything is added: counts what is stored. Once, it deletes contents without a record,
    /// which an earlier run has left.
    pub(crate) async fn restore(&self) -> Result<(), StoreError> {
        let clear = async || {
            self.count().await?;
            let ids = self.0.database.run(files::ids).await?;
            self.remove_others(ids).await
        };
        self.0.cleared.get_or_try_init(clear).await.copied()
    }

    /// Counts what all gateways have stored.
    pub(crate) async fn count(&self) -> Result<(), StoreError> {
        let count = |transaction: &mut Transaction<'_>| {
            let mut stored = files::usage(transaction)?;
            stored.extend(background::usage(transaction)?);
            stored.extend(files::usage_of("turns", transaction)?);
            Ok(stored)
        };
        self.0.quota.restore(self.0.database.run(count).await?);
        Ok(())
    }

    /// Writes something, to know whether that works.
    pub(crate) async fn check(&self, now: u64) -> Result<(), StoreError> {
        let write = move |transaction: &mut Transaction<'_>| {
            let sql = "INSERT INTO checks (id, at) VALUES (1, ?1) \
                       ON CONFLICT (id) DO UPDATE SET at = excluded.at";
            transaction.execute(sql, values![now])?;
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

    /// Leaves what has not ended to other gateways, and ends the thread of the database after what
    /// it has been asked for. `is_settled`: all that was used of budgets is stored.
    pub(crate) async fn close(&self, is_settled: bool) {
        if self.leave(is_settled).await.is_ok() && is_settled {
            self.0.marks.delete();
        }
        self.0.database.close().await;
    }
}

#[expect(clippy::needless_pass_by_value, reason = "it maps errors")]
fn failed(error: std::io::Error) -> StoreError {
    tracing::error!(%error, "folder of the store failed");
    StoreError::Unavailable
}
