//! PURE. Adjusts logits before tokens are compared: bias, and penalties for tokens that already
//! occurred.
//!
//! repeat_penalty: Keskar et al., "CTRL" (2019), over the last tokens of prompt and response, as in
//! llama.cpp. frequency_penalty and presence_penalty: OpenAI's, over the response.

use std::collections::HashMap;

use super::SamplingContext;
use crate::types::request::{Sampling, Token};

/// True if any parameter changes logits.
pub(crate) fn has_adjustments(params: &Sampling) -> bool {
    !params.bias.is_empty()
        || params.ignore_end
        || has_repeat_penalty(params)
        || params.frequency_penalty != 0.0
        || params.presence_penalty != 0.0
}

fn has_repeat_penalty(params: &Sampling) -> bool {
    params.repeat_penalty != 1.0 && params.repeat_last_n > 0
}

/// Adjusts `logits`. `counts` is how often the response contains each token; `recent` is scratch.
pub(crate) fn apply(
    params: &Sampling,
    counts: &HashMap<Token, u32>,
    context: SamplingContext<'_>,
    logits: &mut [f32],
    recent: &mut Vec<Token>,
) {
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
    if params.ignore_end {
        for token in context.end_tokens {
            change(logits, *token, |_| f32::NEG_INFINITY);
        }
    }
}

fn change(logits: &mut [f32], token: Token, to: impl Fn(f32) -> f32) {
    if let Some(logit) = logits.get_mut(token as usize) {
        *logit = to(*logit);
    }
}
