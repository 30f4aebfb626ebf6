//! Saved states in files: has them written when memory for them is short and while there is
//! nothing to do, and has them read for prompts that begin like them.
//!
//! A request whose prefix is read waits outside the slots, so that all others go on.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::Engine;
use super::saved_states::SavedStates;
use crate::scheduler::prefix_disk::{FileId, PrefixDisk, Queued};
use crate::scheduler::saved_prefixes::{TOKENS_MIN, is_worth_a_copy};
use crate::scheduler::sequence::Job;
use crate::types::model::Model;

/// A prefix that is read spares at least this many tokens.
const READ_TOKENS_MIN: u32 = 256;
/// Maximum requests that wait for a file.
const WAITING_MAX: usize = 8;
/// A request does not wait longer than this for a file.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the engine waits for a file when it has nothing else to do. New requests wait as long.
const WAIT: Duration = Duration::from_millis(2);
/// Part of the memory for saved prefixes that holds what is being written.
const WRITING_PART: u64 = 4;

/// Requests that wait for files, and those whose wait is over.
#[derive(Debug, Default)]
pub(super) struct FileWaits {
    waiting: Vec<Waiting>,
    ready: VecDeque<Job>,
}

#[derive(Debug)]
struct Waiting {
    job: Job,
    file: FileId,
    until: Duration,
}

impl FileWaits {
    pub(super) fn len(&self) -> usize {
        self.waiting.len() + self.ready.len()
    }

    pub(super) fn take_ready(&mut self) -> Option<Job> {
        self.ready.pop_front()
    }

    /// Keeps only the requests for which `wanted` is true.
    pub(super) fn retain(&mut self, mut wanted: impl FnMut(&Job) -> bool) {
        self.waiting.retain(|waiting| wanted(&waiting.job));
        self.ready.retain(wanted);
    }

    /// Ends the waits for which `is_over` is true.
    fn end(&mut self, is_over: impl Fn(&Waiting) -> bool) {
        let (over, waiting) = std::mem::take(&mut self.waiting).into_iter().partition(is_over);
        self.waiting = waiting;
        self.ready.extend(Vec::into_iter(over).map(|over: Waiting| over.job));
    }
}

impl<M: Model> Engine<M> {
    /// Keeps saved prefixes in files as well. Has no effect without memory for saved prefixes.
    pub fn with_prefix_disk(mut self, mut disk: PrefixDisk) -> Self {
        let bytes = self.shape.saved_bytes_max as u64;
        if bytes > 0 {
            let (can_cut, for_writing) = (self.shape.shares_prefixes, bytes / WRITING_PART);
            self.saved = SavedStates::new(bytes - for_writing, can_cut);
            disk.adapt(can_cut, for_writing);
            self.disk = Some(disk);
        }
        self
    }

    /// Lets a request wait for a file if that spares it enough; returns all others.
    pub(super) fn await_file(&mut self, job: Job, clock: &dyn Fn() -> Duration) -> Option<Job> {
        let (owner, tokens) = (job.prefix_owner(), &job.tokens[..job.tokens.len() - 1]);
        let Some(disk) = self.disk.as_mut().filter(|_| job.uses_prefixes()) else {
            return Some(job);
        };
        let known = self.pool.matching(owner, &job.tokens).max(self.saved.covered(owner, tokens));
        let found = disk.find(owner, tokens).filter(|found| {
            let (held, gained) = (found.held.len() as u32, found.covered.saturating_sub(known));
            let fits = found.bytes <= self.saved.bytes_max() as u64 && held <= self.shape.kv_cells;
            let is_useful = gained >= READ_TOKENS_MIN && is_worth_a_copy(gained, held);
            fits && is_useful && self.file_waits.waiting.len() < WAITING_MAX
        });
        let Some(file) = found.and_then(|found| disk.read(owner, found)) else { return Some(job) };
        let until = clock() + READ_TIMEOUT;
        self.file_waits.waiting.push(Waiting { job, file, until });
        None
    }

    /// Saves what was read, and ends the waits for it and those that took too long.
    pub(super) fn take_files(&mut self, clock: &dyn Fn() -> Duration) {
        while let Some(loaded) = self.disk.as_mut().and_then(PrefixDisk::next_loaded) {
            if let Some(state) = loaded.state {
                self.saved.insert_read(loaded.tenant, loaded.tokens, state);
                self.spill();
            }
            self.file_waits.end(|waiting| waiting.file == loaded.file);
        }
        if !self.file_waits.waiting.is_empty() {
            let now = clock();
            self.file_waits.end(|waiting| waiting.until <= now);
        }
    }

    /// Called when nothing can be computed: waits a little for a file if a request waits for it.
    pub(super) fn wait_for_file(&mut self) {
        if let Some(disk) = self.disk.as_mut().filter(|_| !self.file_waits.waiting.is_empty()) {
            disk.wait(WAIT);
        }
    }

    /// Has states written that were dropped from memory.
    pub(super) fn spill(&mut self) {
        for dropped in self.saved.take_dropped() {
            if let Some(disk) = &mut self.disk {
                disk.write(dropped.tenant, &dropped.tokens, &dropped.payload.state);
            }
        }
    }

    /// Has states written that are in no file yet, the most recently used first: those in the pool,
    /// then those in memory. True if some must wait until others are written.
    pub(super) fn write_all(&mut self) -> bool {
        let Some(disk) = &mut self.disk else { return false };
        for kept in self.pool.kept_sequences() {
            let (tenant, tokens) = (kept.tenant, kept.tokens);
            let held = tokens.len() as u32;
            let is_saved = self.saved.common(tenant, &tokens) + TOKENS_MIN > held;
            if kept.lost < TOKENS_MIN || is_saved || disk.has(tenant, &tokens) {
                continue;
            }
            if !disk.has_room() {
                return true;
            }
            let Some(state) = self.model.save(kept.seq, held, self.saved.bytes_max()) else {
                continue;
            };
            if disk.write(tenant, &tokens.into(), &Arc::new(state)) == Queued::Full {
                return true;
            }
        }
        let mut saved = self.saved.by_use().into_iter();
        saved.any(|saved| {
            disk.write(saved.tenant, &saved.tokens, &saved.payload.state) == Queued::Full
        })
    }

    /// Writes all that [`Self::write_all`] writes, until a point in time.
    pub(super) fn write_until(&mut self, clock: &dyn Fn() -> Duration, until: Duration) {
        loop {
            self.take_files(clock);
            let is_more = self.write_all();
            let Some(disk) = &mut self.disk else { return };
            let is_done = disk.is_settled() && (!is_more || disk.is_failing());
            if is_done || clock() >= until {
                return;
            }
            disk.wait(until.saturating_sub(clock()).min(Duration::from_millis(50)));
        }
    }
}
