//! A small model that drafts what a large one may say. Source: Leviathan et al., "Fast Inference
//! from Transformers via Speculative Decoding" (2023), with drafts that are always the likeliest
//! token: the large model samples each token as without drafts, so nothing depends on them.
//!
//! It has a context of its own, with a lane for each sequence that it drafts for. A lane holds the
//! tokens that were computed there: those of the sequence, and drafts. Before a draft it loses what
//! the sequence does not begin with, and computes what is missing. If the model has a recurrent
//! state, there is one lane, which returns to a checkpoint of its text after each draft.
//!
//! An MTP head is a draft model, too, that computes texts only along with the large model: see
//! [`following`].

use crate::scheduler::confidence::{Class, Confidence, Rate, likeliest};
use crate::scheduler::drafts::{Judged, Modeled};
use crate::scheduler::speculation::{LeastChance, ROWS_MAX};
use crate::scheduler::vocabulary_part::VocabularyPart;
use crate::types::model::{Decoded, Model, Row, SeqId, Shape, Undo};
use crate::types::request::{Tenant, Token};

mod following;

pub(crate) use following::Followed;
use following::Following;

/// Rows of a batch that computes text before a draft: it delays the next token of all sequences.
pub(crate) const CATCH_UP_ROWS: u32 = 128;
/// Missing tokens that are computed along with a draft.
const BEHIND_MAX: u32 = 8;
/// How likely a draft token is right before any was.
const ACCEPTANCE_FIRST: f32 = 0.7;
/// Least weight of the newest token in the averages of all sequences.
const SMOOTHING: f32 = 0.01;
/// They begin as if there had been as many tokens.
const TOKENS_ASSUMED: f32 = 16.0;

/// A draft model. See the module.
#[derive(Debug)]
pub(crate) struct DraftModel<M> {
    model: M,
    /// Its sizes, with the vocabulary that both models have.
    shape: Shape,
    lanes: Vec<Lane>,
    /// How many of its tokens were kept and accepted, in all sequences.
    acceptance: Rate,
    /// How many were kept.
    kept: Rate,
    confidence: Confidence,
    rows: Vec<Row>,
    /// Set for an MTP head.
    following: Option<Following>,
    part: VocabularyPart,
    /// Tokens that drafts come from: the first ones of the vocabulary that both models have.
    drafted: u32,
}

/// A sequence of the draft model's context.
#[derive(Debug, Default)]
struct Lane {
    /// True if the owner may get a draft now.
    is_used: bool,
    owner: Option<Owner>,
    tokens: Vec<Token>,
    /// How many of them it does without, at the beginning. Only in an MTP head.
    left_out: usize,
}

/// Whose text a lane holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Owner {
    /// Its arrival, which no other sequence has.
    pub(crate) sequence: u64,
    /// Whose prefixes it may share.
    pub(crate) tenant: Tenant,
}

/// A text to draft for: all known tokens of a sequence, how many to draft, and how many of them
/// however unsure they are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted<'a> {
    pub(crate) lane: usize,
    pub(crate) text: &'a [Token],
    pub(crate) count: u32,
    pub(crate) least: u32,
}

impl<M: Model> DraftModel<M> {
    /// Creates a draft model whose context has a slot for each lane. `vocabulary` is the number of
    /// tokens of the large model.
    pub(crate) fn new(model: M, vocabulary: u32) -> Self {
        let mut shape = model.shape();
        shape.vocabulary = shape.vocabulary.min(vocabulary);
        let count = if shape.undo == Undo::WholeBatch { 1 } else { shape.slots };
        let lanes = (0..count).map(|_| Lane::default()).collect();
        let following = Following::new(&shape, count);
        let confidence = Confidence::new(ACCEPTANCE_FIRST);
        let (acceptance, kept) = (ACCEPTANCE_FIRST, 1.0);
        let [acceptance, kept] = [acceptance, kept].map(|rate| Rate::new(rate, TOKENS_ASSUMED));
        let rows = Vec::new();
        let (part, drafted) = (VocabularyPart::new(shape.vocabulary), shape.vocabulary);
        Self { model, shape, lanes, acceptance, kept, confidence, rows, following, part, drafted }
    }

