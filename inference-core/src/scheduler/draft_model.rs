//! A small model that drafts what a large one may say. Source: Leviathan et al., "Fast Inference
//! from Transformers via Speculative Decoding" (2023), with drafts that are always the likeliest
//! token: the large model samples each token as without drafts, so nothing depends on them.
//!
//! It has a context of its own, with a lane for each sequence that it drafts for. A lane holds the
//! tokens that were computed there: those of the sequence, and drafts. Before a draft it loses what
//! the sequence does not begin with, and computes what is missing.

use crate::scheduler::confidence::{Class, Confidence, Rate, likeliest};
use crate::scheduler::drafts::{Judged, Modeled};
use crate::scheduler::speculation::{LeastChance, ROWS_MAX};
use crate::types::model::{Decoded, Model, Row, SeqId, Shape};
use crate::types::request::{Tenant, Token};

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
}

/// A sequence of the draft model's context.
#[derive(Debug, Default)]
struct Lane {
    /// True if the owner may get a draft now.
    is_used: bool,
    owner: Option<Owner>,
    tokens: Vec<Token>,
}

/// Whose text a lane holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Owner {
    /// Its arrival, which no other sequence has.
    pub(crate) sequence: u64,
    /// Whose prefixes it may share.
    pub(crate) tenant: Tenant,
}

/// A text to draft for: all known tokens of a sequence, and how many to draft.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted<'a> {
    pub(crate) lane: usize,
    pub(crate) text: &'a [Token],
    pub(crate) count: u32,
}

impl<M: Model> DraftModel<M> {
    /// Creates a draft model whose context has a slot for each lane. `vocabulary` is the number of
    /// tokens of the large model.
    pub(crate) fn new(model: M, vocabulary: u32) -> Self {
        let mut shape = model.shape();
        shape.vocabulary = shape.vocabulary.min(vocabulary);
        let lanes = (0..shape.slots).map(|_| Lane::default()).collect();
        let confidence = Confidence::new(ACCEPTANCE_FIRST);
        let (acceptance, kept) = (ACCEPTANCE_FIRST, 1.0);
        let [acceptance, kept] = [acceptance, kept].map(|rate| Rate::new(rate, TOKENS_ASSUMED));
        Self { model, shape, lanes, acceptance, kept, confidence, rows: Vec::new() }
    }

    /// The model it runs.
    #[cfg(test)]
    pub(crate) fn model(&self) -> &M {
        &self.model
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
                let Lane { owner: before, tokens, .. } = &self.lanes[*lane];
                let is_shared = before.is_some_and(|before| before.tenant == owner.tenant);
                let common = if is_shared { common(tokens, text) } else { 0 };
                // Of useless ones, the one that loses the least.
                (common, std::cmp::Reverse(tokens.len()))
            };
            let free = (0..self.lanes.len()).filter(|lane| !self.lanes[*lane].is_used);
            let best = free.max_by_key(value);
            let lane = best.unwrap_or_default();
            if value(&lane).0 == 0 {
                self.truncate(lane, 0);
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
        let known = common(&self.lanes[lane].tokens, text);
        let used = self.lanes.iter().enumerate().filter(|(i, other)| *i != lane && other.is_used);
        let others: usize = used.map(|(_, lane)| lane.tokens.len()).sum();
        let has_room = text.len() < self.room()
            && others + text.len() + ROWS_MAX as usize <= self.shape.kv_cells as usize;
        let is_known = text[known..].iter().all(|token| *token < self.shape.vocabulary);
        let missing = (text.len() - known) as u32;
        let behind = if missing <= BEHIND_MAX { 0 } else { missing };
        (has_room && is_known).then_some(behind)
    }

    /// Computes some of the missing tokens. Returns how many; 0 if that fails.
    pub(crate) fn catch_up(&mut self, lane: usize, text: &[Token]) -> u32 {
        let known = common(&self.lanes[lane].tokens, text);
        self.truncate(lane, known);
        let most = CATCH_UP_ROWS.min(self.shape.batch_rows) as usize;
        let missing = &text[known..text.len().min(known + most)];
        if !self.make_room(missing.len()) {
            return 0;
        }
        self.rows.clear();
        self.push_rows(lane, missing, false);
        if self.decode() { missing.len() as u32 } else { 0 }
    }

