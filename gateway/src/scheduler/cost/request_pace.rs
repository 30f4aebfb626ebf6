//! PURE. Measures the speed of a node per model: prefill and decode separately, and decode by the
//! number of concurrent requests.

use std::time::Duration;

use inference_protocol::resume::Usage;

/// Weight of the newest request.
const SMOOTHING: f64 = 0.1;
/// Assumed cost of a prompt token relative to a generated token, until both were measured.
const PROMPT_SHARE: f64 = 0.1;
/// Bounds of the measured value.
const PROMPT_SHARES: (f64, f64) = (0.001, 1.0);
/// Shortest plausible time per token, in seconds.
const SECONDS_MIN: f64 = 1e-6;

/// Exponentially weighted mean; the first few values have equal weight.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Mean {
    value: f64,
    seen: u32,
}

impl Mean {
    /// Adds a value.
    pub(crate) fn add(&mut self, value: f64) {
        self.seen = self.seen.saturating_add(1);
        let weight = SMOOTHING.max(1.0 / f64::from(self.seen));
        self.value += weight * (value - self.value);
    }

    /// The mean, or `None` without values.
    pub(crate) fn get(self) -> Option<f64> {
        (self.seen > 0).then_some(self.value)
    }
}

/// Linear regression by recursive least squares with a forgetting factor.
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

    /// The value at `x`. It never decreases with `x`: concurrency makes no request faster. Beyond
    /// the observed range it grows at most in proportion to `x`.
    fn at(&self, x: f64) -> Option<f64> {
        if self.weight <= 0.0 {
            return None;
        }
        let (mean_x, mean_y) = (self.x / self.weight, self.y / self.weight);
        let spread = self.xx / self.weight - mean_x * mean_x;
        let common = self.xy / self.weight - mean_x * mean_y;
        // Points with nearly the same `x` have no meaningful slope.
        let slope = if spread > 0.05 { common / spread } else { 0.0 };
        let slope = slope.clamp(0.0, mean_y / mean_x.max(1.0));
        Some((mean_y + slope * (x - mean_x)).max(SECONDS_MIN))
    }
}

/// Measurements of one complete response.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Observation {
    /// Tokens used.
    pub usage: Usage,
    /// Number of choices.
    pub choices: usize,
    /// From slot to first token, if seen.
    pub first_token: Option<Duration>,
    /// From slot to end.
    pub slot_time: Duration,
    /// Concurrent requests on the node, including this one.
    pub busy: f64,
}

impl Observation {
    /// Prompt tokens computed.
    pub(crate) fn computed_prompt(&self) -> f64 {
        self.usage.prompt.saturating_sub(self.usage.cached) as f64
    }

    /// Completion tokens per choice.
    pub(crate) fn tokens_per_choice(&self) -> f64 {
        self.usage.completion as f64 / self.choices.max(1) as f64
    }
}

/// Speed of a node; see the module.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct RequestPace {
    /// Seconds per prompt token.
    prefill: Mean,
    /// Seconds per completion token, by concurrent requests.
    decode: Line,
    seen: u32,
}

impl RequestPace {
    /// Learns from a request. If its first token was not seen, the estimated prefill time is
    /// subtracted.
    pub fn observe(&mut self, observation: &Observation) {
        let (prompt, completion, slot_time) = (
            observation.computed_prompt(),
            observation.tokens_per_choice(),
            observation.slot_time.as_secs_f64(),
        );
        self.seen = self.seen.saturating_add(1);
        if completion < 1.0 {
            return self.prefill.add(slot_time / prompt.max(1.0));
        }
        let token = match observation.first_token.map(|first| first.as_secs_f64()) {
            Some(first) => {
                self.prefill.add(first / prompt.max(1.0));
                // The first token marks the end of prefill.
                if completion < 2.0 {
                    return;
                }
                (slot_time - first).max(0.0) / (completion - 1.0)
            }
            None => slot_time / (completion + prompt * self.prompt_share()),
        };
        self.decode.add(observation.busy.max(1.0), token);
    }

    /// Number of requests observed.
    pub fn seen(&self) -> u32 {
        self.seen
    }

    /// Predicted seconds for a request with these tokens while `busy` requests run concurrently.
    pub fn seconds(&self, prompt: f64, completion: f64, busy: f64) -> Option<f64> {
        let decode = self.decode.at(busy);
        let prefill = self.prefill.get().or(decode.map(|decode| decode * PROMPT_SHARE))?;
        if completion < 1.0 {
            return Some(prompt * prefill);
        }
        Some(prompt * prefill + completion * decode.unwrap_or(prefill / PROMPT_SHARE))
    }

    /// Cost of a prompt token relative to a completion token.
    pub(crate) fn prompt_share(&self) -> f64 {
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

    /// A node that prefills 100 tokens per second and decodes 10 per second alone, or half as many
    /// per request next to two others.
    fn observation(prompt: u64, completion: u64, busy: f64) -> Observation {
        let usage = Usage { prompt: prompt + 7, completion, cached: 7 };
        let first = prompt as f64 / 100.0;
        let token = 0.1 * (1.0 + (busy - 1.0) / 2.0);
        let slot_time = Duration::from_secs_f64(first + token * (completion as f64 - 1.0));
        let first_token = Some(Duration::from_secs_f64(first));
        Observation { usage, choices: 1, first_token, slot_time, busy }
    }

    #[test]
    fn prompts_and_answers_are_learned_apart_and_answers_by_company() {
        let mut pace = RequestPace::default();
        assert_eq!(pace.seconds(1.0, 1.0, 1.0), None);
        for i in 0..40 {
            pace.observe(&observation(50 + i, 20, (1 + i % 3) as f64));
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
        let mut pace = RequestPace::default();
        (0..9).for_each(|_| pace.observe(&observation(10, 11, 3.0)));
        assert_eq!(pace.seconds(0.0, 10.0, 3.0), pace.seconds(0.0, 10.0, 1.0));
    }

    #[test]
    fn answers_without_a_first_token_and_prompts_without_an_answer_count_too() {
        let mut pace = RequestPace::default();
        let whole = Observation {
            first_token: None,
            slot_time: Duration::from_secs(3),
            ..observation(100, 20, 1.0)
        };
        pace.observe(&whole);
        let seconds = pace.seconds(100.0, 20.0, 1.0).unwrap();
        assert!((seconds - 3.0).abs() < 1e-9, "{seconds}: by what is assumed");
        let mut pace = RequestPace::default();
        let usage = Usage { completion: 0, ..whole.usage };
        pace.observe(&Observation { usage, ..whole });
        assert_eq!(pace.seconds(200.0, 0.0, 1.0), Some(6.0));
    }

    #[test]
    fn what_changes_is_learned() {
        let mut pace = RequestPace::default();
        (0..50).for_each(|_| pace.observe(&observation(10, 11, 1.0)));
        let slow = observation(10, 11, 1.0);
        let slow = Observation {
            slot_time: slow.slot_time * 3,
            first_token: slow.first_token.map(|first| first * 3),
            ..slow
        };
        (0..50).for_each(|_| pace.observe(&slow));
        assert!((2.9..3.1).contains(&(pace.seconds(0.0, 10.0, 1.0).unwrap())));
    }
}
