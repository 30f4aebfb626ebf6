//! How much requests have used of monthly budgets so far, in a file of each gateway. A killed one
//! leaves it behind, exact to the last token that it has relayed: then what it was allotted and has
//! not used is free again, although nobody else knows what it has done in its last seconds.
//!
//! A line has a tenant, a month, and tokens; its length never changes, so that one short write at
//! its place updates it. The system keeps what was written when the process dies. After a power
//! failure lines may be old, and what was used since then is free again.

use std::collections::HashMap;
use std::fs::{DirEntry, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use inference_protocol::ids::is_plain_id;

use super::sql::{Transaction, values};
use super::{Store, StoreError, usage};

const PREFIX: &str = "budgets-";
/// Names and usage of tenants are confidential.
const MODE: u32 = 0o600;
/// Characters of the columns: the tenant, the month, and the tokens.
const COLUMNS: [usize; 3] = [64, 8, 20];
/// Bytes of a line: the columns, a space between them, and the end.
const LINE: usize = COLUMNS[0] + 1 + COLUMNS[1] + 1 + COLUMNS[2] + 1;
/// Where the tokens begin in a line.
const TOKENS_AT: usize = COLUMNS[0] + 1 + COLUMNS[1] + 1;
/// Lines of a file. Tenants without one are not followed: what they were allotted stays taken if
/// this gateway is killed.
const LINES_MAX: usize = 100_000;

/// The file of this gateway, created when it is needed.
#[derive(Debug)]
pub(super) struct Marks {
    path: PathBuf,
    opened: Mutex<Option<Opened>>,
}

#[derive(Debug)]
struct Opened {
    file: Arc<File>,
    lines: HashMap<(String, u64), Arc<Mark>>,
}

/// What a tenant's requests at this gateway have used in a month.
#[derive(Debug)]
pub(crate) struct Mark {
    file: Arc<File>,
    at: u64,
    tokens: Mutex<u64>,
    has_failed: AtomicBool,
}

impl Mark {
    /// Adds tokens, or takes them back.
    pub(crate) fn add(&self, more: i64) {
        let mut tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        *tokens = tokens.saturating_add_signed(more);
        let text = format!("{:>width$}", *tokens, width = COLUMNS[2]);
        if let Err(error) = self.file.write_all_at(text.as_bytes(), self.at)
            && !self.has_failed.swap(true, Ordering::Relaxed)
        {
            tracing::error!(%error, "use of a budget not written: a kill would lose it");
        }
    }
}

impl Marks {
    pub(super) fn new(folder: &Path, me: &str) -> Self {
        let path = folder.join(format!("{PREFIX}{me}"));
        Self { path, opened: Mutex::default() }
    }

    /// The mark of a tenant in a month. `None` if it cannot be written.
    fn of(&self, tenant: &str, month: u64) -> Option<Arc<Mark>> {
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (tenant.to_string(), month);
        if let Some(mark) = opened.as_ref().and_then(|opened| opened.lines.get(&key)) {
            return Some(mark.clone());
        }
        let begun = self.begin(&mut opened, key);
        begun.inspect_err(|error| tracing::error!(%error, "use of budgets not written")).ok()
    }

    /// Begins a line.
    fn begin(&self, opened: &mut Option<Opened>, key: (String, u64)) -> io::Result<Arc<Mark>> {
        let opened = match opened {
            Some(opened) => opened,
            None => opened.insert(Opened { file: create(&self.path)?, lines: HashMap::new() }),
        };
        let (tenant, month) = &key;
        if !is_plain_id(tenant) || opened.lines.len() >= LINES_MAX {
            return Err(io::Error::other("too many tenants, or a name that no key has"));
        }
        let [wide, narrow, long] = COLUMNS;
        let line = format!("{tenant:<wide$} {month:>narrow$} {:>long$}\n", 0);
        let start = (opened.lines.len() * LINE) as u64;
        opened.file.write_all_at(line.as_bytes(), start)?;
        let at = start + TOKENS_AT as u64;
        let (file, tokens, has_failed) = (opened.file.clone(), Mutex::new(0), false.into());
        let mark = Arc::new(Mark { file, at, tokens, has_failed });
        opened.lines.insert(key, mark.clone());
        Ok(mark)
    }

    /// Deletes the file: all that it says is stored.
    pub(super) fn delete(&self) {
        if self.opened.lock().unwrap_or_else(PoisonError::into_inner).take().is_some() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Creates the file. Its lock lasts as long as the process, or as some response of it.
fn create(path: &Path) -> io::Result<Arc<File>> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let file = OpenOptions::new().write(true).create_new(true).mode(MODE).open(path)?;
    file.try_lock()?;
    Ok(Arc::new(file))
}

/// What a gateway had used of a tenant's budget in a month.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Left {
    tenant: String,
    month: u64,
    tokens: u64,
}

/// Reads a file. A line that was not written as a whole is the last one, and of a tenant that has
/// used nothing.
fn read(text: &[u8]) -> Vec<Left> {
    let line = |line: &[u8]| {
        let mut words = std::str::from_utf8(line).ok()?.split_ascii_whitespace();
        let (tenant, month, tokens) = (words.next()?, words.next()?, words.next()?);
        let (month, tokens) = (month.parse().ok()?, tokens.parse().ok()?);
        Some(Left { tenant: tenant.into(), month, tokens })
    };
    text.chunks_exact(LINE).filter_map(line).collect()
}

/// A file whose gateway has ended. It is locked against other gateways.
struct LeftFile {
    path: PathBuf,
    /// Id of the gateway.
    id: String,
    left: Vec<Left>,
    _lock: File,
}

/// The files in a folder whose gateways have ended. What cannot be read is left to others.
fn left_behind(folder: &Path, me: &str) -> Vec<LeftFile> {
    let open = |entry: io::Result<DirEntry>| {
        let path = entry.ok()?.path();
        let id = path.file_name()?.to_str()?.strip_prefix(PREFIX)?;
        let id = Some(id.to_string()).filter(|id| id != me && is_plain_id(id))?;
        let file = OpenOptions::new().read(true).write(true).open(&path).ok()?;
        file.try_lock().ok()?;
        let mut text = Vec::new();
        let bytes_max = (LINE * LINES_MAX) as u64;
        (&file).take(bytes_max).read_to_end(&mut text).ok()?;
        Some(LeftFile { path, id, left: read(&text), _lock: file })
    };
    std::fs::read_dir(folder).into_iter().flatten().filter_map(open).collect()
}

impl Store {
    /// The mark of a tenant in a month. `None` if it cannot be written.
    pub(crate) fn mark(&self, tenant: &str, month: u64) -> Option<Arc<Mark>> {
        self.0.marks.of(tenant, month)
    }

    /// Stores what gateways had used when they were killed, as far as they have left it in the
    /// folder of this one, and frees what else they were allotted.
    pub(crate) async fn settle_killed(&self) -> Result<(), StoreError> {
        let (folder, me) = (self.folder().to_path_buf(), self.0.me.clone());
        let find = move || left_behind(&folder, &me);
        let found = tokio::task::spawn_blocking(find).await;
        let is_shared = self.is_shared();
        for LeftFile { path, id, left, _lock } in found.map_err(|_| StoreError::Unavailable)? {
            let settle = move |transaction: &mut Transaction<'_>| {
                if !is_shared {
                    // Nobody else can live.
                    let sql = "DELETE FROM gateways WHERE id = ?1";
                    transaction.execute(sql, values![&id])?;
                }
                settle(transaction, &id, &left)
            };
            if self.0.database.run(settle).await? {
                let _ = std::fs::remove_file(path);
            }
        }
        Ok(())
    }
}

