//! Saved prefixes that a node hands to another one, because it leaves or has been drained.
//!
//! When the last request of a leaving node is done and its engine has written its prefixes to
//! files, the status of the node offers them. A gateway that wants that, and says so when it opens
//! the status stream, names the node that shall have them ([`HandOver::claim`]), reads file by
//! file, and says when it has all it wants. The other node stores each file beside those of its
//! engine ([`HandOver::begin_arrival`]), and has the engine take it.
//!
//! A drained node does not know that it is: it goes on when it is uncordoned. The gateway claims
//! what such a node has while its engine has nothing to do ([`HandOver::claim_idle`]). That is
//! over when the engine computes again; an agent that stops before then has nothing else to offer.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use inference_core::scheduler::prefix_disk::{FileId, Key, SavedFile, files_with, incoming_file};
use inference_protocol::fleet::{OfferedPrefix, PrefixStatus};
use tokio::sync::{Mutex, MutexGuard, watch};
use tokio::time::{Instant, timeout_at};

use crate::engine::client::{EngineClient, EngineState};

/// How long a node that leaves waits for a gateway that wants its prefixes.
const CLAIM_LIMIT: Duration = Duration::from_secs(2);
/// A gateway that reads nothing for so long is gone: a file takes it a minute at most.
const SILENCE_MAX: Duration = Duration::from_secs(90);
/// A prefix with fewer tokens is computed again.
const TOKENS_MIN: u32 = 256;
/// Names for incoming files, used in turn: one is written while the engine takes the last ones.
const NAMES: u64 = 8;

/// What a node offers.
#[derive(Debug)]
pub(crate) struct Offer {
    key: Key,
    /// Steps of the engine until now. Once there are more, it has more to offer.
    steps: u64,
    /// The longest one first.
    files: Vec<SavedFile>,
}

impl Offer {
    /// Lists the files of an engine that is gone, or writes nothing now. Blocks.
    fn list(folder: &Path, key: Key, steps: u64) -> std::io::Result<Self> {
        let mut files = files_with(folder, &key)?;
        files.retain(|file| file.tokens >= TOKENS_MIN);
        files.sort_by_key(|file| std::cmp::Reverse(file.tokens));
        Ok(Self { key, steps, files })
    }

    /// All of them.
    pub(crate) fn prefixes(&self) -> Vec<OfferedPrefix> {
        let offered = self.files.iter();
        let offered = offered.map(|&SavedFile { id: file, tokens, bytes, .. }| OfferedPrefix {
            file,
            tokens,
            bytes,
        });
        offered.collect()
    }

    /// Path and size of an offered file.
    pub(crate) fn file(&self, file: FileId) -> Option<(&Path, u64)> {
        let offered = self.files.iter().find(|offered| offered.id == file)?;
        Some((&offered.path, offered.bytes))
    }
}

/// How far a node is.
#[derive(Debug, Clone, Default)]
enum Stage {
    /// It does not leave, or has nothing to offer.
    #[default]
    Nothing,
    Offered(Arc<Offer>),
    /// A gateway reads the files, for the node of this name; last at this time.
    Claimed(Arc<Offer>, String, Instant),
    /// The gateway has all it wants.
    Done(Arc<Offer>, String),
}

impl Stage {
    /// True unless the engine has computed more since, or the gateway is gone.
    fn is_current(&self, steps: u64) -> bool {
        match self {
            Self::Nothing => true,
            Self::Offered(offer) | Self::Done(offer, _) => offer.steps == steps,
            Self::Claimed(offer, _, read) => offer.steps == steps && read.elapsed() < SILENCE_MAX,
        }
    }
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

    /// Forgets what is over since the engine has made so many steps.
    fn refresh(&self, steps: u64) {
        self.stage.send_if_modified(|stage| {
            let is_over = !stage.is_current(steps);
            if is_over {
                *stage = Stage::Nothing;
            }
            is_over
        });
    }

