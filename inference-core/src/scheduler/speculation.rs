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
//! Every token is sampled as always, with its own random numbers, from logits that follow from the
//! tokens before it. So drafts change when a token is computed, but not which one.

use crate::scheduler::step_pace::smooth;

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
/// Most sequences of a step with drafts of a draft model: more fill its rows themselves.
pub(crate) const MODELED_MAX: usize = 4;

/// A sequence that may get a draft.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Candidate {
    /// Probability that a draft token is kept and accepted if the ones before it are: 0 to 1.
    pub(crate) acceptance: f32,
    /// Probability that it is kept if the ones before it are: a draft model may end a draft.
    pub(crate) kept: f32,
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
}

/// A decode step that was computed, with or without drafts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DecodeStep {
    pub(crate) sequences: u32,
    /// Rows: one for each sequence, and the drafts.
    pub(crate) rows: u32,
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
    /// True if the draft model was timed since the last time that some times were forgotten.
    is_model_recent: bool,
}

impl Speculation {
    /// Starts without measurements.
    pub(crate) fn new() -> Self {
        const COUNTS: usize = ROWS_MAX as usize + 1;
        Self {
            seconds: [0.0; COUNTS],
            is_recent: [false; COUNTS],
            steps: 0,
            drafted_steps: 0,
            budget: 0.0,
            savings: 0.0,
            catch_up_row: 0.0,
            draft_steps: [0.0; MODELED_MAX + 1],
            is_model_recent: false,
        }
    }

