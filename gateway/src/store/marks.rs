//! How much requests have used of budgets so far, in a file of each gateway. A killed one leaves it
//! behind, exact to the last token that it has relayed: then what it was allotted and has not used
//! is free again, although nobody else knows what it has done in its last seconds.
//!
//! A line has a budget, a period, and an amount; its length never changes, so that one short write
//! at its place updates it. The system keeps what was written when the process dies. After a power
//! failure lines may be old, and what was used since then is free again.

use std::collections::{HashMap, HashSet};
use std::fs::{DirEntry, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use inference_protocol::ids::is_plain_id;

use super::allotments::ITS_ROW;
use super::locked_file::LockedFile;
use super::sql::{Transaction, values};
use super::{Store, StoreError, usage};
use crate::types::budget::BudgetId;
use crate::types::usage::Date;

const PREFIX: &str = "budgets-";
/// Names and usage of tenants are confidential.
const MODE: u32 = 0o600;
/// Characters of the columns: kind and owner of the budget, the period, and the amount.
const COLUMNS: [usize; 4] = [16, 96, 8, 20];
/// Bytes of a line: the columns, a space between them, and the end.
const LINE: usize = AMOUNT_AT + COLUMNS[3] + 1;
/// Where the amount begins in a line.
const AMOUNT_AT: usize = COLUMNS[0] + 1 + COLUMNS[1] + 1 + COLUMNS[2] + 1;
/// Lines of a file. Budgets without one are not followed: what was allotted of them stays taken if
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
    file: Arc<LockedFile>,
    lines: HashMap<(BudgetId, u64), Arc<Mark>>,
    /// Where lines begin that are free again.
    free: Vec<u64>,
}

/// What requests at this gateway have used of a budget.
#[derive(Debug)]
pub(crate) struct Mark {
    file: Arc<LockedFile>,
    start: u64,
    amount: Mutex<u64>,
    has_failed: AtomicBool,
}

