//! Sampling: the tokens that follow from the logits of a step's batch.

use std::time::Duration;

use super::{Engine, token_logprob};
use crate::scheduler::drafts::Outcome;
use crate::scheduler::engine_thread::Emit;
use crate::scheduler::planning::SlotRows;
use crate::scheduler::sequence::Sampled;
use crate::types::model::{Model, Slot};
use crate::types::request::{Event, Failure, FinishReason, Token};

/// How a response ended.
type End = Result<FinishReason, Failure>;

impl<M: Model> Engine<M> {
    pub(super) fn sample_all(&mut self, shares: &[SlotRows], now: Duration, emit: Emit<'_>) {
        let mut row = 0;
        for share in shares {
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
                self.sample_rows(*share, last, now, emit)
            };
            self.drop_draft(*share);
            match end {
                None => {}
                Some(Ok(reason)) => self.finish(share.slot, reason, emit),
                Some(Err(failure)) => self.fail_one(share.slot, failure, emit),
            }
        }
    }

    /// Samples a token from the logits of row `last`, and one more after each accepted draft token.
    fn sample_rows(
        &mut self,
        share: SlotRows,
        last: usize,
        now: Duration,
        emit: Emit<'_>,
    ) -> Option<End> {
        for drafted in 0..=share.drafted as usize {
            let (token, finished) = match self.sample(share.slot, last + drafted, now, emit)? {
                Ok(sampled) => sampled,
                Err(failure) => return Some(Err(failure)),
            };
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
        }
        None
    }

    /// Removes the rejected part of a draft from the KV cells.
    fn drop_draft(&mut self, share: SlotRows) {
        if let Some(sequence) = &self.slots[share.slot as usize]
            && share.drafted > 0
        {
            self.model.truncate(sequence.seq, sequence.position());
        }
    }

    /// Chooses the next token of the sequence in a slot from the logits of a row. `None` if the
    /// slot is empty.
    fn sample(
        &mut self,
        slot: Slot,
        row: usize,
        now: Duration,
        emit: Emit<'_>,
    ) -> Option<Result<(Token, Option<FinishReason>), Failure>> {
        let sequence = self.slots[slot as usize].as_mut()?;
        let logits = self.model.logits(row);
        let token = match sequence.sample(logits, self.model.end_tokens(), &mut self.scratch) {
            Ok(token) => token,
            Err(failure) => return Some(Err(failure)),
        };
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
        Some(Ok((token, advance.finished)))
    }

    fn fail_one(&mut self, slot: Slot, failure: Failure, emit: Emit<'_>) {
        let Some(sequence) = &self.slots[slot as usize] else { return };
        emit(sequence.id, Event::Failed(failure));
        self.free(slot);
    }
}
