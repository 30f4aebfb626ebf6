//! PURE. How sure a draft model is of a token, and how often it was right when it was as sure.
//!
//! How sure it is, the distance between the two largest logits tells: unlike a probability, it
//! needs no sum over the vocabulary. What a distance means differs between models, so that it only
//! puts tokens into classes, whose rates are learned.

use crate::types::request::Token;

/// Distances at which the next class begins.
const BOUNDS: [f32; CLASSES - 1] = [0.25, 0.5, 1.0, 1.5, 2.5, 4.0, 8.0];
const CLASSES: usize = 8;
/// Least weight of the newest token in the average of a class.
const SMOOTHING: f32 = 0.05;
/// A class begins as if it had had as many tokens.
const TOKENS_ASSUMED: f32 = 4.0;
/// Logits that are compared at a time.
const LANES: usize = 16;

/// Tokens of which a draft model is about as sure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Class(u8);

impl Class {
    /// The class of a token that is ahead of all others by `distance`.
    fn of(distance: f32) -> Self {
        Self(BOUNDS.iter().filter(|bound| distance >= **bound).count() as u8)
    }
}

/// How often tokens of each class were right.
#[derive(Debug, Clone)]
pub(crate) struct Confidence([Rate; CLASSES]);

/// An average that moves the slower the more it is made of, down to a bound.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rate {
    value: f32,
    tokens: f32,
}

impl Rate {
    /// Begins as if `tokens` tokens had had this rate.
    pub(crate) fn new(value: f32, tokens: f32) -> Self {
        Self { value, tokens }
    }

    pub(crate) fn value(self) -> f32 {
        self.value
    }

    /// Records a token, with at least this weight.
    pub(crate) fn record(&mut self, is_so: bool, least: f32) {
        self.tokens += 1.0;
        self.value += (1.0 / self.tokens).max(least) * (f32::from(u8::from(is_so)) - self.value);
    }
}

impl Confidence {
    /// All classes begin with this rate.
    pub(crate) fn new(rate: f32) -> Self {
        Self([Rate::new(rate, TOKENS_ASSUMED); CLASSES])
    }

    /// How likely a token of this class is right.
    pub(crate) fn rate(&self, class: Class) -> f32 {
        self.0.get(class.0 as usize).map_or(0.0, |rate| rate.value())
    }

    /// Records how a token of this class turned out.
    pub(crate) fn record(&mut self, class: Class, is_right: bool) {
        if let Some(rate) = self.0.get_mut(class.0 as usize) {
            rate.record(is_right, SMOOTHING);
        }
    }
}

/// The likeliest token, the first one of equals, and how sure that is.
pub(crate) fn likeliest(logits: &[f32]) -> (Token, Class) {
    // Lane by lane, so that the compiler compares many at once.
    let (mut first, mut second) = ([f32::NEG_INFINITY; LANES], [f32::NEG_INFINITY; LANES]);
    let (chunks, rest) = logits.as_chunks::<LANES>();
    for chunk in chunks {
        for lane in 0..LANES {
            let logit = chunk[lane];
            let lower = if logit < first[lane] { logit } else { first[lane] };
            second[lane] = if lower > second[lane] { lower } else { second[lane] };
            first[lane] = if logit > first[lane] { logit } else { first[lane] };
        }
    }
    let (mut best, mut next) = (f32::NEG_INFINITY, f32::NEG_INFINITY);
    for logit in first.iter().chain(&second).chain(rest) {
        next = next.max(logit.min(best));
        best = best.max(*logit);
    }
    let token = logits.iter().position(|logit| *logit == best).unwrap_or_default();
    (token as Token, Class::of(best - next))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand_core::{Rng, SeedableRng};
    use rand_pcg::Pcg64;

    #[test]
    fn the_likeliest_token_is_the_first_of_the_largest_and_its_distance_is_told() {
        let mut random = Pcg64::seed_from_u64(3);
        for length in (1..70).chain([1000]) {
            let logits: Vec<f32> =
                (0..length).map(|_| (random.next_u32() % 40) as f32 / 8.0 - 3.0).collect();
            let best = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let at = logits.iter().position(|logit| *logit == best).unwrap();
            let others = logits.iter().enumerate().filter(|(i, _)| *i != at);
            let next = others.map(|(_, logit)| *logit).fold(f32::NEG_INFINITY, f32::max);
            let expected = (at as Token, Class::of(best - next));
            assert_eq!(likeliest(&logits), expected, "{logits:?}");
        }
        assert_eq!(likeliest(&[f32::NAN, 1.0, 0.9]), (1, Class::of(0.1)));
        assert_eq!(likeliest(&[]).0, 0);
        assert_eq!(likeliest(&[f32::NAN; 40]).0, 0);
    }

    #[test]
    fn each_class_learns_its_own_rate() {
        let mut confidence = Confidence::new(0.7);
        let (unsure, sure) = (Class::of(0.1), Class::of(20.0));
        for _ in 0..200 {
            confidence.record(unsure, false);
            confidence.record(sure, true);
        }
        assert!(confidence.rate(unsure) < 0.01 && confidence.rate(sure) > 0.99);
        assert_eq!(confidence.rate(Class::of(3.0)), 0.7, "nothing is known of it");
        let classes = [0.0, 0.25, 0.6, 1.0, 2.0, 3.0, 5.0, 9.0].map(Class::of);
        assert!(classes.windows(2).all(|pair| pair[0].0 + 1 == pair[1].0));
    }
}