impl Mark {
    /// Adds to what is used, or takes it back.
    pub(crate) fn add(&self, more: i64) {
        let mut amount = self.amount.lock().unwrap_or_else(PoisonError::into_inner);
        *amount = amount.saturating_add_signed(more);
        let text = format!("{:>width$}", *amount, width = COLUMNS[3]);
        if let Err(error) = self.file.write_all_at(text.as_bytes(), self.start + AMOUNT_AT as u64)
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

    /// The mark of a budget in a period. `None` if it cannot be written.
    fn of(&self, id: &BudgetId, period: u64) -> Option<Arc<Mark>> {
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (id.clone(), period);
        if let Some(mark) = opened.as_ref().and_then(|opened| opened.lines.get(&key)) {
            return Some(mark.clone());
        }
        let begun = self.begin(&mut opened, key);
        begun.inspect_err(|error| tracing::error!(%error, "use of budgets not written")).ok()
    }

    /// Begins a line.
    fn begin(&self, opened: &mut Option<Opened>, key: (BudgetId, u64)) -> io::Result<Arc<Mark>> {
        let opened = match opened {
            Some(opened) => opened,
            None => opened.insert(Opened::new(create(&self.path)?)),
        };
        let start = opened.free.last().copied().unwrap_or((opened.lines.len() * LINE) as u64);
        let line = line(&key.0, key.1).filter(|_| opened.lines.len() < LINES_MAX);
        let line = line.ok_or_else(|| io::Error::other("too many budgets, or a long name"))?;
        opened.file.write_all_at(line.as_bytes(), start)?;
        opened.free.pop();
        let (file, amount, has_failed) = (opened.file.clone(), Mutex::new(0), false.into());
        let mark = Arc::new(Mark { file, start, amount, has_failed });
        opened.lines.insert(key, mark.clone());
        Ok(mark)
    }

    /// Keeps the lines of these budgets and periods and of what requests use now. Others are free
    /// for other budgets: they have no allotment for which they would count.
    pub(super) fn keep(&self, allotted: &HashSet<(&BudgetId, u64)>) {
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(Opened { lines, free, .. }) = &mut *opened else { return };
        let blank = " ".repeat(LINE - 1) + "\n";
        lines.retain(|(id, period), mark| {
            let is_used = allotted.contains(&(id, *period)) || Arc::strong_count(mark) > 1;
            // What it says must not count for a later allotment of the same budget.
            if is_used || mark.file.write_all_at(blank.as_bytes(), mark.start).is_err() {
                return true;
            }
            free.push(mark.start);
            false
        });
    }

    /// Deletes the file: all that it says is stored.
    pub(super) fn delete(&self) {
        if self.opened.lock().unwrap_or_else(PoisonError::into_inner).take().is_some() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl Opened {
    fn new(file: Arc<LockedFile>) -> Self {
        Self { file, lines: HashMap::new(), free: Vec::new() }
    }
}

/// A line of a budget of which nothing is used. `None` if it does not fit.
fn line(id: &BudgetId, period: u64) -> Option<String> {
    let [kinds, owners, periods, amounts] = COLUMNS;
    let (kind, owner) = (id.kind(), id.owner());
    let is_plain = owner.bytes().all(|b| b.is_ascii_graphic());
    let line = format!("{kind:<kinds$} {owner:<owners$} {period:>periods$} {:>amounts$}\n", 0);
    Some(line).filter(|line| is_plain && line.len() == LINE)
}

/// Creates the file. Its lock lasts as long as the process, or as some response of it.
fn create(path: &Path) -> io::Result<Arc<LockedFile>> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let file = OpenOptions::new().write(true).create_new(true).mode(MODE).open(path)?;
    Ok(Arc::new(LockedFile::new(file)?))
}

/// What a gateway had used of a budget.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Left {
    id: BudgetId,
    period: u64,
    amount: u64,
}

/// Reads a file. A line that was not written as a whole is the last one, and of a budget of which
/// nothing is used.
fn read(text: &[u8]) -> Vec<Left> {
    let line = |line: &[u8]| {
        let mut words = std::str::from_utf8(line).ok()?.split_ascii_whitespace();
        let (kind, owner, period) = (words.next()?, words.next()?, words.next()?);
        let (id, amount) = (BudgetId::of(kind, owner)?, words.next()?.parse().ok()?);
        Some(Left { id, period: period.parse().ok()?, amount })
    };
    text.chunks_exact(LINE).filter_map(line).collect()
}

/// A file whose gateway has ended. It is locked against other gateways.
struct LeftFile {
    path: PathBuf,
    /// Id of the gateway.
    id: String,
    left: Vec<Left>,
    _lock: LockedFile,
}

/// The files in a folder whose gateways have ended. What cannot be read is left to others.
fn left_behind(folder: &Path, me: &str) -> Vec<LeftFile> {
    let open = |entry: io::Result<DirEntry>| {
        let path = entry.ok()?.path();
        let id = path.file_name()?.to_str()?.strip_prefix(PREFIX)?;
        let id = Some(id.to_string()).filter(|id| id != me && is_plain_id(id))?;
        let file = OpenOptions::new().read(true).write(true).open(&path).ok()?;
        let file = LockedFile::new(file).ok()?;
        let mut text = Vec::new();
        let bytes_max = (LINE * LINES_MAX) as u64;
        (&*file).take(bytes_max).read_to_end(&mut text).ok()?;
        Some(LeftFile { path, id, left: read(&text), _lock: file })
    };
    std::fs::read_dir(folder).into_iter().flatten().filter_map(open).collect()
}

impl Store {
    /// The marks of budgets today, without those that cannot be written.
    pub(crate) fn marks<'a>(
        &self,
        ids: impl IntoIterator<Item = &'a BudgetId>,
        today: Date,
    ) -> Vec<Arc<Mark>> {
        let marks = ids.into_iter().filter_map(|id| self.0.marks.of(id, id.period(today)));
        marks.collect()
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
    for Left { id: budget, period, amount } in left {
        let (kind, owner) = (budget.kind(), budget.owner());
        let key = values![id, kind, *period, &owner];
        let sql = format!("SELECT counted FROM allotments WHERE {ITS_ROW}");
        let Some(mut row) = transaction.first(&sql, key)? else { continue };
        let lost = amount.saturating_sub(row.take("counted")?);
        if lost > 0 {
            usage::add_used(transaction, (budget, *period), lost)?;
            tracing::info!(kind, owner, amount = lost, "use of a killed gateway counted");
        }
        transaction.execute(&format!("DELETE FROM allotments WHERE {ITS_ROW}"), key)?;
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::super::Keyring;
    use super::super::testing::{store, with_store};
    use super::super::{Booked, UsageKey, UsageSum};
    use super::*;
    use crate::types::budget::Ask;
    use crate::types::secret::KeyDigest;
    use crate::types::usage::Used;
    use crate::types::user::UserId;

    fn today() -> Date {
        Date::at(3600)
    }

    fn tokens(tenant: &str) -> BudgetId {
        BudgetId::Tokens(tenant.into())
    }

    /// Asks for tokens. Returns the allotment.
    async fn ask(store: &Store, amount: u64) -> u64 {
        let asks = vec![Ask { id: tokens("ada"), budget: 1000, amount, least: 1 }];
        store.allot(asks, today()).await.unwrap()[0].amount
    }

    fn marks(folder: &Path, id: &str) -> Marks {
        Marks::new(folder, id)
    }

    #[test]
    fn a_file_says_what_was_added_and_taken_back() {
        let folder = tempfile::tempdir().unwrap();
        let own = marks(folder.path(), "me");
        let ada = own.of(&tokens("ada"), 3).unwrap();
        let user = UserId::new(&KeyDigest::of("key"), b"x");
        let long = BudgetId::UserTokens("b".repeat(64), user);
        own.of(&long, 12).unwrap().add(7);
        ada.add(500);
        ada.add(-20);
        own.of(&tokens("ada"), 3).unwrap().add(3);
        assert!(own.of(&tokens("a b"), 3).is_none());
        assert!(own.of(&tokens(&"c".repeat(97)), 3).is_none());
        let text = std::fs::read(folder.path().join("budgets-me")).unwrap();
        let ada = Left { id: tokens("ada"), period: 3, amount: 483 };
        let long = Left { id: long, period: 12, amount: 7 };
        assert_eq!(read(&text), [ada.clone(), long]);
        assert_eq!(read(&text[..text.len() - 1]), [ada], "the last line was not written whole");
        assert!(left_behind(folder.path(), "other").is_empty(), "it lives");
        own.delete();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_line_without_an_allotment_is_free_for_another_budget_unless_a_request_uses_it() {
        let folder = tempfile::tempdir().unwrap();
        let own = marks(folder.path(), "me");
        let text = || read(&std::fs::read(folder.path().join("budgets-me")).unwrap());
        let left = |tenant, amount| Left { id: tokens(tenant), period: 3, amount };
        own.of(&tokens("ada"), 3).unwrap().add(5);
        own.of(&tokens("bob"), 3).unwrap().add(6);
        let eve = own.of(&tokens("eve"), 3).unwrap();
        own.keep(&[(&tokens("bob"), 3)].into());
        assert_eq!(text(), [left("bob", 6), left("eve", 0)]);
        own.of(&tokens("dan"), 3).unwrap().add(7);
        assert_eq!(text(), [left("dan", 7), left("bob", 6), left("eve", 0)]);
        own.of(&tokens("ada"), 3).unwrap();
        assert_eq!(text()[3], left("ada", 0), "what it said before does not count");
        drop(eve);
        own.keep(&HashSet::new());
        assert_eq!(text(), []);
    }

    #[tokio::test]
    async fn what_a_killed_gateway_has_used_is_counted_once_and_the_rest_is_free() {
        let folder = tempfile::tempdir().unwrap();
        let killed = store(folder.path(), Keyring::default());
        assert_eq!(ask(&killed, 600).await, 650);
        let mark = killed.marks(&[tokens("ada")], today()).remove(0);
        mark.add(300);
        let key = UsageKey {
            minute: 1,
            tenant: "ada".into(),
            class: "batch",
            model: "m".into(),
            endpoint: "".into(),
        };
        let sum = UsageSum { prompt: 100, completion: 50, ..UsageSum::default() };
        killed
            .add_usage(
                Booked { rows: [(key, sum)].into(), ..Booked::default() },
                Vec::new(),
                today(),
            )
            .await
            .unwrap();
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
        assert_eq!(ask(&next, 1000).await, 350, "until it is settled");
        for _ in 0..2 {
            next.settle_killed().await.unwrap();
            let totals = next.add_usage(Booked::default(), Vec::new(), today()).await.unwrap();
            assert_eq!(totals.tenants, [("ada".into(), Used { tokens: 300, spend: 0.0 })]);
            std::fs::write(folder.path().join("budgets-dead"), &left).unwrap();
        }
        assert_eq!(ask(&next, 1000).await, 700);
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
        let line = |amount: &str| format!("{:<16} {:<96} {:>8} {amount:>20}\n", "tokens", "ada", 3);
        let damaged = line("-1") + &line("7") + &"\0".repeat(LINE) + &line("1 2") + "tokens ada 3";
        std::fs::write(folder.path().join("budgets-dead"), damaged).unwrap();
        let found = left_behind(folder.path(), "me");
        assert_eq!(found.len(), 1);
        let left = Left { id: tokens("ada"), period: 3, amount: 7 };
        assert_eq!((found[0].id.as_str(), &found[0].left[0]), ("dead", &left));
    }
}
