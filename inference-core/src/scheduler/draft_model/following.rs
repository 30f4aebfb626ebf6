//! MTP heads: draft models whose input includes hidden states of the large model.
//!
//! The input of a row is a token and the hidden state before it, so that a head can compute only
//! what the large model has computed. It receives the hidden states of each batch. A few wait until
//! the next draft needs them; more, such as those of a prompt, are used at once. Where states are
//! missing, because another sequence had the lane, it begins anew after the gap, and sees less of
//! the text. A single one may be missing, before what the large model computes after a prefix from
//! the cache: zeros take its place.

use super::{DraftModel, Owner};
use crate::scheduler::hidden_states::HiddenStates;
use crate::types::model::{Model, Row, Shape};
use crate::types::request::Token;

/// The states that wait in all lanes fit into a batch so many times.
const WAITING_PART: usize = 4;

/// The hidden states that wait to be input of an MTP head. See the module.
#[derive(Debug)]
pub(super) struct Following {
    lanes: Vec<HiddenStates>,
    /// As many states may wait in a lane.
    waiting_max: usize,
    /// Those of the rows of the next batch.
    batch: Vec<f32>,
    /// Takes the place of one that is missing.
    unknown: Vec<f32>,
}

/// A live sequence, and its rows of the last batch, if any.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Followed<'a> {
    pub(crate) owner: Owner,
    /// All its known tokens, without those of a draft.
    pub(crate) text: &'a [Token],
    pub(crate) rows: &'a [Row],
    /// Index of the first of these rows in the batch.
    pub(crate) first_row: usize,
}

impl Following {
    /// For a head that has as many lanes; `None` if the model is none.
    pub(super) fn new(shape: &Shape, lanes: u32) -> Option<Self> {
        let width = shape.hidden_width as usize;
        let waiting_max = (shape.batch_rows / lanes.max(1)) as usize / WAITING_PART;
        let lanes = (0..lanes).map(|_| HiddenStates::new(width)).collect();
        let (batch, unknown) = (Vec::new(), vec![0.0; width]);
        (width > 0).then_some(Self { lanes, waiting_max, batch, unknown })
    }

    pub(super) fn batch(&self) -> &[f32] {
        &self.batch
    }

    pub(super) fn clear_batch(&mut self) {
        self.batch.clear();
    }

    /// Drops the states that wait in a lane.
    pub(super) fn forget(&mut self, lane: usize) {
        self.lanes[lane].forget_before(usize::MAX);
    }

    /// The position from which a lane that begins with `known` tokens of a text can compute the
    /// rest of it. `None` if states are missing.
    pub(super) fn next(&self, lane: usize, known: usize, text: &[Token]) -> Option<usize> {
        let last = text.len().checked_sub(1)?;
        let from = self.begin(lane, known.min(last))?;
        (from <= last && self.lanes[lane].end(text) >= last).then_some(from)
    }

    /// Where a lane that begins with `known` tokens of its text goes on, or begins anew. `None` if
    /// it is ahead of the states.
    fn begin(&self, lane: usize, known: usize) -> Option<usize> {
        let states = &self.lanes[lane];
        let joins = known > 0 && (states.at(known - 1).is_some() || known == states.first());
        match states.len() {
            0 => None,
            _ if joins => Some(known),
            waiting if known > states.first() + waiting => None,
            _ => Some(states.first() + 1),
        }
    }
}

impl<M: Model> DraftModel<M> {
    /// Records a batch of the large model: all live sequences, and the hidden state after each row.
    pub(crate) fn follow<'a>(
        &mut self,
        all: &[Followed<'_>],
        state: impl Fn(usize) -> &'a [f32] + Copy,
    ) {
        if self.following.is_none() {
            return;
        }
        let has_lane = |owner| self.lanes.iter().any(|lane| lane.owner == Some(owner));
        let (mut chosen, others): (Vec<_>, Vec<_>) =
            all.iter().partition(|followed| has_lane(followed.owner));
        chosen.extend(others);
        chosen.truncate(self.lanes.len());
        let texts: Vec<_> = chosen.iter().map(|f: &&Followed<'_>| (f.owner, f.text)).collect();
        let lanes = self.assign(&texts);
        for (lane, Followed { text, rows, first_row, .. }) in lanes.into_iter().zip(chosen) {
            let (Some(first), Some(following)) = (rows.first(), &mut self.following) else {
                continue;
            };
            let states = rows.iter().enumerate().map(|(i, row)| (row.token, state(first_row + i)));
            following.lanes[lane].record(first.position as usize, states);
            if following.lanes[lane].len() > following.waiting_max {
                self.use_states(lane, text);
            }
        }
    }

    /// Computes all of a text that the waiting states of its lane allow, and drops them.
    fn use_states(&mut self, lane: usize, text: &[Token]) {
        let most = self.shape.batch_rows as usize;
        loop {
            let known = self.known(lane, text);
            let Some(following) = &self.following else { return };
            let Some(from) = following.begin(lane, known) else { break };
            let end = text.len().min(following.lanes[lane].end(text) + 1).min(from + most);
            if from >= end || end > self.room() || !self.make_room(end - from) {
                break;
            }
            self.clear_rows();
            self.begin_lane(lane, text, from);
            self.push_text(lane, &text[from..end], false);
            if !self.decode() {
                break;
            }
        }
        let used = self.lanes[lane].tokens.len();
        let Some(following) = &mut self.following else { return };
        let waiting_max = following.waiting_max.max(2);
        let states = &mut following.lanes[lane];
        // The last token of a text may be computed once more, after the state before it.
        states.forget_before(used.saturating_sub(2));
        if states.len() > waiting_max {
            // There was no room for them.
            states.forget_before(states.first() + states.len() - 1);
        }
    }

    /// Lets a lane hold the first tokens of a text, as far as it can.
    pub(super) fn begin_lane(&mut self, lane: usize, text: &[Token], tokens: usize) {
        if self.known(lane, text) >= tokens {
            return self.truncate(lane, tokens);
        }
        self.truncate(lane, 0);
        if self.following.is_some() {
            let lane = &mut self.lanes[lane];
            (lane.tokens, lane.left_out) = (text[..tokens].to_vec(), tokens);
        }
    }

    /// Adds the rows of the next tokens of a lane's text, and what they follow.
    pub(super) fn push_text(&mut self, lane: usize, tokens: &[Token], logits: bool) {
        let first = self.lanes[lane].tokens.len();
        self.push_rows(lane, tokens, logits);
        let Some(Following { lanes, batch, unknown, .. }) = &mut self.following else { return };
        for position in first..first + tokens.len() {
            let before = position.checked_sub(1).and_then(|before| lanes[lane].at(before));
            batch.extend(before.unwrap_or(unknown));
        }
    }

    /// Lets the row that was added last follow the head's own state after a row of the last batch.
    pub(super) fn follow_own(&mut self, row: usize) {
        if let Some(following) = &mut self.following {
            following.batch.extend(self.model.hidden_state(row));
        }
    }
}
