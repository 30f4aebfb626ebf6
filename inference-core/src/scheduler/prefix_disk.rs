//! Saved prefixes in files, which survive a restart. The engine thread owns the index of what is
//! there and decides what is written, read and deleted; two threads do that
//! ([`worker`]), so that no file holds up a step.
//!
//! Queues are bounded: what finds no room in them is not written. Files of another model or with
//! other settings are deleted when their room is needed, before any other.

mod file_format;
pub(crate) mod folder;
mod slot_folder;
mod worker;

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::scheduler::kv_pool::common;
use crate::scheduler::saved_prefixes::{Prefix, SavedPrefixes, TOKENS_MIN};
use crate::types::request::{Tenant, Token};
use file_format::FIXED_BYTES;
use folder::FILES_MAX;
use worker::{Named, Place, Report, Write};

pub use file_format::{Header, Key, parse};
pub use folder::{FileId, PrefixFolder, SavedFile, digest_of, files_with, incoming_file};
pub use slot_folder::{SavedSlot, SlotFolder, SlotLimits};
pub use worker::Tell;

/// Commands that wait for a thread.
const QUEUE_MAX: usize = 8;
/// Reports that wait for the engine: all that the threads may have to report meanwhile, so that
/// they never wait.
const REPORTS_MAX: usize = FILES_MAX + 4 * QUEUE_MAX;

/// A state that was read.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) file: FileId,
    pub(crate) tenant: Tenant,
    pub(crate) tokens: Arc<[Token]>,
    /// `None` if the file is missing or damaged.
    pub(crate) state: Option<Box<[u8]>>,
}

/// A file that a prompt could begin with.
#[derive(Debug)]
pub(crate) struct Found {
    file: FileId,
    /// Tokens of the prompt that it covers.
    pub(crate) covered: u32,
    /// All tokens of the state.
    pub(crate) held: Arc<[Token]>,
    pub(crate) bytes: u64,
}

/// What became of a state that should be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Queued {
    /// It will be written.
    Yes,
    /// It is on the disk already, or too large for it.
    Needless,
    /// Too much is being written: not now.
    Full,
}

/// The engine's side of the files.
#[derive(Debug)]
pub struct PrefixDisk {
    index: SavedPrefixes<FileId>,
    /// Files with another key and their sizes, oldest first.
    foreign: VecDeque<(FileId, u64)>,
    foreign_bytes: u64,
    can_cut: bool,
    /// True once the files of earlier runs are known.
    is_listed: bool,
    next_file: FileId,
    is_failing: bool,
    writing: Vec<Named>,
    writing_bytes: u64,
    /// Memory for states that are being written.
    writing_max: u64,
    removals: Vec<FileId>,
    /// Numbers of files from another node that are not taken yet.
    incoming: VecDeque<u64>,
    received: u64,
    early: Option<Report>,
    dropped: Vec<Prefix<FileId>>,
    reports: Receiver<Report>,
    /// Both are `Some` until it is dropped.
    writes: Option<SyncSender<Write>>,
    reads: Option<SyncSender<Named>>,
    threads: Vec<JoinHandle<()>>,
}

