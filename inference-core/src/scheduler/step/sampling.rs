//! Sampling: the tokens that follow from the logits of a step's batch.
//!
//! The first token of each sequence takes a look at the whole vocabulary, and depends on no other
//! sequence: all are sampled side by side. What follows from a token happens in order.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::{Engine, token_logprob};
use crate::scheduler::drafts::Outcome;
use crate::scheduler::engine_thread::Emit;
use crate::scheduler::planning::SlotRows;
use crate::scheduler::sequence::{Sampled, Sequence};
use crate::scheduler::speculation::Speculation;
use crate::types::model::{Model, Slot, Undo};
use crate::types::request::{Event, Failure, FinishReason, Token};

/// How a response ended.
type End = Result<FinishReason, Failure>;

/// Most threads that sample, because each needs scratch for a vocabulary.
pub(super) const SAMPLING_THREADS_MAX: usize = 8;

/// A sequence whose first token is sampled.
struct Turn<'a> {
    sequence: &'a mut Sequence,
    logits: &'a [f32],
    /// Index of its share of the batch.
    share: usize,
    token: Option<Result<Token, Failure>>,
}

impl<M: Model> Engine<M> {
    pub(super) fn sample_all(&mut self, shares: &[SlotRows], now: Duration, emit: Emit<'_>) {
        let firsts = self.sample_firsts(shares);
        let mut row = 0;
        for (share, first) in shares.iter().zip(firsts) {
            let last = row + share.rows as usize - 1;
            row += share.all_rows() as usize;
            let Some(sequence) = &mut self.slots[share.slot as usize] else { continue };
            sequence.drafted += share.drafted;
            self.stats.drafted_tokens += u64::from(share.drafted);
            let end = if !sequence.undecoded().is_empty() || sequence.cancel.is_set() {
                // A sequence canceled during the decode gets no further token.
                None
            } else if sequence.is_full() {
                Some(Ok(FinishReason::Length))
            } else {
                first.and_then(|first| self.take_rows(*share, (last, first), now, emit))
            };
            self.drop_rejected(*share);
            match end {
                None => {}
                Some(Ok(reason)) => self.finish(share.slot, reason, emit),
                Some(Err(failure)) => self.fail_one(share.slot, failure, emit),
            }
        }
    }

    /// The first token of each share whose sequence gets one.
    fn sample_firsts(&mut self, shares: &[SlotRows]) -> Vec<Option<Result<Token, Failure>>> {
        let mut sequences: Vec<_> = self.slots.iter_mut().map(Option::as_mut).collect();
        let mut turns = Vec::with_capacity(shares.len());
        let mut row = 0;
        for (share, rows) in shares.iter().enumerate() {
            let last = row + rows.rows as usize - 1;
            row += rows.all_rows() as usize;
            let Some(sequence) = sequences[rows.slot as usize].take() else { continue };
            if sequence.undecoded().is_empty() && !sequence.cancel.is_set() && !sequence.is_full() {
                let logits = self.model.logits(last);
                turns.push(Mutex::new(Turn { sequence, logits, share, token: None }));
            }
        }
        let (next, end_tokens) = (AtomicUsize::new(0), self.model.end_tokens());
        self.model.run_on_threads(turns.len(), &|thread| {
            let Some(scratch) = self.scratches.get(thread) else { return };
            let mut scratch = scratch.lock().unwrap_or_else(PoisonError::into_inner);
            while let Some(turn) = turns.get(next.fetch_add(1, Ordering::Relaxed)) {
                let mut turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
                let Turn { sequence, logits, token, .. } = &mut *turn;
                *token = Some(sequence.sample(logits, end_tokens, &mut scratch));
            }
        });
        let mut firsts: Vec<_> = shares.iter().map(|_| None).collect();
        for turn in turns {
            let turn = turn.into_inner().unwrap_or_else(PoisonError::into_inner);
            firsts[turn.share] = turn.token;
        }
        firsts
    }

