//! One request in a slot: its tokens, its sampler, its text.

use std::cell::RefCell;
use std::ops::Range;
use std::time::Duration;

use crate::scheduler::drafts::Drafts;
use crate::scheduler::reasoning_budget::ReasoningBudget;
use crate::scheduler::sampler::{Forbid, Sampler, SamplingContext, Scratch};
use crate::text::lines::LineEnd;
use crate::text::stop::StopMatcher;
use crate::text::utf8::Utf8;
use crate::types::model::SeqId;
use crate::types::request::{
    Event, Failure, FinishReason, LikelyToken, Options, RequestId, ResponseTimes, SlotName, Tenant,
    TextChunk, Token, TokenLogprob,
};

mod job;
mod pending_logprobs;
mod prefill_reports;
mod save_positions;

pub use job::{CancelFlag, Job, ResponseGrammar};

use pending_logprobs::PendingLogprobs;
use prefill_reports::PrefillReports;
use save_positions::SavePositions;

/// A sampled token.
#[derive(Debug)]
pub(crate) struct Sampled<'a> {
    pub(crate) token: Token,
    /// Its text, as bytes; may be part of a character.
    pub(crate) piece: &'a [u8],
    /// True if it ends the response.
    pub(crate) is_end: bool,
    /// Its log probability, if the request asked for it.
    pub(crate) logprob: Option<TokenLogprob>,
    /// When it was sampled; `None` if that was on another node.
    pub(crate) now: Option<Duration>,
}

/// What a new token did to a sequence.
#[derive(Debug, PartialEq)]
pub(crate) struct Advance {
    /// Text that can be emitted now.
    pub(crate) chunk: Option<TextChunk>,
    /// Set when the response is complete.
    pub(crate) finished: Option<FinishReason>,
}

/// The part of a resumed response that another node already generated.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Replay {
    /// In the same pieces in which it was emitted there.
    pub(crate) chunks: Vec<TextChunk>,
    /// Set if the response was already complete.
    pub(crate) finished: Option<FinishReason>,
}

/// Another sequence that is about to compute this one's prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Leader {
    pub(crate) arrival: u64,
    /// Length of the common prefix in tokens.
    pub(crate) tokens: u32,
}

/// A job in a slot.
#[derive(Debug)]
pub(crate) struct Sequence {
    /// Id chosen by the caller.
    pub(crate) id: RequestId,
    /// The tenant or group of tenants whose cached prefixes it shares.
    pub(crate) prefix_owner: Tenant,
    /// Its sequence id in the context.
    pub(crate) seq: SeqId,
    /// Prompt tokens found in the cache.
    pub(crate) cached_tokens: u32,
    /// The sequence whose prefill it waits for.
    pub(crate) leader: Option<Leader>,
    /// True if its prompt ends inside the assistant's reasoning.
    pub(crate) in_reasoning: bool,
    /// Steps that skipped its prefill.
    pub(crate) skipped_steps: u32,
    /// Set when the caller no longer wants the response.
    pub(crate) cancel: CancelFlag,
    /// Order of arrival.
    pub(crate) arrival: u64,
    /// Its drafts.
    pub(crate) drafts: Drafts,
    /// Draft tokens that were computed.
    pub(crate) drafted: u32,
    /// Draft tokens that were accepted.
    pub(crate) accepted: u32,
    /// Positions at which the state of the prompt is to be saved.
    pub(crate) saves: SavePositions,
    /// The slot that it is remembered for when it ends.
    pub(crate) slot_name: Option<SlotName>,
    tokens: Vec<Token>,
    prompt_tokens: u32,
    /// Tokens that it arrived with: the prompt and a resumed response.
    initial_tokens: u32,
    /// Tokens reported so far, including the prompt's.
    reported: usize,
    decoded: u32,
    /// Tokens that were decoded, and rolled back along with a rejected draft.
    rolled_back: u32,
    /// What was decoded at the checkpoint, if there is one, and the id that holds it.
    checkpoint: Option<(u32, SeqId)>,
    tokens_max: u32,
    /// How many of the most likely tokens to report.
    logprobs: Option<u32>,
    /// Tokens that end this response, besides the model's.
    stop_tokens: Vec<Token>,
    /// True if it may start with a cached prefix.
    uses_cache: bool,
    reasoning: Option<ReasoningBudget>,
    visible: Vec<Token>,
    grammar: Option<ResponseGrammar>,
    sampler: Sampler,
    utf8: Utf8,
    stop: StopMatcher,
    lines: LineEnd,
    pending_logprobs: PendingLogprobs,
    /// Set if the caller wants to know how much of the prompt is computed.
    prefill_reports: Option<PrefillReports>,
    /// Prompt tokens whose logprobs were not taken yet.
    due_logprobs: Range<u32>,
    /// True if the token that ends the response has a logprob. Evaluation harnesses ask for one
    /// token behind the prompt and drop its logprob, whatever it is.
    reports_end: bool,
}

