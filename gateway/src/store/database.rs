//! SQLite on a thread of its own.
//!
//! Callers send closures. The thread runs all that wait in one transaction and replies after its
//! commit, so that one flush to the disk serves many of them.

use std::collections::VecDeque;
use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rusqlite::{Connection, TransactionBehavior};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::StoreError;

/// Closures that may wait; more are refused.
const WAITING_MAX: usize = 1024;
/// Closures in one transaction.
const GROUP_MAX: usize = 128;
/// Longest wait for a reply.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Name of the database in its folder.
const FILE: &str = "store.sqlite";
/// The steps from an empty database to the current one. `user_version` counts those that are done.
const MIGRATIONS: [&str; 2] = [include_str!("schema_1.sql"), include_str!("schema_2.sql")];
/// Files hold what tenants have sent.
const MODE: u32 = 0o600;
const FOLDER_MODE: u32 = 0o700;

/// What the thread is asked for: to run this in a transaction. It returns whether to keep what it
/// has changed, and what to call after the commit. Dropping it instead is a failure.
type Job = Box<dyn FnOnce(&Connection) -> (bool, Reply) + Send>;
type Reply = Box<dyn FnOnce() + Send>;

enum Message {
    Run(Job),
    Stop,
}

/// The database's thread.
#[derive(Debug)]
pub(super) struct Database {
    jobs: SyncSender<Message>,
    thread: Mutex<Option<JoinHandle<()>>>,
    is_available: Arc<AtomicBool>,
}

impl Database {
    /// Starts the thread. It opens the database when it is first used.
    pub(super) fn start(folder: PathBuf) -> Self {
        let (jobs, received) = sync_channel(WAITING_MAX);
        let is_available = Arc::new(AtomicBool::new(true));
        let server = Server { folder, opened: None, is_available: is_available.clone() };
        let thread = std::thread::spawn(move || server.run(&received));
        Self { jobs, thread: Mutex::new(Some(thread)), is_available }
    }

    /// Runs `work` in a transaction and returns after the commit. If it fails, it changes nothing.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (reply, replied) = oneshot::channel();
        let job: Job = Box::new(move |connection| {
            let done = work(connection);
            let is_kept = done.is_ok();
            (is_kept, Box::new(move || drop(reply.send(done))))
        });
        self.jobs.try_send(Message::Run(job)).map_err(|_| StoreError::Unavailable)?;
        match timeout(TIMEOUT, replied).await {
            Ok(Ok(done)) => done,
            Ok(Err(_)) | Err(_) => Err(StoreError::Unavailable),
        }
    }

    /// False if the last transaction has failed.
    pub(super) fn is_available(&self) -> bool {
        self.is_available.load(Ordering::Relaxed)
    }

    /// Ends the thread after what waits.
    pub(super) async fn close(&self) {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        let (Some(thread), jobs) = (thread, self.jobs.clone()) else { return };
        let ended = tokio::task::spawn_blocking(move || {
            let _ = jobs.send(Message::Stop);
            thread.join()
        });
        let _ = timeout(TIMEOUT, ended).await;
    }
}

/// The open database, and the lock that keeps other gateways away from it.
struct Opened {
    connection: Connection,
    _lock: File,
}

/// True if a transaction has changed anything.
struct Written(bool);

struct Server {
    folder: PathBuf,
    opened: Option<Opened>,
    is_available: Arc<AtomicBool>,
}

impl Server {
    fn run(mut self, jobs: &Receiver<Message>) {
        while let Ok(Message::Run(first)) = jobs.recv() {
            let mut group = VecDeque::from([first]);
            let mut stops = false;
            while group.len() < GROUP_MAX && !stops {
                match jobs.try_recv() {
                    Ok(Message::Run(job)) => group.push_back(job),
                    Ok(Message::Stop) => stops = true,
                    Err(_) => break,
                }
            }
            let mut replies = Vec::with_capacity(group.len());
            let done = self.commit(&mut group, &mut replies);
            self.record(&done);
            if done.is_ok() {
                replies.drain(..).for_each(|reply| reply());
            }
            if stops {
                return;
            }
        }
    }