    /// Drafts for some texts side by side; few of their tokens are missing. Returns a draft for
    /// each, which may be shorter than wanted and ends where it is not sure enough, and the number
    /// of steps.
    pub(crate) fn draft(&mut self, all: &[Wanted<'_>], least: LeastChance) -> (Vec<Modeled>, u32) {
        let mut drafts = vec![Modeled::default(); all.len()];
        let (mut chances, mut steps) = (vec![1.0; all.len()], 0);
        self.rows.clear();
        for wanted in all {
            let Wanted { lane, text, .. } = *wanted;
            // The last token is computed again if there is no other one: its logits are gone.
            let known = common(&self.lanes[lane].tokens, text).min(text.len() - 1);
            self.truncate(lane, known);
            self.push_rows(lane, &text[known..], true);
        }
        let lanes: Vec<usize> = all.iter().map(|wanted| wanted.lane).collect();
        let drafted: usize = all.iter().map(|wanted| wanted.count as usize).sum();
        if self.rows.len() > self.shape.batch_rows as usize
            || !self.make_room(self.rows.len() + drafted)
        {
            return (drafts, steps);
        }
        while !self.rows.is_empty() && self.decode() {
            steps += 1;
            let last_rows = (0..self.rows.len()).filter(|row| self.rows[*row].logits);
            let next: Vec<_> =
                last_rows.map(|row| (self.rows[row].seq as usize, self.next_token(row))).collect();
            self.rows.clear();
            for (lane, (token, class)) in next {
                let Some(index) = lanes.iter().position(|other| *other == lane) else { continue };
                let (draft, chance) = (&mut drafts[index], &mut chances[index]);
                draft.classes.push(class);
                *chance *= self.confidence.rate(class);
                if *chance < least.to_keep {
                    draft.dropped = Some(token);
                    continue;
                }
                draft.tokens.push(token);
                let is_open = draft.tokens.len() < all[index].count as usize;
                let is_sure = *chance * self.acceptance.value() >= least.to_go_on;
                if is_open && is_sure && self.lanes[lane].tokens.len() < self.room() {
                    self.push_rows(lane, &[token], true);
                }
            }
        }
        (drafts, steps)
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

    /// Computes the rows. False if that fails: all lanes are empty then.
    fn decode(&mut self) -> bool {
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
        likeliest(&logits[..logits.len().min(self.shape.vocabulary as usize)])
    }

    /// Removes all but the first tokens of a lane.
    fn truncate(&mut self, lane: usize, tokens: usize) {
        if self.lanes[lane].tokens.len() <= tokens {
            return;
        }
        self.lanes[lane].tokens.truncate(tokens);
        match tokens {
            0 => self.model.clear(lane as SeqId),
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
        self.lanes.iter().map(|lane| lane.tokens.len()).sum()
    }
}

/// Length of the common beginning.
fn common(a: &[Token], b: &[Token]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::fake::FakeModel;

    fn owner(sequence: u64, tenant: u64) -> Owner {
        Owner { sequence, tenant: Tenant(tenant) }
    }

    fn draft_model(slots: u32, context: u32, cells: u32) -> DraftModel<FakeModel> {
        DraftModel::new(FakeModel::with_cells(slots, context, 16, cells), 257)
    }

    /// Tokens need not be sure.
    const ANY: LeastChance = LeastChance { to_keep: 0.0, to_go_on: 0.0 };

    /// What it drafts for the text of a sequence, after it has computed all that is missing, and
    /// how many tokens these were.
    fn draft(
        model: &mut DraftModel<FakeModel>,
        owner: Owner,
        text: &[Token],
        count: u32,
    ) -> (Vec<Token>, u32) {
        let lane = model.assign(&[(owner, text)])[0];
        let mut computed = 0;
        while model.behind(lane, text).expect("there is room") > 0 {
            let more = model.catch_up(lane, text);
            assert!(more > 0 && more <= CATCH_UP_ROWS);
            computed += more;
        }
        (model.draft(&[Wanted { lane, text, count }], ANY).0.remove(0).tokens, computed)
    }

    /// The fake model repeats its prompt, which ends with a zero.
    const TEXT: [Token; 16] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 0];

    #[test]
    fn a_draft_is_what_the_model_would_say_and_what_is_rejected_is_taken_back() {
        let mut model = draft_model(2, 64, 128);
        let mut text = TEXT.to_vec();
        assert_eq!(draft(&mut model, owner(1, 0), &text, 3), (vec![1, 2, 3], 16));
        // All three were right, and a fourth followed.
        text.extend([1, 2, 3, 4]);
        assert_eq!(draft(&mut model, owner(1, 0), &text, 2), (vec![5, 6], 0));
        // The second one was wrong.
        text.extend([5, 99]);
        assert_eq!(draft(&mut model, owner(1, 0), &text, 2).0, [7, 8], "by its place alone");
        assert_eq!(model.lanes[1].tokens[..], [&text[..], &[7]].concat()[..]);
        assert_eq!(model.model.cells(), text.len() as u32 + 1);
    }

    #[test]
    fn several_texts_get_drafts_of_their_own_lengths_side_by_side() {
        let mut model = draft_model(2, 64, 128);
        let texts = [&[1, 2, 0][..], &[7, 8, 9, 0, 7]];
        let lanes = model.assign(&[(owner(1, 0), texts[0]), (owner(2, 1), texts[1])]);
        let wanted = |i: usize, count| Wanted { lane: lanes[i], text: texts[i], count };
        let (drafts, steps) = model.draft(&[wanted(0, 1), wanted(1, 3)], ANY);
        assert_eq!(drafts[0].tokens, [1]);
        assert_eq!(drafts[1].tokens, [8, 9, 256]);
        assert_eq!(
            (steps, model.model.batches.len()),
            (3, 3),
            "as many steps as the longest has tokens"
        );
    }

    #[test]
    fn a_draft_ends_where_it_has_not_been_right_often_enough() {
        let mut model = draft_model(1, 64, 64);
        let lane = model.assign(&[(owner(1, 0), &TEXT)])[0];
        let draft = |model: &mut DraftModel<FakeModel>, to_keep, to_go_on| {
            let least = LeastChance { to_keep, to_go_on };
            let (mut drafts, steps) = model.draft(&[Wanted { lane, text: &TEXT, count: 9 }], least);
            (drafts.remove(0), steps)
        };
        // Each token is right with a chance of 0.7 as far as it knows: 0.7, 0.49, 0.34.
        let (first, steps) = draft(&mut model, 0.4, 0.0);
        assert_eq!((&first.tokens[..], first.dropped, steps), (&[1, 2][..], Some(3), 3));
        assert_eq!(first.classes.len(), 3);
        let (first, steps) = draft(&mut model, 0.1, 0.4);
        assert_eq!((&first.tokens[..], first.dropped, steps), (&[1, 2][..], None, 2));
        let class = first.classes[0];
        let judged = |is_right, is_kept| Judged { class, is_right, is_kept };
        (0..100).for_each(|_| model.record(judged(false, true)));
        let (none, _) = draft(&mut model, 0.1, 0.1);
        assert_eq!((&none.tokens[..], none.dropped), (&[][..], Some(1)));
        assert!(model.acceptance() < 0.5 && model.kept() == 1.0);
        // What is dropped is judged as well, so that it comes back when it is right.
        (0..100).for_each(|_| model.record(judged(true, false)));
        assert!(model.kept() < 0.5);
        assert_eq!(draft(&mut model, 0.1, 0.1).0.dropped, None);
    }

    #[test]
    fn a_lane_stays_with_its_sequence_and_then_serves_a_text_of_its_tenant_that_begins_alike() {
        let mut model = draft_model(2, 64, 128);
        let first = [&TEXT[..], &[1, 2]].concat();
        let other = [&[77][..], &TEXT].concat();
        draft(&mut model, owner(1, 5), &first, 1);
        let lanes = model.assign(&[(owner(2, 5), &other), (owner(1, 5), &first)]);
        assert_eq!(lanes.len(), 2);
        assert_ne!(lanes[0], lanes[1]);
        assert_eq!(model.behind(lanes[1], &first), Some(0));
        let (_, computed) = draft(&mut model, owner(3, 5), &[&first[..], &TEXT].concat(), 1);
        assert_eq!(computed, 16, "all but the common beginning");
        let (_, computed) = draft(&mut model, owner(4, 6), &first, 1);
        assert_eq!(computed, 16, "nothing that another tenant has computed is used");
    }

    #[test]
    fn there_is_no_draft_without_room_or_for_unknown_tokens() {
        let mut model = draft_model(2, 64, 64);
        let long = [&[9; 40][..], &[0]].concat();
        let lanes = model.assign(&[(owner(1, 0), &long), (owner(2, 0), &TEXT)]);
        while model.catch_up(lanes[0], &long) > 0 && model.behind(lanes[0], &long) != Some(0) {}
        assert_eq!(model.behind(lanes[1], &TEXT), None, "the other one has the cells");
        assert_eq!(model.assign(&[(owner(2, 0), &TEXT)]).len(), 1);
        assert_eq!(draft(&mut model, owner(2, 0), &TEXT, 1).0, [1], "now it is gone");
        let lane = model.assign(&[(owner(3, 0), &TEXT)])[0];
        assert_eq!(model.behind(lane, &[257, 1]), None);
        assert_eq!(model.behind(lane, &[1; 64]), None, "its context is full");
        // A draft ends where the context does.
        let full = [&[9; 62][..], &[0]].concat();
        let mut model = draft_model(1, 64, 128);
        assert_eq!(draft(&mut model, owner(1, 0), &full, 5).0.len(), 2);
    }

    #[test]
    fn tokens_that_the_large_model_does_not_have_are_never_drafted() {
        let model = FakeModel::with_cells(1, 64, 16, 64);
        let mut model = DraftModel::new(model, 5);
        let drafted = draft(&mut model, owner(1, 0), &[4, 0, 4], 1).0;
        assert!(drafted[0] < 5, "the model would say 256");
    }

    #[test]
    fn a_batch_that_fails_costs_the_draft_and_nothing_else() {
        let mut model = draft_model(1, 64, 64);
        draft(&mut model, owner(1, 0), &TEXT, 1);
        model.model.fail_next = true;
        let (drafts, steps) = model.draft(&[Wanted { lane: 0, text: &TEXT, count: 2 }], ANY);
        assert_eq!((&drafts[0], steps), (&Modeled::default(), 0));
        assert_eq!((model.model.cells(), model.behind(0, &TEXT)), (0, Some(16)));
        model.model.fail_next = true;
        assert_eq!(model.catch_up(0, &TEXT), 0);
        assert_eq!(draft(&mut model, owner(1, 0), &TEXT, 2), (vec![1, 2], 16));
    }
}