impl PrefixDisk {
    /// Starts the threads for at most `bytes_max` bytes of files in a folder. Only states with
    /// `key` are read.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn start(folder: PrefixFolder, key: Key, bytes_max: u64, tell: Tell) -> io::Result<Self> {
        let place = Arc::new(Place { folder, key });
        let (writes, to_write) = sync_channel(QUEUE_MAX);
        let (reads, to_read) = sync_channel(QUEUE_MAX);
        let (report, reports) = sync_channel(REPORTS_MAX);
        let (writer_place, writer_report) = (place.clone(), report.clone());
        let writer = move || worker::write_all(&writer_place, &to_write, &writer_report, tell);
        let reader = move || worker::read_all(&place, &to_read, &report);
        let thread = |name: &str| std::thread::Builder::new().name(name.into());
        let threads =
            vec![thread("prefix writer").spawn(writer)?, thread("prefix reader").spawn(reader)?];
        Ok(Self {
            index: SavedPrefixes::new(bytes_max, FILES_MAX),
            foreign: VecDeque::new(),
            foreign_bytes: 0,
            can_cut: false,
            is_listed: false,
            next_file: 0,
            is_failing: false,
            writing: Vec::new(),
            writing_bytes: 0,
            writing_max: 0,
            removals: Vec::new(),
            incoming: VecDeque::new(),
            received: 0,
            early: None,
            dropped: Vec::new(),
            reports,
            writes: Some(writes),
            reads: Some(reads),
            threads,
        })
    }

    /// Sets whether states can be cut, and how much memory those that are being written may take.
    pub(crate) fn adapt(&mut self, can_cut: bool, writing_max: u64) {
        (self.can_cut, self.writing_max) = (can_cut, writing_max);
    }

    /// Waits until the files of earlier runs are known, but no longer than `limit`.
    pub fn wait_until_listed(&mut self, limit: Duration) {
        let begun = Instant::now();
        while !self.is_listed {
            let left = limit.saturating_sub(begun.elapsed());
            let Ok(report) = self.reports.recv_timeout(left) else { return };
            let loaded = self.take(report);
            debug_assert!(loaded.is_none(), "nothing was to be read yet");
        }
    }

    /// Bytes of all files.
    pub(crate) fn bytes(&self) -> u64 {
        self.index.bytes() + self.foreign_bytes
    }

    /// Number of files that came from other nodes.
    pub(crate) fn received(&self) -> u64 {
        self.received
    }

    /// Takes a file that came from another node ([`incoming_file`]), if it is whole and has the
    /// right key; deletes it otherwise.
    pub(crate) fn take_incoming(&mut self, number: u64) {
        if self.incoming.len() < QUEUE_MAX {
            self.incoming.push_back(number);
        }
        self.send_incoming();
    }

    fn send_incoming(&mut self) {
        while let Some(number) = self.incoming.front()
            && self.is_listed
            && self.send(Write::Take(*number, self.next_file))
        {
            self.next_file += 1;
            self.incoming.pop_front();
        }
    }

    /// True if another state may be written.
    pub(crate) fn has_room(&self) -> bool {
        self.is_listed
            && self.writing.len() < if self.is_failing { 1 } else { QUEUE_MAX / 2 }
            && (self.writing.is_empty() || self.writing_bytes < self.writing_max)
    }

    /// True if the last state could not be written.
    pub(crate) fn is_failing(&self) -> bool {
        self.is_failing
    }

    /// True if nothing waits to be written.
    pub(crate) fn is_settled(&self) -> bool {
        self.writing.is_empty()
    }

    /// Waits for a report, but no longer than `limit`.
    pub(crate) fn wait(&mut self, limit: Duration) {
        if self.early.is_none() {
            self.early = self.reports.recv_timeout(limit).ok();
        }
    }

    /// Takes in what the threads report; returns the next state that was read.
    pub(crate) fn next_loaded(&mut self) -> Option<Loaded> {
        while let Some(report) = self.early.take().or_else(|| self.reports.try_recv().ok()) {
            let loaded = self.take(report);
            if loaded.is_some() {
                return loaded;
            }
        }
        self.send_removals();
        self.send_incoming();
        None
    }

    fn take(&mut self, report: Report) -> Option<Loaded> {
        match report {
            Report::Found(named) => {
                self.next_file = self.next_file.max(named.file + 1);
                self.add(named);
            }
            Report::Foreign(file, bytes) => {
                self.next_file = self.next_file.max(file + 1);
                self.foreign.push_back((file, bytes));
                self.foreign_bytes += bytes;
            }
            Report::Taken(named) if self.has(named.tenant, &named.tokens) => {
                self.removals.push(named.file);
            }
            Report::Taken(named) => {
                self.received += 1;
                self.add(named);
            }
            Report::Listed => {
                self.is_listed = true;
                self.make_room(0);
            }
            Report::Written(named, is_written) => {
                self.writing.retain(|other| other.file != named.file);
                self.writing_bytes -= named.state_bytes;
                self.is_failing = !is_written;
                if is_written {
                    self.add(named);
                }
            }
            Report::Read(named, state) => {
                if state.is_none() {
                    self.index.remove(named.tenant, &named.tokens);
                }
                let Named { file, tenant, tokens, .. } = named;
                return Some(Loaded { file, tenant, tokens, state });
            }
        }
        None
    }

    /// Adds a file to the index, and removes those that it makes needless or that exceed a limit.
    fn add(&mut self, named: Named) {
        while self.can_cut
            && let Some(covered) = self.index.take_covered(named.tenant, &named.tokens)
        {
            self.removals.push(covered.payload);
        }
        let bytes = named.state_bytes + FIXED_BYTES as u64;
        let prefix = Prefix::new(named.tenant, named.tokens, named.file, bytes);
        self.index.insert(prefix, &mut self.dropped);
        self.removals.extend(self.dropped.drain(..).map(|dropped| dropped.payload));
    }

    /// Makes room for `bytes` more: first in files with another key.
    fn make_room(&mut self, bytes: u64) {
        let wanted = bytes + self.writing_bytes;
        while self.foreign_bytes + self.index.bytes() + wanted > self.index.bytes_max()
            && let Some((file, freed)) = self.foreign.pop_front()
        {
            self.foreign_bytes -= freed;
            self.removals.push(file);
        }
        self.index.make_room(wanted, &mut self.dropped);
        self.removals.extend(self.dropped.drain(..).map(|dropped| dropped.payload));
    }

    /// The file that covers most of `tokens`. Counts as a use.
    pub(crate) fn find(&mut self, tenant: Tenant, tokens: &[Token]) -> Option<Found> {
        let (covered, prefix) = match self.can_cut {
            true => self.index.best_common(tenant, tokens)?,
            false => {
                let prefix = self.index.longest(tenant, tokens)?;
                (prefix.tokens.len() as u32, prefix)
            }
        };
        let (file, held, bytes) = (prefix.payload, prefix.tokens.clone(), prefix.bytes());
        Some(Found { file, covered, held, bytes })
    }

    /// Has a file read; [`Self::next_loaded`] returns it. `None` if too many are being read.
    pub(crate) fn read(&self, tenant: Tenant, found: Found) -> Option<FileId> {
        let Found { file, held, .. } = found;
        let named = Named { file, tenant, tokens: held, state_bytes: 0 };
        self.reads.as_ref()?.try_send(named).ok()?;
        Some(file)
    }

    /// True if a file has these tokens or nearly all of them, or will have.
    pub(crate) fn has(&self, tenant: Tenant, tokens: &[Token]) -> bool {
        let can_cut = self.can_cut;
        let is_covered = |same: usize| same + TOKENS_MIN as usize > tokens.len();
        let covers = |other: &Named| match can_cut {
            true => is_covered(common(&other.tokens, tokens)),
            false => *other.tokens == *tokens,
        };
        let is_written = match can_cut {
            true => is_covered(self.index.common(tenant, tokens) as usize),
            false => self.index.contains(tenant, tokens),
        };
        is_written || self.writing.iter().any(|other| other.tenant == tenant && covers(other))
    }

    /// Has a state written.
    pub(crate) fn write(
        &mut self,
        tenant: Tenant,
        tokens: &Arc<[Token]>,
        state: &Arc<Box<[u8]>>,
    ) -> Queued {
        let state_bytes = state.len() as u64;
        let bytes = state_bytes + (FIXED_BYTES + size_of_val(&**tokens)) as u64;
        if bytes > self.index.bytes_max() || self.has(tenant, tokens) {
            return Queued::Needless;
        }
        let is_full = !self.writing.is_empty() && self.writing_bytes + bytes > self.writing_max;
        if is_full || !self.is_listed {
            return Queued::Full;
        }
        self.make_room(bytes);
        // In this order, so that the files never take more than they may.
        let named = Named { file: self.next_file, tenant, tokens: tokens.clone(), state_bytes };
        let command = Write::State(named.clone(), state.clone());
        if !self.send_removals() || !self.send(command) {
            return Queued::Full;
        }
        self.next_file += 1;
        self.writing_bytes += state_bytes;
        self.writing.push(named);
        Queued::Yes
    }

    /// Deletes a file whose state cannot be restored.
    pub(crate) fn forget(&mut self, tenant: Tenant, tokens: &[Token]) {
        let removed = self.index.remove(tenant, tokens);
        self.removals.extend(removed.map(|removed| removed.payload));
        self.send_removals();
    }

    fn send_removals(&mut self) -> bool {
        if self.removals.is_empty() {
            return true;
        }
        let removals = std::mem::take(&mut self.removals);
        let Some(writes) = &self.writes else { return false };
        match writes.try_send(Write::Remove(removals)) {
            Ok(()) => true,
            Err(TrySendError::Full(command) | TrySendError::Disconnected(command)) => {
                if let Write::Remove(removals) = command {
                    self.removals = removals;
                }
                false
            }
        }
    }

    fn send(&self, command: Write) -> bool {
        self.writes.as_ref().is_some_and(|writes| writes.try_send(command).is_ok())
    }
}

impl Drop for PrefixDisk {
    /// Waits for what is being written: the queue is short.
    fn drop(&mut self) {
        self.send_removals();
        (self.writes, self.reads) = (None, None);
        for thread in self.threads.drain(..) {
            // If a thread panicked, it has already printed its own message.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests;
