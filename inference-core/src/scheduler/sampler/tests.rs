//! Tests each parameter against its definition.

use super::*;

mod extremes;
mod filters;
mod llama_cpp;

const LOGITS: [f32; 5] = [0.0, 3.0, 1.0, 2.9, f32::NAN];

const NOTHING: SamplingContext<'_> =
    SamplingContext { tokens: &[], prompt_tokens: 0, end_tokens: &[], stop_tokens: &[] };

/// A sampler without words.
fn sampler(params: Sampling) -> Sampler {
    Sampler::new(params, ResolvedOptions::default())
}

fn sample(sampler: &mut Sampler, logits: &[f32]) -> Token {
    sampler.sample(logits, NOTHING, None, &mut Scratch::default())
}

fn tokens(params: Sampling) -> Vec<Token> {
    let mut sampler = sampler(params);
    let mut seen: Vec<Token> = (0..500).map(|_| sample(&mut sampler, &LOGITS)).collect();
    seen.sort_unstable();
    seen.dedup();
    seen
}

fn hot() -> Sampling {
    Sampling { temperature: 1.0, seed: 7, ..Sampling::GREEDY }
}

#[test]
fn greedy_takes_the_first_of_the_largest() {
    assert_eq!(sample(&mut sampler(Sampling::GREEDY), &LOGITS), 1);
    assert_eq!(sample(&mut sampler(Sampling::GREEDY), &[1.0, 2.0, 2.0]), 1);
}

#[test]
fn filters_keep_what_they_promise() {
    assert_eq!(tokens(Sampling { top_k: 2, ..hot() }), [1, 3]);
    assert_eq!(tokens(Sampling { top_p: 0.5, ..hot() }), [1, 3]);
    assert_eq!(tokens(Sampling { min_p: 0.5, ..hot() }), [1, 3]);
    assert_eq!(tokens(Sampling { top_p: 0.0, ..hot() }), [1]);
    assert_eq!(tokens(hot()), [0, 1, 2, 3], "a token that is not a number is never drawn");
}

#[test]
fn the_same_seed_gives_the_same_tokens() {
    let draw = |seed| {
        let mut sampler = sampler(Sampling { seed, ..hot() });
        (0..64).map(|_| sample(&mut sampler, &LOGITS)).collect::<Vec<_>>()
    };
    assert_eq!(draw(1), draw(1));
    assert_ne!(draw(1), draw(2));
}

#[test]
fn a_checked_choice_is_the_free_one_if_that_is_allowed_and_else_one_of_the_others() {
    let draw = |allowed: &[Token]| {
        let mut sampler = Sampler::new(hot(), ResolvedOptions::default());
        let one = |_| {
            let mut is_allowed = |token: Token| allowed.contains(&token);
            let mut forbid = |logits: &mut [f32]| {
                let all = (0..).zip(logits.iter_mut()).filter(|(t, _)| !allowed.contains(t));
                all.for_each(|(_, logit)| *logit = f32::NEG_INFINITY);
            };
            let check: (&mut dyn FnMut(Token) -> bool, Forbid<'_>) = (&mut is_allowed, &mut forbid);
            sampler.sample_checked(&LOGITS, NOTHING, check, &mut Scratch::default())
        };
        (0..64).map(one).collect::<Vec<Token>>()
    };
    let mut free = Sampler::new(hot(), ResolvedOptions::default());
    let free: Vec<Token> = (0..64).map(|_| sample(&mut free, &LOGITS)).collect();
    assert_eq!(draw(&[0, 1, 2, 3]), free);
    let some = draw(&[0, 3]);
    assert!(some.iter().all(|token| [0, 3].contains(token)));
    for (chosen, free) in some.iter().zip(&free).filter(|(_, free)| [0, 3].contains(*free)) {
        assert_eq!(chosen, free);
    }
}

#[test]
fn frequencies_follow_the_softmax() {
    let mut sampler = sampler(hot());
    let draws = 20_000;
    let ones = (0..draws).filter(|_| sample(&mut sampler, &[0.0, 1.0]) == 1).count();
    let share = ones as f32 / draws as f32;
    let expected = 1.0 / (1.0 + (-1.0f32).exp());
    assert!((share - expected).abs() < 0.02, "{share} against {expected}");
}

#[test]
fn logits_without_a_number_still_give_a_token() {
    assert!(sample(&mut sampler(hot()), &[f32::NAN, f32::NAN]) < 2);
    assert_eq!(sample(&mut sampler(hot()), &[f32::NEG_INFINITY, f32::INFINITY]), 1);
}

/// The same filters in the simplest way: sort everything, then cut.
fn kept_by_definition(logits: &[f32], params: &Sampling) -> Vec<Token> {
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
        let logits: Vec<f32> =
            (0..20_000).map(|_| (rng.next_u32() as f32 / u32::MAX as f32 - 0.5) * width).collect();
        for (top_k, top_p, min_p) in
            [(0, 0.9, 0.0), (0, 0.01, 0.0), (40, 0.5, 0.0), (0, 1.0, 0.5), (500, 0.9, 0.3)]
        {
            let params = Sampling { top_k, top_p, min_p, ..hot() };
            let mut scratch = Scratch::default();
            sampler(params.clone()).sample(&logits, NOTHING, None, &mut scratch);
            let kept = scratch.candidates.sorted();
            let expected = kept_by_definition(&logits, &params);
            let different = kept.len().abs_diff(expected.len());
            // Sums of f32 and f64 may differ by one candidate at the edge.
            assert!(different <= 1 + expected.len() / 1000, "{params:?}: {different}");
            let both = kept.len().min(expected.len());
            assert_eq!(kept[..both], expected[..both], "{params:?}");
        }
    }
}

