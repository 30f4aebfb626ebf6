//! Saved prefixes that a leaving node hands to another one.
//!
//! When the last request of a leaving node is done and its engine has written its prefixes to
//! files, the status of the node offers them. A gateway that wants that, and says so when it opens
//! the status stream, names the node that shall have them ([`HandOver::claim`]), reads file by
//! file, and says when it has all it wants. The other node stores each file beside those of its
//! engine ([`HandOver::begin_arrival`]), and has the engine take it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use inference_core::scheduler::prefix_disk::{FileId, Key, PrefixFolder, incoming_file};
use inference_protocol::fleet::{OfferedPrefix, PrefixStatus};
use tokio::sync::{Mutex, MutexGuard, watch};
use tokio::time::{Instant, timeout_at};

use crate::engine::client::EngineClient;

/// How long a node that leaves waits for a gateway that wants its prefixes.
const CLAIM_LIMIT: Duration = Duration::from_secs(2);
/// A prefix with fewer tokens is computed again.
const TOKENS_MIN: u32 = 256;
/// Names for incoming files, used in turn: one is written while the engine takes the last ones.
const NAMES: u64 = 8;

/// What a leaving node offers.
#[derive(Debug)]
pub(crate) struct Offer {
    folder: PrefixFolder,
    key: Key,
    /// The longest one first.
    prefixes: Vec<OfferedPrefix>,
}

impl Offer {
    /// Opens the files of an engine that is gone. Blocks.
    fn open(folder: &Path, key: Key) -> std::io::Result<Self> {
        let folder = PrefixFolder::open(folder)?;
        let files = folder.files_of(&key)?;
        let offered = files.into_iter().map(|(file, header)| OfferedPrefix {
            file,
            tokens: header.tokens.len() as u32,
            bytes: header.file_bytes(),
        });
        let mut prefixes: Vec<_> = offered.filter(|offered| offered.tokens >= TOKENS_MIN).collect();
        prefixes.sort_by_key(|offered| std::cmp::Reverse(offered.tokens));
        Ok(Self { folder, key, prefixes })
    }

    /// All of them.
    pub(crate) fn prefixes(&self) -> &[OfferedPrefix] {
        &self.prefixes
    }

    /// Path and size of an offered file.
    pub(crate) fn file(&self, file: FileId) -> Option<(PathBuf, u64)> {
        let offered = self.prefixes.iter().find(|offered| offered.file == file)?;
        Some((self.folder.file(file), offered.bytes))
    }
}

/// How far a leaving node is.
#[derive(Debug, Clone, Default)]
enum Stage {
    /// It does not leave, or has nothing to offer.
    #[default]
    Nothing,
    Offered(Arc<Offer>),
    /// A gateway reads the files, for the node of this name.
    Claimed(Arc<Offer>, String),
    /// The gateway has all it wants.
    Done(Arc<Offer>, String),
}

/// State of both ends of a hand-over.
#[derive(Debug, Default)]
pub(crate) struct HandOver {
    /// True once a gateway wants what this node would offer.
    is_wanted: AtomicBool,
    stage: watch::Sender<Stage>,
    /// Held by the one file that comes in; counts such files.
    arrivals: Mutex<u64>,
}

impl HandOver {
    /// Records that a gateway wants what this node would offer when it leaves.
    pub(crate) fn want(&self) {
        self.is_wanted.store(true, Ordering::Relaxed);
    }

    /// True if a gateway wants that.
    pub(crate) fn is_wanted(&self) -> bool {
        self.is_wanted.load(Ordering::Relaxed)
    }

    /// What the status says of saved prefixes; `key` is the running engine's.
    pub(crate) fn status(&self, key: Option<Key>) -> Option<PrefixStatus> {
        let (offer, heir) = match &*self.stage.borrow() {
            Stage::Nothing => {
                let key = key?;
                return Some(PrefixStatus { key: hex(&key), ..PrefixStatus::default() });
            }
            Stage::Offered(offer) => (offer.clone(), None),
            Stage::Claimed(offer, heir) | Stage::Done(offer, heir) => {
                (offer.clone(), Some(heir.clone()))
            }
        };
        let offered = offer.prefixes.len() as u32;
        Some(PrefixStatus { key: hex(&offer.key), offered, heir })
    }

    /// Offers the files of an engine that is gone, and returns when a gateway has all it wants, at
    /// the latest at `until`.
    pub(crate) async fn offer(
        &self,
        engine: &EngineClient,
        (folder, key): (PathBuf, Key),
        until: Instant,
    ) {
        let opening = tokio::task::spawn_blocking(move || Offer::open(&folder, key));
        let offer = match opening.await {
            Ok(Ok(offer)) if !offer.prefixes.is_empty() => offer,
            Ok(Err(reason)) => return tracing::warn!(%reason, "saved prefixes cannot be offered"),
            _ => return,
        };
        self.stage.send_replace(Stage::Offered(Arc::new(offer)));
        engine.announce_change();
        let mut stages = self.stage.subscribe();
        let claimed = stages.wait_for(|stage| !matches!(stage, Stage::Offered(_)));
        if timeout_at(until.min(Instant::now() + CLAIM_LIMIT), claimed).await.is_err() {
            return tracing::info!("no gateway took the saved prefixes");
        }
        let done = stages.wait_for(|stage| matches!(stage, Stage::Done(..)));
        if timeout_at(until, done).await.is_err() {
            tracing::warn!("shutdown timed out: saved prefixes not handed over");
        }
    }

    /// A gateway reads the offered files for this node. `None` if there are none, or if another
    /// gateway was faster.
    pub(crate) fn claim(&self, heir: String, engine: &EngineClient) -> Option<Arc<Offer>> {
        let mut claimed = None;
        self.stage.send_if_modified(|stage| {
            let Stage::Offered(offer) = &*stage else { return false };
            claimed = Some(offer.clone());
            *stage = Stage::Claimed(offer.clone(), heir);
            true
        });
        engine.announce_change();
        claimed
    }

    /// What a gateway has claimed.
    pub(crate) fn claimed(&self) -> Option<Arc<Offer>> {
        match &*self.stage.borrow() {
            Stage::Claimed(offer, _) => Some(offer.clone()),
            _ => None,
        }
    }

    /// The gateway has all it wants.
    pub(crate) fn finish(&self) {
        self.stage.send_if_modified(|stage| {
            let Stage::Claimed(offer, heir) = &*stage else { return false };
            *stage = Stage::Done(offer.clone(), heir.clone());
            true
        });
    }

    /// Begins a file that comes in; `None` while another one does.
    pub(crate) fn begin_arrival(&self, folder: &Path) -> Option<Arrival<'_>> {
        let mut count = self.arrivals.try_lock().ok()?;
        *count += 1;
        let number = *count % NAMES;
        let path = incoming_file(folder, number);
        Some(Arrival { number, path, is_whole: false, _count: count })
    }
}

/// A file that comes in. Dropping it deletes the file, unless it is whole.
#[derive(Debug)]
pub(crate) struct Arrival<'a> {
    number: u64,
    path: PathBuf,
    is_whole: bool,
    _count: MutexGuard<'a, u64>,
}

impl Arrival<'_> {
    /// Where it is written.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Has the engine take the file, which is whole.
    pub(crate) fn finish(mut self, engine: &EngineClient) {
        self.is_whole = true;
        engine.take_prefix(self.number);
    }
}

impl Drop for Arrival<'_> {
    fn drop(&mut self) {
        if !self.is_whole {
            // It may not exist. What remains is deleted when the engine starts again.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn hex(key: &Key) -> String {
    key.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests;
