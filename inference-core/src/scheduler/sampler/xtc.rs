//! PURE. Filters over logits that llama.cpp has and papers do not: top_n_sigma's limit, and XTC's
//! choice of what to drop.
//!
//! As `llama_sampler_top_n_sigma_apply` and `llama_sample_xtc_apply` in llama.cpp's
//! `src/llama-sampler.cpp`.

use crate::types::request::Xtc;

/// Above this threshold, no two tokens could reach it.
const THRESHOLD_MAX: f32 = 0.5;

/// True if XTC may drop tokens, so that each token takes a random number for it.
pub(super) fn is_on(xtc: &Xtc) -> bool {
    xtc.probability > 0.0 && xtc.threshold <= THRESHOLD_MAX
}

/// The smallest logit within `n` standard deviations of the largest one. Logits that are not finite
/// do not count.
pub(super) fn least_within_sigmas(n: f32, logits: &[f32], max: f32) -> f32 {
    let finite = || logits.iter().filter(|l| l.is_finite()).map(|l| f64::from(*l));
    let count = finite().count().max(1) as f64;
    let mean = finite().sum::<f64>() / count;
    let variance = finite().map(|l| (l - mean) * (l - mean)).sum::<f64>() / count;
    (f64::from(max) - f64::from(n) * variance.sqrt()) as f32
}

/// How many of the most likely tokens XTC drops: all that reach the threshold but the last of them.
/// `weights` are those of all tokens, the largest first.
pub(super) fn dropped(threshold: f32, weights: impl Iterator<Item = f64> + Clone) -> usize {
    let all: f64 = weights.clone().sum();
    weights.take_while(|w| w / all >= f64::from(threshold)).count().saturating_sub(1)
}
