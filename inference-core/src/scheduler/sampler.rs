//! PURE. Logits -> one token.
//!
//! The steps and their order are llama.cpp's: bias and penalties ([`adjust`]), top_k, typical_p,
//! top_p, min_p ([`candidates`]), temperature, draw. [`logprobs`] reports the log probabilities
//! before all of that.
//!
//! This runs over the whole vocabulary once for each token of each decoding sequence: it sorts only
//! what it must, and the compiler can vectorize its loops.

use std::collections::HashMap;

use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64;

use crate::types::request::{Sampling, Token};

mod adjust;
mod candidates;
pub(crate) mod logprobs;
#[cfg(test)]
mod tests;
mod vector;

use candidates::Candidates;
use vector::{BLOCK, BlockWeights, exp_differences, maximum};

/// Temperatures below this are greedy: they would only decide between equally likely tokens, and
/// the inverse of the smallest ones is infinite.
const GREEDY_BELOW: f32 = 1e-5;

/// Scratch buffers, kept between calls so that a step allocates nothing. All sequences of an engine
/// share one.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    adjusted: Vec<f32>,
    recent: Vec<Token>,
    candidates: Candidates,
    weights: BlockWeights,
}

/// What a choice depends on besides the logits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SamplingContext<'a> {
    /// Tokens of the prompt and the response so far.
    pub(crate) tokens: &'a [Token],
    /// Tokens that end a response.
    pub(crate) end_tokens: &'a [Token],
}

/// Excludes tokens by setting their logits to negative infinity.
pub(crate) type Forbid<'a> = &'a mut dyn FnMut(&mut [f32]);

/// The sampler of one request: its parameters, its random number generator, and its token counts.
#[derive(Debug)]
pub(crate) struct Sampler {
    params: Sampling,
    rng: Pcg64,
    /// How often the response contains each token; counted only if a penalty needs it.
    counts: HashMap<Token, u32>,
}

impl Sampler {
    /// Creates a sampler seeded with the seed of `params`.
    pub(crate) fn new(params: Sampling) -> Self {
        let rng = Pcg64::seed_from_u64(params.seed);
        Self { params, rng, counts: HashMap::new() }
    }

    /// Chooses a token. `logits` holds one value per token of the vocabulary; NaN is never chosen
    /// while any other value is left. `forbid` may exclude tokens.
    pub(crate) fn sample(
        &mut self,
        logits: &[f32],
        context: SamplingContext<'_>,
        forbid: Option<Forbid<'_>>,
        scratch: &mut Scratch,
    ) -> Token {
        let random = self.draw_number();
        if forbid.is_none() && !adjust::has_adjustments(&self.params) {
            return self.choose(logits, random, scratch);
        }
        let mut adjusted = self.adjust(logits, context, scratch);
        if let Some(forbid) = forbid {
            forbid(&mut adjusted);
        }
        let token = self.choose(&adjusted, random, scratch);
        scratch.adjusted = adjusted;
        token
    }

    /// Like [`Self::sample`], but calls `forbid` only if the token that it would choose is not
    /// allowed: most tokens are, and to check one costs far less than to exclude all others.
    pub(crate) fn sample_checked(
        &mut self,
        logits: &[f32],
        context: SamplingContext<'_>,
        (is_allowed, forbid): (&mut dyn FnMut(Token) -> bool, Forbid<'_>),
        scratch: &mut Scratch,
    ) -> Token {
        let random = self.draw_number();
        let mut adjusted = self.adjust(logits, context, scratch);
        let mut token = self.choose(&adjusted, random, scratch);
        if !is_allowed(token) {
            forbid(&mut adjusted);
            token = self.choose(&adjusted, random, scratch);
        }
        scratch.adjusted = adjusted;
        token
    }

    /// Draws one number for each token, needed or not, so that a response that resumes on another
    /// node gets the same numbers.
    fn draw_number(&mut self) -> f64 {
        self.rng.next_u64() as f64 / u64::MAX as f64
    }

    /// A copy of the logits with penalties and biases, in the buffer of `scratch`.
    fn adjust(
        &self,
        logits: &[f32],
        context: SamplingContext<'_>,
        scratch: &mut Scratch,
    ) -> Vec<f32> {
        let mut adjusted = std::mem::take(&mut scratch.adjusted);
        adjusted.clear();
        adjusted.extend_from_slice(logits);
        adjust::apply(&self.params, &self.counts, context, &mut adjusted, &mut scratch.recent);
        adjusted
    }

    /// Records that `token` was appended to the response.
    pub(crate) fn accept(&mut self, token: Token) {
        if self.params.frequency_penalty != 0.0 || self.params.presence_penalty != 0.0 {
            *self.counts.entry(token).or_default() += 1;
        }
    }

    /// Skips the random number of a token that another node chose.
    pub(crate) fn skip(&mut self) {
        self.rng.next_u64();
    }

    fn choose(&self, logits: &[f32], random: f64, scratch: &mut Scratch) -> Token {
        let max = maximum(logits);
        let Sampling { temperature, top_k, .. } = self.params;
        if temperature < GREEDY_BELOW || top_k == 1 || !max.is_finite() {
            return first_of(logits, max);
        }
        if !candidates::has_filters(&self.params) {
            exp_differences(logits, max, 1.0 / temperature, &mut scratch.weights.values);
            return draw(random, &mut scratch.weights) as Token;
        }
        let Scratch { candidates, weights, .. } = scratch;
        candidates.keep(&self.params, logits, max, weights);
        candidates.weigh(temperature, max, &mut weights.values);
        let drawn = draw(random, &mut scratch.weights);
        scratch.candidates.token(drawn).unwrap_or(0)
    }
}

/// Draws the index of a weight with probability proportional to it; `random` is 0 to 1.
fn draw(random: f64, weights: &mut BlockWeights) -> usize {
    let all = weights.sum();
    let BlockWeights { values, sums } = weights;
    let mut left = random * all;
    for (number, (block, sum)) in values.chunks(BLOCK).zip(&*sums).enumerate() {
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
    // Rounding may leave a remainder; the most likely token is then the safest choice.
    let best = maximum(values);
    first_of(values, best) as usize
}

/// Index of the first element equal to `value`; 0 if there is none.
fn first_of(values: &[f32], value: f32) -> Token {
    values.iter().position(|v| *v == value).unwrap_or(0) as Token
}
