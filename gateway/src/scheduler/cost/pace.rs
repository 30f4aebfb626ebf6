//! PURE. How fast a node works on a model: prompts and answers apart, and answers by how many are
//! written beside them.

use std::time::Duration;

use inference_protocol::resume::Usage;

/// Weight of the newest request.
const SMOOTHING: f64 = 0.1;
/// What is assumed of a token of a prompt beside one of an answer, until both were measured.
const PROMPT_SHARE: f64 = 0.1;
/// Bounds of what is learned of that.
const PROMPT_SHARES: (f64, f64) = (0.001, 1.0);
/// Shortest time of a token that is believed, in seconds.
const SECONDS_MIN: f64 = 1e-6;

/// A mean that follows what changes; the first few values count evenly.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Mean {
    value: f64,
    seen: u32,
}

impl Mean {
    /// Takes a value.
    pub fn add(&mut self, value: f64) {
        self.seen = self.seen.saturating_add(1);
        let weight = SMOOTHING.max(1.0 / f64::from(self.seen));
        self.value += weight * (value - self.value);
    }

    /// The mean, once there is a value.
    pub fn get(self) -> Option<f64> {
        (self.seen > 0).then_some(self.value)
    }
}

/// A line through values at places, by least squares whose weights fade with age
/// (recursive least squares with a forgetting factor).
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Line {
    weight: f64,
    x: f64,
    y: f64,
    xx: f64,
    xy: f64,
}

impl Line {
    fn add(&mut self, x: f64, y: f64) {
        let sums = [&mut self.weight, &mut self.x, &mut self.y, &mut self.xx, &mut self.xy];
        for (sum, term) in sums.into_iter().zip([1.0, x, y, x * x, x * y]) {
            *sum = *sum * (1.0 - SMOOTHING) + term;
        }
    }

    /// The value at a place. It does not fall: who has company is not faster for that. Further out
    /// than was seen, it grows no faster than in proportion.
    fn at(&self, x: f64) -> Option<f64> {
        if self.weight <= 0.0 {
            return None;
        }
        let (mean_x, mean_y) = (self.x / self.weight, self.y / self.weight);
        let spread = self.xx / self.weight - mean_x * mean_x;
        let common = self.xy / self.weight - mean_x * mean_y;
        // Places that are all alike tell nothing of a slope.
        let slope = if spread > 0.05 { common / spread } else { 0.0 };
        let slope = slope.clamp(0.0, mean_y / mean_x.max(1.0));
        Some((mean_y + slope * (x - mean_x)).max(SECONDS_MIN))
    }
}

/// What an answered request took of a node.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Observation {
    /// Tokens.
    pub usage: Usage,
    /// Its answers.
    pub answers: usize,
    /// From its slot to its first token, if that was seen.
    pub first: Option<Duration>,
    /// From its slot to its end.
    pub held: Duration,
    /// Requests that were at work there, itself included.
    pub busy: f64,
}

impl Observation {
    /// Tokens of its prompt that were computed.
    pub fn prompt(&self) -> f64 {
        self.usage.prompt.saturating_sub(self.usage.cached) as f64
    }

    /// Tokens of each of its answers.
    pub fn answer(&self) -> f64 {
        self.usage.completion as f64 / self.answers.max(1) as f64
    }
}

/// How fast a node works. See the module.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Pace {
    /// Seconds for a token of a prompt.
    prefill: Mean,
    /// Seconds for a token of an answer, by requests at work.
    decode: Line,
    seen: u32,
}

impl Pace {
    /// Learns from a request. Where its first token was not seen, what is known of prompts is
    /// taken off.
    pub fn observe(&mut self, took: &Observation) {
        let (prompt, answer, held) = (took.prompt(), took.answer(), took.held.as_secs_f64());
        self.seen = self.seen.saturating_add(1);
        if answer < 1.0 {
            return self.prefill.add(held / prompt.max(1.0));
        }
        let token = match took.first.map(|first| first.as_secs_f64()) {
            Some(first) => {
                self.prefill.add(first / prompt.max(1.0));
                // The first of them ends the prefill.
                if answer < 2.0 {
                    return;
                }
                (held - first).max(0.0) / (answer - 1.0)
            }
            None => held / (answer + prompt * self.prompt_share()),
        };
        self.decode.add(took.busy.max(1.0), token);
    }

