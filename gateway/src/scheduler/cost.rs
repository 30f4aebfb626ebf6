//! PURE. Estimates what requests cost, learned from finished ones.
//!
//! One unit is about one generated token. A prompt token costs a fraction of a unit, which is
//! learned per model, as are bytes per token and response length. How long a unit takes is learned
//! per node ([`request_pace`]); a node without measurements counts as average.

use std::collections::BTreeMap;
use std::time::Duration;

pub(crate) mod request_pace;

use inference_protocol::openai::TEXT_CHOICES_MAX;
use inference_protocol::resume::Usage;
use request_pace::{Mean, Observation, RequestPace};

use crate::scheduler::usage::REQUEST_BYTES_PER_TOKEN;

/// Request bytes per prompt token, until learned.
const BYTES_PER_TOKEN: f64 = REQUEST_BYTES_PER_TOKEN as f64;
/// Bounds of the learned value.
const BYTES_PER_TOKENS: (f64, f64) = (1.0, 64.0);
/// Tokens per choice of a request without a limit, until learned.
const CHOICE_TOKENS: f64 = 256.0;
/// Finished requests needed for a prediction.
const SEEN_MIN: u32 = 8;
/// Finished requests at a node needed to use its own speed.
const SEEN_AT_NODE_MIN: u32 = 3;
/// Most models tracked; the names come from nodes.
const MODELS_MAX: usize = 1024;
/// How long a fleet's capacity is cached.
const CAPACITY_AGE_MAX: Duration = Duration::from_millis(200);

/// What we know about a request's size before it runs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Size {
    bytes: f64,
    /// Most tokens per choice.
    choice_tokens_max: f64,
    choices: f64,
}

impl Size {
    /// Size of a request. At most [`TEXT_CHOICES_MAX`] choices count: nodes refuse a larger number,
    /// so until then it must not weigh anything here.
    pub fn new(body_bytes: usize, tokens_max: Option<u64>, choices: u64) -> Self {
        Self {
            bytes: body_bytes as f64,
            choice_tokens_max: tokens_max.map_or(f64::INFINITY, |max| max as f64),
            choices: choices.clamp(1, TEXT_CHOICES_MAX) as f64,
        }
    }

    /// Estimated prompt and completion tokens, by the default ratios.
    pub fn tokens(&self) -> u32 {
        let answer = self.choice_tokens_max.min(CHOICE_TOKENS);
        // Body and choices are bounded, so this fits.
        (1.0 + self.bytes / BYTES_PER_TOKEN + answer * self.choices) as u32
    }
}

/// What we have learned about a model.
#[derive(Debug, Clone, Copy, Default)]
struct ModelCosts {
    /// Average speed of all its nodes.
    pace: RequestPace,
    bytes_per_token: Mean,
    /// Tokens per choice, of choices that no limit cut off.
    length: Mean,
    /// Tokens per request: computed prompt tokens, and completion tokens.
    prompt: Mean,
    completion: Mean,
    capacity: Option<Capacity>,
}

/// Combined capacity of a model's nodes.
#[derive(Debug, Clone, Copy)]
struct Capacity {
    /// When it was computed.
    at: Duration,
    slots: f64,
    /// Units per second.
    rate: f64,
}

impl ModelCosts {
    fn units(&self, prompt: f64, answer: f64) -> f64 {
        1.0 + prompt * self.pace.prompt_share() + answer
    }

    fn mean_units(&self) -> f64 {
        let mean = |mean: Mean| mean.get().unwrap_or_default();
        self.units(mean(self.prompt), mean(self.completion))
    }

    fn observe(&mut self, size: &Size, observation: &Observation) {
        self.pace.observe(observation);
        if observation.usage.prompt > 0 {
            let bytes = size.bytes / observation.usage.prompt as f64;
            self.bytes_per_token.add(bytes.clamp(BYTES_PER_TOKENS.0, BYTES_PER_TOKENS.1));
        }
        // A choice that was cut off shows only that it would have been longer.
        let answer = observation.tokens_per_choice();
        let is_cut = answer >= size.choice_tokens_max;
        if !is_cut || self.length.get().is_some_and(|length| answer > length) {
            self.length.add(answer);
        }
        self.prompt.add(observation.computed_prompt());
        self.completion.add(observation.usage.completion as f64);
    }

    fn capacity_of<'p>(
        &self,
        nodes: impl Iterator<Item = (u32, Option<&'p RequestPace>)>,
        at: Duration,
    ) -> Capacity {
        nodes.fold(Capacity { at, slots: 0.0, rate: 0.0 }, |sum, (slots, pace)| Capacity {
            at,
            slots: sum.slots + f64::from(slots),
            rate: sum.rate + self.rate(slots, pace),
        })
    }

