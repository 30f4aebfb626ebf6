//! PURE. Logits -> one token.
//!
//! The steps and their order are llama.cpp's: top_k, top_p, min_p, temperature, draw.
//! top_p: Holtzman et al., "The Curious Case of Neural Text Degeneration" (2020).
//! min_p: Nguyen et al., "Turning Up the Heat" (2024).
//!
//! This runs once for each token of each reader, over the whole vocabulary: nothing is
//! sorted that need not be, and loops are such that the compiler makes vectors of them.

use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64;

use crate::request::{Sampling, Token};

mod vector;

use vector::{BLOCK, block_sums, exp_differences, maximum};

/// A token this much less likely than the likeliest, as a difference of logits at
/// temperature 1, is never drawn: all of a vocabulary of 250,000 would not add up to 1e-5.
const NEGLIGIBLE: f32 = 25.0;
/// Candidates that are sorted at first for top_p; mostly they suffice.
const SORTED_FIRST: usize = 64;

/// One request's sampler: its parameters and its own random numbers.
#[derive(Debug)]
pub struct Sampler {
    params: Sampling,
    rng: Pcg64,
    /// Kept between calls, so that a step allocates nothing.
    candidates: Vec<Candidate>,
    weights: Vec<f32>,
    sums: Vec<f64>,
}

#[derive(Debug, Clone, Copy)]
struct Candidate {
    token: Token,
    logit: f32,
}

impl Sampler {
    /// A sampler with the seed of `params`.
    pub fn new(params: Sampling) -> Self {
        let rng = Pcg64::seed_from_u64(params.seed);
        Self { params, rng, candidates: Vec::new(), weights: Vec::new(), sums: Vec::new() }
    }

    /// Chooses a token. `logits` holds one value per token of the vocabulary; values that
    /// are not numbers are never chosen while any other is left.
    pub fn sample(&mut self, logits: &[f32]) -> Token {
        let max = maximum(logits);
        let Sampling { temperature, top_k, top_p, min_p, .. } = self.params;
        if temperature <= 0.0 || top_k == 1 || !max.is_finite() {
            return first_of(logits, max);
        }
        if top_k == 0 && top_p >= 1.0 && min_p <= 0.0 {
            exp_differences(logits, max, 1.0 / temperature, &mut self.weights);
            return self.draw() as Token;
        }
        self.collect(logits, max);
        self.keep_top_k();
        self.keep_top_p_of(logits, max);
        self.weigh(max);
        let drawn = self.draw();
        self.candidates.get(drawn).map_or(0, |c| c.token)
    }

    /// Every token that could be drawn. min_p is a limit of logits: applied here, and as
    /// both it and top_p keep the likeliest, the order makes no difference.
    fn collect(&mut self, logits: &[f32], max: f32) {
        let negligible = NEGLIGIBLE * self.params.temperature.max(1.0);
        let min_p = if self.params.min_p > 0.0 { -self.params.min_p.ln() } else { f32::INFINITY };
        let least = max - negligible.min(min_p).max(0.0);
        let all = logits.iter().enumerate();
        let likely = all.filter(|(_, logit)| **logit >= least);
        self.candidates.clear();
        self.candidates
            .extend(likely.map(|(i, logit)| Candidate { token: i as Token, logit: *logit }));
    }

    /// Leaves the candidates sorted where there is a top_k.
    fn keep_top_k(&mut self) {
        let k = self.params.top_k as usize;
        if k == 0 {
            return;
        }
        if k < self.candidates.len() {
            self.candidates.select_nth_unstable_by(k - 1, by_logit);
            self.candidates.truncate(k);
        }
        self.candidates.sort_unstable_by(by_logit);
    }

    /// The fewest candidates, likeliest first, that have top_p of the probability: of those
    /// that top_k left, or of the whole vocabulary.
    fn keep_top_p_of(&mut self, logits: &[f32], max: f32) {
        let weight = |c: &Candidate| f64::from((c.logit - max).exp());
        let top_p = f64::from(self.params.top_p);
        if top_p >= 1.0 {
            return self.candidates.sort_unstable_by(by_logit);
        }
        let all: f64 = if self.params.top_k == 0 {
            exp_differences(logits, max, 1.0, &mut self.weights);
            block_sums(&self.weights, &mut self.sums)
        } else {
            self.candidates.iter().map(weight).sum()
        };
        let mut sorted = SORTED_FIRST;
        loop {
            let part = sorted.min(self.candidates.len());
            if part < self.candidates.len() {
                self.candidates.select_nth_unstable_by(part, by_logit);
            }
            self.candidates[..part].sort_unstable_by(by_logit);
            let mut sum = 0.0;
            let enough = self.candidates[..part].iter().position(|c| {
                sum += weight(c);
                sum >= top_p * all
            });
            if enough.is_some() || part == self.candidates.len() {
                return self.candidates.truncate(enough.map_or(part, |i| i + 1));
            }
            sorted *= 8;
        }
    }

    /// The weights of the candidates at the temperature.
    fn weigh(&mut self, max: f32) {
        let temperature = self.params.temperature;
        let weight = |c: &Candidate| ((c.logit - max) / temperature).exp();
        self.weights.clear();
        self.weights.extend(self.candidates.iter().map(weight));
    }