    /// The model it runs.
    #[cfg(test)]
    pub(crate) fn model(&self) -> &M {
        &self.model
    }

    #[cfg(test)]
    pub(crate) fn model_mut(&mut self) -> &mut M {
        &mut self.model
    }

    /// Sequences that it can draft for at a time.
    pub(crate) fn lanes(&self) -> usize {
        self.lanes.len()
    }

    /// How likely a token is kept and accepted if the ones before it are, in any sequence.
    pub(crate) fn acceptance(&self) -> f32 {
        self.acceptance.value()
    }

    /// How likely a token is kept if the ones before it are.
    pub(crate) fn kept(&self) -> f32 {
        self.kept.value()
    }

    /// Records how a token turned out.
    pub(crate) fn record(&mut self, token: Judged) {
        let Judged { class, is_right, is_kept } = token;
        self.acceptance.record(is_right && is_kept, SMOOTHING);
        self.kept.record(is_kept, SMOOTHING);
        self.confidence.record(class, is_right);
    }

    /// Records a token of any response. True if its steps take another time from now on, because it
    /// drafts from another part of the vocabulary.
    pub(crate) fn record_token(&mut self, token: Token) -> bool {
        let change = self.part.record(token);
        if let Some(tokens) = change {
            self.drafted = tokens;
            self.model.compute_first_logits(tokens);
        }
        change.is_some()
    }

    /// Gives lanes to these sequences, at most as many as there are. Others lose theirs, but its
    /// tokens stay for a text that begins alike. Returns the lane of each.
    pub(crate) fn assign(&mut self, all: &[(Owner, &[Token])]) -> Vec<usize> {
        let is_owned = |lane: &Lane| all.iter().any(|(owner, _)| lane.owner == Some(*owner));
        for lane in &mut self.lanes {
            lane.is_used = is_owned(lane);
        }
        let mut lane_of = |(owner, text): &(Owner, &[Token])| {
            if let Some(own) = self.lanes.iter().position(|lane| lane.owner == Some(*owner)) {
                return own;
            }
            let value = |lane: &usize| {
                let Lane { owner: before, tokens, left_out, .. } = &self.lanes[*lane];
                let is_shared = before.is_some_and(|before| before.tenant == owner.tenant);
                let common = if is_shared { common(tokens, text) } else { 0 };
                let common = if common > *left_out { common } else { 0 };
                // Of useless ones, the one that loses the least.
                (common, std::cmp::Reverse(tokens.len()))
            };
            let free = (0..self.lanes.len()).filter(|lane| !self.lanes[*lane].is_used);
            let best = free.max_by_key(value);
            let lane = best.unwrap_or_default();
            if value(&lane).0 == 0 {
                self.truncate(lane, 0);
                self.following.iter_mut().for_each(|following| following.forget(lane));
            }
            let taken = &mut self.lanes[lane];
            (taken.is_used, taken.owner) = (true, Some(*owner));
            lane
        };
        all.iter().map(&mut lane_of).collect()
    }

    /// How many tokens of a text it must compute before it can draft; `None` if there is no room
    /// for it, or a token that it does not know. It drafts with few of them missing.
    pub(crate) fn behind(&self, lane: usize, text: &[Token]) -> Option<u32> {
        let known = self.computed(lane, text)?;
        let used = self.lanes.iter().enumerate().filter(|(i, other)| *i != lane && other.is_used);
        let others: usize = used.map(|(_, lane)| lane.cells()).sum();
        let has_room = text.len() < self.room()
            && others + text.len() + ROWS_MAX as usize <= self.shape.kv_cells as usize;
        let is_known = text[known..].iter().all(|token| *token < self.shape.vocabulary);
        let missing = (text.len() - known) as u32;
        let is_near = missing <= BEHIND_MAX || self.following.is_some();
        let behind = if is_near { 0 } else { missing };
        (has_room && is_known).then_some(behind)
    }

    /// How many tokens of a text need not be computed for a draft. `None` if an MTP head lacks what
    /// the others follow.
    fn computed(&self, lane: usize, text: &[Token]) -> Option<usize> {
        let known = self.known(lane, text);
        match &self.following {
            Some(following) => following.next(lane, known, text),
            None => Some(known),
        }
    }

