//! PURE. What requests cost, learned from those that are over.
//!
//! The unit is about one generated token; a token of a prompt costs a fraction of that. How
//! many seconds of a slot a unit takes is learned for each model: it holds the node's speed,
//! the neighbours in its batch, cached prefixes, and answers that end before their limit.

use std::collections::BTreeMap;
use std::time::Duration;

/// Bytes of a request for a token of its prompt, about: JSON and English.
const BYTES_PER_TOKEN: f64 = 5.0;
/// A generated token takes as long as this many tokens of a prompt.
const PROMPT_SHARE: f64 = 0.1;
/// Tokens of an answer whose request sets no limit, and the most that a limit tells.
const ANSWER_TOKENS: f64 = 256.0;
/// Answers that a request may ask for.
const ANSWERS_MAX: u64 = 16;
/// Weight of the newest request.
const SMOOTHING: f64 = 0.1;
/// Requests that must be over before anything is predicted.
const SEEN_MIN: u32 = 8;
/// Models that are known; the names are those that nodes gave.
const MODELS_MAX: usize = 1024;

/// What a request will use, about: tokens.
#[derive(Debug, Clone, Copy)]
pub struct Estimate {
    prompt: f64,
    answers: f64,
}

impl Estimate {
    /// From what is known before it runs. No node takes more answers than [`ANSWERS_MAX`]: a
    /// larger number is refused there, and must not weigh anything here until then.
    pub fn new(body_bytes: usize, tokens_max: Option<u64>, answers: u64) -> Self {
        let answer = tokens_max.map_or(ANSWER_TOKENS, |max| (max as f64).min(ANSWER_TOKENS));
        Self {
            prompt: body_bytes as f64 / BYTES_PER_TOKEN,
            answers: answer * answers.clamp(1, ANSWERS_MAX) as f64,
        }
    }

    /// Its cost, in units.
    pub fn units(self) -> f64 {
        1.0 + self.prompt * PROMPT_SHARE + self.answers
    }

    /// Tokens of its prompt and its answers.
    pub fn tokens(self) -> u32 {
        // Bodies and answers are bounded: this fits.
        (1.0 + self.prompt + self.answers) as u32
    }
}

/// What a model's units take.
#[derive(Debug, Clone, Copy, Default)]
struct Learned {
    seconds: f64,
    seen: u32,
}

/// What was learned. See the module.
#[derive(Debug, Default)]
pub struct Costs(BTreeMap<String, Learned>);

impl Costs {
    /// A request of so many units has held a slot for that long.
    pub fn observe(&mut self, model: &str, units: f64, held: Duration) {
        if !self.0.contains_key(model) {
            if self.0.len() >= MODELS_MAX {
                return;
            }
            self.0.insert(model.to_string(), Learned::default());
        }
        let Some(learned) = self.0.get_mut(model) else { return };
        let newest = held.as_secs_f64() / units.max(1.0);
        learned.seen = learned.seen.saturating_add(1);
        // The first few count evenly.
        let weight = SMOOTHING.max(1.0 / f64::from(learned.seen));
        learned.seconds += weight * (newest - learned.seconds);
    }

    /// How long `slots` slots take for so many units; `None` until enough is known.
    pub fn predict(&self, model: &str, units: f64, slots: u32) -> Option<Duration> {
        let learned = self.0.get(model).filter(|learned| learned.seen >= SEEN_MIN)?;
        let seconds = units * learned.seconds / f64::from(slots.max(1));
        Duration::try_from_secs_f64(seconds).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn units(body_bytes: usize, tokens_max: Option<u64>, answers: u64) -> f64 {
        Estimate::new(body_bytes, tokens_max, answers).units()
    }

    #[test]
    fn a_number_that_nobody_serves_weighs_no_more_than_one_that_is() {
        assert_eq!(units(500, None, u64::MAX), units(500, None, 16));
        assert!(Estimate::new(500, Some(u64::MAX), u64::MAX).tokens() < 5_000);
    }

    #[test]
    fn long_prompts_and_long_answers_cost_more() {
        assert!(units(5_000, Some(10), 1) > units(500, Some(10), 1));
        assert!(units(500, Some(100), 1) > units(500, Some(10), 1));
        assert!(units(500, Some(10), 4) > 3.0 * units(500, Some(10), 1) / 2.0);
        assert_eq!(units(500, None, 1), units(500, Some(100_000), 1));
    }

    #[test]
    fn nothing_is_predicted_before_something_was_seen() {
        let mut costs = Costs::default();
        assert_eq!(costs.predict("m", 1.0, 1), None);
        (0..SEEN_MIN).for_each(|_| costs.observe("m", 100.0, Duration::from_secs(5)));
        assert_eq!(costs.predict("m", 1000.0, 2), Some(Duration::from_secs(25)));
        assert_eq!(costs.predict("other", 1.0, 1), None);
    }

    #[test]
    fn what_changes_is_learned_and_names_are_bounded() {
        let mut costs = Costs::default();
        (0..20).for_each(|_| costs.observe("m", 1.0, Duration::from_secs(1)));
        (0..60).for_each(|_| costs.observe("m", 1.0, Duration::from_secs(3)));
        assert!(costs.predict("m", 1.0, 1).unwrap().as_secs_f64() > 2.9);
        (0..5000).for_each(|i| costs.observe(&i.to_string(), 1.0, Duration::ZERO));
        assert_eq!(costs.0.len(), MODELS_MAX);
    }
}
