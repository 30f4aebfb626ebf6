//! PURE. Decides how many draft tokens ([`crate::scheduler::drafts`]) a decode step computes along
//! with the last token of each sequence.
//!
//! An accepted draft token saves a step; each row makes this one longer, and so does a draft
//! model. The controller times steps by their number of rows, and the draft model's, and picks the
//! drafts with the most expected tokens per second. A draft model ends a draft by itself where it
//! is not sure enough, by the chances that the controller names. It also keeps a time budget:
//! drafts may lose a small part of the decoding time against steps without them, and pause when
//! the budget is used up.
//!
//! Before a draft model can draft, it must compute the text so far. That may take as long as dozens
//! of steps, so it is paid from savings: what the budget does not hold of the time gained.
//!
//! Of some models, a batch can only be undone as a whole. What was accepted of a draft of which a
//! part was rejected is then computed again in the next step, which costs rows as well, and several
//! sequences have drafts of lengths that fit each other ([`even`]).
//!
//! Every token is sampled as always, with its own random numbers, from logits that follow from the
//! tokens before it. So drafts change when a token is computed, but not which one.

use crate::scheduler::step_pace::smooth;

mod even;

pub(crate) use even::make_even;

/// Most rows of a step with drafts. More take about as long as they save, even if all are right.
pub(crate) const ROWS_MAX: u32 = 16;
/// Part of the decoding time that drafts may lose.
const LOSS_SHARE: f32 = 0.01;
/// Bound of the time budget, in steps without drafts: old gains do not pay for new losses, and a
/// loss does not stop drafts forever.
const BUDGET_STEPS: f32 = 4.0;
/// Each row beyond those that were timed may take this part of what rows took so far, and at least
/// this part of a step.
const ROW_ESTIMATE: f32 = 0.5;
const ROW_ESTIMATE_MIN: f32 = 0.04;
/// A step has at most so many times the rows that were timed.
const GROWTH_MAX: u32 = 2;
/// Drafts must promise this many times the tokens per second.
const GAIN_MIN: f32 = 1.02;
/// Draft tokens that are accepted less often than this are not worth a row.
const ACCEPTANCE_MIN: f32 = 0.05;
/// After as many steps with drafts, one without them measures what they are compared with.
const DRAFTED_STEPS_MAX: u32 = 32;
/// Times that were not measured in as many steps are forgotten: the machine may have been busy.
const STEPS_REMEMBERED: u32 = 256;
/// Bound of the savings, in steps without drafts: enough for a draft model a tenth of the size and
/// a text of some thousand tokens.
const SAVINGS_STEPS: f32 = 256.0;
/// Savings at the beginning, to find out what a draft model gains.
const SAVINGS_STEPS_FIRST: f32 = 32.0;
/// Bounds of [`LeastChance`]: what was measured may be wrong.
const LEAST_CHANCE_MIN: f32 = 0.05;
const LEAST_CHANCE_MAX: f32 = 0.9;
/// Rows that a rejected token makes the next step compute again, if a batch is undone as a whole.
const UNDONE_ROWS: f32 = 3.0;
/// How often these are computed again on average: another draft may be rejected.
const UNDONE_TIMES: f32 = 1.5;
/// Most sequences of a step with drafts of a draft model: more fill its rows themselves.
pub(crate) const MODELED_MAX: usize = 4;

/// A sequence that may get a draft.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Candidate {
    /// Probability that a draft token is kept and accepted if the ones before it are: 0 to 1.
    pub(crate) acceptance: f32,
    /// Probability that it is kept if the ones before it are: a draft model may end a draft.
    pub(crate) kept: f32,
    /// Rows of the step without a draft: 1, and those that were undone.
    pub(crate) rows: u32,
    /// Tokens of the draft, or that may be drafted.
    pub(crate) tokens: u32,
    /// True if a draft model drafts them, one step of it for each token.
    pub(crate) is_modeled: bool,
}