    /// Takes a token that was sampled from the logits of a row, and samples one more after each
    /// accepted draft token.
    fn take_rows(
        &mut self,
        share: SlotRows,
        (last, first): (usize, Result<Token, Failure>),
        now: Duration,
        emit: Emit<'_>,
    ) -> Option<End> {
        let mut sampled = first;
        for drafted in 0..=share.drafted as usize {
            let token = match sampled {
                Ok(token) => token,
                Err(failure) => return Some(Err(failure)),
            };
            let finished = self.take(share.slot, (last + drafted, token), now, emit)?;
            if self.draft_model.as_mut().is_some_and(|model| model.record_token(token)) {
                self.speculation.iter_mut().for_each(Speculation::forget_drafting);
            }
            let sequence = self.slots[share.slot as usize].as_mut()?;
            let Outcome { is_accepted, judged } = sequence.drafts.record(drafted, token);
            if let Some((model, judged)) = self.draft_model.as_mut().zip(judged) {
                model.record(judged);
            }
            if finished.is_some() || !is_accepted || drafted == share.drafted as usize {
                return finished.map(Ok);
            }
            self.stats.accepted_tokens += 1;
            sequence.accepted += 1;
            self.pool.append(sequence.seq, &[token]);
            sequence.record_decoded(1);
            let logits = self.model.logits(last + drafted + 1);
            sampled = sequence.sample(logits, self.model.end_tokens(), &mut self.scratch);
        }
        None
    }

    /// Removes the rejected part of a draft from the model's state. If it can only undo the whole
    /// batch, what was accepted becomes part of the next one.
    fn drop_rejected(&mut self, share: SlotRows) {
        let Some(sequence) = &mut self.slots[share.slot as usize] else { return };
        if share.drafted == 0 {
            return;
        }
        if self.shape.undo == Undo::LastTokens {
            return self.model.truncate(sequence.seq, sequence.position());
        }
        let Some((before, spare)) = sequence.take_checkpoint() else { return };
        if sequence.position() == before + share.all_rows() {
            return self.model.drop_checkpoint(spare);
        }
        self.model.roll_back(sequence.seq, spare);
        self.pool.shorten(sequence.seq, sequence.roll_back(before));
    }

    /// Returns a sequence whose batch was not computed to the state before it.
    pub(super) fn undo_batch(&mut self, share: SlotRows) {
        let Some(sequence) = &mut self.slots[share.slot as usize] else { return };
        if let Some((_, spare)) = sequence.take_checkpoint() {
            self.model.roll_back(sequence.seq, spare);
        }
    }

    /// Appends a token, sampled from the logits of a row, to the sequence in a slot. `None` if the
    /// slot is empty, or else whether the response ends with it.
    fn take(
        &mut self,
        slot: Slot,
        (row, token): (usize, Token),
        now: Duration,
        emit: Emit<'_>,
    ) -> Option<Option<FinishReason>> {
        let sequence = self.slots[slot as usize].as_mut()?;
        self.stats.generated_tokens += 1;
        let logprob = sequence
            .logprobs()
            .map(|count| token_logprob(&self.model, row, (token, count), &mut self.scratch));
        self.piece.clear();
        self.model.piece(token, sequence.is_visible(token), &mut self.piece);
        let is_end = sequence.is_end(token, self.model.end_tokens());
        let sampled = Sampled { token, piece: &self.piece, is_end, logprob, now: Some(now) };
        let advance = sequence.advance(sampled);
        if let Some(chunk) = advance.chunk {
            emit(sequence.id, Event::Text(chunk));
        }
        Some(advance.finished)
    }

    fn fail_one(&mut self, slot: Slot, failure: Failure, emit: Emit<'_>) {
        let Some(sequence) = &self.slots[slot as usize] else { return };
        emit(sequence.id, Event::Failed(failure));
        self.free(slot);
    }
}
