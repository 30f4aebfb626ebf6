//! PURE. DRY ("Don't Repeat Yourself"): a penalty for tokens that would extend a repetition, which
//! grows with the length of the repetition.
//!
//! As `llama_sampler_dry_apply` and `get_overlapping_token_sequences` in llama.cpp's
//! `src/llama-sampler.cpp`, by pi6am (<https://github.com/LostRuins/koboldcpp/pull/982>).

use std::collections::HashMap;

use crate::types::request::{Dry, Token};

/// Maximum bytes of a breaker that count, and of its tokens after the first.
pub(crate) const BREAKER_BYTES_MAX: usize = 40;
pub(crate) const TAIL_TOKENS_MAX: usize = 20;
/// A little less than the natural logarithm of the largest `f32`.
const FLOAT_MAX_LOG: f32 = 88.0;

/// Token sequences that no repetition reaches across: the first token of each, with what follows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SequenceBreakers(HashMap<Token, Vec<Vec<Token>>>);

impl SequenceBreakers {
    /// Adds a sequence, unless it is known.
    pub(crate) fn insert(&mut self, head: Token, tail: Vec<Token>) {
        let tails = self.0.entry(head).or_default();
        if !tails.contains(&tail) {
            tails.push(tail);
        }
    }

    /// True if the token alone is a sequence.
    fn is_single(&self, token: Token) -> bool {
        self.0.get(&token).is_some_and(|tails| tails.iter().any(Vec::is_empty))
    }

    /// Tokens after the last sequence in `recent`, which holds the latest token first.
    fn tokens_after(&self, recent: &[Token]) -> usize {
        let sequence_at = |i: usize| {
            let tails = self.0.get(&recent[i])?;
            let is_there = |tail: &&Vec<Token>| {
                tail.len() <= i && tail.iter().enumerate().all(|(n, t)| recent[i - n - 1] == *t)
            };
            tails.iter().filter(is_there).map(|tail| i - tail.len()).min()
        };
        (0..recent.len()).find_map(sequence_at).unwrap_or(recent.len())
    }
}

/// Scratch buffers, kept between calls.
#[derive(Debug, Default)]
pub(super) struct DryScratch {
    recent: Vec<Token>,
    repeats: Vec<usize>,
    longest: HashMap<Token, usize>,
}

/// True if the parameters penalize anything.
pub(crate) fn is_on(dry: &Dry) -> bool {
    dry.multiplier != 0.0 && dry.base >= 1.0 && dry.last_n > 0
}

/// Subtracts the penalties. `tokens` are those of prompt and response.
pub(super) fn apply(
    dry: &Dry,
    breakers: &SequenceBreakers,
    tokens: &[Token],
    logits: &mut [f32],
    scratch: &mut DryScratch,
) {
    let (count, allowed) = (tokens.len().min(dry.last_n as usize), dry.allowed_length as usize);
    if !is_on(dry) || count <= allowed {
        return;
    }
    let DryScratch { recent, repeats, longest } = scratch;
    recent.clear();
    recent.extend(tokens.iter().rev().take(count));
    let limit = breakers.tokens_after(recent);
    if limit < allowed {
        return;
    }
    count_repeats(recent, repeats);
    longest.clear();
    for (i, repeat) in repeats.iter().enumerate().skip(1) {
        let repeat = (*repeat).min(limit);
        if repeat >= allowed {
            // The token that followed this occurrence would extend the repetition.
            let longest = longest.entry(recent[i - 1]).or_default();
            *longest = repeat.max(*longest);
        }
    }
    let most = if dry.base > 1.000_001 { (FLOAT_MAX_LOG / dry.base.ln()) as i32 } else { 0 };
    for (token, repeat) in longest.iter().filter(|(token, _)| !breakers.is_single(**token)) {
        let exponent = i32::try_from(repeat - allowed).unwrap_or(i32::MAX);
        let exponent = if most > 0 { exponent.min(most) } else { exponent };
        if let Some(logit) = logits.get_mut(*token as usize) {
            *logit -= dry.multiplier * dry.base.powi(exponent);
        }
    }
}

/// The Z function: how many tokens from each place on are the same as those at the start.
fn count_repeats(recent: &[Token], repeats: &mut Vec<usize>) {
    repeats.clear();
    repeats.resize(recent.len(), 0);
    let (mut left, mut right) = (0, 0);
    for k in 1..recent.len() {
        let known = if k < right { repeats[k - left].min(right - k) } else { 0 };
        let more = recent[k + known..].iter().zip(&recent[known..]);
        let repeat = known + more.take_while(|(a, b)| a == b).count();
        repeats[k] = repeat;
        if k + repeat > right {
            (left, right) = (k, k + repeat);
        }
    }
}
