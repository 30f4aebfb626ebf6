//! Tests DRY, XTC and top_n_sigma with the distributions of llama.cpp's own tests
//! (`tests/test-sampling.cpp`), and the tokens that vLLM's fields forbid.

use super::*;
use crate::types::request::{Dry, Xtc};

fn logits(probabilities: &[f32]) -> Vec<f32> {
    probabilities.iter().map(|p| p.ln()).collect()
}

fn softmax(logits: &[f32]) -> Vec<f32> {
    let all: f32 = logits.iter().map(|l| l.exp()).sum();
    logits.iter().map(|l| l.exp() / all).collect()
}

/// The logits after everything that adjusts them.
fn adjusted(
    params: &Sampling,
    resolved: &ResolvedOptions,
    tokens: &[Token],
    mut logits: Vec<f32>,
) -> Vec<f32> {
    let context = SamplingContext { tokens, prompt_tokens: 1, ..NOTHING };
    let (counts, mut scratch) = (HashMap::new(), AdjustScratch::default());
    adjust::apply((params, resolved), &counts, context, &mut logits, &mut scratch);
    logits
}

/// The tokens that may be drawn, most likely first.
fn kept(params: Sampling, probabilities: &[f32]) -> Vec<Token> {
    let mut scratch = Scratch::default();
    sampler(params).sample(&logits(probabilities), NOTHING, None, &mut scratch);
    scratch.candidates.sorted()
}

#[test]
fn dry_gives_the_distributions_of_llama_cpps_tests() {
    let even = [0.25; 4].as_slice();
    let five = [0.2; 5].as_slice();
    let third = vec![0.296_923, 0.296_923, 0.109_232, 0.296_923];
    let doubled = vec![0.241_818, 0.241_818, 0.032_727, 0.241_818, 0.241_818];
    for (before, tokens, breaker, multiplier, allowed_length, expected) in [
        (even, [0, 1].as_slice(), None, 1.0, 2, even.to_vec()),
        (even, &[0, 1, 2, 0, 1], None, 1.0, 2, third),
        (five, &[0, 1, 3, 4, 0, 1], Some(3), 1.0, 2, five.to_vec()),
        (five, &[0, 1, 2, 0, 1], None, 2.0, 2, doubled),
        (five, &[0, 1, 2, 3, 4, 0, 1], None, 1.0, 4, five.to_vec()),
    ] {
        let dry = Dry { multiplier, base: 1.1, allowed_length, ..Dry::OFF };
        let mut breakers = SequenceBreakers::default();
        breaker.into_iter().for_each(|token| breakers.insert(token, Vec::new()));
        let resolved = ResolvedOptions { breakers: Arc::new(breakers), ..Default::default() };
        let params = Sampling { dry, ..hot() };
        let after = softmax(&adjusted(&params, &resolved, tokens, logits(before)));
        let differs = after.iter().zip(&expected).any(|(a, b)| (a - b).abs() > 1e-5);
        assert!(!differs, "{tokens:?}: {after:?} instead of {expected:?}");
    }
}

#[test]
fn dry_looks_back_as_far_as_it_is_told_and_no_further_than_a_breaker() {
    let penalty = |last_n, breakers: &[&[Token]], tokens: &[Token]| {
        let mut known = SequenceBreakers::default();
        breakers.iter().for_each(|all| known.insert(all[0], all[1..].to_vec()));
        let resolved = ResolvedOptions { breakers: Arc::new(known), ..Default::default() };
        let dry = Dry { multiplier: 1.0, base: 2.0, allowed_length: 2, last_n, breakers: None };
        let params = Sampling { dry, ..hot() };
        -adjusted(&params, &resolved, tokens, vec![0.0; 10])[4]
    };
    let tokens = [1, 2, 3, 4, 5, 1, 2, 3];
    assert_eq!(penalty(64, &[], &tokens), 2.0, "1, 2, 3 was followed by 4");
    assert_eq!(penalty(7, &[], &tokens), 1.0, "only 2, 3 is in reach");
    assert_eq!(penalty(4, &[], &tokens), 0.0);
    assert_eq!(penalty(64, &[&[1]], &tokens), 1.0, "the repetition begins after 1");
    assert_eq!(penalty(64, &[&[1, 2]], &tokens), 0.0, "only 3 is left");
    assert_eq!(penalty(64, &[&[4]], &tokens), 0.0, "a breaker itself is not penalized");
    // 88.7 / ln 2 is the largest exponent.
    assert!(penalty(9000, &[], &[4; 9000]).is_finite());
}

