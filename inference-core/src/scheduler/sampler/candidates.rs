//! PURE. Filters the tokens that may be drawn by top_n_sigma, top_k, typical_p, top_p, min_p and
//! XTC.
//!
//! typical_p: Meister et al., "Locally Typical Sampling" (2022). top_p: Holtzman et al., "The
//! Curious Case of Neural Text Degeneration" (2020). min_p: Nguyen et al., "Turning Up the Heat"
//! (2024).

use super::vector::{BlockWeights, MAXIMA_BLOCK, block_maxima, exp_differences};
use super::xtc;
use crate::types::request::{Sampling, Token};

/// Never draw a token whose logit is this far below the largest at temperature 1: all such tokens
/// of a vocabulary of 250,000 would not add up to a probability of 1e-5.
pub(super) const NEGLIGIBLE: f32 = 25.0;
/// Number of candidates sorted first for top_p; usually enough.
const SORTED_FIRST: usize = 64;

#[derive(Debug, Clone, Copy)]
struct Candidate {
    token: Token,
    logit: f32,
}

/// The remaining tokens with their logits, and scratch.
#[derive(Debug, Default)]
pub(crate) struct Candidates {
    kept: Vec<Candidate>,
    /// The largest logit of each block of the vocabulary.
    maxima: Vec<f32>,
    /// A copy of them, for the largest ones.
    largest: Vec<f32>,
}

/// True if any filter is on.
pub(crate) fn has_filters(params: &Sampling) -> bool {
    params.top_n_sigma > 0.0
        || params.top_k > 0
        || params.typical_p < 1.0
        || params.top_p < 1.0
        || params.min_p > 0.0
}

impl Candidates {
    /// Keeps the tokens of the vocabulary that pass all filters. `max` is the largest logit,
    /// `weights` is scratch.
    pub(crate) fn keep(
        &mut self,
        params: &Sampling,
        logits: &[f32],
        max: f32,
        weights: &mut BlockWeights,
    ) {
        let typical = params.typical_p < 1.0;
        // min_p comes last: the filters before it weigh the tokens it would drop. It is a limit on
        // logits that keeps the most likely tokens, so it may come first, where it leaves less to
        // sort, unless a filter before it drops the most likely tokens or sums only the candidates.
        let sigmas = params.top_n_sigma > 0.0;
        let whole = params.top_k == 0 && !typical && !sigmas;
        let first = whole || (!typical && params.top_p >= 1.0);
        let mut least = least_drawn(params, max);
        if first && params.min_p > 0.0 {
            least = least.max(max + params.min_p.ln()).min(max);
        }
        if sigmas {
            least = least.max(xtc::least_within_sigmas(params.top_n_sigma, logits, max));
        }
        block_maxima(logits, &mut self.maxima);
        let top_k = params.top_k as usize;
        least = least.max(self.least_of_top(top_k));
        self.collect(logits, least);
        self.keep_top_k(top_k);
        if typical {
            self.keep_typical(f64::from(params.typical_p), max);
        }
        if params.top_p < 1.0 {
            let all = match whole {
                true => {
                    exp_differences(logits, max, 1.0, &mut weights.values);
                    weights.sum()
                }
                false => self.kept.iter().map(|c| weight(c, max)).sum(),
            };
            self.keep_top_p(f64::from(params.top_p) * all, max);
        }
        if !first && params.min_p > 0.0 {
            let likeliest = self.kept.iter().map(|c| c.logit).fold(f32::NEG_INFINITY, f32::max);
            let least = likeliest + params.min_p.ln();
            self.kept.retain(|c| c.logit >= least);
        }
    }

    /// Drops the most likely candidates, as XTC does.
    pub(crate) fn drop_top(&mut self, threshold: f32, max: f32) {
        self.kept.sort_unstable_by(by_logit);
        let dropped = xtc::dropped(threshold, self.kept.iter().map(|c| weight(c, max)));
        self.kept.drain(..dropped);
    }

    /// The most likely candidate.
    pub(crate) fn likeliest(&self) -> Option<Token> {
        self.kept.iter().min_by(|a, b| by_logit(a, b)).map(|c| c.token)
    }

    /// Computes the weights of the candidates at a temperature.
    pub(crate) fn weigh(&self, temperature: f32, weights: &mut Vec<f32>) {
        let max = self.kept.iter().map(|c| c.logit).fold(f32::NEG_INFINITY, f32::max);
        weights.clear();
        weights.extend(self.kept.iter().map(|c| ((c.logit - max) / temperature).exp()));
    }

