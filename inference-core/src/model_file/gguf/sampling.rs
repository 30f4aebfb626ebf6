//! PURE. Sampling parameters that a model file recommends: llama.cpp's keys `general.sampling.*`.

use crate::types::request::{RECENT_TOKENS_MAX, SamplingDefaults};

/// Beginning of the keys.
pub(super) const PREFIX: &str = "general.sampling.";
/// Maximum `top_k` that makes a difference: more than any vocabulary.
const TOP_K_MAX: f64 = 10_000_000.0;

/// Takes over one value. Ignores values out of range, and parameters that the engine does not have.
pub(super) fn read(defaults: &mut SamplingDefaults, name: &str, value: f64) {
    let within = |least: f64, most: f64| {
        Some(value).filter(|value| (least..=most).contains(value)).map(|value| value as f32)
    };
    let whole = |most: f64| within(0.0, most).map(|value| value as u32);
    let found = match name {
        "temp" => &mut defaults.temperature,
        "top_p" => &mut defaults.top_p,
        "min_p" => &mut defaults.min_p,
        "penalty_repeat" => &mut defaults.repeat_penalty,
        "top_k" => return defaults.top_k = whole(TOP_K_MAX).or(defaults.top_k),
        "penalty_last_n" => {
            return defaults.repeat_last_n =
                whole(RECENT_TOKENS_MAX.into()).or(defaults.repeat_last_n);
        }
        _ => return,
    };
    *found = match name {
        "temp" => within(0.0, 2.0),
        "penalty_repeat" => within(0.1, 10.0),
        _ => within(0.0, 1.0),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_in_range_are_taken_over_and_others_ignored() {
        let mut defaults = SamplingDefaults::default();
        for (name, value) in [
            ("temp", 0.5),
            ("top_k", 20.0),
            ("top_p", 0.75),
            ("min_p", 0.0),
            ("penalty_repeat", 1.5),
            ("penalty_last_n", 4096.0),
            ("mirostat", 2.0),
        ] {
            read(&mut defaults, name, value);
        }
        let expected = SamplingDefaults {
            temperature: Some(0.5),
            top_k: Some(20),
            top_p: Some(0.75),
            min_p: Some(0.0),
            repeat_penalty: Some(1.5),
            repeat_last_n: Some(4096),
        };
        assert_eq!(defaults, expected);
        let shown = "temperature 0.5, top_k 20, top_p 0.75, min_p 0, repeat_penalty 1.5, \
                     repeat_last_n 4096";
        assert_eq!(defaults.to_string(), shown);
        let mut none = SamplingDefaults::default();
        for (name, value) in [
            ("temp", 2.5),
            ("temp", f64::NAN),
            ("top_p", -0.1),
            ("min_p", f64::INFINITY),
            ("penalty_repeat", 0.0),
            ("penalty_last_n", 5000.0),
            ("top_k", 1e12),
        ] {
            read(&mut none, name, value);
        }
        assert_eq!((none, none.to_string()), (SamplingDefaults::default(), "none".into()));
    }
}
