//! Tests extreme parameter values: the limits of each field and values that break arithmetic.

use super::*;

/// The largest and smallest values that a field accepts, and those that break arithmetic.
const EXTREMES: [f32; 9] =
    [0.0, -0.0, 1e-45, 1e-40, f32::MIN_POSITIVE, 1e-30, f32::EPSILON, 0.5, 1.0];

#[test]
fn a_temperature_of_almost_nothing_is_greedy_with_and_without_filters() {
    for temperature in EXTREMES.into_iter().filter(|t| *t < GREEDY_BELOW) {
        for params in [
            Sampling { ..hot() },
            Sampling { top_k: 3, ..hot() },
            Sampling { top_p: 0.9, min_p: 0.1, typical_p: 0.9, ..hot() },
        ] {
            let seen = super::tokens(Sampling { temperature, ..params });
            assert_eq!(seen, [1], "temperature {temperature:e}");
        }
    }
}

#[test]
fn extreme_values_of_any_field_still_give_a_token_that_may_be_drawn() {
    let logits = [0.0, 3.0, f32::NEG_INFINITY, 2.9, f32::NAN, 1e-40, -1e38, -30.0];
    let probabilities = EXTREMES.iter().copied();
    for (top_p, min_p) in probabilities.clone().flat_map(|p| EXTREMES.map(|q| (p, q))) {
        for (typical_p, temperature) in probabilities.clone().flat_map(|p| EXTREMES.map(|q| (p, q)))
        {
            for top_k in [0, 1, 3, u32::MAX] {
                let params = Sampling { temperature, top_p, min_p, typical_p, top_k, ..hot() };
                let token = sample(&mut sampler(params.clone()), &logits);
                assert!([0, 1, 3, 5, 7].contains(&token), "{token} with {params:?}");
            }
        }
    }
    for number in [1e-45, 1e-40, -1e-40, 2.0, -2.0] {
        for penalty in [0.1, 10.0] {
            let params = Sampling {
                frequency_penalty: number,
                presence_penalty: number,
                repeat_penalty: penalty,
                bias: vec![(1, number), (3, f32::NEG_INFINITY)],
                ..hot()
            };
            let mut sampler = sampler(params);
            [0, 1, 7].into_iter().for_each(|token| sampler.accept(token));
            let context = SamplingContext { tokens: &[0, 1, 7], ..NOTHING };
            let token = sampler.sample(&logits, context, None, &mut Scratch::default());
            assert!([0, 1, 5, 7].contains(&token), "{token}");
        }
    }
}