    /// Units per second that a node with `slots` slots computes while all are busy.
    fn rate(&self, slots: u32, pace: Option<&RequestPace>) -> f64 {
        let own = pace.filter(|pace| pace.seen() >= SEEN_AT_NODE_MIN);
        let (prompt, answer) = (self.prompt.get(), self.completion.get());
        let (prompt, answer) = (prompt.unwrap_or_default(), answer.unwrap_or_default());
        let seconds = |pace: &RequestPace| pace.seconds(prompt, answer, f64::from(slots));
        match own.and_then(seconds).or_else(|| seconds(&self.pace)) {
            Some(seconds) if seconds > 0.0 => f64::from(slots) * self.mean_units() / seconds,
            _ => 0.0,
        }
    }
}

/// Learned costs by model; see the module.
#[derive(Debug, Default)]
pub(crate) struct Costs(BTreeMap<String, ModelCosts>);

impl Costs {
    /// Expected cost of a request in units. `held` is the share of the prompt that is cached, 0 to
    /// 1.
    pub(crate) fn units(&self, model: &str, size: &Size, cached: f64) -> f64 {
        let known = self.0.get(model).copied().unwrap_or_default();
        let bytes = known.bytes_per_token.get().unwrap_or(BYTES_PER_TOKEN);
        let length = known.length.get().unwrap_or(CHOICE_TOKENS);
        let prompt = size.bytes / bytes * (1.0 - cached.clamp(0.0, 1.0));
        known.units(prompt, size.choice_tokens_max.min(length) * size.choices)
    }

    /// Actual cost in units of a request that used these tokens. Prompt tokens count up to
    /// `tokens_max`, as do completion tokens per choice.
    pub(crate) fn actual_units(&self, model: &str, usage: Usage, tokens_max: u32) -> f64 {
        let known = self.0.get(model).copied().unwrap_or_default();
        let prompt = usage.prompt.saturating_sub(usage.cached).min(tokens_max.into());
        let completion = usage.completion.min(u64::from(tokens_max) * TEXT_CHOICES_MAX);
        known.units(prompt as f64, completion as f64)
    }

    /// Predicted prefill time: by the node's own speed if known, otherwise by the model's average.
    /// `None` until enough was measured.
    pub(crate) fn prefill(
        &self,
        model: &str,
        size: &Size,
        own: Option<&RequestPace>,
    ) -> Option<Duration> {
        let known = self.0.get(model).filter(|learned| learned.pace.seen() >= SEEN_MIN)?;
        let own = own.filter(|pace| pace.seen() >= SEEN_AT_NODE_MIN);
        let bytes = known.bytes_per_token.get().unwrap_or(BYTES_PER_TOKEN);
        let seconds = own.unwrap_or(&known.pace).seconds(size.bytes / bytes, 0.0, 1.0)?;
        Duration::try_from_secs_f64(seconds).ok()
    }

    /// Learns from a complete response.
    pub(crate) fn observe(&mut self, model: &str, size: &Size, observation: &Observation) {
        if !self.0.contains_key(model) {
            if self.0.len() >= MODELS_MAX {
                return;
            }
            self.0.insert(model.to_string(), ModelCosts::default());
        }
        if let Some(learned) = self.0.get_mut(model) {
            learned.observe(size, observation);
        }
    }

