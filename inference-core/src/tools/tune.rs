//! PURE. Finds the best way to run a model on a machine, by a short search over measured trials,
//! and how many parallel requests pay off.
//!
//! A greedy search over one coordinate after another, with everything else as in the best candidate
//! so far. Machines are noisy, so a candidate must win by more than [`WINS_BY`], twice: before the
//! search accepts it, it measures that candidate and the best so far again in turn.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::llama::FlashAttention;

/// Fraction by which a candidate must be better.
pub(crate) const WINS_BY: f64 = 0.03;
/// The search skips the rest of a coordinate after a candidate this much worse: alternatives are
/// sorted by distance from the best guess.
const HOPELESS: f64 = 0.10;
/// Default time budget of a search, without loading the weights.
pub const BUDGET: Duration = Duration::from_secs(30);
/// Approximate number of trials in a budget.
pub const TRIALS: u32 = 7;
/// Weights of the speeds in a score: prefill, one decoding sequence, four decoding sequences.
const WEIGHTS: [f64; 3] = [0.3, 0.35, 0.35];
/// Minimum speedup from doubling a batch that is worth its memory.
const SLOT_GAIN: f64 = 0.05;
/// Maximum number of slots chosen automatically.
pub(crate) const SLOTS_CHOSEN_MAX: u32 = 16;
/// Batch sizes whose speeds determine the number of slots.
pub const CURVE: [u32; 5] = [1, 2, 4, 8, 16];

/// One way to run a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Candidate {
    /// Number of compute threads.
    pub threads: u32,
    /// Whether to use flash attention.
    pub flash_attention: FlashAttention,
    /// Maximum rows of one batch.
    pub batch_rows: u32,
    /// How long idle threads poll before they sleep, 0 to 100.
    pub poll: u32,
}

/// Speeds that a trial measured, in tokens per second.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct MeasuredSpeeds {
    /// Prefill of a long prompt.
    pub prefill: f64,
    /// Decode of one sequence at the depth of that prompt.
    pub decode_one: f64,
    /// Decode of four sequences together.
    pub decode_many: f64,
}

impl MeasuredSpeeds {
    /// The weighted geometric mean of the speeds; 0 if any is not a positive number.
    pub fn score(&self) -> f64 {
        let speeds = [self.prefill, self.decode_one, self.decode_many];
        if speeds.iter().any(|s| !s.is_finite() || *s <= 0.0) {
            return 0.0;
        }
        speeds.iter().zip(WEIGHTS).map(|(s, w)| w * s.ln()).sum::<f64>().exp()
    }
}

/// Measures candidates.
pub trait Trials {
    /// Measures one candidate; `None` if it crashed or was rejected.
    fn run(&mut self, candidate: &Candidate) -> Option<MeasuredSpeeds>;
    /// Time since the search started.
    fn elapsed(&self) -> Duration;
}

/// The search space: alternatives to `base`, nearest first. A fixed coordinate has none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Space {
    /// The best choice on most machines.
    pub base: Candidate,
    /// Alternative numbers of threads.
    pub threads: Vec<u32>,
    /// Alternative flash attention settings.
    pub flash_attention: Vec<FlashAttention>,
    /// Alternative batch sizes.
    pub batch_rows: Vec<u32>,
    /// Alternative poll settings.
    pub poll: Vec<u32>,
}

impl Space {
    /// Alternative numbers of threads on a machine with `cores` cores: one fewer, if that leaves a
    /// core to the network, and half.
    pub fn threads_beside(cores: u32) -> Vec<u32> {
        let one_less = (cores >= 3).then(|| cores - 1);
        let half = (cores >= 2).then_some(cores / 2);
        let mut all: Vec<u32> = one_less.into_iter().chain(half).collect();
        all.dedup();
        all
    }

    /// The coordinates, most important first.
    fn alternatives(&self) -> [Vec<Alternative>; 4] {
        [
            self.flash_attention.iter().map(|f| Alternative::FlashAttention(*f)).collect(),
            self.threads.iter().map(|n| Alternative::Threads(*n)).collect(),
            self.batch_rows.iter().map(|n| Alternative::BatchRows(*n)).collect(),
            self.poll.iter().map(|n| Alternative::Poll(*n)).collect(),
        ]
    }
}

#[derive(Debug, Clone, Copy)]
enum Alternative {
    Threads(u32),
    FlashAttention(FlashAttention),
    BatchRows(u32),
    Poll(u32),
}

impl Alternative {
    fn apply_to(self, at: Candidate) -> Candidate {
        match self {
            Self::Threads(threads) => Candidate { threads, ..at },
            Self::FlashAttention(flash_attention) => Candidate { flash_attention, ..at },
            Self::BatchRows(batch_rows) => Candidate { batch_rows, ..at },
            Self::Poll(poll) => Candidate { poll, ..at },
        }
    }
}

/// Result of a candidate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The first one that runs.
    First,
    /// Better, twice.
    Better,
    /// Not sufficiently better.
    NoBetter,
    /// Better once, but not the second time.
    Luck,
    /// Better once; there was no time to confirm it.
    Unconfirmed,
    /// It did not run.
    Failed,
}

