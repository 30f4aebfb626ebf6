//! Admission: decides who gets a slot and KV cells, who waits for a prefix that another sequence
//! computes, and who is preempted when there are too few cells.

use std::time::Duration;

use super::Engine;
use crate::scheduler::engine_thread::Emit;
use crate::scheduler::kv_pool::{Opened, common};
use crate::scheduler::saved_prefixes::TOKENS_MIN;
use crate::scheduler::sequence::{Job, Leader, Replay, Sequence};
use crate::types::model::{Model, SeqId};
use crate::types::request::{Event, Tenant, Token};

/// A sequence that gets a slot should find KV cells for this part of its context, but at most
/// [`RESERVE_CELLS_MAX`], for its response.
const RESERVE_PART: u32 = 16;
const RESERVE_CELLS_MAX: u32 = 64;
/// A common prefix shorter than this is computed again instead of waited for.
const LEAD_TOKENS_MIN: u32 = 16;

impl<M: Model> Engine<M> {
    pub(super) fn drop_cancelled(&mut self, emit: Emit<'_>) {
        let mut wanted = |job: &Job| {
            let wanted = !job.cancel.is_set();
            if !wanted {
                emit(job.id, Event::Cancelled);
            }
            wanted
        };
        self.queue.retain(&mut wanted);
        self.file_waits.retain(&mut wanted);
        self.next = self.next.take().filter(&mut wanted);
        self.preempted.retain(|sequence| {
            let wanted = !sequence.cancel.is_set();
            if !wanted {
                emit(sequence.id, Event::Cancelled);
            }
            wanted
        });
        for slot in 0..self.shape.slots {
            if let Some(sequence) = &self.slots[slot as usize]
                && sequence.cancel.is_set()
            {
                emit(sequence.id, Event::Cancelled);
                self.free(slot);
            }
        }
    }

    /// Gives free slots to preempted sequences, oldest first, and then to new requests, as far as
    /// there are KV cells.
    pub(super) fn fill_slots(&mut self, clock: &dyn Fn() -> Duration, emit: Emit<'_>) {
        while let Some(slot) = self.slots.iter().position(Option::is_none) {
            let oldest = (0..self.preempted.len()).min_by_key(|i| self.preempted[*i].arrival);
            let mut sequence = match oldest {
                Some(i)
                    if self.has_cells_for(
                        self.preempted[i].prefix_owner,
                        self.preempted[i].tokens(),
                        self.preempted[i].uses_cache(),
                    ) =>
                {
                    self.preempted.swap_remove(i)
                }
                Some(i) => {
                    let waiting = &self.preempted[i];
                    return self.pool.protect(waiting.prefix_owner, waiting.tokens());
                }
                None => match self.next_job(clock, emit) {
                    Some(sequence) => sequence,
                    None => return,
                },
            };
            match self.begin(&mut sequence) {
                true => self.slots[slot] = Some(sequence),
                false => return self.preempted.push(sequence),
            }
        }
    }

    fn next_job(&mut self, clock: &dyn Fn() -> Duration, emit: Emit<'_>) -> Option<Sequence> {
        loop {
            let job = match self.next.take().or_else(|| self.file_waits.take_ready()) {
                Some(job) => job,
                None => {
                    let job = self.queue.pop()?;
                    let Some(job) = self.await_file(job, clock) else { continue };
                    job
                }
            };
            if !self.has_cells_for(job.prefix_owner(), &job.tokens, job.options.uses_cache) {
                self.pool.protect(job.prefix_owner(), &job.tokens);
                self.next = Some(job);
                return None;
            }
            self.arrivals += 1;
            let sequence = Sequence::new(job, self.arrivals, self.shape.context_tokens);
            let prompt_tokens = sequence.prompt_tokens();
            emit(
                sequence.id,
                Event::Started { prompt_tokens, in_reasoning: sequence.in_reasoning },
            );
            if let Some(sequence) = self.replay(sequence, emit) {
                return Some(sequence);
            }
        }
    }

    /// Replays the part of a response that another node generated; returns `None` if it was already
    /// complete.
    fn replay(&self, mut sequence: Sequence, emit: Emit<'_>) -> Option<Sequence> {
        let write = |token, control, out: &mut Vec<u8>| self.model.piece(token, control, out);
        let replayed = sequence.replay(self.model.end_tokens(), write);
        let Replay { chunks, finished } = match replayed {
            Ok(replay) => replay,
            Err(failure) => {
                emit(sequence.id, Event::Failed(failure));
                return None;
            }
        };
        if !chunks.is_empty() {
            emit(sequence.id, Event::Replayed(chunks));
        }
        match finished {
            Some(reason) => emit(sequence.id, sequence.finish(reason)),
            None => return Some(sequence),
        }
        None
    }

    /// True if there are cells for the tokens that no live sequence has.
    fn has_cells_for(&self, owner: Tenant, tokens: &[Token], uses_cache: bool) -> bool {
        let found = match uses_cache {
            true => self.pool.matching(owner, tokens) - self.pool.matching_cached(owner, tokens),
            false => 0,
        };
        self.has_cells(tokens.len() as u32 - found)
    }