/// How likely all tokens of a draft model's draft must be right.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct LeastChance {
    /// For the last one to be worth a row.
    pub(crate) to_keep: f32,
    /// With the next one, for another step of the draft model.
    pub(crate) to_go_on: f32,
    /// True if both are means of all sequences, because all have the same number of rows.
    pub(crate) is_joint: bool,
}

/// A decode step that was computed, with or without drafts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DecodeStep {
    pub(crate) sequences: u32,
    /// Rows: one for each sequence, those that were undone, and the drafts.
    pub(crate) rows: u32,
    /// True if all sequences had the same number of rows.
    pub(crate) is_even: bool,
    /// Tokens that were sampled.
    pub(crate) tokens: u32,
    /// Seconds of the batch.
    pub(crate) seconds: f32,
    /// Seconds of the draft model before it.
    pub(crate) drafting: f32,
}

/// What has been measured so far. See the module.
#[derive(Debug, Clone)]
pub(crate) struct Speculation {
    /// True if a batch can only be undone as a whole.
    undoes_batches: bool,
    /// Seconds of a decode step by number of rows; 0 if unknown.
    seconds: [f32; ROWS_MAX as usize + 1],
    /// Row counts timed since the last time that some were forgotten.
    is_recent: [bool; ROWS_MAX as usize + 1],
    steps: u32,
    /// Steps with drafts since the last one without.
    drafted_steps: u32,
    /// Time budget: seconds that drafts may lose.
    budget: f32,
    /// Seconds that a draft model may take for the text before a draft.
    savings: f32,
    /// Seconds that it takes for a token of that text; 0 if unknown.
    catch_up_row: f32,
    /// Seconds of a step of the draft model by number of sequences; 0 if unknown.
    draft_steps: [f32; MODELED_MAX + 1],
    /// True if the draft model has drafted: the first time, it plans its memory and touches it.
    is_model_warm: bool,
    /// True if the draft model was timed since the last time that some times were forgotten.
    is_model_recent: bool,
}

impl Speculation {
    /// Starts without measurements.
    pub(crate) fn new(undoes_batches: bool) -> Self {
        const COUNTS: usize = ROWS_MAX as usize + 1;
        Self {
            undoes_batches,
            seconds: [0.0; COUNTS],
            is_recent: [false; COUNTS],
            steps: 0,
            drafted_steps: 0,
            budget: 0.0,
            savings: 0.0,
            catch_up_row: 0.0,
            draft_steps: [0.0; MODELED_MAX + 1],
            is_model_warm: false,
            is_model_recent: false,
        }
    }

    /// How many draft tokens of each sequence to compute, in a step of at most `rows_max` rows.
    pub(crate) fn drafts(&self, sequences: &[Candidate], rows_max: u32) -> Vec<u32> {
        let plain = self.timed(sequences.len() as u32);
        if plain == 0.0 || self.budget < 0.0 || self.drafted_steps >= DRAFTED_STEPS_MAX {
            return vec![0; sequences.len()];
        }
        let most_timed = (1..=ROWS_MAX).rev().find(|rows| self.timed(*rows) > 0.0).unwrap_or(1);
        let rows_max = rows_max.min(ROWS_MAX).min(GROWTH_MAX * most_timed);
        if self.is_even(sequences.len()) {
            return self.even_drafts(sequences, rows_max);
        }
        let rate = |tokens: f32, seconds: f32| tokens / seconds;
        if sequences.iter().all(|candidate| candidate.rows == 1) {
            return self.best(sequences, rows_max, &rate).0;
        }
        // A step without a draft loses one, and ends that the same rows are computed again. What
        // time is worth, a step tells in which none are.
        let fresh = |candidate: &Candidate| Candidate { rows: 1, ..*candidate };
        let fresh: Vec<Candidate> = sequences.iter().map(fresh).collect();
        let (_, usual) = self.best(&fresh, rows_max, &rate);
        self.best(sequences, rows_max, &|tokens, seconds| tokens - usual * seconds).0
    }