    /// The token at an index; `None` if out of range.
    pub(crate) fn token(&self, place: usize) -> Option<Token> {
        self.kept.get(place).map(|c| c.token)
    }

    /// A logit that the `k` likeliest tokens have at least: as many blocks have one that has it.
    /// Sorting few blocks takes less time than sorting all tokens.
    fn least_of_top(&mut self, k: usize) -> f32 {
        if k == 0 || k > self.maxima.len() {
            return f32::NEG_INFINITY;
        }
        self.largest.clone_from(&self.maxima);
        *self.largest.select_nth_unstable_by(k - 1, |a, b| b.total_cmp(a)).1
    }

    /// Collects every token with at least this logit.
    fn collect(&mut self, logits: &[f32], least: f32) {
        self.kept.clear();
        let blocks = logits.chunks(MAXIMA_BLOCK).zip(&self.maxima).enumerate();
        for (number, (block, _)) in blocks.filter(|(_, (_, maximum))| **maximum >= least) {
            let all = block.iter().enumerate();
            let likely = all.filter(|(_, l)| **l >= least && **l > f32::NEG_INFINITY);
            let token = |i: usize| (number * MAXIMA_BLOCK + i) as Token;
            self.kept.extend(likely.map(|(i, l)| Candidate { token: token(i), logit: *l }));
        }
    }

    fn keep_top_k(&mut self, k: usize) {
        if k > 0 && k < self.kept.len() {
            self.kept.select_nth_unstable_by(k - 1, by_logit);
            self.kept.truncate(k);
        }
    }

    /// Keeps the fewest candidates that reach `share` of the probability, starting with those whose
    /// surprise is nearest to the expected one.
    fn keep_typical(&mut self, share: f64, max: f32) {
        let all: f64 = self.kept.iter().map(|c| weight(c, max)).sum();
        let surprise = |c: &Candidate| all.ln() - f64::from(c.logit - max);
        let expected: f64 = self.kept.iter().map(|c| weight(c, max) / all * surprise(c)).sum();
        let distance = |c: &Candidate| (surprise(c) - expected).abs();
        self.kept.sort_unstable_by(|a, b| {
            distance(a).total_cmp(&distance(b)).then(a.token.cmp(&b.token))
        });
        let mut sum = 0.0;
        let enough = self.kept.iter().position(|c| {
            sum += weight(c, max);
            sum > share * all
        });
        self.kept.truncate(enough.map_or(self.kept.len(), |i| i + 1));
    }

    /// Keeps the fewest candidates, most likely first, whose weights add up to `enough`.
    fn keep_top_p(&mut self, enough: f64, max: f32) {
        let mut sorted = SORTED_FIRST;
        loop {
            let part = sorted.min(self.kept.len());
            if part < self.kept.len() {
                self.kept.select_nth_unstable_by(part, by_logit);
            }
            self.kept[..part].sort_unstable_by(by_logit);
            let mut sum = 0.0;
            let last = self.kept[..part].iter().position(|c| {
                sum += weight(c, max);
                sum >= enough
            });
            if last.is_some() || part == self.kept.len() {
                return self.kept.truncate(last.map_or(part, |i| i + 1));
            }
            sorted *= 8;
        }
    }
}

/// The smallest logit of a token that could be drawn.
fn least_drawn(params: &Sampling, max: f32) -> f32 {
    // XTC may leave the least likely token that reaches its threshold as the most likely one.
    let dropped = if xtc::is_on(&params.xtc) { -params.xtc.threshold.max(0.0).ln() } else { 0.0 };
    max - (NEGLIGIBLE * params.temperature.max(1.0) + dropped)
}

fn weight(candidate: &Candidate, max: f32) -> f64 {
    f64::from((candidate.logit - max).exp())
}

/// Most likely first; ties by token, so that the order never depends on the sort.
fn by_logit(a: &Candidate, b: &Candidate) -> std::cmp::Ordering {
    b.logit.total_cmp(&a.logit).then(a.token.cmp(&b.token))
}

#[cfg(test)]
impl Candidates {
    /// The candidate tokens, most likely first.
    pub(crate) fn sorted(&mut self) -> Vec<Token> {
        self.kept.sort_unstable_by(by_logit);
        self.kept.iter().map(|c| c.token).collect()
    }
}