    /// Requests that it was learned from.
    pub fn seen(&self) -> u32 {
        self.seen
    }

    /// Seconds of a request for so many tokens, while so many are at work.
    pub fn seconds(&self, prompt: f64, answer: f64, busy: f64) -> Option<f64> {
        let decode = self.decode.at(busy);
        let prefill = self.prefill.get().or(decode.map(|decode| decode * PROMPT_SHARE))?;
        if answer < 1.0 {
            return Some(prompt * prefill);
        }
        Some(prompt * prefill + answer * decode.unwrap_or(prefill / PROMPT_SHARE))
    }

    /// What a token of a prompt takes, over what one of an answer does.
    pub fn prompt_share(&self) -> f64 {
        let mean = self.decode.at(self.decode.x / self.decode.weight.max(1.0));
        let (Some(prefill), Some(decode)) = (self.prefill.get(), mean) else {
            return PROMPT_SHARE;
        };
        (prefill / decode).clamp(PROMPT_SHARES.0, PROMPT_SHARES.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A node that computes 100 tokens of a prompt in a second, and writes 10 alone, half as many
    /// for each beside two others.
    fn took(prompt: u64, completion: u64, busy: f64) -> Observation {
        let usage = Usage { prompt: prompt + 7, completion, cached: 7 };
        let first = prompt as f64 / 100.0;
        let token = 0.1 * (1.0 + (busy - 1.0) / 2.0);
        let held = Duration::from_secs_f64(first + token * (completion as f64 - 1.0));
        let first = Some(Duration::from_secs_f64(first));
        Observation { usage, answers: 1, first, held, busy }
    }

    #[test]
    fn prompts_and_answers_are_learned_apart_and_answers_by_company() {
        let mut pace = Pace::default();
        assert_eq!(pace.seconds(1.0, 1.0, 1.0), None);
        for i in 0..40 {
            pace.observe(&took(50 + i, 20, (1 + i % 3) as f64));
        }
        let near = |seconds: Option<f64>, right: f64| (seconds.unwrap() / right - 1.0).abs() < 0.01;
        assert!(near(pace.seconds(200.0, 0.0, 1.0), 2.0));
        assert!(near(pace.seconds(0.0, 10.0, 1.0), 1.0));
        assert!(near(pace.seconds(0.0, 10.0, 3.0), 2.0));
        assert!(near(pace.seconds(0.0, 10.0, 5.0), 3.0), "more than were ever seen");
        assert!((0.05..0.1).contains(&pace.prompt_share()), "{}", pace.prompt_share());
    }

    #[test]
    fn company_that_never_changes_tells_nothing_of_other_company() {
        let mut pace = Pace::default();
        (0..9).for_each(|_| pace.observe(&took(10, 11, 3.0)));
        assert_eq!(pace.seconds(0.0, 10.0, 3.0), pace.seconds(0.0, 10.0, 1.0));
    }

    #[test]
    fn answers_without_a_first_token_and_prompts_without_an_answer_count_too() {
        let mut pace = Pace::default();
        let whole = Observation { first: None, held: Duration::from_secs(3), ..took(100, 20, 1.0) };
        pace.observe(&whole);
        let seconds = pace.seconds(100.0, 20.0, 1.0).unwrap();
        assert!((seconds - 3.0).abs() < 1e-9, "{seconds}: by what is assumed");
        let mut pace = Pace::default();
        let usage = Usage { completion: 0, ..whole.usage };
        pace.observe(&Observation { usage, ..whole });
        assert_eq!(pace.seconds(200.0, 0.0, 1.0), Some(6.0));
    }

    #[test]
    fn what_changes_is_learned() {
        let mut pace = Pace::default();
        (0..50).for_each(|_| pace.observe(&took(10, 11, 1.0)));
        let slow = took(10, 11, 1.0);
        let slow =
            Observation { held: slow.held * 3, first: slow.first.map(|first| first * 3), ..slow };
        (0..50).for_each(|_| pace.observe(&slow));
        assert!((2.9..3.1).contains(&(pace.seconds(0.0, 10.0, 1.0).unwrap())));
    }
}
