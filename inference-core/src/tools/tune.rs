//! PURE. Finds out how a model is run best on a machine, by a short search over measured
//! trials, and how many requests side by side are worth it.
//!
//! A greedy search over one coordinate after another: everything else stays as the best so
//! far has it. Machines are noisy, so that a candidate has to win by more than
//! [`WINS_BY`], and twice: before it is taken, it and the best so far are measured again in turn.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::llama::FlashAttention;

/// A candidate must be this much better.
pub const WINS_BY: f64 = 0.03;
/// The rest of a coordinate is passed over after a candidate this much worse: alternatives
/// are sorted away from the best guess.
const HOPELESS: f64 = 0.10;
/// What a search takes by default, without loading the weights.
pub const BUDGET: Duration = Duration::from_secs(30);
/// A budget is good for about so many trials.
pub const TRIALS: u32 = 7;
/// Weights of the speeds in a score: prompts, one reader, four readers.
const WEIGHTS: [f64; 3] = [0.3, 0.35, 0.35];
/// Doubling a batch must gain this share to be worth its memory.
const SLOT_GAIN: f64 = 0.05;
/// Most slots that are chosen without being asked for.
pub const SLOTS_CHOSEN_MAX: u32 = 16;
/// Batches whose speeds tell the number of slots.
pub const CURVE: [u32; 5] = [1, 2, 4, 8, 16];

/// One way to run a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Candidate {
    /// Threads that compute.
    pub threads: u32,
    /// Whether attention is computed in tiles.
    pub flash_attention: FlashAttention,
    /// Most rows of one batch.
    pub batch_rows: u32,
    /// How long threads look for work before they sleep, 0 to 100.
    pub poll: u32,
}

/// What a trial measured, in tokens per second.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Of a long prompt.
    pub prefill: f64,
    /// Of one reader at the depth of that prompt.
    pub decode_one: f64,
    /// Of four readers together.
    pub decode_many: f64,
}

impl Measured {
    /// The weighted geometric mean of the speeds; 0 if one of them is no number.
    pub fn score(&self) -> f64 {
        let speeds = [self.prefill, self.decode_one, self.decode_many];
        if speeds.iter().any(|s| !s.is_finite() || *s <= 0.0) {
            return 0.0;
        }
        speeds.iter().zip(WEIGHTS).map(|(s, w)| w * s.ln()).sum::<f64>().exp()
    }
}

/// Measures candidates; what dies or is refused is nothing.
pub trait Trials {
    /// Measures one.
    fn run(&mut self, candidate: &Candidate) -> Option<Measured>;
    /// Time since the search began.
    fn elapsed(&self) -> Duration;
}

/// Where the search may go: alternatives to `base`, those nearest to it first. A coordinate
/// that is fixed has none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Space {
    /// What is right on most machines.
    pub base: Candidate,
    /// Other numbers of threads.
    pub threads: Vec<u32>,
    /// Other choices of attention.
    pub flash_attention: Vec<FlashAttention>,
    /// Other sizes of a batch.
    pub batch_rows: Vec<u32>,
    /// Other ways to wait.
    pub poll: Vec<u32>,
}

impl Space {
    /// Other numbers of threads on a machine with so many cores: one less, where that leaves
    /// a core to the network, and half.
    pub fn threads_beside(cores: u32) -> Vec<u32> {
        let one_less = (cores >= 3).then(|| cores - 1);
        let half = (cores >= 2).then_some(cores / 2);
        let mut all: Vec<u32> = one_less.into_iter().chain(half).collect();
        all.dedup();
        all
    }

    /// The coordinates, those that matter most first.
    fn moves(&self) -> [Vec<Move>; 4] {
        [
            self.flash_attention.iter().map(|f| Move::FlashAttention(*f)).collect(),
            self.threads.iter().map(|n| Move::Threads(*n)).collect(),
            self.batch_rows.iter().map(|n| Move::BatchRows(*n)).collect(),
            self.poll.iter().map(|n| Move::Poll(*n)).collect(),
        ]
    }
}

#[derive(Debug, Clone, Copy)]
enum Move {
    Threads(u32),
    FlashAttention(FlashAttention),
    BatchRows(u32),
    Poll(u32),
}

