//! PURE. What requests did in the last minutes, in steps of some seconds, and what tenants have
//! used since the gateway started: what operators look at. Prometheus keeps the same for longer.
//!
//! Everything is told when a request ends, and counted where it belongs: tokens over the time that
//! they took, the wait for the first one at the step in which that came.

use std::collections::BTreeMap;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub mod recorder;
mod waits;

pub use recorder::Recorder;
use waits::Waits;

/// The length of a step.
pub const STEP: Duration = Duration::from_secs(5);
/// Whole steps that are kept: ten minutes.
pub const STEPS: u64 = 120;
/// Steps that the last minute has.
const MINUTE_STEPS: u64 = 12;
/// Names of tenants that are kept. They come from configured keys; those of keys that are long
/// gone are part of them.
const TENANTS_MAX: usize = 10_000;

/// How a request ended, coarsely.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Answered.
    Answered,
    /// Refused: by us, or by a node for the request's own sake.
    Refused,
    /// A node failed it, and no other could help.
    Failed,
    /// Its client left.
    Left,
}

/// A request that has ended.
#[derive(Debug, Clone, Copy)]
pub struct Ended<'a> {
    /// Whose it was, where that is known.
    pub tenant: Option<&'a str>,
    /// How it ended.
    pub end: End,
    /// From its arrival to its end.
    pub duration: Duration,
    /// From its arrival to its first slot.
    pub queue_wait: Option<Duration>,
    /// From its arrival to the first of its answer.
    pub first_token: Option<Duration>,
    /// Tokens of its prompt, as far as a node read them.
    pub prompt_tokens: u64,
    /// Tokens of its answer.
    pub completion_tokens: u64,
    /// What was paid for it.
    pub spent: f64,
}

/// What a tenant has used since the gateway started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TenantTotals {
    /// Requests that have ended.
    pub requests: u64,
    /// Of those, refused ones.
    pub refused: u64,
    /// Tokens of prompts.
    pub prompt_tokens: u64,
    /// Tokens of answers.
    pub completion_tokens: u64,
    /// What was paid to external endpoints.
    pub spent: f64,
}

/// A step, or several together, as rates.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Rates {
    /// Requests that ended in a second, however they did.
    pub requests: f64,
    /// Of those, refused ones.
    pub refused: f64,
    /// Of those, failed ones.
    pub failed: f64,
    /// Tokens of prompts in a second.
    pub prompt_tokens: f64,
    /// Tokens of answers in a second.
    pub completion_tokens: f64,
    /// Seconds to the first token: half of the requests had it sooner. Absent without requests.
    pub first_token_p50: Option<f64>,
    /// The same for 95 in 100.
    pub first_token_p95: Option<f64>,
}

/// A whole step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Point {
    /// How long ago it ended, in seconds.
    pub seconds_ago: f64,
    /// What was then.
    #[serde(flatten)]
    pub rates: Rates,
}

#[derive(Debug, Clone, Default)]
struct Step {
    /// Counted from the beginning of time.
    number: u64,
    requests: u64,
    refused: u64,
    failed: u64,
    prompt_tokens: f64,
    completion_tokens: f64,
    waits: Waits,
}

/// See the module.
#[derive(Debug)]
pub struct Recent {
    /// A ring: the step of a number is at that number, modulo the length.
    steps: Box<[Step]>,
    tenants: BTreeMap<String, TenantTotals>,
}

impl Default for Recent {
    fn default() -> Self {
        // One more than is told: the step that is not over.
        let steps = vec![Step::default(); STEPS as usize + 1];
        Self { steps: steps.into(), tenants: BTreeMap::new() }
    }
}

impl Recent {
    /// A request ends now. `now` counts from the gateway's start and never goes back.
    pub fn ended(&mut self, ended: &Ended<'_>, now: Duration) {
        let begun = now.saturating_sub(ended.duration);
        let first = ended.first_token.map(|wait| begun + wait);
        if let Some(step) = self.step(now, now) {
            step.requests += 1;
            step.refused += u64::from(ended.end == End::Refused);
            step.failed += u64::from(ended.end == End::Failed);
        }
        if let (Some(first), Some(wait)) = (first, ended.first_token)
            && let Some(step) = self.step(first, now)
        {
            step.waits.add(wait);
        }
        let read_since = begun + ended.queue_wait.unwrap_or_default();
        let read_until = first.unwrap_or(now);
        self.spread(ended.prompt_tokens, [read_since, read_until], now, |s| &mut s.prompt_tokens);
        let written = [read_until, now];
        self.spread(ended.completion_tokens, written, now, |step| &mut step.completion_tokens);
        self.bill(ended);
    }