/// Returns false if the gateway may live.
fn settle(transaction: &mut Transaction<'_>, id: &str, left: &[Left]) -> Result<bool, StoreError> {
    let sql = "SELECT count(*) AS count FROM gateways WHERE id = ?1";
    if transaction.count(sql, values![id])? > 0 {
        return Ok(false);
    }
    for Left { tenant, month, tokens } in left {
        let sql = "SELECT counted FROM allotments \
                   WHERE gateway = ?1 AND period = ?2 AND tenant = ?3";
        let Some(mut row) = transaction.first(sql, values![id, *month, tenant])? else { continue };
        let lost = tokens.saturating_sub(row.take("counted")?);
        if lost > 0 {
            usage::add_month(transaction, (*month, tenant), lost, 0)?;
            tracing::info!(tenant, tokens = lost, "use of a killed gateway counted in its budget");
        }
    }
    transaction.execute("DELETE FROM allotments WHERE gateway = ?1", values![id])?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::super::Keyring;
    use super::super::testing::{store, with_store};
    use super::super::{Ask, UsageKey, UsageSum};
    use super::*;
    use crate::types::usage::{Date, Used};

    const TODAY: Date = Date { day: 9, month: 3 };

    fn ask(tokens: u64) -> Ask {
        Ask { tenant: "ada".into(), budget: 1000, tokens, month: TODAY.month }
    }

    fn marks(folder: &Path, id: &str) -> Marks {
        Marks::new(folder, id)
    }

    #[test]
    fn a_file_says_what_was_added_and_taken_back() {
        let folder = tempfile::tempdir().unwrap();
        let own = marks(folder.path(), "me");
        let ada = own.of("ada", 3).unwrap();
        own.of(&"b".repeat(64), 12).unwrap().add(7);
        ada.add(500);
        ada.add(-20);
        own.of("ada", 3).unwrap().add(3);
        assert!(own.of("a b", 3).is_none());
        let text = std::fs::read(folder.path().join("budgets-me")).unwrap();
        let ada = Left { tenant: "ada".into(), month: 3, tokens: 483 };
        let long = Left { tenant: "b".repeat(64), month: 12, tokens: 7 };
        assert_eq!(read(&text), [ada.clone(), long]);
        assert_eq!(read(&text[..text.len() - 1]), [ada], "the last line was not written whole");
        assert!(left_behind(folder.path(), "other").is_empty(), "it lives");
        own.delete();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn what_a_killed_gateway_has_used_is_counted_once_and_the_rest_is_free() {
        let folder = tempfile::tempdir().unwrap();
        let killed = store(folder.path(), Keyring::default());
        assert_eq!(killed.allot(ask(600)).await, Ok(650));
        let mark = killed.mark("ada", TODAY.month).unwrap();
        mark.add(300);
        let key = UsageKey {
            hour: 1,
            tenant: "ada".into(),
            class: "batch",
            model: "m".into(),
            endpoint: "".into(),
        };
        let sum = UsageSum { prompt: 100, completion: 50, ..UsageSum::default() };
        killed.add_usage(vec![(key, sum, TODAY)], Vec::new(), TODAY).await.unwrap();
        // As if it was killed: it stores nothing more, and its file stays.
        let left = std::fs::read(folder.path().join("budgets-me")).unwrap();
        killed.close(false).await;
        drop((mark, killed));
        let next = store(folder.path(), Keyring::default());
        std::fs::rename(folder.path().join("budgets-me"), folder.path().join("budgets-dead"))
            .unwrap();
        let rename = |transaction: &mut Transaction<'_>| {
            Ok(transaction.execute("UPDATE allotments SET gateway = 'dead'", &[])?)
        };
        next.0.database.run(rename).await.unwrap();
        assert_eq!(next.allot(ask(1000)).await, Ok(350), "until it is settled");
        for _ in 0..2 {
            next.settle_killed().await.unwrap();
            let totals = next.add_usage(Vec::new(), Vec::new(), TODAY).await.unwrap();
            assert_eq!(totals.tenants, [("ada".into(), Used { tokens: 300, spend: 0.0 })]);
            std::fs::write(folder.path().join("budgets-dead"), &left).unwrap();
        }
        assert_eq!(next.allot(ask(1000)).await, Ok(700));
        next.close(true).await;
    }

    #[tokio::test]
    async fn a_gateway_that_lives_is_not_settled() {
        with_store(async |store| {
            let settle = |transaction: &mut Transaction<'_>| {
                super::super::gateways::say_alive(transaction, "other")?;
                settle(transaction, "other", &[])
            };
            assert_eq!(store.0.database.run(settle).await, Ok(false));
        })
        .await;
    }

    #[test]
    fn what_is_no_file_of_a_gateway_is_left_alone_and_what_is_damaged_says_nothing() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("budgets-a b"), "").unwrap();
        std::fs::write(folder.path().join("other"), "").unwrap();
        let line = |tokens: &str| format!("{:<64} {:>8} {tokens:>20}\n", "ada", 3);
        let damaged = line("-1") + &line("7") + &"\0".repeat(LINE) + &line("1 2") + "ada 3";
        std::fs::write(folder.path().join("budgets-dead"), damaged).unwrap();
        let found = left_behind(folder.path(), "me");
        assert_eq!(found.len(), 1);
        let left = Left { tenant: "ada".into(), month: 3, tokens: 7 };
        assert_eq!((found[0].id.as_str(), &found[0].left[0]), ("dead", &left));
    }
}