impl Move {
    fn from(self, at: Candidate) -> Candidate {
        match self {
            Self::Threads(threads) => Candidate { threads, ..at },
            Self::FlashAttention(flash_attention) => Candidate { flash_attention, ..at },
            Self::BatchRows(batch_rows) => Candidate { batch_rows, ..at },
            Self::Poll(poll) => Candidate { poll, ..at },
        }
    }
}

/// What became of a candidate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The first one that runs.
    First,
    /// Better, twice.
    Better,
    /// Not better by enough.
    NoBetter,
    /// Better once, and not the second time.
    Luck,
    /// Better once; there was no time to look again.
    Unconfirmed,
    /// It did not run.
    Failed,
}

impl Verdict {
    /// In words.
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

/// One candidate and what became of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// What was tried.
    pub candidate: Candidate,
    /// What it did; the first measurement.
    pub measured: Option<Measured>,
    /// Its score.
    pub score: f64,
    /// What became of it.
    pub verdict: Verdict,
}

/// What a search found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Found {
    /// The best; `None`: nothing ran.
    pub best: Option<Candidate>,
    /// Everything that was tried, in order.
    pub trials: Vec<Trial>,
    /// Whether time ran out before everything was tried.
    pub cut_short: bool,
}

/// Searches; see the module. Deterministic, given what `trials` say.
pub fn search(space: &Space, trials: &mut dyn Trials, budget: Duration) -> Found {
    let found = Found { best: None, trials: Vec::new(), cut_short: false };
    let longest = Duration::ZERO;
    let mut search = Search { trials, budget, longest, best: None, found };
    search.attempt(space.base);
    for moves in space.moves() {
        // Nothing ran yet: begin at the base all the same.
        let from = search.best.map_or(space.base, |(candidate, _)| candidate);
        for step in moves {
            if !search.has_time(1) {
                search.found.cut_short = true;
                break;
            }
            if search.attempt(step.from(from)) == Hope::None {
                break;
            }
        }
    }
    search.found.best = search.best.map(|(candidate, _)| candidate);
    search.found
}

struct Search<'a> {
    trials: &'a mut dyn Trials,
    budget: Duration,
    /// The longest trial until now.
    longest: Duration,
    best: Option<(Candidate, f64)>,
    found: Found,
}

/// Whether a coordinate's next alternative is worth a trial.
#[derive(Debug, PartialEq, Eq)]
enum Hope {
    Some,
    None,
}

impl Search<'_> {
    fn has_time(&self, trials: u32) -> bool {
        self.trials.elapsed().saturating_add(self.longest.saturating_mul(trials)) <= self.budget
    }

    fn run(&mut self, candidate: Candidate) -> Option<Measured> {
        let before = self.trials.elapsed();
        let measured = self.trials.run(&candidate).filter(|m| m.score() > 0.0);
        self.longest = self.longest.max(self.trials.elapsed().saturating_sub(before));
        measured
    }

    fn attempt(&mut self, candidate: Candidate) -> Hope {
        let measured = self.run(candidate);
        let score = measured.map_or(0.0, |m| m.score());
        let (verdict, hope) = self.judge(candidate, score);
        self.found.trials.push(Trial { candidate, measured, score, verdict });
        hope
    }

    fn judge(&mut self, candidate: Candidate, score: f64) -> (Verdict, Hope) {
        if score == 0.0 {
            return (Verdict::Failed, Hope::Some);
        }
        let Some((best, best_score)) = self.best else {
            self.best = Some((candidate, score));
            return (Verdict::First, Hope::Some);
        };
        if score <= best_score * (1.0 + WINS_BY) {
            let hopeless = score < best_score * (1.0 - HOPELESS);
            return (Verdict::NoBetter, if hopeless { Hope::None } else { Hope::Some });
        }
        if !self.has_time(2) {
            self.found.cut_short = true;
            return (Verdict::Unconfirmed, Hope::Some);
        }
        let again = [best, candidate].map(|c| self.run(c).map_or(0.0, |m| m.score()));
        let [best_again, score_again] = again;
        if score_again > best_again * (1.0 + WINS_BY) {
            self.best = Some((candidate, score_again));
            return (Verdict::Better, Hope::Some);
        }
        (Verdict::Luck, Hope::Some)
    }
}

/// The largest batch that is worth its memory: each doubling gains at least 5 % in tokens
/// per second of all readers together. One batch may be no better than the one before (some
/// kernels compute four rows at the price of two) if the next makes up for it.
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