/// The token that greedy sampling chooses after adjusting.
fn greedy(params: Sampling, answer: &[Token], logits: &[f32]) -> Token {
    let mut sampler = sampler(params);
    answer.iter().for_each(|token| sampler.accept(*token));
    let context = SamplingContext { tokens: answer, end_tokens: &[1], ..NOTHING };
    sampler.sample(logits, context, None, &mut Scratch::default())
}

#[test]
fn bias_and_penalties_change_what_is_likeliest() {
    let logits = [0.0, 3.0, 1.0, 2.9];
    assert_eq!(
        greedy(Sampling { bias: vec![(2, 5.0), (999, 9.0)], ..Sampling::GREEDY }, &[], &logits),
        2
    );
    assert_eq!(greedy(Sampling { ignore_end: true, ..Sampling::GREEDY }, &[], &logits), 3);
    let presence = Sampling { presence_penalty: 0.2, ..Sampling::GREEDY };
    assert_eq!(greedy(presence.clone(), &[], &logits), 1);
    assert_eq!(greedy(presence, &[1], &logits), 3);
    let frequency = Sampling { frequency_penalty: 0.06, ..Sampling::GREEDY };
    assert_eq!(greedy(frequency.clone(), &[1], &logits), 1);
    assert_eq!(greedy(frequency, &[1, 1], &logits), 3);
    let repeat = Sampling { repeat_penalty: 1.1, repeat_last_n: 2, ..Sampling::GREEDY };
    assert_eq!(greedy(repeat.clone(), &[0, 1], &logits), 3);
    assert_eq!(greedy(repeat, &[1, 0, 0], &logits), 1, "it is no longer recent");
}

#[test]
fn a_repeated_token_with_a_negative_logit_becomes_less_likely_too() {
    let params = Sampling { repeat_penalty: 2.0, ..Sampling::GREEDY };
    assert_eq!(greedy(params, &[0], &[-1.0, -1.5]), 1);
}

#[test]
fn what_is_forbidden_is_not_chosen() {
    let mut forbid = |logits: &mut [f32]| logits[1] = f32::NEG_INFINITY;
    let mut sampler = sampler(Sampling::GREEDY);
    let token = sampler.sample(&LOGITS, NOTHING, Some(&mut forbid), &mut Scratch::default());
    assert_eq!(token, 3);
}

#[test]
fn typical_sampling_drops_the_obvious_where_much_is_equally_likely() {
    // One token has a probability of 0.3, a hundred have 0.007 each: the expected surprise is
    // nearer to theirs than to that of the one.
    let mut logits = vec![0.0f32; 101];
    logits[0] = (300f32 / 7.0).ln();
    let params = Sampling { typical_p: 0.4, ..hot() };
    let mut scratch = Scratch::default();
    sampler(params).sample(&logits, NOTHING, None, &mut scratch);
    let kept = scratch.candidates.sorted();
    assert!(!kept.contains(&0) && kept.len() == 58, "{kept:?}");
    assert_eq!(tokens(Sampling { typical_p: 1.0, ..hot() }), [0, 1, 2, 3]);
    assert_eq!(tokens(Sampling { typical_p: 0.5, min_p: 0.99, ..hot() }).len(), 1);
}
