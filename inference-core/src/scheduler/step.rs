//! The engine's step: commands -> plan -> draft -> decode -> sample -> emit.
//!
//! [`Engine`] owns the model, the bookkeeping of its KV cells, and every sequence. One thread
//! ([`crate::scheduler::engine_thread`]) or a test drives it; time is an argument, events go to a
//! callback. [`admission`] decides which requests get slots, [`drafting`] which tokens are computed
//! ahead, [`sampling`] handles what was computed, and [`saving`] keeps states for later prompts, in
//! [`saved_states`] and [`files`]; [`slots`] copies them for slots that are saved.

use std::sync::Mutex;
use std::time::Duration;

use crate::scheduler::draft_model::DraftModel;
use crate::scheduler::engine_thread::Emit;
use crate::scheduler::engine_thread::StepEngine;
use crate::scheduler::kv_pool::KvPool;
use crate::scheduler::planning::{self, PlannedSequence, SlotRows, StepLimits};
use crate::scheduler::prefix_disk::PrefixDisk;
use crate::scheduler::queue::FairQueue;
use crate::scheduler::sampler::Scratch;
use crate::scheduler::sampler::logprobs::{Logprob, logprobs};
use crate::scheduler::sequence::{CancelFlag, Job, Sequence};
use crate::scheduler::slots::{HeldSlots, SlotContent, SlotOrder};
use crate::scheduler::speculation::{DecodeStep, Speculation};
use crate::scheduler::step_pace::{StepPace, smooth};
use crate::types::model::SeqId;
use crate::types::model::{Decoded, Model, Row, Shape, Slot, Undo};
use crate::types::request::{
    EngineStats, Event, Failure, FinishReason, LikelyToken, SlotFailure, Token, TokenLogprob,
};

mod admission;
mod drafting;
mod files;
mod sampling;
mod saved_states;
mod saving;
mod slots;
#[cfg(test)]
mod tests;

use drafting::DraftTime;
use files::FileWaits;
use sampling::SAMPLING_THREADS_MAX;
use saved_states::SavedStates;

/// Text generation engine: model, slots, and queue. See the module.
#[derive(Debug)]
pub struct Engine<M> {
    model: M,
    shape: Shape,
    pool: KvPool,
    saved: SavedStates,
    /// Files of saved prefixes, if there are any.
    disk: Option<PrefixDisk>,
    file_waits: FileWaits,
    pace: StepPace,
    /// Decides on drafts, if there are any.
    speculation: Option<Speculation>,
    draft_model: Option<DraftModel<M>>,
    queue: FairQueue<Job>,
    /// The request at the head of the queue, while it lacks KV cells.
    next: Option<Job>,
    /// Preempted sequences, which continue when there are KV cells again.
    preempted: Vec<Sequence>,
    slots: Vec<Option<Sequence>>,
    held_slots: HeldSlots,
    arrivals: u64,
    stats: EngineStats,
    /// Kept between steps to save allocations.
    rows: Vec<Row>,
    piece: Vec<u8>,
    scratch: Scratch,
    /// Of threads that sample side by side.
    scratches: [Mutex<Scratch>; SAMPLING_THREADS_MAX],
    removed: Vec<SeqId>,
}

impl<M: Model> Engine<M> {
    /// Creates an engine on `model` with at most `queue_max` requests waiting for a slot.
    pub fn new(model: M, queue_max: usize) -> Self {
        let shape = model.shape();
        Self {
            model,
            shape,
            pool: KvPool::new(shape.kv_cells, shape.seq_ids, shape.shares_prefixes),
            saved: SavedStates::new(shape.saved_bytes_max as u64, shape.shares_prefixes),
            disk: None,
            file_waits: FileWaits::default(),
            pace: StepPace::new(shape.slots),
            speculation: None,
            draft_model: None,
            queue: FairQueue::new(queue_max),
            next: None,
            preempted: Vec::new(),
            slots: (0..shape.slots).map(|_| None).collect(),
            held_slots: HeldSlots::default(),
            arrivals: 0,
            stats: EngineStats { slots: shape.slots, ..EngineStats::default() },
            rows: Vec::new(),
            piece: Vec::new(),
            scratch: Scratch::default(),
            scratches: Default::default(),
            removed: Vec::new(),
        }
    }