impl Verdict {
    /// A description for the report.
    pub fn text(self) -> &'static str {
        match self {
            Self::First => "where the search begins",
            Self::Better => "better, twice: taken",
            Self::NoBetter => "not better by more than 3 %",
            Self::Luck => "better once, but not again",
            Self::Unconfirmed => "better once, but no time to look again",
            Self::Failed => "did not run",
        }
    }
}

/// A candidate and its result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// What was tried.
    pub candidate: Candidate,
    /// The first measurement; `None` if it did not run.
    pub measured: Option<MeasuredSpeeds>,
    /// Score of that measurement.
    pub score: f64,
    /// Whether it won, and why not.
    pub verdict: Verdict,
}

/// Result of a search.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SearchResult {
    /// The best candidate; `None` if nothing ran.
    pub best: Option<Candidate>,
    /// All trials, in order.
    pub trials: Vec<Trial>,
    /// True if time ran out before everything was tried.
    pub cut_short: bool,
}

/// Runs the search; see the module. Deterministic for given results of `trials`.
pub fn search(space: &Space, trials: &mut dyn Trials, budget: Duration) -> SearchResult {
    let result = SearchResult { best: None, trials: Vec::new(), cut_short: false };
    let longest = Duration::ZERO;
    let mut search = Search { trials, budget, longest, best: None, result };
    search.attempt(space.base);
    for alternatives in space.alternatives() {
        // Nothing has run yet: start from the base anyway.
        let from = search.best.map_or(space.base, |(candidate, _)| candidate);
        for alternative in alternatives {
            if !search.has_time(1) {
                search.result.cut_short = true;
                break;
            }
            if search.attempt(alternative.apply_to(from)) == Prospect::Hopeless {
                break;
            }
        }
    }
    search.result.best = search.best.map(|(candidate, _)| candidate);
    search.result
}

struct Search<'a> {
    trials: &'a mut dyn Trials,
    budget: Duration,
    /// Duration of the longest trial so far.
    longest: Duration,
    best: Option<(Candidate, f64)>,
    result: SearchResult,
}

/// Whether the next alternative of a coordinate is worth a trial.
#[derive(Debug, PartialEq, Eq)]
enum Prospect {
    Open,
    Hopeless,
}

impl Search<'_> {
    fn has_time(&self, trials: u32) -> bool {
        self.trials.elapsed().saturating_add(self.longest.saturating_mul(trials)) <= self.budget
    }

    fn run(&mut self, candidate: Candidate) -> Option<MeasuredSpeeds> {
        let before = self.trials.elapsed();
        let measured = self.trials.run(&candidate).filter(|m| m.score() > 0.0);
        self.longest = self.longest.max(self.trials.elapsed().saturating_sub(before));
        measured
    }

    fn attempt(&mut self, candidate: Candidate) -> Prospect {
        let measured = self.run(candidate);
        let score = measured.map_or(0.0, |m| m.score());
        let (verdict, prospect) = self.judge(candidate, score);
        self.result.trials.push(Trial { candidate, measured, score, verdict });
        prospect
    }

    fn judge(&mut self, candidate: Candidate, score: f64) -> (Verdict, Prospect) {
        if score == 0.0 {
            return (Verdict::Failed, Prospect::Open);
        }
        let Some((best, best_score)) = self.best else {
            self.best = Some((candidate, score));
            return (Verdict::First, Prospect::Open);
        };
        if score <= best_score * (1.0 + WINS_BY) {
            let hopeless = score < best_score * (1.0 - HOPELESS);
            return (Verdict::NoBetter, if hopeless { Prospect::Hopeless } else { Prospect::Open });
        }
        if !self.has_time(2) {
            self.result.cut_short = true;
            return (Verdict::Unconfirmed, Prospect::Open);
        }
        let again = [best, candidate].map(|c| self.run(c).map_or(0.0, |m| m.score()));
        let [best_again, score_again] = again;
        if score_again > best_again * (1.0 + WINS_BY) {
            self.best = Some((candidate, score_again));
            return (Verdict::Better, Prospect::Open);
        }
        (Verdict::Luck, Prospect::Open)
    }
}

/// The largest batch that is worth its memory: each doubling must gain at least 5 % in total tokens
/// per second. One batch may be no better than the one before (some kernels compute four rows at
/// the price of two) if the next makes up for it.
pub fn slots_worth(curve: &[(u32, f64)]) -> u32 {
    let mut chosen: Option<(u32, f64)> = None;
    for (batch, speed) in curve.iter().copied().filter(|(n, s)| *n > 0 && s.is_finite()) {
        let worth = chosen.is_none_or(|(from, before)| {
            let doublings = (f64::from(batch) / f64::from(from)).log2();
            speed >= before * (1.0 + SLOT_GAIN).powf(doublings)
        });
        if worth {
            chosen = Some((batch, speed));
        }
    }
    chosen.map_or(1, |(batch, _)| batch.clamp(1, SLOTS_CHOSEN_MAX))
}

#[cfg(test)]
mod tests;