    /// The drafts with the most worth, and that. `worth` tells it from tokens and seconds.
    fn best(
        &self,
        sequences: &[Candidate],
        rows_max: u32,
        worth: &dyn Fn(f32, f32) -> f32,
    ) -> (Vec<u32>, f32) {
        let (count, base) = (sequences.len() as f32, sequences.iter().map(|c| c.rows).sum());
        let mut drafts = vec![0; sequences.len()];
        let mut best = (drafts.clone(), worth(GAIN_MIN * count, self.estimate(base)));
        let modeled = sequences.iter().filter(|candidate| candidate.is_modeled).count();
        let draft_step = self.draft_steps.get(modeled).copied().unwrap_or(f32::INFINITY);
        // What is expected: rows, tokens, and steps of the draft model for each sequence.
        let (mut all_rows, mut tokens) = (base as f32, count);
        let (mut draft_steps, mut undone) = (vec![0.0; sequences.len()], 0.0);
        for _ in base..rows_max {
            let chance = |i: &usize| sequences[*i].acceptance.powi(drafts[*i] as i32 + 1);
            let open = (0..drafts.len()).filter(|i| drafts[*i] < sequences[*i].tokens);
            let Some(likeliest) = open.max_by(|a, b| chance(a).total_cmp(&chance(b))) else {
                break;
            };
            let gained = chance(&likeliest);
            if gained < ACCEPTANCE_MIN {
                break;
            }
            tokens += gained;
            let Candidate { acceptance, kept, rows, is_modeled, .. } = sequences[likeliest];
            if self.undoes_batches {
                let rejected = acceptance.powi(drafts[likeliest] as i32) - gained;
                undone += UNDONE_TIMES * rejected * (rows + drafts[likeliest]) as f32;
            }
            let reached = kept.powi(drafts[likeliest] as i32);
            all_rows += reached * kept;
            drafts[likeliest] += 1;
            if is_modeled {
                draft_steps[likeliest] += reached;
            }
            let steps = draft_steps.iter().copied().fold(0.0, f32::max);
            let drafting = if steps == 0.0 { 0.0 } else { steps * draft_step };
            let again = self.estimate_between(count + undone) - self.estimate_between(count);
            let value = worth(tokens, self.estimate_between(all_rows) + drafting + again);
            if value > best.1 {
                best = (drafts.clone(), value);
            }
        }
        best
    }

    /// Records a decode step.
    pub(crate) fn record(&mut self, step: DecodeStep) {
        let plain = self.timed(step.sequences);
        if step.rows == step.sequences {
            self.drafted_steps = 0;
            // A draft model may have found nothing that it was sure of.
            self.budget += LOSS_SHARE * step.seconds - step.drafting;
            if plain == 0.0 {
                self.budget += BUDGET_STEPS / 2.0 * step.seconds;
            }
        } else {
            self.drafted_steps += 1;
            let spent = step.seconds + step.drafting;
            self.budget += step.tokens as f32 / step.sequences as f32 * plain - spent;
        }
        let one = if plain == 0.0 { step.seconds } else { plain };
        if self.steps == 0 {
            self.savings = SAVINGS_STEPS_FIRST * one;
        }
        let most = BUDGET_STEPS * one;
        let saved = self.savings + (self.budget - most).max(0.0);
        self.savings = saved.min(SAVINGS_STEPS * one);
        self.budget = self.budget.clamp(-most, most);
        let is_usual = step.is_even || !self.undoes_batches;
        if let Some(seconds) = self.seconds.get_mut(step.rows as usize).filter(|_| is_usual) {
            smooth(seconds, step.seconds);
            self.is_recent[step.rows as usize] = true;
        }
        self.steps += 1;
        if self.steps.is_multiple_of(STEPS_REMEMBERED) {
            for (seconds, is_recent) in self.seconds.iter_mut().zip(&mut self.is_recent) {
                *seconds = if std::mem::take(is_recent) { *seconds } else { 0.0 };
            }
            if !std::mem::take(&mut self.is_model_recent) {
                (self.catch_up_row, self.draft_steps) = (0.0, [0.0; MODELED_MAX + 1]);
            }
        }
    }