impl Sequence {
    pub(crate) fn new(job: Job, arrival: u64, context_tokens: u32) -> Self {
        let prompt_tokens = job.tokens.len().saturating_sub(job.resumed_len) as u32;
        debug_assert!(prompt_tokens > 0 && prompt_tokens < context_tokens);
        let room = context_tokens.saturating_sub(prompt_tokens);
        let (prefix_owner, uses_cache) = (job.prefix_owner(), job.uses_prefixes());
        let Options { sampling, max_tokens, stop, stop_tokens, lines, logprobs, .. } = job.options;
        let prefill_reports = job.options.reports_prefill.then(PrefillReports::default);
        let prompt_logprobs = job.options.prompt_logprobs;
        let mut resolved = job.resolved;
        Self {
            id: job.id,
            prefix_owner,
            seq: 0,
            cached_tokens: 0,
            leader: None,
            in_reasoning: job.in_reasoning,
            skipped_steps: 0,
            cancel: job.cancel,
            arrival,
            drafts: Drafts::new(std::mem::take(&mut resolved.prediction)),
            drafted: 0,
            accepted: 0,
            saves: SavePositions::default(),
            slot_name: job.options.slot,
            initial_tokens: job.tokens.len() as u32,
            reported: prompt_tokens as usize,
            tokens: job.tokens,
            prompt_tokens,
            decoded: 0,
            rolled_back: 0,
            checkpoint: None,
            tokens_max: prompt_tokens + max_tokens.unwrap_or(u32::MAX).min(room),
            logprobs,
            stop_tokens,
            uses_cache,
            reasoning: resolved.reasoning.take(),
            visible: job.visible,
            grammar: job.grammar,
            sampler: Sampler::new(sampling, resolved),
            utf8: Utf8::default(),
            stop: StopMatcher::new(stop),
            lines: LineEnd::new(lines),
            pending_logprobs: PendingLogprobs::default(),
            prefill_reports,
            due_logprobs: 0..if prompt_logprobs { prompt_tokens } else { 0 },
            reports_end: prompt_logprobs,
        }
    }

    /// Tokens known but not yet decoded.
    pub(crate) fn undecoded(&self) -> &[Token] {
        &self.tokens[self.decoded as usize..]
    }

    /// Position of the first token that is not yet decoded.
    pub(crate) fn position(&self) -> u32 {
        self.decoded
    }

    /// All known tokens, of prompt and response.
    pub(crate) fn tokens(&self) -> &[Token] {
        &self.tokens
    }

    /// Starts or continues with sequence id `seq`, which already holds the first `tokens` tokens.
    pub(crate) fn begin(&mut self, seq: SeqId, tokens: u32) {
        self.seq = seq;
        self.decoded = tokens;
        if self.tokens.len() as u32 == self.initial_tokens {
            self.cached_tokens = tokens.min(self.prompt_tokens);
        }
    }

    /// Preempts the sequence: it gives up its KV cells and must decode all tokens again.
    pub(crate) fn preempt(&mut self) {
        (self.decoded, self.rolled_back) = (0, 0);
        self.leader = None;
    }

    /// True if it is decoding: its response has started, and only the next token is missing and
    /// what was rolled back.
    pub(crate) fn is_decoding(&self) -> bool {
        self.completion_tokens() > 0 && self.undecoded().len() == 1 + self.rolled_back as usize
    }

    /// Records a checkpoint of its state, which `spare` holds.
    pub(crate) fn set_checkpoint(&mut self, spare: SeqId) {
        self.checkpoint = Some((self.decoded, spare));
    }

    /// What was decoded at the checkpoint, and the id that holds it. It is dropped.
    pub(crate) fn take_checkpoint(&mut self) -> Option<(u32, SeqId)> {
        self.checkpoint.take()
    }

    /// Records that only its first `decoded` tokens are decoded now. Returns how many were lost.
    pub(crate) fn roll_back(&mut self, decoded: u32) -> u32 {
        self.rolled_back = self.decoded - decoded;
        std::mem::replace(&mut self.decoded, decoded) - decoded
    }

    pub(crate) fn prompt_tokens(&self) -> u32 {
        self.prompt_tokens
    }

    /// Tokens generated so far.
    pub(crate) fn completion_tokens(&self) -> u32 {
        self.tokens.len() as u32 - self.prompt_tokens
    }

    /// Records that `rows` more tokens are decoded.
    pub(crate) fn record_decoded(&mut self, rows: u32) {
        self.decoded += rows;
        self.rolled_back = self.rolled_back.saturating_sub(rows);
        debug_assert!(self.decoded as usize <= self.tokens.len());
    }

