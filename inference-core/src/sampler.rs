//! PURE. Logits -> one token.
//!
//! The steps and their order are llama.cpp's: top_k, top_p, min_p, temperature, draw.
//! top_p: Holtzman et al., "The Curious Case of Neural Text Degeneration" (2020).
//! min_p: Nguyen et al., "Turning Up the Heat" (2024).

use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64;

use crate::request::{Sampling, Token};

/// One request's sampler: its parameters and its own random numbers.
#[derive(Debug)]
pub struct Sampler {
    params: Sampling,
    rng: Pcg64,
    /// Kept between calls, so that a step allocates nothing.
    candidates: Vec<Candidate>,
}

#[derive(Debug, Clone, Copy)]
struct Candidate {
    token: Token,
    logit: f32,
    probability: f32,
}

impl Sampler {
    /// A sampler with the seed of `params`.
    pub fn new(params: Sampling) -> Self {
        Self { params, rng: Pcg64::seed_from_u64(params.seed), candidates: Vec::new() }
    }

    /// Chooses a token. `logits` holds one value per token of the vocabulary; values that
    /// are not numbers are never chosen while any other is left.
    pub fn sample(&mut self, logits: &[f32]) -> Token {
        if self.params.temperature <= 0.0 || self.params.top_k == 1 {
            return likeliest(logits);
        }
        self.keep_top_k(logits);
        self.compute_probabilities(1.0);
        self.keep_top_p();
        self.keep_min_p();
        self.compute_probabilities(self.params.temperature);
        self.draw()
    }

    /// Fills the candidates, likeliest first where the later steps need the order.
    fn keep_top_k(&mut self, logits: &[f32]) {
        let candidate = |(i, logit): (usize, &f32)| Candidate {
            token: i as Token,
            logit: if logit.is_nan() { f32::NEG_INFINITY } else { *logit },
            probability: 0.0,
        };
        self.candidates.clear();
        self.candidates.extend(logits.iter().enumerate().map(candidate));
        let k = self.params.top_k as usize;
        if k > 0 && k < self.candidates.len() {
            self.candidates.select_nth_unstable_by(k - 1, by_logit);
            self.candidates.truncate(k);
        }
        self.candidates.sort_unstable_by(by_logit);
    }

    /// Softmax over what is left. Candidates are sorted, so the first is the maximum.
    fn compute_probabilities(&mut self, temperature: f32) {
        let Some(max) = self.candidates.first().map(|c| c.logit) else { return };
        let mut sum = 0.0;
        for c in &mut self.candidates {
            let shifted = if c.logit == max { 0.0 } else { c.logit - max };
            c.probability = (shifted / temperature).exp();
            sum += c.probability;
        }
        for c in &mut self.candidates {
            c.probability /= sum;
        }
    }

    fn keep_top_p(&mut self) {
        if self.params.top_p >= 1.0 {
            return;
        }
        let mut sum = 0.0;
        let kept = self.candidates.iter().position(|c| {
            sum += c.probability;
            sum >= self.params.top_p
        });
        self.candidates.truncate(kept.map_or(self.candidates.len(), |i| i + 1));
    }

    fn keep_min_p(&mut self) {
        let Some(first) = self.candidates.first() else { return };
        let least = first.probability * self.params.min_p;
        let kept = self.candidates.iter().take_while(|c| c.probability >= least).count();
        self.candidates.truncate(kept.max(1));
    }

    fn draw(&mut self) -> Token {
        // 24 random bits: exactly the whole numbers that an f32 holds.
        let mut left = (self.rng.next_u32() >> 8) as f32 / (1 << 24) as f32;
        for c in &self.candidates {
            left -= c.probability;
            if left < 0.0 {
                return c.token;
            }
        }
        // Rounding may leave a little; the likeliest is the safest choice then.
        self.candidates.first().map_or(0, |c| c.token)
    }
}

/// Likeliest first; equals by token, so that the order never depends on the sort.
fn by_logit(a: &Candidate, b: &Candidate) -> std::cmp::Ordering {
    b.logit.total_cmp(&a.logit).then(a.token.cmp(&b.token))
}

/// The first of the largest values.
fn likeliest(logits: &[f32]) -> Token {
    let mut best = 0;
    let mut max = f32::NEG_INFINITY;
    for (i, logit) in logits.iter().enumerate() {
        if *logit > max {
            max = *logit;
            best = i;
        }
    }
    best as Token
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
}