    /// How sure a draft model must be, in a step of some sequences, of which it drafts for
    /// `modeled`: a token must save more time than it takes.
    pub(crate) fn least_chance(&self, sequences: usize, modeled: usize) -> LeastChance {
        let is_joint = self.is_even(sequences);
        let plain = self.timed(sequences as u32);
        let more = (2 * sequences as u32).min(ROWS_MAX);
        let draft_step = self.draft_steps.get(modeled).copied().unwrap_or_default();
        if plain == 0.0 {
            let chance = LEAST_CHANCE_MIN;
            return LeastChance { to_keep: chance, to_go_on: chance, is_joint };
        }
        // A token saves its sequence's part of a step.
        let row = (self.estimate(more) - plain).max(0.0) / plain;
        let share = sequences as f32 / modeled.max(1) as f32;
        // A wrong one costs the rows that are undone as well.
        let undone = if self.undoes_batches { row * UNDONE_ROWS } else { 0.0 };
        let to_keep = (row + undone) / (1.0 + undone);
        let to_keep = to_keep.clamp(LEAST_CHANCE_MIN, LEAST_CHANCE_MAX);
        let to_go_on = (to_keep + share * draft_step / plain).min(LEAST_CHANCE_MAX);
        LeastChance { to_keep, to_go_on, is_joint }
    }

    /// True if a draft model may compute as many tokens of a text to draft what follows.
    pub(crate) fn can_catch_up(&self, tokens: u32) -> bool {
        self.savings > 0.0 && self.savings >= self.catch_up_row * tokens as f32
    }

    /// Records that a draft model has computed tokens of a text.
    pub(crate) fn record_catch_up(&mut self, tokens: u32, seconds: f32) {
        self.savings -= seconds;
        self.is_model_recent = true;
        smooth(&mut self.catch_up_row, seconds / tokens.max(1) as f32);
    }

    /// Records that a draft model has drafted, in as many steps as its longest draft has tokens.
    pub(crate) fn record_drafting(&mut self, sequences: usize, steps: u32, seconds: f32) {
        self.is_model_recent = true;
        if !std::mem::replace(&mut self.is_model_warm, true) {
            return;
        }
        if let Some(step) = self.draft_steps.get_mut(sequences) {
            smooth(step, seconds / steps.max(1) as f32);
        }
    }

    /// Forgets how long the draft model's steps take: that has changed.
    pub(crate) fn forget_drafting(&mut self) {
        (self.draft_steps, self.is_model_warm) = ([0.0; MODELED_MAX + 1], false);
    }

    /// Seconds of a step with as many rows, drafts or not; 0 if unknown.
    fn timed(&self, sequences: u32) -> f32 {
        self.seconds.get(sequences as usize).copied().unwrap_or(0.0)
    }

    /// The same for a number of rows that is only expected.
    fn estimate_between(&self, rows: f32) -> f32 {
        let (below, above) = (rows.floor(), rows.ceil());
        let fewer = self.estimate(below as u32);
        if below == above {
            fewer
        } else {
            fewer + (rows - below) * (self.estimate(above as u32) - fewer)
        }
    }

    /// Seconds of a step with as many rows, or what it may take.
    fn estimate(&self, rows: u32) -> f32 {
        let known = |rows: &u32| self.timed(*rows) > 0.0;
        let above = (rows..=ROWS_MAX).find(known).map_or(f32::INFINITY, |more| self.timed(more));
        let mut below = (1..=rows).rev().filter(known);
        let Some(fewer) = below.next() else { return above };
        let seconds = self.timed(fewer);
        let price = below
            .next_back()
            .map_or(0.0, |fewest| (seconds - self.timed(fewest)) / (fewer - fewest) as f32);
        let row = (ROW_ESTIMATE * price).max(ROW_ESTIMATE_MIN * seconds);
        above.min(seconds + row * (rows - fewer) as f32)
    }
}

#[cfg(test)]
mod tests;
