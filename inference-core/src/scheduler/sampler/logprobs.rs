//! PURE. Log probabilities of tokens before any sampling parameter is applied.

use super::Scratch;
use super::vector::{exp_differences, maximum};
use crate::types::request::Token;

/// The value OpenAI reports for a token of almost no probability; JSON has no infinity.
const LEAST: f32 = -9999.0;

/// A token and the natural logarithm of its probability.
pub(crate) type Logprob = (Token, f32);

/// The logprob of the `chosen` token, and those of the `count` most likely ones in descending
/// order.
pub(crate) fn logprobs(
    logits: &[f32],
    chosen: Token,
    count: u32,
    scratch: &mut Scratch,
) -> (Logprob, Vec<Logprob>) {
    let max = maximum(logits);
    exp_differences(logits, max, 1.0, &mut scratch.weights.values);
    let all = scratch.weights.sum();
    let logprob = |logit: f32| {
        let value = (f64::from(logit - max) - all.ln()) as f32;
        if value.is_nan() { LEAST } else { value.clamp(LEAST, 0.0) }
    };
    let of = |token: Token| (token, logprob(logits.get(token as usize).map_or(f32::NAN, |l| *l)));
    (of(chosen), likeliest(logits, count as usize).into_iter().map(of).collect())
}

/// The `count` tokens with the largest logits in descending order; `count` is small.
fn likeliest(logits: &[f32], count: usize) -> Vec<Token> {
    let mut best: Vec<Token> = Vec::with_capacity(count + 1);
    let mut least = f32::NEG_INFINITY;
    for (i, logit) in logits.iter().enumerate() {
        if *logit <= least && best.len() == count || logit.is_nan() || count == 0 {
            continue;
        }
        let place = best.partition_point(|token| logits[*token as usize] >= *logit);
        best.insert(place, i as Token);
        best.truncate(count);
        least = best.last().map_or(least, |token| logits[*token as usize]);
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_add_up_to_one_and_the_likeliest_come_first() {
        let logits = [0.5, 2.0, f32::NAN, -1.0, 2.0, f32::NEG_INFINITY];
        let ((token, chosen), best) = logprobs(&logits, 3, 4, &mut Scratch::default());
        assert_eq!(best.iter().map(|(t, _)| *t).collect::<Vec<_>>(), [1, 4, 0, 3]);
        assert_eq!((token, chosen), best[3]);
        let sum: f32 = best.iter().map(|(_, l)| l.exp()).sum();
        assert!((sum - 1.0).abs() < 1e-4, "{sum}");
    }

    #[test]
    fn what_cannot_be_has_the_least_logprob_and_not_infinity() {
        let logits = [0.0, f32::NEG_INFINITY, f32::NAN];
        for token in [1, 2, 99] {
            let ((_, logprob), best) = logprobs(&logits, token, 0, &mut Scratch::default());
            assert_eq!((logprob, best.len()), (LEAST, 0));
        }
    }
}
