//! The database, on a thread of its own.
//!
//! Callers send closures. The thread runs all that wait in one transaction and replies after its
//! commit, so that one flush to the disk serves many of them.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tokio::time::timeout;

use super::StoreError;
use super::keyring::Keyring;
use super::sql::{Connection, Fault, Transaction};

/// Closures that may wait; more are refused.
const WAITING_MAX: usize = 1024;
/// Closures in one transaction.
const GROUP_MAX: usize = 128;
/// No more closures join a transaction that has lasted so long: those that wait for it, here and at
/// other gateways, have a timeout.
const GROUP_TIME_MAX: Duration = Duration::from_millis(500);
/// Longest wait for a reply.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Opens connections to a database.
pub(super) trait Source: Send {
    /// Opens the database, in its current version.
    fn open(&mut self) -> Result<Box<dyn Connection>, Fault>;
    /// Which one it is, for logs.
    fn name(&self) -> String;
}

/// What the thread is asked for: to run this in a transaction. It returns whether to keep what it
/// has changed, and what to call after the commit. Dropping it instead is a failure.
type Job = Box<dyn FnOnce(&mut Transaction<'_>) -> (bool, Reply) + Send>;
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
    /// Starts the thread. It opens the database when it is first used. Transactions have the keys.
    pub(super) fn start(source: impl Source + 'static, keyring: Keyring) -> Self {
        let (jobs, received) = sync_channel(WAITING_MAX);
        let is_available = Arc::new(AtomicBool::new(true));
        let available = is_available.clone();
        let run = move || {
            Server { source, keyring, opened: None, is_available: available }.run(&received);
        };
        let thread = std::thread::spawn(run);
        Self { jobs, thread: Mutex::new(Some(thread)), is_available }
    }

    /// Runs `work` in a transaction and returns after the commit. If it fails, it changes nothing,
    /// unless the connection broke during the commit.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Transaction<'_>) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (reply, replied) = oneshot::channel();
        let job: Job = Box::new(move |transaction| {
            let done = work(transaction);
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

/// True if a transaction has changed anything.
struct Written(bool);

struct Server<S> {
    source: S,
    keyring: Keyring,
    opened: Option<Box<dyn Connection>>,
    is_available: Arc<AtomicBool>,
}

impl<S: Source> Server<S> {
    fn run(mut self, jobs: &Receiver<Message>) {
        let mut group = VecDeque::new();
        let mut stops = false;
        while !(stops && group.is_empty()) {
            stops |= fill(&mut group, jobs);
            if group.is_empty() {
                continue;
            }
            let mut replies = Vec::with_capacity(group.len());
            let done = self.commit(&mut group, &mut replies);
            self.record(&done);
            match done {
                Ok(_) => replies.drain(..).for_each(|reply| reply()),
                Err(_) => group.clear(),
            }
        }
    }

    /// Runs what waits, or as much of it as there is time for.
    fn commit(
        &mut self,
        group: &mut VecDeque<Job>,
        replies: &mut Vec<Reply>,
    ) -> Result<Written, Fault> {
        let mut opened = self.begin()?;
        let committed = commit((&mut *opened, &self.keyring), group, replies);
        // After a failure it is opened anew.
        if committed.is_ok() {
            self.opened = Some(opened);
        }
        committed
    }

    /// Begins a transaction. The connection may have broken while nobody used it.
    fn begin(&mut self) -> Result<Box<dyn Connection>, Fault> {
        if let Some(mut opened) = self.opened.take()
            && opened.begin().is_ok()
        {
            return Ok(opened);
        }
        let mut opened = self.source.open()?;
        opened.begin()?;
        Ok(opened)
    }

    /// Logs when it begins to fail, and when it works again. Reading works on a full disk, too, so
    /// only a write shows that it does.
    fn record(&self, done: &Result<Written, Fault>) {
        let was_available = self.is_available.load(Ordering::Relaxed);
        let is_available = done.as_ref().is_ok_and(|Written(written)| was_available || *written);
        self.is_available.store(is_available, Ordering::Relaxed);
        let database = self.source.name();
        match done {
            Ok(_) if is_available && !was_available => {
                tracing::info!(database, "store available again");
            }
            Err(Fault(why)) if was_available => tracing::error!(
                database,
                why,
                "store unavailable: requests that need it are refused until it works again"
            ),
            _ => {}
        }
    }
}

/// Waits for work if there is none, and takes all that waits. Returns true if it is the last.
fn fill(group: &mut VecDeque<Job>, jobs: &Receiver<Message>) -> bool {
    if group.is_empty() {
        match jobs.recv() {
            Ok(Message::Run(job)) => group.push_back(job),
            Ok(Message::Stop) | Err(_) => return true,
        }
    }
    while group.len() < GROUP_MAX {
        match jobs.try_recv() {
            Ok(Message::Run(job)) => group.push_back(job),
            Ok(Message::Stop) => return true,
            Err(_) => break,
        }
    }
    false
}

/// Runs jobs in the transaction that has begun, and collects the replies for after it.
fn commit(
    (connection, keyring): (&mut dyn Connection, &Keyring),
    group: &mut VecDeque<Job>,
    replies: &mut Vec<Reply>,
) -> Result<Written, Fault> {
    let begun = Instant::now();
    let mut has_written = false;
    while let Some(job) = group.pop_front() {
        let mut transaction = Transaction::new(connection, keyring);
        let (is_kept, reply) = job(&mut transaction);
        has_written |= is_kept && transaction.has_written;
        replies.push(reply);
        let is_last = group.is_empty() || begun.elapsed() > GROUP_TIME_MAX;
        connection.batch(match (is_kept, is_last) {
            (true, true) => "COMMIT",
            (false, true) => "ROLLBACK TO job; COMMIT",
            (true, false) => "RELEASE job; SAVEPOINT job",
            (false, false) => "ROLLBACK TO job",
        })?;
        if is_last {
            break;
        }
    }
    Ok(Written(has_written))
}

#[cfg(test)]
mod tests {
    use super::super::sql::values;
    use super::super::sqlite::Sqlite;
    use super::*;

    async fn count(database: &Database) -> Result<u64, StoreError> {
        let count =
            |t: &mut Transaction<'_>| Ok(t.count("SELECT count(*) AS count FROM batches", &[])?);
        database.run(count).await
    }

    fn insert(
        id: &'static str,
    ) -> impl FnOnce(&mut Transaction<'_>) -> Result<u64, StoreError> + Send {
        let insert =
            "INSERT INTO batches (id, tenant, is_active, document) VALUES (?1, 't', 1, '{}')";
        move |t| Ok(t.execute(insert, values![id])?)
    }

    #[tokio::test]
    async fn what_fails_changes_nothing_and_does_not_undo_its_neighbors() {
        let folder = tempfile::tempdir().unwrap();
        let database = Database::start(Sqlite(folder.path().join("store")), Keyring::default());
        let fails = |t: &mut Transaction<'_>| -> Result<(), StoreError> {
            insert("b")(t)?;
            Err(StoreError::Finished)
        };
        let breaks = |t: &mut Transaction<'_>| Ok(t.execute("no SQL", &[])?);
        let (first, failed, broken, last) = tokio::join!(
            database.run(insert("a")),
            database.run(fails),
            database.run(breaks),
            database.run(insert("c"))
        );
        assert_eq!((first, failed, last), (Ok(1), Err(StoreError::Finished), Ok(1)));
        assert_eq!(broken, Err(StoreError::Unavailable));
        assert_eq!(count(&database).await, Ok(2));
        database.close().await;
        assert_eq!(count(&database).await, Err(StoreError::Unavailable), "after its end");
    }

    #[tokio::test]
    async fn only_one_gateway_uses_a_folder_and_the_next_one_finds_what_it_wrote() {
        let folder = tempfile::tempdir().unwrap();
        let first = Database::start(Sqlite(folder.path().into()), Keyring::default());
        assert_eq!(first.run(insert("a")).await, Ok(1));
        let second = Database::start(Sqlite(folder.path().into()), Keyring::default());
        assert_eq!(count(&second).await, Err(StoreError::Unavailable));
        assert!(!second.is_available());
        first.close().await;
        assert_eq!(count(&second).await, Ok(1), "it tries again each time");
        assert!(!second.is_available(), "reading works on a full disk, too");
        assert_eq!(second.run(insert("b")).await, Ok(1));
        assert!(second.is_available());
        second.close().await;
    }
}