    /// Predicts when a slot frees up for a request with `ahead` units of work before it, while all
    /// slots are taken. `None` until enough was measured. `nodes` yields slots and speed of each
    /// ready node.
    pub(crate) fn predict<'p, N>(
        &mut self,
        model: &str,
        ahead: f64,
        now: Duration,
        nodes: impl FnOnce() -> N,
    ) -> Option<Duration>
    where
        N: Iterator<Item = (u32, Option<&'p RequestPace>)>,
    {
        let learned = self.0.get_mut(model).filter(|learned| learned.pace.seen() >= SEEN_MIN)?;
        let known = learned.capacity;
        let known = known.filter(|known| now.saturating_sub(known.at) < CAPACITY_AGE_MAX);
        let capacity = known.unwrap_or_else(|| learned.capacity_of(nodes(), now));
        learned.capacity = Some(capacity);
        // With n requests running, each at a random point, the first ends after 1/(n + 1) of a
        // request's time. The mean cost times n/(n + 1) is that in units of the whole fleet.
        let first = learned.mean_units() * capacity.slots / (capacity.slots + 1.0);
        Duration::try_from_secs_f64((first + ahead) / capacity.rate).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(9);

    /// A prompt of 100 tokens, prefilled in one second, and 51 tokens decoded, 50 of them in 5 more
    /// seconds.
    fn observation() -> Observation {
        let usage = Usage { prompt: 100, completion: 51, cached: 0 };
        let (first_token, slot_time) = (Some(Duration::from_secs(1)), Duration::from_secs(6));
        Observation { usage, choices: 1, first_token, slot_time, busy: 1.0 }
    }

    fn learned(count: usize) -> Costs {
        let mut costs = Costs::default();
        (0..count).for_each(|_| costs.observe("m", &Size::new(400, None, 1), &observation()));
        costs
    }

    #[test]
    fn a_number_that_nobody_serves_weighs_no_more_than_one_that_is() {
        let units = |choices| Costs::default().units("m", &Size::new(500, None, choices), 0.0);
        assert_eq!(units(u64::MAX), units(TEXT_CHOICES_MAX));
        assert!(Size::new(500, Some(u64::MAX), u64::MAX).tokens() < 40_000);
    }

    #[test]
    fn long_prompts_and_long_answers_cost_more_and_what_a_node_holds_less() {
        let costs = Costs::default();
        let units = |bytes, max, choices| costs.units("m", &Size::new(bytes, max, choices), 0.0);
        assert!(units(5_000, Some(10), 1) > units(500, Some(10), 1));
        assert!(units(500, Some(100), 1) > units(500, Some(10), 1));
        assert!(units(500, Some(10), 4) > 3.0 * units(500, Some(10), 1) / 2.0);
        assert_eq!(units(500, None, 1), units(500, Some(100_000), 1));
        assert!(costs.units("m", &Size::new(500, None, 1), 0.9) < units(500, None, 1));
    }

    #[test]
    fn what_requests_are_like_is_learned() {
        let costs = learned(30);
        // 4 bytes per token; a prompt token costs a tenth; responses have 51 tokens.
        let near =
            |size: Size, right: f64| (costs.units("m", &size, 0.0) / right - 1.0).abs() < 0.01;
        assert!(near(Size::new(400, None, 1), 1.0 + 10.0 + 51.0));
        assert!(near(Size::new(400, Some(20), 1), 1.0 + 10.0 + 20.0));
        assert!(near(Size::new(400, Some(9_000), 2), 1.0 + 10.0 + 102.0));
    }

    #[test]
    fn an_answer_that_was_cut_says_only_that_it_is_longer() {
        let mut costs = learned(9);
        let cut = Usage { completion: 5, ..observation().usage };
        let size = Size::new(400, Some(5), 1);
        (0..99)
            .for_each(|_| costs.observe("m", &size, &Observation { usage: cut, ..observation() }));
        assert!(costs.units("m", &Size::new(400, None, 1), 0.0) > 51.0);
    }

    #[test]
    fn what_was_used_is_counted_as_what_is_estimated_and_has_a_bound() {
        let costs = learned(30);
        let used = |prompt, completion, cached| {
            costs.actual_units("m", Usage { prompt, completion, cached }, 1_000)
        };
        assert!((used(100, 51, 0) / (1.0 + 10.0 + 51.0) - 1.0).abs() < 0.01);
        assert!(used(100, 51, 90) < used(100, 51, 0));
        assert_eq!(used(0, 0, 0), 1.0);
        assert_eq!(used(u64::MAX, u64::MAX, 0), used(1_000, 128_000, 0), "a node may lie");
    }

    #[test]
    fn nothing_is_predicted_before_something_was_seen() {
        let one = || std::iter::once((1, None));
        assert_eq!(learned(SEEN_MIN as usize - 1).predict("m", 0.0, NOW, one), None);
        let mut costs = learned(SEEN_MIN as usize);
        assert_eq!(costs.predict("other", 0.0, NOW, one), None);
        assert_eq!(costs.predict("m", 0.0, NOW, std::iter::empty), None, "nobody is there");
        // Half of the running request, and one ahead of us: six seconds each.
        let later = NOW + CAPACITY_AGE_MAX;
        let wait = costs.predict("m", 62.0, later, one).unwrap().as_secs_f64();
        assert!((8.8..9.3).contains(&wait), "{wait}");
    }

    #[test]
    fn every_node_counts_by_its_own_pace() {
        let mut costs = learned(9);
        let slow = Observation {
            slot_time: observation().slot_time * 5,
            first_token: Some(Duration::from_secs(5)),
            ..observation()
        };
        let mut pace = RequestPace::default();
        let mut wait = |pace: Option<&RequestPace>, at: u64| {
            let now = NOW + Duration::from_secs(at);
            costs.predict("m", 0.0, now, || std::iter::once((1, pace))).unwrap().as_secs_f64()
        };
        (0..SEEN_AT_NODE_MIN - 1).for_each(|_| pace.observe(&slow));
        assert!(wait(Some(&pace), 0) < 3.3, "not known yet");
        pace.observe(&slow);
        assert!((14.5..16.0).contains(&wait(Some(&pace), 1)));
    }

    #[test]
    fn the_time_for_a_prompt_is_known_once_it_was_measured() {
        let size = Size::new(4000, None, 1);
        assert_eq!(learned(SEEN_MIN as usize - 1).prefill("m", &size, None), None);
        let seconds = learned(9).prefill("m", &size, None).unwrap().as_secs_f64();
        assert!((9.9..10.1).contains(&seconds), "{seconds}: 1000 tokens, 100 in a second");
    }

    #[test]
    fn names_are_bounded() {
        let mut costs = Costs::default();
        let size = Size::new(1, None, 1);
        (0..5000).for_each(|i| costs.observe(&i.to_string(), &size, &observation()));
        assert_eq!(costs.0.len(), MODELS_MAX);
    }
}