    /// True if there are `wanted` cells for a new sequence, and some left for all others for a
    /// while. An empty context always has enough.
    pub(super) fn has_cells(&self, wanted: u32) -> bool {
        let live = self.slots.iter().flatten();
        let promised: u32 = live.clone().map(|s| s.undecoded().len() as u32).sum();
        let count = live.count() as u32 + 1;
        let reserve = (self.shape.context_tokens / RESERVE_PART).min(RESERVE_CELLS_MAX);
        let cells = self.pool.cells();
        count == 1 || wanted + promised + count * reserve <= cells.free + cells.cached
    }

    /// Gives a sequence its id, with the prefix that others have already computed, and looks for
    /// one that is about to compute more of it. False if no sequence id is free.
    fn begin(&mut self, sequence: &mut Sequence) -> bool {
        let opened = self.open_sequence(sequence);
        let leader = self.leader_of(sequence).filter(|_| opened);
        sequence.leader = leader.filter(|l| !self.snapshots() || self.request_save(*l));
        opened
    }

    /// The live sequence that will compute the longest prefix of this one.
    fn leader_of(&self, sequence: &Sequence) -> Option<Leader> {
        let least = match self.shape.shares_prefixes {
            true => LEAD_TOKENS_MIN,
            false if self.snapshots() => TOKENS_MIN,
            false => return None,
        };
        if !sequence.uses_cache() {
            return None;
        }
        let wanted = &sequence.tokens()[..sequence.tokens().len() - 1];
        let worthwhile = (sequence.position() + least) as usize;
        let lead = |other: &Sequence| {
            let same = common(other.tokens(), wanted);
            let leads = other.prefix_owner == sequence.prefix_owner
                && same >= worthwhile
                && (other.position() as usize) < same;
            leads.then_some(Leader { arrival: other.arrival, tokens: same as u32 })
        };
        self.slots.iter().flatten().filter_map(lead).max_by_key(|leader| leader.tokens)
    }

    /// Returns false if every sequence id is live, which cannot happen as long as there are at
    /// least as many as slots.
    fn open_sequence(&mut self, sequence: &mut Sequence) -> bool {
        while let Some(source) = self.source_of(sequence) {
            let Some(opened) = self.pool.open(sequence.prefix_owner, &[]) else { return false };
            let seq = self.take_id(opened);
            if self.restore(sequence, seq, &source) {
                self.begin_at(sequence, seq, source.tokens);
                return true;
            }
            self.pool.discard(seq);
        }
        let wanted = if sequence.uses_cache() { sequence.tokens() } else { &[] };
        let Some(opened) = self.pool.open(sequence.prefix_owner, wanted) else { return false };
        let shared = opened.shared.map_or(0, |(_, tokens)| tokens);
        let seq = self.take_id(opened);
        self.begin_at(sequence, seq, shared);
        true
    }

    fn begin_at(&mut self, sequence: &mut Sequence, seq: SeqId, tokens: u32) {
        sequence.begin(seq, tokens);
        self.plan_saves(sequence);
    }

    /// Prepares a sequence id of the context for a new sequence.
    pub(super) fn take_id(&mut self, opened: Opened) -> SeqId {
        let Opened { seq, shared, evicted } = opened;
        let keeps_own = shared.is_some_and(|(from, _)| from == seq);
        if let Some(evicted) = evicted {
            self.save_evicted(&evicted);
            if !keeps_own {
                self.stats.evictions += 1;
                self.model.clear(seq);
            }
        }
        match shared {
            Some((_, tokens)) if keeps_own => self.model.truncate(seq, tokens),
            Some((from, tokens)) => self.model.share(from, seq, tokens),
            None => {}
        }
        seq
    }

    /// Continues sequences whose leader has computed the common prefix or is gone.
    pub(super) fn follow_leaders(&mut self) {
        for slot in 0..self.slots.len() {
            let Some(sequence) = &self.slots[slot] else { continue };
            let Some(leader) = sequence.leader else { continue };
            let still_ahead =
                self.slots.iter().flatten().any(|other| {
                    other.arrival == leader.arrival && other.position() < leader.tokens
                });
            if still_ahead {
                continue;
            }
            let Some(mut sequence) = self.slots[slot].take() else { continue };
            sequence.leader = None;
            if self.reusable(&sequence) > sequence.position() {
                self.pool.discard(sequence.seq);
                self.model.clear(sequence.seq);
                // Its own id was just given back.
                self.open_sequence(&mut sequence);
            }
            self.slots[slot] = Some(sequence);
        }
    }

    /// Preempts the youngest sequences until every decoding one has a KV cell for its next token,
    /// and prefill at least one.
    pub(super) fn make_room(&mut self) {
        loop {
            let live = self.slots.iter().flatten();
            let decoding = live.clone().filter(|s| s.is_decoding());
            let decoding: u32 = decoding.map(|s| s.undecoded().len() as u32).sum();
            let prefilling = live.clone().any(|s| !s.is_decoding());
            let cells = self.pool.cells();
            if decoding + u32::from(prefilling) <= cells.free + cells.cached
                || live.clone().count() < 2
            {
                return;
            }
            let youngest = (0..self.slots.len())
                .filter(|i| self.slots[*i].is_some())
                .max_by_key(|i| self.slots[*i].as_ref().map(|s| s.arrival));
            let Some(mut sequence) = youngest.and_then(|i| self.slots[i].take()) else { return };
            self.close(&sequence);
            sequence.preempt();
            self.stats.preemptions += 1;
            self.preempted.push(sequence);
        }
    }
}