    /// How many draft tokens of each sequence to compute, in a step of at most `rows_max` rows.
    pub(crate) fn drafts(&self, sequences: &[Candidate], rows_max: u32) -> Vec<u32> {
        let mut drafts = vec![0; sequences.len()];
        let plain = self.timed(sequences.len() as u32);
        if plain == 0.0 || self.budget < 0.0 || self.drafted_steps >= DRAFTED_STEPS_MAX {
            return drafts;
        }
        let most_timed = (1..=ROWS_MAX).rev().find(|rows| self.timed(*rows) > 0.0).unwrap_or(1);
        let rows_max = rows_max.min(ROWS_MAX).min(GROWTH_MAX * most_timed);
        let modeled = sequences.iter().filter(|candidate| candidate.is_modeled).count();
        let draft_step = self.draft_steps.get(modeled).copied().unwrap_or(f32::INFINITY);
        let (mut best, mut best_rate) = (drafts.clone(), GAIN_MIN * sequences.len() as f32 / plain);
        // What is expected: rows, tokens, and steps of the draft model for each sequence.
        let (mut all_rows, mut tokens) = (sequences.len() as f32, sequences.len() as f32);
        let mut draft_steps = vec![0.0; sequences.len()];
        for _ in sequences.len() as u32..rows_max {
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
            let Candidate { kept, is_modeled, .. } = sequences[likeliest];
            let reached = kept.powi(drafts[likeliest] as i32);
            all_rows += reached * kept;
            drafts[likeliest] += 1;
            if is_modeled {
                draft_steps[likeliest] += reached;
            }
            let steps = draft_steps.iter().copied().fold(0.0, f32::max);
            let drafting = if steps == 0.0 { 0.0 } else { steps * draft_step };
            let rate = tokens / (self.estimate_between(all_rows) + drafting);
            if rate > best_rate {
                (best, best_rate) = (drafts.clone(), rate);
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
        if let Some(seconds) = self.seconds.get_mut(step.rows as usize) {
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
        let plain = self.timed(sequences as u32);
        let more = (2 * sequences as u32).min(ROWS_MAX);
        let draft_step = self.draft_steps.get(modeled).copied().unwrap_or_default();
        if plain == 0.0 {
            return LeastChance { to_keep: LEAST_CHANCE_MIN, to_go_on: LEAST_CHANCE_MIN };
        }
        // A token saves its sequence's part of a step.
        let row = (self.estimate(more) - plain).max(0.0) / plain;
        let share = sequences as f32 / modeled.max(1) as f32;
        let to_keep = row.clamp(LEAST_CHANCE_MIN, LEAST_CHANCE_MAX);
        let to_go_on = (to_keep + share * draft_step / plain).min(LEAST_CHANCE_MAX);
        LeastChance { to_keep, to_go_on }
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
        if let Some(step) = self.draft_steps.get_mut(sequences) {
            smooth(step, seconds / steps.max(1) as f32);
        }
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
mod tests {
    use super::*;
    use rand_core::{Rng, SeedableRng};
    use rand_pcg::Pcg64;

    const PLAIN: DecodeStep =
        DecodeStep { sequences: 1, rows: 1, tokens: 1, seconds: 0.01, drafting: 0.0 };

    /// Runs decode steps of some sequences whose draft tokens are accepted with a chance, on a
    /// machine that takes `cost(rows)` seconds. Returns the tokens per second, as a part of those
    /// without drafts.
    fn speed(sequences: u32, chance: f32, cost: impl Fn(u32) -> f32) -> f32 {
        let mut random = Pcg64::seed_from_u64(7);
        let mut speculation = Speculation::new();
        let (mut tokens, mut seconds, steps) = (0, 0.0, 2000);
        for _ in 0..steps {
            let all =
                vec![
                    Candidate { acceptance: chance, kept: 1.0, tokens: 15, is_modeled: false };
                    sequences as usize
                ];
            let drafts = speculation.drafts(&all, 64);
            let mut is_hit = || (random.next_u32() as f32 / u32::MAX as f32) < chance;
            let sampled: u32 =
                drafts.iter().map(|n| 1 + (0..*n).take_while(|_| is_hit()).count() as u32).sum();
            let rows = sequences + drafts.iter().sum::<u32>();
            let batch = cost(rows);
            let step =
                DecodeStep { sequences, rows, tokens: sampled, seconds: batch, drafting: 0.0 };
            speculation.record(step);
            (tokens, seconds) = (tokens + sampled, seconds + step.seconds);
        }
        let plain = sequences as f32 / cost(sequences);
        tokens as f32 / seconds / plain
    }

    /// A machine whose steps are bound by memory up to a few rows.
    fn machine(rows: u32) -> f32 {
        0.010 + 0.002 * rows as f32
    }

    #[test]
    fn text_that_repeats_itself_is_generated_several_times_as_fast() {
        assert!(speed(1, 0.95, machine) > 2.5, "{}", speed(1, 0.95, machine));
        assert!(speed(4, 0.9, machine) > 1.4, "{}", speed(4, 0.9, machine));
    }

    #[test]
    fn drafts_are_never_much_slower_than_none() {
        // From rows that cost nothing to rows that cost a step each.
        for row in [0.0, 0.1, 0.3, 0.6, 1.0, 2.0] {
            for chance in [0.0, 0.05, 0.2, 0.4, 0.7, 0.95] {
                for sequences in [1, 2, 4, 8, 16, 20] {
                    let cost = |rows: u32| 0.01 * (1.0 + row * (rows - 1) as f32);
                    let speed = speed(sequences, chance, cost);
                    assert!(speed > 0.985, "{sequences} of {chance}, {row} a row: {speed}");
                }
            }
        }
    }

    #[test]
    fn drafts_that_are_never_accepted_are_stopped_by_what_they_cost() {
        let mut speculation = Speculation::new();
        let (mut tokens, mut seconds) = (0, 0.0);
        for _ in 0..5000 {
            let sure = Candidate { acceptance: 0.99, kept: 1.0, tokens: 15, is_modeled: false };
            let drafts = speculation.drafts(&[sure], 64);
            let rows = 1 + drafts[0];
            // None is ever right.
            let step = DecodeStep { rows, seconds: machine(rows), ..PLAIN };
            speculation.record(step);
            (tokens, seconds) = (tokens + 1, seconds + step.seconds);
        }
        let speed = tokens as f32 / seconds * machine(1);
        assert!(speed > 0.985, "{speed}");
    }

    /// Like [`speed`], with a draft model whose steps and tokens take a part of a step's time, for
    /// responses of `response` tokens after texts of `prompt` tokens. `knows`: it drops what would
    /// be wrong.
    fn modeled_speed(
        chance: f32,
        knows: bool,
        (step, token): (f32, f32),
        (prompt, response): (u32, u32),
    ) -> f32 {
        let mut random = Pcg64::seed_from_u64(7);
        let mut speculation = Speculation::new();
        let (mut tokens, mut seconds, plain) = (0, 0.0, machine(1));
        for _ in 0..200 {
            let (mut behind, mut left) = (prompt, response);
            while left > 0 {
                let is_ready = behind == 0 || speculation.can_catch_up(behind);
                let wanted = if is_ready { 15.min(left - 1) } else { 0 };
                let kept = if knows { chance } else { 1.0 };
                let candidate =
                    Candidate { acceptance: chance, kept, tokens: wanted, is_modeled: true };
                let mut drafts = speculation.drafts(&[candidate], 64)[0];
                if drafts > 0 && behind > 0 {
                    let rows = behind.min(64);
                    speculation.record_catch_up(rows, rows as f32 * token * plain);
                    (behind, drafts) = (behind - rows, 0);
                    seconds += rows as f32 * token * plain;
                }
                let mut is_hit = || (random.next_u32() as f32 / u32::MAX as f32) < chance;
                let hits = (0..drafts).take_while(|_| is_hit()).count() as u32;
                let steps = if knows { drafts.min(hits + 1) } else { drafts };
                let drafting = steps as f32 * step * plain;
                if drafts > 0 {
                    speculation.record_drafting(1, steps, drafting);
                }
                drafts = if knows { hits } else { drafts };
                let sampled = 1 + hits;
                let seconds_of_batch = machine(1 + drafts);
                speculation.record(DecodeStep {
                    sequences: 1,
                    rows: 1 + drafts,
                    tokens: sampled,
                    seconds: seconds_of_batch,
                    drafting,
                });
                left -= sampled;
                (tokens, seconds) = (tokens + sampled, seconds + seconds_of_batch + drafting);
            }
        }
        tokens as f32 / seconds * plain
    }

    #[test]
    fn a_draft_model_a_tenth_of_the_size_pays_off_and_another_costs_next_to_nothing() {
        let small = (0.1, 0.02);
        assert!(modeled_speed(0.8, false, small, (100, 200)) > 1.5);
        assert!(modeled_speed(0.7, false, small, (1000, 300)) > 1.2);
        for chance in [0.0, 0.2, 0.4, 0.7, 0.95] {
            for cost in [small, (0.3, 0.1), (1.0, 0.5)] {
                for sizes in [(20, 50), (1000, 50), (1000, 300), (8000, 100)] {
                    for knows in [false, true] {
                        let speed = modeled_speed(chance, knows, cost, sizes);
                        assert!(speed > 0.98, "{chance}, {knows}, {cost:?}, {sizes:?}: {speed}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_draft_model_that_drops_what_would_be_wrong_gains_more() {
        for (chance, more) in [(0.5, 1.1), (0.7, 1.2), (0.9, 1.1)] {
            let speed = |knows| modeled_speed(chance, knows, (0.1, 0.02), (100, 200));
            assert!(speed(true) > more * speed(false), "{} {}", speed(true), speed(false));
        }
    }

    #[test]
    fn a_token_must_be_the_surer_the_more_it_costs() {
        let timed = |sequences: u32, row: f32| {
            let mut speculation = Speculation::new();
            for rows in [sequences, 2 * sequences] {
                let seconds = 0.01 + row * rows as f32;
                speculation.record(DecodeStep { sequences, rows, seconds, ..PLAIN });
            }
            speculation.record_drafting(1, 2, 0.004);
            speculation.least_chance(sequences as usize, 1)
        };
        let unknown = Speculation::new().least_chance(1, 1);
        assert_eq!((unknown.to_keep, unknown.to_go_on), (LEAST_CHANCE_MIN, LEAST_CHANCE_MIN));
        let (one, four, dear) = (timed(1, 0.001), timed(4, 0.001), timed(4, 0.1));
        assert!(
            (one.to_keep - 1.0 / 11.0).abs() < 0.01 && (four.to_keep - 4.0 / 14.0).abs() < 0.01
        );
        assert!(one.to_go_on > one.to_keep + 0.1 && four.to_go_on > one.to_go_on);
        assert_eq!((dear.to_keep, dear.to_go_on), (LEAST_CHANCE_MAX, LEAST_CHANCE_MAX));
    }

    #[test]
    fn a_time_that_was_measured_on_a_busy_machine_is_forgotten() {
        let mut speculation = Speculation::new();
        let plain = PLAIN;
        speculation.record(plain);
        speculation.record(DecodeStep { rows: 2, seconds: 1.0, tokens: 2, ..plain });
        let sure = [Candidate { acceptance: 0.9, kept: 1.0, tokens: 1, is_modeled: false }];
        (0..450).for_each(|_| speculation.record(plain));
        assert_eq!(speculation.drafts(&sure, 64), [0], "it took too long");
        (0..64).for_each(|_| speculation.record(plain));
        assert_eq!(speculation.drafts(&sure, 64), [1], "it may be fast now");
    }

    #[test]
    fn a_step_without_drafts_comes_now_and_then_and_rows_have_a_limit() {
        let mut speculation = Speculation::new();
        let step = DecodeStep { sequences: 2, rows: 2, tokens: 2, ..PLAIN };
        let sure = [Candidate { acceptance: 1.0, kept: 1.0, tokens: 15, is_modeled: false }; 2];
        assert_eq!(speculation.drafts(&sure, 64), [0, 0], "nothing is known");
        speculation.record(step);
        let mut all = Vec::new();
        for _ in 0..DRAFTED_STEPS_MAX {
            let rows = 2 + speculation.drafts(&sure, 7).iter().sum::<u32>();
            speculation.record(DecodeStep { rows, tokens: rows, ..step });
            all.push(rows);
        }
        assert_eq!((all[0], all[1], all[31]), (4, 7, 7));
        assert_eq!(speculation.drafts(&sure, 7), [0, 0]);
    }
}