    fn commit(
        &mut self,
        group: &mut VecDeque<Job>,
        replies: &mut Vec<Reply>,
    ) -> Result<Written, String> {
        let opened = match self.opened.take() {
            Some(opened) => opened,
            None => open(&self.folder)?,
        };
        // After a failure it is opened anew.
        let opened = self.opened.insert(opened);
        let committed = commit(&mut opened.connection, group, replies).map_err(|e| e.to_string());
        if committed.is_err() {
            self.opened = None;
        }
        committed
    }

    /// Logs when it begins to fail, and when it works again. Reading works on a full disk, too, so
    /// only a write shows that it does.
    fn record(&self, done: &Result<Written, String>) {
        let was_available = self.is_available.load(Ordering::Relaxed);
        let is_available = done.as_ref().is_ok_and(|Written(written)| was_available || *written);
        self.is_available.store(is_available, Ordering::Relaxed);
        let folder = self.folder.display();
        match done {
            Ok(_) if is_available && !was_available => {
                tracing::info!(%folder, "store available again");
            }
            Err(why) if was_available => tracing::error!(
                %folder,
                why,
                "store unavailable: requests that need it are refused until it works again"
            ),
            _ => {}
        }
    }
}

/// Runs jobs in one transaction, and collects the replies for after it.
fn commit(
    connection: &mut Connection,
    group: &mut VecDeque<Job>,
    replies: &mut Vec<Reply>,
) -> rusqlite::Result<Written> {
    let before = connection.total_changes();
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    while let Some(job) = group.pop_front() {
        transaction.execute_batch("SAVEPOINT job")?;
        let (is_kept, reply) = job(&transaction);
        transaction.execute_batch(match is_kept {
            true => "RELEASE job",
            false => "ROLLBACK TO job; RELEASE job",
        })?;
        replies.push(reply);
    }
    transaction.commit()?;
    Ok(Written(connection.total_changes() != before))
}

fn open(folder: &Path) -> Result<Opened, String> {
    DirBuilder::new()
        .recursive(true)
        .mode(FOLDER_MODE)
        .create(folder)
        .map_err(|e| e.to_string())?;
    let lock = lock(&folder.join("lock"))?;
    let path = folder.join(FILE);
    // SQLite gives its other files the mode of this one.
    private(&path).map_err(|e| e.to_string())?;
    let connection = connect(&path).map_err(|e| e.to_string())?;
    migrate(&connection)?;
    Ok(Opened { connection, _lock: lock })
}

fn private(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().create(true).truncate(false).write(true).mode(MODE).open(path)
}

/// Batches of a store that two gateways used would run twice.
fn lock(path: &Path) -> Result<File, String> {
    let file = private(path).map_err(|e| e.to_string())?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err("another gateway uses this folder".into()),
        Err(TryLockError::Error(error)) => Err(error.to_string()),
    }
}

fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let connection = Connection::open(path)?;
    connection.pragma_update(None, "journal_mode", "wal")?;
    connection.pragma_update(None, "synchronous", "full")?;
    // Deleted prompts must not stay in unused pages.
    connection.pragma_update(None, "secure_delete", "on")?;
    Ok(connection)
}

