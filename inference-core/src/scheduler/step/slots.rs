//! What slots hold: copies it for a file, and lets a slot hold what a file has.
//!
//! A slot is only a number to find tokens by: their state is wherever saved prefixes are, in the
//! pool or in memory, and what is restored is one of them. So it gives way like all others, and
//! any prompt of its owner that begins with its tokens begins with it.

use std::sync::Arc;

use super::Engine;
use crate::scheduler::sequence::Sequence;
use crate::scheduler::slots::{SlotAct, SlotContent, SlotOrder, State};
use crate::types::model::{Model, Slot};
use crate::types::request::{SlotFailure, SlotName, Tenant, Token};

impl<M: Model> Engine<M> {
    /// Remembers what a sequence that ends leaves in its slot, if its request wants that.
    pub(super) fn remember_slot(&mut self, slot: Slot, sequence: &Sequence) {
        let number = match sequence.slot_name {
            Some(SlotName::Own) => slot,
            Some(SlotName::Number(number)) => number,
            None => return,
        };
        let held = &sequence.tokens()[..sequence.position() as usize];
        if sequence.uses_cache() && !held.is_empty() {
            self.held_slots.record(sequence.prefix_owner, number, held.into());
        }
    }

    pub(super) fn carry_out(&mut self, order: SlotOrder) -> Result<SlotContent, SlotFailure> {
        let SlotOrder { owner, slot, act } = order;
        match act {
            SlotAct::Copy => {
                let tokens = self.held_slots.of(owner, slot).ok_or(SlotFailure::Empty(slot))?;
                let (tokens, state) = self.copy_state(owner, slot, tokens)?;
                Ok(SlotContent { tokens, state: Some(state) })
            }
            SlotAct::Fill(tokens, state) => {
                self.fill(owner, slot, tokens.clone(), state)?;
                Ok(SlotContent { tokens, state: None })
            }
            SlotAct::Erase => {
                let tokens = self.held_slots.take(owner, slot).ok_or(SlotFailure::Empty(slot))?;
                self.erase(owner, &tokens);
                Ok(SlotContent { tokens, state: None })
            }
        }
    }

    /// The state of these tokens, or of more that begin with them.
    fn copy_state(
        &mut self,
        owner: Tenant,
        slot: u32,
        tokens: Arc<[Token]>,
    ) -> Result<(Arc<[Token]>, State), SlotFailure> {
        if let Some(state) = self.saved.exact(owner, &tokens) {
            return Ok((tokens, state));
        }
        if let Some(copied) = self.copy_from_pool(owner, &tokens) {
            return Ok((tokens, Arc::new(copied?)));
        }
        match self.saved.source(owner, &tokens) {
            Some(source) if source.tokens == tokens.len() as u32 => Ok((source.held, source.state)),
            _ => Err(SlotFailure::Empty(slot)),
        }
    }

    /// Copies the state of these tokens from the pool, through a sequence of its own that shares
    /// their cells. `None` if the pool does not hold all of them.
    fn copy_from_pool(
        &mut self,
        owner: Tenant,
        tokens: &[Token],
    ) -> Option<Result<Box<[u8]>, SlotFailure>> {
        // The pool leaves out the last token of a prompt, which is computed for its logits.
        let prompt: Vec<Token> = tokens.iter().copied().chain([0]).collect();
        let count = tokens.len() as u32;
        if self.pool.matching(owner, &prompt) < count {
            return None;
        }
        let opened = self.pool.open(owner, &prompt)?;
        let seq = self.take_id(opened);
        let state = self.model.save(seq, count, self.saved.bytes_max());
        self.pool.close(seq, &mut self.removed);
        for seq in self.removed.drain(..) {
            self.model.clear(seq);
        }
        Some(state.ok_or(SlotFailure::TooLarge))
    }

    fn fill(
        &mut self,
        owner: Tenant,
        slot: u32,
        tokens: Arc<[Token]>,
        state: Box<[u8]>,
    ) -> Result<(), SlotFailure> {
        let count = tokens.len() as u32;
        let has_room = state.len() <= self.saved.bytes_max() && count <= self.shape.kv_cells;
        if !has_room || count >= self.shape.context_tokens {
            return Err(SlotFailure::TooLarge);
        }
        self.saved.insert_read(owner, tokens.clone(), state);
        self.spill();
        if self.saved.covered(owner, &tokens) < count {
            return Err(SlotFailure::TooLarge);
        }
        self.held_slots.record(owner, slot, tokens);
        Ok(())
    }

    /// Forgets the state of exactly these tokens. What other sequences share of them stays theirs.
    fn erase(&mut self, owner: Tenant, tokens: &[Token]) {
        self.saved.remove(owner, tokens);
        if let Some(disk) = &mut self.disk {
            disk.forget(owner, tokens);
        }
        for kept in self.pool.kept_sequences() {
            if kept.tenant == owner && kept.tokens == tokens {
                self.pool.discard(kept.seq);
                self.model.clear(kept.seq);
            }
        }
    }
}