    /// Enables speculation: draft tokens are computed along with the last one where that is faster.
    /// Responses stay the same. Has no effect on a model whose sequences cannot lose what they
    /// computed.
    pub fn with_speculation(mut self, is_on: bool) -> Self {
        let can_undo = self.shape.undo != Undo::Nothing;
        let undoes_batches = self.shape.undo == Undo::WholeBatch;
        self.speculation = (is_on && can_undo).then(|| Speculation::new(undoes_batches));
        self
    }

    /// Adds a small model that drafts what this one may say, or this one's MTP head, side by side
    /// for as many sequences as it has slots. It needs speculation, and must be able to undo a
    /// draft.
    pub fn with_draft_model(mut self, model: M) -> Self {
        let can_draft = self.speculates() && model.shape().undo != Undo::Nothing;
        self.draft_model = can_draft.then(|| DraftModel::new(model, self.shape.vocabulary));
        self
    }

    /// True if it computes drafts where that is faster.
    pub fn speculates(&self) -> bool {
        self.speculation.is_some()
    }

    /// The model it runs.
    pub fn model(&self) -> &M {
        &self.model
    }

    fn plan(&mut self) -> Vec<SlotRows> {
        let waiting: Vec<PlannedSequence> =
            self.slots.iter().enumerate().filter_map(view).collect();
        let decoding = waiting.iter().filter(|w| w.decoding).count() as u32;
        self.pace.set_waiting(decoding, waiting.len() as u32 - decoding);
        let cells = self.pool.cells();
        // Of any other sequence, at most one row needs logits.
        let others = waiting.iter().filter(|w| !w.needs_all_logits).count() as u32;
        let limits = StepLimits {
            logits_rows: self.shape.logits_rows.saturating_sub(others).max(1),
            batch_rows: self.shape.batch_rows,
            prefill_rows: self.pace.prefill_rows(decoding, self.shape.batch_rows),
            kv_cells: cells.free + cells.cached,
        };
        let shares = planning::plan(&waiting, limits);
        for sequence in self.slots.iter_mut().flatten() {
            sequence.skipped_steps = sequence.skipped_steps.saturating_add(1);
        }
        for share in &shares {
            if let Some(sequence) = &mut self.slots[share.slot as usize] {
                sequence.skipped_steps = 0;
            }
        }
        shares
    }

    fn collect_rows(&mut self, shares: &[SlotRows]) {
        self.rows.clear();
        for share in shares {
            let Some(sequence) = &self.slots[share.slot as usize] else { continue };
            let tokens = sequence.undecoded();
            let last = tokens.len() - 1;
            for (i, token) in tokens.iter().take(share.rows as usize).enumerate() {
                self.rows.push(Row {
                    seq: sequence.seq,
                    position: sequence.position() + i as u32,
                    token: *token,
                    logits: i == last || sequence.needs_logits_at(sequence.position() + i as u32),
                });
            }
            let after = sequence.position() + share.rows;
            let drafts = sequence.drafts.tokens().iter().take(share.drafted as usize);
            self.rows.extend((after..).zip(drafts).map(|(position, token)| Row {
                seq: sequence.seq,
                position,
                token: *token,
                logits: true,
            }));
        }
        debug_assert!(self.rows.len() <= self.shape.batch_rows as usize);
    }

    /// Evicts kept sequences until `cells` KV cells are free.
    fn evict_for(&mut self, cells: u32) {
        while self.pool.cells().free < cells
            && let Some(evicted) = self.pool.evict()
        {
            self.stats.evictions += 1;
            self.save_evicted(&evicted);
            self.model.clear(evicted.seq);
        }
    }

