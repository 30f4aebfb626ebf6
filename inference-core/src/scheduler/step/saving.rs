//! Saves the states of sequences that cannot share cells, and begins new ones with them; see
//! [`crate::scheduler::saved_prefixes`].

use super::Engine;
use crate::scheduler::planning::SlotRows;
use crate::scheduler::saved_prefixes::TOKENS_MIN;
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
        shared.max(self.saved.matching(sequence.prefix_owner, &tokens[..tokens.len() - 1]))
    }

    /// Fills a new sequence with the longest saved prefix. Returns its length in tokens.
    pub(super) fn restore(&mut self, sequence: &Sequence, seq: SeqId) -> u32 {
        let wanted = &sequence.tokens()[..sequence.tokens().len() - 1];
        let Some((tokens, state)) = self.saved.longest(sequence.prefix_owner, wanted) else {
            return 0;
        };
        if tokens > self.pool.cells().free {
            return 0;
        }
        let prefix = &wanted[..tokens as usize];
        if self.model.restore(seq, state) {
            self.pool.append(seq, prefix);
            return tokens;
        }
        self.saved.remove(sequence.prefix_owner, prefix);
        0
    }

    /// Decides where to save the state of a sequence that begins to compute its prompt.
    pub(super) fn plan_saves(&self, sequence: &mut Sequence) {
        if !self.saves() || !sequence.uses_cache() {
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

    /// True if the states of sequences are saved.
    pub(super) fn saves(&self) -> bool {
        self.saved.bytes_max() > 0
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
        let is_worthwhile = self.saves() && sequence.uses_cache() && held >= TOKENS_MIN;
        if !is_worthwhile || self.saved.record_use(sequence.prefix_owner, tokens) {
            return;
        }
        if let Some(state) = self.model.save(sequence.seq, held, self.saved.bytes_max()) {
            self.saved.insert(sequence.prefix_owner, tokens, state);
        }
    }
}
