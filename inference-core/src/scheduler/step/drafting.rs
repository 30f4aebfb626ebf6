//! Drafting: which tokens a step computes beside the last one of each sequence.

use std::time::Duration;

use super::Engine;
use crate::scheduler::draft_model::{DraftModel, Followed, Owner, Wanted};
use crate::scheduler::planning::SlotRows;
use crate::scheduler::sequence::Sequence;
use crate::scheduler::speculation::{self, Candidate, MODELED_MAX, ROWS_MAX, Speculation};
use crate::types::model::{Model, Undo};

/// How long the draft model took before a batch.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct DraftTime {
    /// For drafts.
    pub(super) drafting: Duration,
    /// For texts that later drafts follow.
    pub(super) catching_up: Duration,
}

/// What the draft model may do for a sequence.
#[derive(Debug, Clone, Copy)]
struct Offer {
    lane: usize,
    /// Tokens of the text that it must compute first.
    behind: u32,
}

impl<M: Model> Engine<M> {
    /// Adds drafts to a step in which all sequences decode.
    pub(super) fn draft(
        &mut self,
        shares: &mut [SlotRows],
        clock: &dyn Fn() -> Duration,
    ) -> DraftTime {
        let Some(speculation) = &mut self.speculation else { return DraftTime::default() };
        let mut slots: Vec<_> = self.slots.iter_mut().map(Option::as_mut).collect();
        let mut sequences: Vec<&mut Sequence> =
            shares.iter().filter_map(|share| slots[share.slot as usize].take()).collect();
        // Where only whole batches can be undone, each sequence with drafts needs a checkpoint.
        let undoes_batches = self.shape.undo == Undo::WholeBatch;
        let mut spares: Vec<_> = self.pool.unused().chain([self.shape.seq_ids]).collect();
        let most =
            if undoes_batches { spares.len().min(MODELED_MAX) } else { ROWS_MAX as usize - 1 };
        let may_draft =
            sequences.len() <= most && sequences.iter().all(|sequence| sequence.is_decoding());
        let count = if may_draft { ROWS_MAX } else { 0 };
        let room: Vec<u32> = sequences.iter_mut().map(|sequence| sequence.draft(count)).collect();
        let mut candidates: Vec<_> = sequences.iter().map(|s| from_text(s)).collect();
        let offers = match &mut self.draft_model {
            Some(model) if may_draft && sequences.len() <= MODELED_MAX.min(model.lanes()) => {
                offer(model, speculation, &sequences, (&room, &mut candidates))
            }
            _ => vec![None; sequences.len()],
        };
        // No kept prefix is evicted for a draft.
        let rows_max =
            self.shape.batch_rows.min(self.shape.logits_rows).min(self.pool.cells().free);
        let mut drafts = speculation.drafts(&candidates, rows_max);
        let time = match &mut self.draft_model {
            Some(model) => run(model, speculation, &mut sequences, (&offers, &mut drafts), clock),
            None => DraftTime::default(),
        };
        let rows: Vec<u32> = candidates.iter().map(|candidate| candidate.rows).collect();
        if undoes_batches {
            speculation::make_even(&rows, &mut drafts);
        }
        for ((share, drafted), sequence) in shares.iter_mut().zip(drafts).zip(sequences) {
            share.drafted = drafted;
            if drafted > 0
                && undoes_batches
                && let Some(spare) = spares.pop()
            {
                self.model.checkpoint(sequence.seq, spare);
                sequence.set_checkpoint(spare);
            }
        }
        time
    }

    /// Passes the hidden states of a batch to the MTP head, if there is one.
    pub(super) fn pass_hidden_states(&mut self, shares: &[SlotRows]) {
        if self.shape.hidden_width == 0 {
            return;
        }
        let Some(head) = &mut self.draft_model else { return };
        let mut rows = vec![0..0; self.slots.len()];
        let mut first = 0;
        for share in shares {
            rows[share.slot as usize] = first..first + share.all_rows() as usize;
            first += share.all_rows() as usize;
        }
        let live = self.slots.iter().zip(rows).filter_map(|(s, rows)| Some((s.as_ref()?, rows)));
        let followed = live.map(|(sequence, rows)| Followed {
            owner: owner(sequence),
            text: sequence.tokens(),
            first_row: rows.start,
            rows: self.rows.get(rows).unwrap_or_default(),
        });
        let all: Vec<_> = followed.collect();
        head.follow(&all, |row| self.model.hidden_state(row));
    }
}