    /// Records the rows of a batch that was decoded.
    fn record_rows(&mut self, shares: &[SlotRows]) {
        for share in shares {
            let Some(sequence) = &mut self.slots[share.slot as usize] else { continue };
            self.pool.append(sequence.seq, &sequence.undecoded()[..share.rows as usize]);
            sequence.record_decoded(share.rows);
        }
    }

    fn report_prefill(&mut self, now: Duration, emit: Emit<'_>) {
        for sequence in self.slots.iter_mut().flatten() {
            if let Some(event) = sequence.report_prefill(now) {
                emit(sequence.id, event);
            }
        }
    }

    /// Emits the logprobs of prompt tokens that the logits of a batch tell.
    fn emit_prompt_logprobs(&mut self, shares: &[SlotRows], emit: Emit<'_>) {
        let mut row = 0;
        for share in shares {
            let first = row;
            row += share.all_rows() as usize;
            let Some(sequence) = &mut self.slots[share.slot as usize] else { continue };
            let due = sequence.take_due_logprobs(share.rows);
            if due.is_empty() {
                continue;
            }
            let count = sequence.logprobs().unwrap_or_default();
            let mut of_token = |index: u32| {
                let token = sequence.tokens()[index as usize];
                match index.checked_sub(sequence.position() + 1) {
                    Some(after) => {
                        let row = first + after as usize;
                        token_logprob(&self.model, row, (token, count), &mut self.scratch)
                    }
                    // The first token of the prompt.
                    None => {
                        let chosen = likely(&self.model, (token, 0.0));
                        TokenLogprob { chosen, likeliest: Vec::new() }
                    }
                }
            };
            let logprobs = due.map(&mut of_token).collect();
            emit(sequence.id, Event::PromptLogprobs(logprobs));
        }
    }

    /// Ends a complete response.
    fn finish(&mut self, slot: Slot, reason: FinishReason, emit: Emit<'_>) {
        let Some(sequence) = &self.slots[slot as usize] else { return };
        self.stats.cached_tokens += u64::from(sequence.cached_tokens);
        emit(sequence.id, sequence.finish(reason));
        self.free(slot);
    }

    /// Fails all sequences in a failed batch; all others continue.
    fn fail(&mut self, shares: &[SlotRows], why: &str, emit: Emit<'_>) {
        for share in shares {
            if let Some(sequence) = self.slots[share.slot as usize].take() {
                emit(sequence.id, Event::Failed(Failure::Decode(why.to_string())));
                // The context's state of this sequence is unknown now.
                self.pool.discard(sequence.seq);
                self.model.clear(sequence.seq);
            }
        }
    }

    /// Ends the sequence in a slot; its KV cells or its state are kept for prompts with the same
    /// prefix.
    fn free(&mut self, slot: Slot) {
        if let Some(sequence) = self.slots[slot as usize].take() {
            self.remember_slot(slot, &sequence);
            self.close(&sequence);
        }
    }

    fn close(&mut self, sequence: &Sequence) {
        self.save(sequence);
        self.pool.close(sequence.seq, &mut self.removed);
        for seq in self.removed.drain(..) {
            self.model.clear(seq);
        }
    }

