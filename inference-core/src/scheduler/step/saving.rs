//! Saves the states of sequences, and begins new ones with them; see
//! [`crate::scheduler::saved_prefixes`].
//!
//! A model whose sequences share KV cells keeps finished ones in the pool, so only what the pool
//! evicts is saved. Any other model saves the states that later prompts probably continue.

use super::Engine;
use super::saved_states::Source;
use crate::scheduler::kv_pool::Evicted;
use crate::scheduler::planning::SlotRows;
use crate::scheduler::saved_prefixes::{TOKENS_MIN, is_worth_a_copy};
use crate::scheduler::sequence::{Leader, Sequence};
use crate::types::model::{Model, SeqId};

/// A prompt with this many new tokens is saved before its end: it may be asked again with another
/// ending, or without the reasoning of its response.
const LONG_PROMPT: u32 = 256;
/// Tokens of the end of a prompt that the next turn often lacks: the header of the response.
const PROMPT_END: u32 = 16;

impl<M: Model> Engine<M> {
    /// Tokens that a sequence would begin with if it was opened now.
    pub(super) fn reusable(&self, sequence: &Sequence) -> u32 {
        let tokens = sequence.tokens();
        let shared = self.pool.matching(sequence.prefix_owner, tokens);
        shared.max(self.saved.covered(sequence.prefix_owner, &tokens[..tokens.len() - 1]))
    }

    /// The saved state that a new sequence begins with, if it covers enough more than the pool to
    /// be worth a copy, and there are cells for it.
    pub(super) fn source_of(&mut self, sequence: &Sequence) -> Option<Source> {
        if self.saved.bytes_max() == 0 || !sequence.uses_cache() {
            return None;
        }
        let (owner, tokens) = (sequence.prefix_owner, sequence.tokens());
        let (known, least) = match self.shape.shares_prefixes {
            true => (self.pool.matching(owner, tokens), TOKENS_MIN),
            false => (0, 1),
        };
        let wanted = &tokens[..tokens.len() - 1];
        let gained = self.saved.covered(owner, wanted).saturating_sub(known);
        if gained < least {
            return None;
        }
        let source = self.saved.source(owner, wanted)?;
        let held = source.held.len() as u32;
        // Others give up their cells only for a state that is mostly used.
        let has_room = held <= self.pool.cells().free || is_worth_a_copy(gained, held);
        (has_room && self.has_cells(held.max(tokens.len() as u32))).then_some(source)
    }

    /// Fills a new sequence with a saved state. Returns false if that fails; the state is dropped.
    pub(super) fn restore(&mut self, sequence: &Sequence, seq: SeqId, source: &Source) -> bool {
        let held = source.held.len() as u32;
        self.evict_for(held);
        if held > self.pool.cells().free || !self.model.restore(seq, &source.state) {
            self.saved.remove(sequence.prefix_owner, &source.held);
            if let Some(disk) = &mut self.disk {
                disk.forget(sequence.prefix_owner, &source.held);
            }
            return false;
        }
        if source.tokens < held {
            self.model.truncate(seq, source.tokens);
        }
        self.pool.append(seq, &source.held[..source.tokens as usize]);
        let (count, tokens) = match source.from_disk {
            true => (&mut self.stats.disk_prefixes, &mut self.stats.disk_tokens),
            false => (&mut self.stats.restored_prefixes, &mut self.stats.restored_tokens),
        };
        *count += 1;
        *tokens += u64::from(source.tokens);
        true
    }

    /// Saves the state of a sequence that the pool evicted.
    pub(super) fn save_evicted(&mut self, evicted: &Evicted) {
        let (tenant, tokens) = (evicted.tenant, &evicted.tokens[..]);
        let is_worthwhile = self.saved.bytes_max() > 0 && evicted.lost >= TOKENS_MIN;
        if !is_worthwhile || self.saved.has(tenant, tokens) {
            return;
        }
        let held = tokens.len() as u32;
        if let Some(state) = self.model.save(evicted.seq, held, self.saved.bytes_max()) {
            self.saved.insert(tenant, tokens.into(), state);
            self.spill();
        }
    }

    /// Decides where to save the state of a sequence that begins to compute its prompt.
    pub(super) fn plan_saves(&self, sequence: &mut Sequence) {
        if !self.snapshots() || !sequence.uses_cache() {
            return;
        }
        let begun = sequence.position();
        let prompt = sequence.prompt_tokens();
        let wanted = &sequence.tokens()[..prompt as usize - 1];
        // Where it departs from another prompt, a third one may depart, too.
        let branch = self.saved.common(sequence.prefix_owner, wanted);
        if branch >= begun + TOKENS_MIN {
            sequence.saves.add(branch);
        }
        let end = prompt.saturating_sub(PROMPT_END);
        if end >= begun + LONG_PROMPT {
            sequence.saves.add(end);
        }
    }

    /// Makes a live sequence save its state where others depart from it. False if it cannot.
    pub(super) fn request_save(&mut self, leader: Leader) -> bool {
        let mut live = self.slots.iter_mut().flatten();
        let leading = live.find(|s| s.arrival == leader.arrival && s.uses_cache());
        leading.is_some_and(|sequence| sequence.saves.add(leader.tokens))
    }

    /// True if the states of live sequences are saved, because they cannot share their cells.
    pub(super) fn snapshots(&self) -> bool {
        !self.shape.shares_prefixes && self.saved.bytes_max() > 0
    }

    /// Saves the states of prompts that have reached the positions for it.
    pub(super) fn save_due(&mut self, shares: &[SlotRows]) {
        for share in shares {
            let slot = share.slot as usize;
            let Some(mut sequence) = self.slots[slot].take() else { continue };
            if sequence.saves.take(sequence.position()) {
                self.save(&sequence);
            }
            self.slots[slot] = Some(sequence);
        }
    }

    /// Saves the state of a sequence, if it is worth it and not saved yet.
    pub(super) fn save(&mut self, sequence: &Sequence) {
        let held = sequence.position();
        let tokens = &sequence.tokens()[..held as usize];
        let is_worthwhile = self.snapshots() && sequence.uses_cache() && held >= TOKENS_MIN;
        if !is_worthwhile || self.saved.has(sequence.prefix_owner, tokens) {
            return;
        }
        if let Some(state) = self.model.save(sequence.seq, held, self.saved.bytes_max()) {
            self.saved.insert(sequence.prefix_owner, tokens.into(), state);
            self.spill();
        }
    }
}