    /// True if it has all the tokens that it may have.
    pub(crate) fn is_full(&self) -> bool {
        self.tokens.len() as u32 >= self.tokens_max
    }

    /// Drafts up to `count` tokens from texts, as far as there is room for one more after them.
    /// Returns how many there is room for.
    pub(crate) fn draft(&mut self, count: u32) -> u32 {
        let room = self.tokens_max.saturating_sub(self.tokens.len() as u32 + 1);
        let (prompt, count) = (self.prompt_tokens as usize, count.min(room));
        self.drafts.update(&self.tokens, prompt, count as usize);
        count
    }

    /// True if logprobs of its prompt are missing.
    pub(crate) fn needs_all_logits(&self) -> bool {
        !self.due_logprobs.is_empty()
    }

    /// True if the logits after the token at `position` tell a missing logprob of the prompt.
    pub(crate) fn needs_logits_at(&self, position: u32) -> bool {
        self.due_logprobs.contains(&(position + 1))
    }

    /// Takes the indices of the prompt tokens whose logprobs follow from its next `rows` rows.
    pub(crate) fn take_due_logprobs(&mut self, rows: u32) -> Range<u32> {
        let end = (self.decoded + rows + 1).clamp(self.due_logprobs.start, self.due_logprobs.end);
        std::mem::replace(&mut self.due_logprobs.start, end)..end
    }

    /// Reports how much of the prompt is computed, if that is wanted and it is time to.
    pub(crate) fn report_prefill(&mut self, now: Duration) -> Option<Event> {
        let tokens = self.decoded.min(self.prompt_tokens);
        let reports = self.prefill_reports.as_mut()?;
        let elapsed = reports.record(tokens, self.prompt_tokens, now)?;
        Some(Event::Prefilled { tokens, cached_tokens: self.cached_tokens, elapsed })
    }

    /// How many of the most likely tokens to report with each token of the response.
    pub(crate) fn logprobs(&self) -> Option<u32> {
        self.logprobs
    }

    /// True if it may start with a cached prefix.
    pub(crate) fn uses_cache(&self) -> bool {
        self.uses_cache
    }

    /// True if `token` ends the response; `end_tokens` end every response of the model.
    pub(crate) fn is_end(&self, token: Token, end_tokens: &[Token]) -> bool {
        end_tokens.contains(&token) || self.stop_tokens.contains(&token)
    }

    /// True if the text of a control token is part of the response text.
    pub(crate) fn is_visible(&self, control: Token) -> bool {
        self.visible.contains(&control)
    }