    /// How many tokens of a text its lane can begin with.
    fn known(&self, lane: usize, text: &[Token]) -> usize {
        let Lane { tokens: held, left_out, .. } = &self.lanes[lane];
        let known = common(held, text);
        if known <= *left_out {
            return 0;
        }
        let can_lose = self.shape.undo == Undo::LastTokens;
        if can_lose || known == held.len() && known < text.len() { known } else { 0 }
    }

    /// Computes some of the missing tokens. Returns how many; 0 if that fails.
    pub(crate) fn catch_up(&mut self, lane: usize, text: &[Token]) -> u32 {
        let known = self.known(lane, text);
        self.truncate(lane, known);
        let most = CATCH_UP_ROWS.min(self.shape.batch_rows) as usize;
        // A draft begins with a token whose logits are computed, and a state cannot lose one.
        let end = text.len() - usize::from(self.shape.undo == Undo::WholeBatch);
        let missing = &text[known..end.min(known + most)];
        if !self.make_room(missing.len()) {
            return 0;
        }
        self.clear_rows();
        self.push_rows(lane, missing, false);
        if self.decode() { missing.len() as u32 } else { 0 }
    }

    /// Drafts for some texts side by side; few of their tokens are missing. Returns a draft for
    /// each, which may be shorter than wanted and ends where it is not sure enough, and the number
    /// of steps.
    pub(crate) fn draft(&mut self, all: &[Wanted<'_>], least: LeastChance) -> (Vec<Modeled>, u32) {
        let mut drafts = vec![Modeled::default(); all.len()];
        let (mut chances, mut steps) = (vec![1.0; all.len()], 0);
        self.clear_rows();
        for wanted in all {
            let Wanted { lane, text, .. } = *wanted;
            let Some(known) = self.computed(lane, text) else { continue };
            // The last token is computed again if there is no other one: its logits are gone.
            let known = known.min(text.len() - 1);
            self.begin_lane(lane, text, known);
            self.push_text(lane, &text[known..], true);
        }
        let drafted: usize = all.iter().map(|wanted| wanted.count as usize).sum();
        if self.rows.len() > self.shape.batch_rows as usize
            || !self.make_room(self.rows.len() + drafted)
        {
            return (drafts, steps);
        }
        let mut checkpoint = None;
        while !self.rows.is_empty() && self.decode() {
            steps += 1;
            let last_rows = (0..self.rows.len()).filter(|row| self.rows[*row].logits);
            let next: Vec<_> = last_rows
                .map(|row| (row, self.rows[row].seq as usize, self.next_token(row)))
                .collect();
            self.clear_rows();
            self.take_step(next, all, least, (&mut drafts, &mut chances));
            if steps == 1 {
                checkpoint = self.checkpoint();
            }
        }
        if let Some((lane, tokens)) = checkpoint {
            self.return_to(lane, tokens);
        }
        if self.following.is_some() {
            all.iter().for_each(|wanted| self.truncate(wanted.lane, wanted.text.len()));
        }
        (drafts, steps)
    }

    /// Adds the tokens of a step to drafts, and rows for those that go on. `next` has a row of the
    /// step, its lane, and the token after it.
    fn take_step(
        &mut self,
        next: Vec<(usize, usize, (Token, Class))>,
        all: &[Wanted<'_>],
        least: LeastChance,
        (drafts, chances): (&mut [Modeled], &mut [f32]),
    ) {
        let place = |lane: usize| all.iter().position(|wanted| wanted.lane == lane);
        let mut sum = 0.0;
        for (_, lane, (_, class)) in &next {
            let Some(index) = place(*lane) else { continue };
            chances[index] *= self.confidence.rate(*class);
            sum += chances[index];
        }
        let mean = sum / next.len() as f32;
        for (row, lane, (token, class)) in next {
            let Some(index) = place(lane) else { continue };
            let (draft, wanted) = (&mut drafts[index], &all[index]);
            let chance = if least.is_joint { mean } else { chances[index] };
            draft.classes.push(class);
            if chance < least.to_keep && draft.tokens.len() >= wanted.least as usize {
                draft.dropped = Some(token);
                continue;
            }
            draft.tokens.push(token);
            let is_open = draft.tokens.len() < wanted.count as usize;
            let is_sure = chance * self.acceptance.value() >= least.to_go_on
                || draft.tokens.len() < wanted.least as usize;
            if is_open && is_sure && self.lanes[lane].tokens.len() < self.room() {
                self.push_rows(lane, &[token], true);
                self.follow_own(row);
            }
        }
    }

    /// Keeps the state of the text that the next row follows, if a draft cannot be undone
    /// otherwise. Returns its lane, and the length of the text.
    fn checkpoint(&mut self) -> Option<(usize, usize)> {
        let next = self.rows.first().filter(|_| self.shape.undo == Undo::WholeBatch)?;
        self.model.checkpoint(next.seq, self.shape.seq_ids);
        Some((next.seq as usize, next.position as usize))
    }

    /// Returns a lane to its checkpoint, unless a batch failed since.
    fn return_to(&mut self, lane: usize, tokens: usize) {
        match self.lanes[lane].tokens.len() > tokens {
            true => self.model.roll_back(lane as SeqId, self.shape.seq_ids),
            false => self.model.drop_checkpoint(self.shape.seq_ids),
        }
        self.lanes[lane].tokens.truncate(tokens);
    }

    /// Tokens that fit into a lane.
    fn room(&self) -> usize {
        self.shape.context_tokens as usize
    }

    /// Adds the rows of the next tokens of a lane; the last one has logits if that is wanted.
    fn push_rows(&mut self, lane: usize, tokens: &[Token], logits: bool) {
        let first = self.lanes[lane].tokens.len() as u32;
        let last = tokens.len().saturating_sub(1);
        self.rows.extend((first..).zip(tokens).enumerate().map(|(i, (position, token))| Row {
            seq: lane as SeqId,
            position,
            token: *token,
            logits: logits && i == last,
        }));
    }

    fn clear_rows(&mut self) {
        self.rows.clear();
        self.following.iter_mut().for_each(Following::clear_batch);
    }

    /// Computes the rows. False if that fails: all lanes are empty then.
    fn decode(&mut self) -> bool {
        if let Some(following) = &self.following {
            self.model.set_hidden_states(following.batch());
        }
        // It takes no longer than a few rows of the large model.
        if self.model.decode(&self.rows, &|| false) != Ok(Decoded::Whole) {
            (0..self.lanes.len()).for_each(|lane| self.truncate(lane, 0));
            return false;
        }
        for row in &self.rows {
            self.lanes[row.seq as usize].tokens.push(row.token);
        }
        true
    }

    /// The likeliest token after a row of the last batch, and how sure that is.
    fn next_token(&self, row: usize) -> (Token, Class) {
        let logits = self.model.logits(row);
        likeliest(&logits[..logits.len().min(self.drafted as usize)])
    }

    /// Removes all but the first tokens of a lane.
    fn truncate(&mut self, lane: usize, tokens: usize) {
        if self.lanes[lane].tokens.len() <= tokens {
            return;
        }
        self.lanes[lane].tokens.truncate(tokens);
        match tokens {
            0 => {
                self.lanes[lane].left_out = 0;
                self.model.clear(lane as SeqId);
            }
            _ => self.model.truncate(lane as SeqId, tokens as u32),
        }
    }

    /// Empties unused lanes until there are as many free KV cells.
    fn make_room(&mut self, cells: usize) -> bool {
        let most = self.shape.kv_cells as usize;
        for lane in 0..self.lanes.len() {
            if self.cells() + cells > most && !self.lanes[lane].is_used {
                self.truncate(lane, 0);
            }
        }
        self.cells() + cells <= most
    }

    fn cells(&self) -> usize {
        self.lanes.iter().map(Lane::cells).sum()
    }
}

impl Lane {
    /// KV cells that it uses.
    fn cells(&self) -> usize {
        self.tokens.len() - self.left_out
    }
}

/// Length of the common beginning.
fn common(a: &[Token], b: &[Token]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests;
