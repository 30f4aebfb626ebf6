//! PURE. Logits -> one token.
//!
//! The steps and their order are llama.cpp's (`common/common.h`): bias, penalties, DRY
//! ([`adjust`]), top_n_sigma, top_k, typical_p, top_p, min_p, XTC ([`candidates`]), temperature,
//! draw. Tokens that vLLM's fields forbid, and those of the grammar, drop out before the filters.
//! [`logprobs`] reports the log probabilities before all of that.
//!
//! This runs over the whole vocabulary once for each token of each decoding sequence: it sorts only
//! what it must, and the compiler can vectorize its loops.

use std::collections::HashMap;
use std::sync::Arc;

use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64;

use crate::scheduler::reasoning_budget::ReasoningBudget;
use crate::types::request::{Sampling, Token};

mod adjust;
mod candidates;
pub(crate) mod dry;
pub(crate) mod logprobs;
#[cfg(test)]
mod tests;
mod vector;
mod xtc;

use adjust::AdjustScratch;
use candidates::Candidates;
use dry::SequenceBreakers;
use vector::{BLOCK, BlockWeights, exp_differences, maximum};

/// Temperatures below this are greedy: they would only decide between equally likely tokens, and
/// the inverse of the smallest ones is infinite.
const GREEDY_BELOW: f32 = 1e-5;

/// Scratch buffers, kept between calls so that a step allocates nothing. All sequences of an engine
/// share one.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    adjusted: Vec<f32>,
    adjust: AdjustScratch,
    candidates: Candidates,
    weights: BlockWeights,
}

/// What a choice depends on besides the logits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SamplingContext<'a> {
    /// Tokens of the prompt and the response so far.
    pub(crate) tokens: &'a [Token],
    /// How many of them belong to the prompt.
    pub(crate) prompt_tokens: usize,
    /// Tokens that end a response of this model.
    pub(crate) end_tokens: &'a [Token],
    /// Tokens that end this response.
    pub(crate) stop_tokens: &'a [Token],
}

impl<'a> SamplingContext<'a> {
    fn response(&self) -> &'a [Token] {
        self.tokens.get(self.prompt_tokens..).unwrap_or_default()
    }
}

/// Options whose texts the tokenizer has turned into tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ResolvedOptions {
    /// Token sequences that the response must not contain.
    pub(crate) bad_words: Vec<Vec<Token>>,
    /// Where repetitions end for DRY.
    pub(crate) breakers: Arc<SequenceBreakers>,
    /// Limit of the reasoning.
    pub(crate) reasoning: Option<ReasoningBudget>,
    /// What the response is likely to repeat.
    pub(crate) prediction: Arc<[Token]>,
}

/// Excludes tokens by setting their logits to negative infinity.
pub(crate) type Forbid<'a> = &'a mut dyn FnMut(&mut [f32]);

/// The sampler of one request: its parameters, its random number generator, and its token counts.
#[derive(Debug)]
pub(crate) struct Sampler {
    params: Sampling,
    resolved: ResolvedOptions,
    rng: Pcg64,
    /// How often the response contains each token; counted only if a penalty needs it.
    counts: HashMap<Token, u32>,
}

impl Sampler {
    /// Creates a sampler seeded with the seed of `params`.
    pub(crate) fn new(params: Sampling, resolved: ResolvedOptions) -> Self {
        let rng = Pcg64::seed_from_u64(params.seed);
        Self { params, resolved, rng, counts: HashMap::new() }
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
        let chance = self.draw();
        if forbid.is_none() && !adjust::has_adjustments(&self.params) {
            return self.choose(logits, chance, scratch);
        }
        let mut adjusted = self.adjust(logits, context, scratch);
        if let Some(forbid) = forbid {
            forbid(&mut adjusted);
        }
        self.forbid_early_end(context, &mut adjusted);
        let token = self.choose(&adjusted, chance, scratch);
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
        let chance = self.draw();
        let mut adjusted = self.adjust(logits, context, scratch);
        self.forbid_early_end(context, &mut adjusted);
        let mut token = self.choose(&adjusted, chance, scratch);
        if !is_allowed(token) {
            // From the start: an end that is all that is left must be possible.
            scratch.adjusted = adjusted;
            adjusted = self.adjust(logits, context, scratch);
            forbid(&mut adjusted);
            self.forbid_early_end(context, &mut adjusted);
            token = self.choose(&adjusted, chance, scratch);
        }
        scratch.adjusted = adjusted;
        token
    }

    /// Draws the same count of numbers for each token, needed or not, so that a response that
    /// resumes on another node gets the same numbers.
    fn draw(&mut self) -> Chance {
        let random = self.draw_number();
        let drops_top = xtc::is_on(&self.params.xtc)
            && self.draw_number() <= f64::from(self.params.xtc.probability);
        Chance { random, drops_top }
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
        let options = (&self.params, &self.resolved);
        adjust::apply(options, &self.counts, context, &mut adjusted, &mut scratch.adjust);
        adjusted
    }

    /// Excludes what would end a response too early, unless nothing else is left.
    fn forbid_early_end(&self, context: SamplingContext<'_>, adjusted: &mut [f32]) {
        if context.response().len() < self.params.min_tokens as usize {
            adjust::forbid_ends(context, adjusted);
        }
    }

    /// Records that `token` was appended to the response.
    pub(crate) fn accept(&mut self, token: Token) {
        if self.params.frequency_penalty != 0.0 || self.params.presence_penalty != 0.0 {
            *self.counts.entry(token).or_default() += 1;
        }
    }

    /// Skips the random numbers of a token that another node chose.
    pub(crate) fn skip(&mut self) {
        self.draw_number();
        if xtc::is_on(&self.params.xtc) {
            self.draw_number();
        }
    }

    /// A number from 0 to 1.
    fn draw_number(&mut self) -> f64 {
        self.rng.next_u64() as f64 / u64::MAX as f64
    }

    fn choose(&self, logits: &[f32], chance: Chance, scratch: &mut Scratch) -> Token {
        let Chance { random, drops_top } = chance;
        let max = maximum(logits);
        let Sampling { temperature, top_k, .. } = self.params;
        let is_greedy = temperature < GREEDY_BELOW;
        if (is_greedy && !drops_top) || top_k == 1 || !max.is_finite() {
            return first_of(logits, max);
        }
        if !drops_top && !candidates::has_filters(&self.params) {
            exp_differences(logits, max, 1.0 / temperature, &mut scratch.weights.values);
            return draw(random, &mut scratch.weights) as Token;
        }
        let Scratch { candidates, weights, .. } = scratch;
        candidates.keep(&self.params, logits, max, weights);
        if drops_top {
            candidates.drop_top(self.params.xtc.threshold, max);
        }
        if is_greedy {
            return candidates.likeliest().unwrap_or(0);
        }
        candidates.weigh(temperature, &mut weights.values);
        let drawn = draw(random, &mut scratch.weights);
        scratch.candidates.token(drawn).unwrap_or(0)
    }
}

/// What the random numbers of a token decide.
#[derive(Debug, Clone, Copy)]
struct Chance {
    /// Which token is drawn: 0 to 1.
    random: f64,
    /// True if XTC acts.
    drops_top: bool,
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