    /// Chooses the next token from the logits after the last one; `end_tokens` are the tokens that
    /// end a response.
    ///
    /// # Errors
    /// The grammar allows no further token; the response ends here.
    pub(crate) fn sample(
        &mut self,
        logits: &[f32],
        end_tokens: &[Token],
        scratch: &mut Scratch,
    ) -> Result<Token, Failure> {
        let context = SamplingContext {
            tokens: &self.tokens,
            prompt_tokens: self.prompt_tokens as usize,
            end_tokens,
            stop_tokens: &self.stop_tokens,
        };
        let forced = self.reasoning.as_ref().and_then(ReasoningBudget::forced);
        let Some(ResponseGrammar { grammar, to_failure, is_optional }) = &mut self.grammar else {
            let mut forbid = |logits: &mut [f32]| force(forced, logits);
            let forbid: Option<Forbid<'_>> = forced.is_some().then_some(&mut forbid);
            return Ok(self.sampler.sample(logits, context, forbid, scratch));
        };
        let mut masked = Ok(());
        let shared = RefCell::new(&mut *grammar);
        let mut forbid = |logits: &mut [f32]| {
            masked = shared.borrow_mut().mask(logits);
            force(forced, logits);
        };
        let token = if *is_optional {
            let mut is_allowed = |token: Token| {
                forced.is_none_or(|forced| forced == token)
                    && shared.borrow_mut().allows(token).unwrap_or(false)
            };
            let check: (&mut dyn FnMut(Token) -> bool, Forbid<'_>) = (&mut is_allowed, &mut forbid);
            self.sampler.sample_checked(logits, context, check, scratch)
        } else {
            self.sampler.sample(logits, context, Some(&mut forbid), scratch)
        };
        let accepted = masked.and_then(|()| grammar.accept(token));
        match accepted {
            Ok(()) => Ok(token),
            Err(_) if *is_optional => {
                self.grammar = None;
                Ok(token)
            }
            Err(error) => Err(to_failure(error.to_string())),
        }
    }

    /// Replays the effect of its response tokens on grammar, sampler and text, which happened on
    /// another node. Call it once, before sampling. `write` appends the text of a token, that of a
    /// control token only on request; `end_tokens` are the tokens that end a response.
    ///
    /// # Errors
    /// The grammar does not allow a token: another model sampled it.
    pub(crate) fn replay(
        &mut self,
        end_tokens: &[Token],
        write: impl Fn(Token, bool, &mut Vec<u8>),
    ) -> Result<Replay, Failure> {
        let resumed = self.tokens.split_off(self.prompt_tokens as usize);
        let (mut replay, mut piece) = (Replay::default(), Vec::new());
        for token in resumed {
            if let Some(constraint) = &mut self.grammar
                && constraint.grammar.accept(token).is_err()
            {
                if !constraint.is_optional {
                    return Err(Failure::ResumeMismatch);
                }
                self.grammar = None;
            }
            self.sampler.skip();
            piece.clear();
            write(token, self.is_visible(token), &mut piece);
            let is_end = self.is_end(token, end_tokens);
            // Its logprob was reported with the token; only its place counts now.
            let chosen = || LikelyToken { token, bytes: Vec::new(), logprob: 0.0 };
            let likeliest = Vec::new();
            let logprob = self.logprobs.map(|_| TokenLogprob { chosen: chosen(), likeliest });
            let advance =
                self.advance(Sampled { token, piece: &piece, is_end, logprob, now: None });
            replay.chunks.extend(advance.chunk);
            replay.finished = advance.finished;
            if advance.finished.is_some() {
                break;
            }
        }
        Ok(replay)
    }

    /// The last event of a complete response.
    pub(crate) fn finish(&self, reason: FinishReason) -> Event {
        Event::Finished {
            reason,
            completion_tokens: self.completion_tokens(),
            cached_tokens: self.cached_tokens,
            tokens: self.tokens[self.reported..].to_vec(),
            times: self.draft_counts(),
        }
    }

    /// Counts of draft tokens; the engine thread adds the times.
    fn draft_counts(&self) -> ResponseTimes {
        let Self { drafted, accepted, .. } = *self;
        ResponseTimes { drafted, accepted, ..ResponseTimes::default() }
    }

    /// Appends a sampled token.
    pub(crate) fn advance(&mut self, sampled: Sampled<'_>) -> Advance {
        self.tokens.push(sampled.token);
        self.sampler.accept(sampled.token);
        let (mut whole, mut kept, mut text) = (String::new(), String::new(), String::new());
        if sampled.is_end {
            self.utf8.finish(&mut whole);
            self.pending_logprobs.push(0, sampled.logprob.filter(|_| self.reports_end));
        } else {
            // Drops a character that the length limit cuts in two instead of replacing it: it is
            // not invalid.
            self.utf8.push(sampled.piece, &mut whole);
            self.pending_logprobs.push(sampled.piece.len(), sampled.logprob);
        }
        if let Some(reasoning) = &mut self.reasoning {
            let response = &self.tokens[self.prompt_tokens as usize..];
            reasoning.record(response, self.utf8.is_whole());
        }
        let full = self.is_full();
        let stopped = self.stop.push(&whole, &mut kept);
        if (sampled.is_end || full) && stopped.is_none() {
            self.stop.finish(&mut kept);
        }
        let is_cut = self.lines.push(&kept, sampled.now, &mut text);
        let finished = match (stopped, sampled.is_end, full) {
            _ if is_cut => Some(FinishReason::Length),
            (Some(index), ..) => Some(FinishReason::StopString(index as u32)),
            (None, true, _) => Some(FinishReason::Stop),
            (None, false, true) => Some(FinishReason::Length),
            (None, false, false) => None,
        };
        if finished.is_some() && !is_cut {
            self.lines.finish(&mut text);
        }
        let is_whole = finished.is_some() && stopped.is_none() && !is_cut;
        let logprobs = self.pending_logprobs.release(text.len(), is_whole);
        let has_chunk = !text.is_empty() || !logprobs.is_empty();
        Advance { chunk: has_chunk.then(|| self.take_chunk(text, logprobs)), finished }
    }

    fn take_chunk(&mut self, text: String, logprobs: Vec<TokenLogprob>) -> TextChunk {
        let reported = self.tokens.len() - self.pending_logprobs.len();
        let tokens = self.tokens[self.reported..reported].to_vec();
        self.reported = reported;
        TextChunk { text, logprobs, tokens, times: self.draft_counts() }
    }
}

/// Forbids all tokens but `forced`, unless that is forbidden itself.
fn force(forced: Option<Token>, logits: &mut [f32]) {
    let Some(index) = forced.map(|token| token as usize) else { return };
    if let Some(logit) = logits.get(index).copied().filter(|l| *l > f32::NEG_INFINITY) {
        logits.fill(f32::NEG_INFINITY);
        logits[index] = logit;
    }
}

#[cfg(test)]
mod tests;