    /// Records how long a step took; returns it if no prompt was in it.
    fn record_timing(
        &mut self,
        shares: &[SlotRows],
        spent: Duration,
        ahead: DraftTime,
    ) -> Option<DecodeStep> {
        let is_decoding = |share: &&SlotRows| {
            self.slots[share.slot as usize].as_ref().is_some_and(Sequence::is_decoding)
        };
        let rows_of_each: Vec<u32> =
            shares.iter().filter(is_decoding).map(|share| share.all_rows()).collect();
        let (decoding, rows) = (rows_of_each.len() as u32, rows_of_each.iter().sum::<u32>());
        let is_even = rows_of_each.windows(2).all(|two| two[0] == two[1]);
        let prefilled = self.rows.len() as u32 - rows;
        self.stats.prompt_tokens += u64::from(prefilled);
        let seconds = spent.as_secs_f32();
        if seconds <= 0.0 {
            return None;
        }
        let decode_part = match prefilled {
            0 => seconds,
            _ => self.pace.decode_seconds(decoding).min(seconds),
        };
        let drafting = ahead.drafting.as_secs_f32();
        let ahead = drafting + ahead.catching_up.as_secs_f32();
        self.stats.decode_seconds += f64::from(decode_part + ahead);
        self.stats.prefill_seconds += f64::from(seconds - decode_part);
        match prefilled == 0 && rows > decoding {
            true => self.pace.record_drafted_step(decoding, seconds + ahead),
            false => self.pace.record_step(decoding, prefilled, seconds),
        }
        // Only a pure decode or prefill step measures its kind.
        if decoding == 0 {
            smooth(&mut self.stats.prefill_tokens_per_second, prefilled as f32 / seconds);
        }
        let step = DecodeStep { sequences: decoding, rows, is_even, tokens: 0, seconds, drafting };
        (prefilled == 0).then_some(step)
    }

    /// True if a batch may be stopped in the middle. llama.cpp moves recurrent states out of the
    /// way of others layer by layer, so a stop would break those of sequences that are not in it.
    fn may_stop(&self, shares: &[SlotRows]) -> bool {
        let live = self.slots.iter().flatten().count();
        self.shape.undo == Undo::LastTokens || shares.len() == live
    }

    fn record_decode(&mut self, step: DecodeStep) {
        let speed = step.tokens as f32 / (step.seconds + step.drafting);
        smooth(&mut self.stats.decode_tokens_per_second, speed);
        if let Some(speculation) = &mut self.speculation {
            speculation.record(step);
        }
    }
}

impl<M: Model> StepEngine for Engine<M> {
    type Job = Job;

    fn submit(&mut self, job: Job, emit: Emit<'_>) {
        self.stats.is_written = false;
        let tokens = job.tokens.len() as u32;
        if let Err(job) = self.queue.push(job.tenant, tokens, job) {
            emit(job.id, Event::Failed(Failure::QueueFull));
        }
    }

    fn is_idle(&self) -> bool {
        self.queue.is_empty()
            && self.next.is_none()
            && self.preempted.is_empty()
            && self.file_waits.len() == 0
            && self.slots.iter().all(Option::is_none)
    }

    fn stats(&self) -> EngineStats {
        let cells = self.pool.cells();
        EngineStats {
            slots_busy: self.slots.iter().flatten().count() as u32,
            queued: (self.queue.len() + self.file_waits.len()) as u32
                + u32::from(self.next.is_some()),
            preempted: self.preempted.len() as u32,
            kv_cells: self.shape.kv_cells,
            kv_cells_in_use: cells.in_use,
            kv_cells_cached: cells.cached,
            saved_prefix_bytes: self.saved.bytes(),
            disk_prefix_bytes: self.disk.as_ref().map_or(0, PrefixDisk::bytes),
            received_prefixes: self.disk.as_ref().map_or(0, PrefixDisk::received),
            ..self.stats
        }
    }

    fn rest(&mut self, clock: &dyn Fn() -> Duration) -> bool {
        self.take_files(clock);
        let is_more = self.write_all();
        let Some(disk) = self.disk.as_ref().filter(|disk| !disk.is_failing()) else { return false };
        self.stats.is_written = !is_more && disk.is_settled();
        !self.stats.is_written
    }

    fn take_file(&mut self, number: u64) {
        self.disk.iter_mut().for_each(|disk| disk.take_incoming(number));
    }

    fn order_slot(&mut self, order: SlotOrder) -> Result<SlotContent, SlotFailure> {
        self.stats.is_written = false;
        self.carry_out(order)
    }