/// Brings the database to the current version.
fn migrate(connection: &Connection) -> Result<(), String> {
    let read = connection.pragma_query_value(None, "user_version", |row| row.get(0));
    let version: usize = read.map_err(|e: rusqlite::Error| e.to_string())?;
    if version > MIGRATIONS.len() {
        let known = MIGRATIONS.len();
        return Err(format!("it is of version {version}, this gateway knows up to {known}"));
    }
    for (done, step) in MIGRATIONS.iter().enumerate().skip(version) {
        let step = format!("BEGIN; {step} PRAGMA user_version = {}; COMMIT;", done + 1);
        connection.execute_batch(&step).map_err(|e| e.to_string())?;
    }
    Ok(())
}

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> Self {
        match error {
            rusqlite::Error::QueryReturnedNoRows => Self::Unknown,
            error => {
                tracing::error!(%error, "store failed");
                Self::Unavailable
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn count(database: &Database) -> Result<i64, StoreError> {
        let count =
            |c: &Connection| Ok(c.query_row("SELECT count(*) FROM batches", [], |row| row.get(0))?);
        database.run(count).await
    }

    fn insert(id: &'static str) -> impl FnOnce(&Connection) -> Result<usize, StoreError> + Send {
        let insert =
            "INSERT INTO batches (id, tenant, is_active, document) VALUES (?, 't', 1, '{}')";
        move |c| Ok(c.execute(insert, [id])?)
    }

    #[tokio::test]
    async fn what_fails_changes_nothing_and_does_not_undo_its_neighbors() {
        let folder = tempfile::tempdir().unwrap();
        let database = Database::start(folder.path().join("store"));
        let fails = |c: &Connection| -> Result<(), StoreError> {
            insert("b")(c)?;
            Err(StoreError::Finished)
        };
        let (first, failed, last) =
            tokio::join!(database.run(insert("a")), database.run(fails), database.run(insert("c")));
        assert_eq!((first, failed, last), (Ok(1), Err(StoreError::Finished), Ok(1)));
        assert_eq!(count(&database).await, Ok(2));
        database.close().await;
        assert_eq!(count(&database).await, Err(StoreError::Unavailable), "after its end");
    }

    #[tokio::test]
    async fn only_one_gateway_uses_a_folder_and_the_next_one_finds_what_it_wrote() {
        let folder = tempfile::tempdir().unwrap();
        let first = Database::start(folder.path().into());
        assert_eq!(first.run(insert("a")).await, Ok(1));
        let second = Database::start(folder.path().into());
        assert_eq!(count(&second).await, Err(StoreError::Unavailable));
        assert!(!second.is_available());
        first.close().await;
        assert_eq!(count(&second).await, Ok(1), "it tries again each time");
        assert!(!second.is_available(), "reading works on a full disk, too");
        assert_eq!(second.run(insert("b")).await, Ok(1));
        assert!(second.is_available());
        second.close().await;
    }

    #[tokio::test]
    async fn a_file_that_is_no_database_is_left_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        let text = "no database ".repeat(1000);
        std::fs::write(&path, &text).unwrap();
        let database = Database::start(folder.path().into());
        assert_eq!(count(&database).await, Err(StoreError::Unavailable));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        database.close().await;
    }

    #[tokio::test]
    async fn a_database_of_a_later_version_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let database = Database::start(folder.path().into());
        assert_eq!(count(&database).await, Ok(0));
        database.close().await;
        let connection = Connection::open(folder.path().join(FILE)).unwrap();
        connection.pragma_update(None, "user_version", 99).unwrap();
        drop(connection);
        let why = open(folder.path()).map(|_| ()).unwrap_err();
        assert_eq!(why, "it is of version 99, this gateway knows up to 2");
    }

    #[tokio::test]
    async fn a_database_of_an_earlier_version_keeps_its_records() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        let first = Connection::open(&path).unwrap();
        first.execute_batch(MIGRATIONS[0]).unwrap();
        first.pragma_update(None, "user_version", 1).unwrap();
        drop(first);
        let database = Database::start(folder.path().into());
        assert_eq!(database.run(insert("a")).await, Ok(1));
        database.close().await;
        let later = open(folder.path()).unwrap().connection;
        let count = |table: &str| -> i64 {
            let sql = format!("SELECT count(*) FROM {table}");
            later.query_row(&sql, [], |row| row.get(0)).unwrap()
        };
        assert_eq!((count("batches"), count("tasks")), (1, 0));
    }
}