/// Whose text it is.
fn owner(sequence: &Sequence) -> Owner {
    Owner { sequence: sequence.arrival, tenant: sequence.prefix_owner }
}

/// What the text of a sequence promises.
fn from_text(sequence: &Sequence) -> Candidate {
    let lookup = sequence.drafts.lookup();
    let tokens = lookup.draft().len() as u32;
    let rows = sequence.undecoded().len() as u32;
    Candidate { acceptance: lookup.acceptance(), kept: 1.0, rows, tokens, is_modeled: false }
}

/// Lets the draft model draft for the sequences of which it knows more than their texts tell.
fn offer<M: Model>(
    model: &mut DraftModel<M>,
    speculation: &Speculation,
    sequences: &[&mut Sequence],
    (room, candidates): (&[u32], &mut [Candidate]),
) -> Vec<Option<Offer>> {
    let texts: Vec<_> = sequences.iter().map(|s| (owner(s), s.tokens())).collect();
    let lanes = model.assign(&texts);
    let mut offer = |i: usize| {
        let acceptance = sequences[i].drafts.modeled_acceptance().unwrap_or(model.acceptance());
        let text = candidates[i];
        let behind = model.behind(lanes[i], sequences[i].tokens())?;
        let is_better = text.tokens == 0 || text.acceptance < acceptance;
        let can_draft = behind == 0 || speculation.can_catch_up(behind);
        if room[i] == 0 || !is_better || !can_draft {
            return None;
        }
        let (kept, tokens) = (model.kept(), room[i]);
        candidates[i] = Candidate { acceptance, kept, tokens, is_modeled: true, ..text };
        Some(Offer { lane: lanes[i], behind })
    };
    (0..sequences.len()).map(&mut offer).collect()
}

/// Lets the draft model compute the drafts that were chosen of its offers, or some of the text
/// before one.
fn run<M: Model>(
    model: &mut DraftModel<M>,
    speculation: &mut Speculation,
    sequences: &mut [&mut Sequence],
    (offers, drafts): (&[Option<Offer>], &mut [u32]),
    clock: &dyn Fn() -> Duration,
) -> DraftTime {
    let chosen = |(i, offer): (usize, &Option<Offer>)| offer.map(|offer| (i, offer));
    let chosen = offers.iter().enumerate().filter_map(chosen);
    let chosen: Vec<(usize, Offer)> = chosen.filter(|(i, _)| drafts[*i] > 0).collect();
    let (ready, late): (Vec<_>, Vec<_>) = chosen.iter().partition(|(_, offer)| offer.behind == 0);
    let mut time = DraftTime::default();
    if let Some((i, Offer { lane, .. })) = late.first() {
        let begun = clock();
        let computed = model.catch_up(*lane, sequences[*i].tokens());
        time.catching_up = clock().saturating_sub(begun);
        speculation.record_catch_up(computed, time.catching_up.as_secs_f32());
    }
    late.iter().for_each(|(i, _)| drafts[*i] = 0);
    // Without those, no sequence could have as many rows as the others.
    let is_even = speculation.is_even(sequences.len());
    if ready.is_empty() || is_even && !late.is_empty() {
        return time;
    }
    let rows = |sequence: &Sequence| sequence.undecoded().len() as u32;
    let most = sequences.iter().map(|sequence| rows(sequence)).max().unwrap_or_default();
    // Another sequence has as many rows anyway.
    let least_of = |sequence: &Sequence| if is_even { most - rows(sequence) } else { 0 };
    let wanted = |(i, Offer { lane, .. }): &(usize, Offer)| Wanted {
        lane: *lane,
        text: sequences[*i].tokens(),
        count: drafts[*i],
        least: least_of(sequences[*i]),
    };
    let least = speculation.least_chance(sequences.len(), ready.len());
    let begun = clock();
    let (drafted, steps) = model.draft(&ready.iter().map(wanted).collect::<Vec<_>>(), least);
    time.drafting = clock().saturating_sub(begun);
    speculation.record_drafting(ready.len(), steps, time.drafting.as_secs_f32());
    for ((i, _), draft) in ready.iter().zip(drafted) {
        drafts[*i] = draft.tokens.len() as u32;
        sequences[*i].drafts.set_modeled(draft, model.acceptance());
    }
    time
}