#[test]
fn xtc_keeps_what_llama_cpps_tests_keep() {
    let probabilities = [0.4, 0.3, 0.2, 0.1];
    let tokens = |threshold| {
        kept(Sampling { xtc: Xtc { probability: 1.0, threshold }, ..hot() }, &probabilities)
    };
    assert_eq!(tokens(0.09), [3]);
    assert_eq!(tokens(0.19), [2, 3]);
    assert_eq!(tokens(0.29), [1, 2, 3]);
    assert_eq!(tokens(0.39), [0, 1, 2, 3]);
    assert_eq!(tokens(0.0), [3]);
}

#[test]
fn xtc_acts_on_its_share_of_tokens_greedy_or_not() {
    let logits = logits(&[0.6, 0.3, 0.1]);
    for temperature in [0.0, 1e-3] {
        let xtc = Xtc { probability: 0.25, threshold: 0.2 };
        let mut sampler = sampler(Sampling { temperature, xtc, ..hot() });
        let tokens: Vec<Token> = (0..4000).map(|_| sample(&mut sampler, &logits)).collect();
        let dropped = tokens.iter().filter(|token| **token == 1).count();
        assert!((900..1100).contains(&dropped), "{dropped}");
        assert!(!tokens.contains(&2));
    }
}

#[test]
fn top_n_sigma_keeps_what_llama_cpps_tests_keep() {
    let probabilities = [0.1, 0.2, 0.3, 0.4];
    let tokens = |top_n_sigma| kept(Sampling { top_n_sigma, ..hot() }, &probabilities);
    assert_eq!(tokens(1.0), [3, 2]);
    assert_eq!(tokens(3.0), [3, 2, 1, 0]);
    assert!(!candidates::has_filters(&Sampling { top_n_sigma: 0.0, ..hot() }));
    // Tokens that are forbidden do not widen the deviation.
    let params = Sampling { top_n_sigma: 1.0, bias: vec![(4, f32::NEG_INFINITY)], ..hot() };
    assert_eq!(kept(params, &[0.1, 0.2, 0.3, 0.4, 0.5]), [3, 2]);
    // The filters after it see only what it leaves: 0.4 / 0.7 is more than 0.5.
    let params = Sampling { top_n_sigma: 1.0, top_p: 0.5, ..hot() };
    assert_eq!(kept(params, &probabilities), [3]);
}

#[test]
fn bad_words_and_tokens_that_are_not_allowed_are_forbidden() {
    let forbidden = |params: &Sampling, resolved: &ResolvedOptions, tokens: &[Token]| {
        let logits = adjusted(params, resolved, tokens, vec![0.0; 6]);
        (0..6).filter(|token| logits[*token] == f32::NEG_INFINITY).collect::<Vec<_>>()
    };
    let resolved =
        ResolvedOptions { bad_words: vec![vec![5], vec![1, 2, 3]], ..Default::default() };
    assert_eq!(forbidden(&hot(), &resolved, &[0]), [5]);
    assert_eq!(forbidden(&hot(), &resolved, &[0, 4, 1, 2]), [3, 5]);
    assert_eq!(forbidden(&hot(), &resolved, &[1, 2]), [5], "1 belongs to the prompt");
    let params = Sampling { allowed: Some(vec![0, 3, 99]), ..hot() };
    assert_eq!(forbidden(&params, &ResolvedOptions::default(), &[0]), [1, 2, 4, 5]);
}

#[test]
fn a_response_does_not_end_before_its_least_tokens_unless_it_must() {
    let sample = |response: usize, logits: &[f32]| {
        let tokens = vec![0; 1 + response];
        let context = SamplingContext {
            tokens: &tokens,
            prompt_tokens: 1,
            end_tokens: &[2],
            stop_tokens: &[1],
        };
        let params = Sampling { min_tokens: 3, ..Sampling::GREEDY };
        sampler(params).sample(logits, context, None, &mut Scratch::default())
    };
    let never = f32::NEG_INFINITY;
    assert_eq!(sample(2, &[0.0, 1.0, 2.0]), 0);
    assert_eq!(sample(3, &[0.0, 1.0, 2.0]), 2);
    assert_eq!(sample(0, &[never, never, 2.0]), 2, "nothing else is left");
}
