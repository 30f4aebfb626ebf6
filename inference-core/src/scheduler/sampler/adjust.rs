//! PURE. Adjusts logits before tokens are compared: bias, penalties for tokens that already
//! occurred, and tokens that may not come next.
//!
//! repeat_penalty: Keskar et al., "CTRL" (2019), over the last tokens of prompt and response, as in
//! llama.cpp. frequency_penalty and presence_penalty: OpenAI's, over the response.

use std::collections::HashMap;

use super::dry::{self, DryScratch};
use super::{ResolvedOptions, SamplingContext};
use crate::types::request::{Sampling, Token};

/// Scratch buffers, kept between calls.
#[derive(Debug, Default)]
pub(super) struct AdjustScratch {
    recent: Vec<Token>,
    dry: DryScratch,
    allowed: Vec<f32>,
}

/// True if any parameter changes logits.
pub(crate) fn has_adjustments(params: &Sampling) -> bool {
    !params.bias.is_empty()
        || params.ignore_end
        || has_repeat_penalty(params)
        || params.frequency_penalty != 0.0
        || params.presence_penalty != 0.0
        || dry::is_on(&params.dry)
        || params.min_tokens > 0
        || !params.bad_words.is_empty()
        || params.allowed.is_some()
}

fn has_repeat_penalty(params: &Sampling) -> bool {
    params.repeat_penalty != 1.0 && params.repeat_last_n > 0
}

/// Adjusts `logits`. `counts` is how often the response contains each token.
pub(super) fn apply(
    (params, resolved): (&Sampling, &ResolvedOptions),
    counts: &HashMap<Token, u32>,
    context: SamplingContext<'_>,
    logits: &mut [f32],
    scratch: &mut AdjustScratch,
) {
    let AdjustScratch { recent, dry, allowed } = scratch;
    for (token, bias) in &params.bias {
        change(logits, *token, |logit| logit + bias);
    }
    if has_repeat_penalty(params) {
        let from = context.tokens.len().saturating_sub(params.repeat_last_n as usize);
        recent.clear();
        recent.extend_from_slice(&context.tokens[from..]);
        recent.sort_unstable();
        recent.dedup();
        let penalty = params.repeat_penalty;
        for token in &*recent {
            change(logits, *token, |l| if l > 0.0 { l / penalty } else { l * penalty });
        }
    }
    // Each entry changes its own logit: the order of the map does not matter.
    for (token, count) in counts {
        let penalty = *count as f32 * params.frequency_penalty + params.presence_penalty;
        change(logits, *token, |logit| logit - penalty);
    }
    dry::apply(&params.dry, &resolved.breakers, context.tokens, logits, dry);
    forbid_bad_words(&resolved.bad_words, context.response(), logits);
    if let Some(tokens) = &params.allowed {
        keep_only(tokens, logits, allowed);
    }
    if params.ignore_end {
        for token in context.end_tokens {
            change(logits, *token, |_| f32::NEG_INFINITY);
        }
    }
}

/// Forbids the last token of each sequence that the response is about to complete, as vLLM's
/// `apply_bad_words` does (`vllm/v1/sample/ops/bad_words.py`).
fn forbid_bad_words(sequences: &[Vec<Token>], response: &[Token], logits: &mut [f32]) {
    for sequence in sequences {
        if let Some((last, before)) = sequence.split_last()
            && response.ends_with(before)
        {
            change(logits, *last, |_| f32::NEG_INFINITY);
        }
    }
}

/// Forbids all other tokens.
fn keep_only(tokens: &[Token], logits: &mut [f32], kept: &mut Vec<f32>) {
    kept.clear();
    kept.extend(tokens.iter().map(|t| logits.get(*t as usize).map_or(f32::NAN, |logit| *logit)));
    logits.fill(f32::NEG_INFINITY);
    for (token, logit) in tokens.iter().zip(kept) {
        change(logits, *token, |_| *logit);
    }
}

/// Forbids the tokens that end a response, as long as another one is left: a grammar that is
/// complete has no other.
pub(super) fn forbid_ends(context: SamplingContext<'_>, logits: &mut [f32]) {
    let ends = || context.end_tokens.iter().chain(context.stop_tokens);
    let is_other = |token: usize| ends().all(|end| *end as usize != token);
    let mut possible = logits.iter().enumerate().filter(|(_, logit)| **logit > f32::NEG_INFINITY);
    if possible.any(|(token, _)| is_other(token)) {
        for end in ends() {
            change(logits, *end, |_| f32::NEG_INFINITY);
        }
    }
}

fn change(logits: &mut [f32], token: Token, to: impl Fn(f32) -> f32) {
    if let Some(logit) = logits.get_mut(token as usize) {
        *logit = to(*logit);
    }
}