    /// The place of a weight, drawn in proportion.
    fn draw(&mut self) -> usize {
        let all = block_sums(&self.weights, &mut self.sums);
        let mut left = self.rng.next_u64() as f64 / u64::MAX as f64 * all;
        for (number, (block, sum)) in self.weights.chunks(BLOCK).zip(&self.sums).enumerate() {
            if left > *sum {
                left -= sum;
                continue;
            }
            for (i, weight) in block.iter().enumerate() {
                left -= f64::from(*weight);
                if left <= 0.0 && *weight > 0.0 {
                    return number * BLOCK + i;
                }
            }
        }
        // Rounding may leave a little; the likeliest is the safest choice then.
        let best = maximum(&self.weights);
        first_of(&self.weights, best) as usize
    }
}

/// Likeliest first; equals by token, so that the order never depends on the sort.
fn by_logit(a: &Candidate, b: &Candidate) -> std::cmp::Ordering {
    b.logit.total_cmp(&a.logit).then(a.token.cmp(&b.token))
}

/// The first place of a value.
fn first_of(values: &[f32], value: f32) -> Token {
    values.iter().position(|v| *v == value).unwrap_or(0) as Token
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGITS: [f32; 5] = [0.0, 3.0, 1.0, 2.9, f32::NAN];

    fn tokens(params: Sampling) -> Vec<Token> {
        let mut sampler = Sampler::new(params);
        let mut seen: Vec<Token> = (0..500).map(|_| sampler.sample(&LOGITS)).collect();
        seen.sort_unstable();
        seen.dedup();
        seen
    }

    const HOT: Sampling = Sampling { temperature: 1.0, seed: 7, ..Sampling::GREEDY };

    #[test]
    fn greedy_takes_the_first_of_the_largest() {
        assert_eq!(Sampler::new(Sampling::GREEDY).sample(&LOGITS), 1);
        assert_eq!(Sampler::new(Sampling::GREEDY).sample(&[1.0, 2.0, 2.0]), 1);
    }

    #[test]
    fn filters_keep_what_they_promise() {
        assert_eq!(tokens(Sampling { top_k: 2, ..HOT }), [1, 3]);
        assert_eq!(tokens(Sampling { top_p: 0.5, ..HOT }), [1, 3]);
        assert_eq!(tokens(Sampling { min_p: 0.5, ..HOT }), [1, 3]);
        assert_eq!(tokens(Sampling { top_p: 0.0, ..HOT }), [1]);
        assert_eq!(tokens(HOT), [0, 1, 2, 3], "a token that is not a number is never drawn");
    }

    #[test]
    fn the_same_seed_gives_the_same_tokens() {
        let draw = |seed| {
            let mut sampler = Sampler::new(Sampling { seed, ..HOT });
            (0..64).map(|_| sampler.sample(&LOGITS)).collect::<Vec<_>>()
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
    }

    #[test]
    fn frequencies_follow_the_softmax() {
        let mut sampler = Sampler::new(HOT);
        let draws = 20_000;
        let ones = (0..draws).filter(|_| sampler.sample(&[0.0, 1.0]) == 1).count();
        let share = ones as f32 / draws as f32;
        let expected = 1.0 / (1.0 + (-1.0f32).exp());
        assert!((share - expected).abs() < 0.02, "{share} against {expected}");
    }

    #[test]
    fn logits_without_a_number_still_give_a_token() {
        assert!(Sampler::new(HOT).sample(&[f32::NAN, f32::NAN]) < 2);
        assert_eq!(Sampler::new(HOT).sample(&[f32::NEG_INFINITY, f32::INFINITY]), 1);
    }

    /// The same filters in the plainest way: sort everything, then cut.
    fn kept_by_definition(logits: &[f32], params: Sampling) -> Vec<Token> {
        let mut all: Vec<(Token, f64)> =
            logits.iter().enumerate().map(|(i, l)| (i as Token, f64::from(*l))).collect();
        all.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        if params.top_k > 0 {
            all.truncate(params.top_k as usize);
        }
        let max = all[0].1;
        let sum: f64 = all.iter().map(|(_, l)| (l - max).exp()).sum();
        let (mut seen, mut kept) = (0.0, Vec::new());
        for (token, logit) in all {
            let probability = (logit - max).exp();
            if seen >= f64::from(params.top_p) * sum || probability < f64::from(params.min_p) {
                break;
            }
            seen += probability;
            kept.push(token);
        }
        kept
    }

    #[test]
    fn filters_of_a_large_vocabulary_keep_what_their_definition_keeps() {
        let mut rng = Pcg64::seed_from_u64(3);
        for width in [0.1, 2.0, 8.0] {
            let logits: Vec<f32> = (0..20_000)
                .map(|_| (rng.next_u32() as f32 / u32::MAX as f32 - 0.5) * width)
                .collect();
            for (top_k, top_p, min_p) in
                [(0, 0.9, 0.0), (0, 0.01, 0.0), (40, 0.5, 0.0), (0, 1.0, 0.5), (500, 0.9, 0.3)]
            {
                let params = Sampling { top_k, top_p, min_p, ..HOT };
                let mut sampler = Sampler::new(params);
                sampler.sample(&logits);
                let kept: Vec<Token> = sampler.candidates.iter().map(|c| c.token).collect();
                let expected = kept_by_definition(&logits, params);
                let different = kept.len().abs_diff(expected.len());
                // Sums of f32 and f64 may differ by a candidate at the edge.
                assert!(different <= 1 + expected.len() / 1000, "{params:?}: {different}");
                let both = kept.len().min(expected.len());
                assert_eq!(kept[..both], expected[..both], "{params:?}");
            }
        }
    }
}