    /// What the status says of saved prefixes; `key` is the running engine's.
    pub(crate) fn status(&self, key: Option<Key>, engine: &EngineClient) -> Option<PrefixStatus> {
        let figures = engine.figures();
        self.refresh(figures.totals.steps);
        let (offer, heir) = match &*self.stage.borrow() {
            Stage::Nothing => {
                let (key, written) = (hex(&key?), figures.stats.is_written);
                return Some(PrefixStatus { key, written, ..PrefixStatus::default() });
            }
            Stage::Offered(offer) => (offer.clone(), None),
            Stage::Claimed(offer, heir, _) | Stage::Done(offer, heir) => {
                (offer.clone(), Some(heir.clone()))
            }
        };
        let offered = offer.files.len() as u32;
        Some(PrefixStatus { key: hex(&offer.key), offered, heir, ..PrefixStatus::default() })
    }

    /// Offers the files of an engine that is gone, unless it was drained and has handed them over,
    /// and returns when a gateway has all it wants, at the latest at `until`.
    pub(crate) async fn offer(
        &self,
        engine: &EngineClient,
        (folder, key): (PathBuf, Key),
        until: Instant,
    ) {
        let steps = engine.figures().totals.steps;
        self.refresh(steps);
        if matches!(*self.stage.borrow(), Stage::Nothing) {
            match list(folder, key, steps).await {
                Ok(offer) if offer.files.is_empty() => return,
                Ok(offer) => self.stage.send_replace(Stage::Offered(Arc::new(offer))),
                Err(reason) => {
                    return tracing::warn!(%reason, "saved prefixes cannot be offered");
                }
            };
        }
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
    pub(crate) fn claim(&self, heir: &str, engine: &EngineClient) -> Option<Arc<Offer>> {
        self.claim_if(heir, engine, |stage| match stage {
            Stage::Offered(offer) => Some(offer.clone()),
            _ => None,
        })
    }

    /// The same for a gateway that has drained this node, whose engine runs. `None` while it works.
    /// `None` until the engine has written the rest to files, which this asks for.
    pub(crate) async fn claim_idle(
        &self,
        heir: &str,
        engine: &EngineClient,
        folder: &Path,
    ) -> Option<Arc<Offer>> {
        let EngineState::Ready(facts) = engine.state() else { return None };
        let key = facts.prefix_key.as_deref().copied()?;
        let figures = engine.figures();
        let steps = figures.totals.steps;
        self.refresh(steps);
        if figures.in_flight > 0 || !matches!(*self.stage.borrow(), Stage::Nothing) {
            return None;
        }
        if !figures.stats.is_written {
            engine.write_prefixes();
            return None;
        }
        let listed = list(folder.to_path_buf(), key, steps).await;
        let unread = |reason| tracing::warn!(%reason, "saved prefixes cannot be offered");
        let offer = Arc::new(listed.map_err(unread).ok()?);
        self.claim_if(heir, engine, |stage| matches!(stage, Stage::Nothing).then_some(offer))
    }

    /// Claims what `offer` finds in the current stage.
    fn claim_if(
        &self,
        heir: &str,
        engine: &EngineClient,
        offer: impl FnOnce(&Stage) -> Option<Arc<Offer>>,
    ) -> Option<Arc<Offer>> {
        let mut claimed = None;
        self.stage.send_if_modified(|stage| {
            claimed = offer(stage);
            if let Some(offer) = &claimed {
                *stage = Stage::Claimed(offer.clone(), heir.into(), Instant::now());
            }
            claimed.is_some()
        });
        engine.announce_change();
        claimed
    }

    /// What a gateway has claimed, and reads now.
    pub(crate) fn claimed(&self) -> Option<Arc<Offer>> {
        let mut claimed = None;
        self.stage.send_if_modified(|stage| {
            if let Stage::Claimed(offer, _, read) = stage {
                *read = Instant::now();
                claimed = Some(offer.clone());
            }
            false
        });
        claimed
    }

    /// The gateway has all it wants.
    pub(crate) fn finish(&self) {
        self.stage.send_if_modified(|stage| {
            let Stage::Claimed(offer, heir, _) = &*stage else { return false };
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

/// [`Offer::list`], in a thread that may block.
async fn list(folder: PathBuf, key: Key, steps: u64) -> std::io::Result<Offer> {
    let listing = tokio::task::spawn_blocking(move || Offer::list(&folder, key, steps));
    listing.await.unwrap_or_else(|e| Err(std::io::Error::other(e)))
}

fn hex(key: &Key) -> String {
    key.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests;