    fn bill(&mut self, ended: &Ended<'_>) {
        let Some(tenant) = ended.tenant else { return };
        let has_room = self.tenants.len() < TENANTS_MAX;
        if !self.tenants.contains_key(tenant) && has_room {
            self.tenants.insert(tenant.to_string(), TenantTotals::default());
        }
        let Some(used) = self.tenants.get_mut(tenant) else { return };
        used.requests += 1;
        used.refused += u64::from(ended.end == End::Refused);
        used.prompt_tokens += ended.prompt_tokens;
        used.completion_tokens += ended.completion_tokens;
        used.spent += ended.spent;
    }

    /// The step of a moment, if it is not too long ago.
    fn step(&mut self, at: Duration, now: Duration) -> Option<&mut Step> {
        let (number, newest) = (number(at), number(now));
        if number + STEPS < newest {
            return None;
        }
        let length = self.steps.len() as u64;
        let step = self.steps.get_mut((number % length) as usize)?;
        if step.number != number {
            *step = Step { number, ..Step::default() };
        }
        Some(step)
    }

    /// Counts tokens evenly over the time that they took.
    fn spread(
        &mut self,
        tokens: u64,
        [from, until]: [Duration; 2],
        now: Duration,
        figure: impl Fn(&mut Step) -> &mut f64,
    ) {
        let from = from.min(until);
        let took = (until - from).as_secs_f64();
        let oldest = number(now).saturating_sub(STEPS).max(number(from));
        for number in oldest..=number(until) {
            let begins = STEP * number as u32;
            let part = until.min(begins + STEP).saturating_sub(from.max(begins)).as_secs_f64();
            let share = if took > 0.0 { part / took } else { 1.0 };
            if let Some(step) = self.step(begins, now) {
                *figure(step) += tokens as f64 * share;
            }
        }
    }

    fn at(&self, number: u64) -> Option<&Step> {
        let step = self.steps.get((number % self.steps.len() as u64) as usize);
        step.filter(|step| step.number == number)
    }

    /// All whole steps since the start, the oldest first.
    pub fn points(&self, now: Duration) -> Vec<Point> {
        let newest = number(now);
        let point = |number: u64| {
            let ended = STEP * (number as u32 + 1);
            let mut sum = Step::default();
            self.at(number).into_iter().for_each(|step| sum.add(step));
            Point { seconds_ago: now.saturating_sub(ended).as_secs_f64(), rates: sum.rates(STEP) }
        };
        (newest.saturating_sub(STEPS)..newest).map(point).collect()
    }

    /// The last minute, or what there was of it.
    pub fn minute(&self, now: Duration) -> Rates {
        let newest = number(now);
        let oldest = newest.saturating_sub(MINUTE_STEPS - 1);
        let mut sum = Step::default();
        (oldest..=newest).filter_map(|n| self.at(n)).for_each(|step| sum.add(step));
        let passed = now.saturating_sub(STEP * oldest as u32);
        sum.rates(passed.max(Duration::from_secs(1)))
    }

    /// What a tenant has used.
    pub fn used(&self, tenant: &str) -> TenantTotals {
        self.tenants.get(tenant).copied().unwrap_or_default()
    }
}

impl Step {
    fn add(&mut self, other: &Self) {
        self.requests += other.requests;
        self.refused += other.refused;
        self.failed += other.failed;
        self.prompt_tokens += other.prompt_tokens;
        self.completion_tokens += other.completion_tokens;
        self.waits.merge(&other.waits);
    }

    fn rates(&self, time: Duration) -> Rates {
        let seconds = time.as_secs_f64();
        Rates {
            requests: self.requests as f64 / seconds,
            refused: self.refused as f64 / seconds,
            failed: self.failed as f64 / seconds,
            prompt_tokens: self.prompt_tokens / seconds,
            completion_tokens: self.completion_tokens / seconds,
            first_token_p50: self.waits.quantile(0.5),
            first_token_p95: self.waits.quantile(0.95),
        }
    }
}

fn number(at: Duration) -> u64 {
    at.as_secs() / STEP.as_secs()
}

#[cfg(test)]
mod tests;