    fn finish_writing(&mut self, clock: &dyn Fn() -> Duration, until: Duration) {
        self.write_until(clock, until);
    }

    fn admit(&mut self, clock: &dyn Fn() -> Duration, emit: Emit<'_>) {
        self.drop_cancelled(emit);
        self.take_files(clock);
        self.fill_slots(clock, emit);
    }

    fn step(&mut self, clock: &dyn Fn() -> Duration, emit: Emit<'_>) {
        self.admit(clock, emit);
        self.follow_leaders();
        self.make_room();
        let mut shares = self.plan();
        if shares.is_empty() {
            return self.wait_for_file();
        }
        let ahead = self.draft(&mut shares, clock);
        self.collect_rows(&shares);
        self.evict_for(self.rows.len() as u32);
        let begun = clock();
        self.report_prefill(begun, emit);
        let flags: Vec<&CancelFlag> =
            shares.iter().flat_map(|s| &self.slots[s.slot as usize]).map(|s| &s.cancel).collect();
        let may_stop = self.may_stop(&shares);
        // Sequences that still want their rows are not held up by canceled ones.
        let is_unwanted = || may_stop && flags.iter().all(|flag| flag.is_set());
        let decoded = self.model.decode(&self.rows, &is_unwanted);
        if decoded == Ok(Decoded::Whole) {
            self.pass_hidden_states(&shares);
        }
        let spent = clock().saturating_sub(begun);
        self.stats.steps += 1;
        self.stats.slot_steps += shares.len() as u64;
        match decoded {
            Ok(Decoded::Whole) => {
                let step = self.record_timing(&shares, spent, ahead);
                self.emit_prompt_logprobs(&shares, emit);
                self.record_rows(&shares);
                self.save_due(&shares);
                self.report_prefill(begun + spent, emit);
                let before = self.stats.generated_tokens;
                self.sample_all(&shares, clock(), emit);
                let tokens = (self.stats.generated_tokens - before) as u32;
                if let Some(step) = step {
                    self.record_decode(DecodeStep { tokens, ..step });
                }
            }
            // The pool recorded nothing of this batch. What its sequences had before is kept or
            // freed as for every canceled sequence.
            Ok(Decoded::Stopped) => {
                shares.iter().for_each(|share| self.undo_batch(*share));
                self.drop_cancelled(emit);
            }
            Err(error) => {
                shares.iter().for_each(|share| self.undo_batch(*share));
                self.fail(&shares, &error.0, emit);
            }
        }
    }
}

/// The logprob of a token, and of the `count` most likely ones, by the logits of a row.
fn token_logprob<M: Model>(
    model: &M,
    row: usize,
    (token, count): (Token, u32),
    scratch: &mut Scratch,
) -> TokenLogprob {
    let (chosen, likeliest) = logprobs(model.logits(row), token, count, scratch);
    let likeliest = likeliest.into_iter().map(|logprob| likely(model, logprob)).collect();
    TokenLogprob { chosen: likely(model, chosen), likeliest }
}

fn likely<M: Model>(model: &M, (token, logprob): Logprob) -> LikelyToken {
    let mut bytes = Vec::new();
    model.piece(token, true, &mut bytes);
    LikelyToken { token, bytes, logprob }
}

/// The planner's view of a slot; `None` while another sequence is computing its prefix.
fn view((slot, entry): (usize, &Option<Sequence>)) -> Option<PlannedSequence> {
    let sequence = entry.as_ref().filter(|s| s.leader.is_none())?;
    Some(PlannedSequence {
        slot: slot as Slot,
        rows: sequence.undecoded().len() as u32,
        decoding: sequence.is_decoding(),
        skipped_steps: sequence.skipped_steps,
        arrival: sequence.arrival,
        needs_all_logits: sequence.needs_all_logits(),
        rows_max: sequence.saves.distance(sequence.position()).unwrap_or(u32::MAX),
    })
}
