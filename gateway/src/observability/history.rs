//! PURE. History of the last minutes in steps of a few seconds, and each tenant's totals since the
//! gateway started. Operators see it on the fleet page; Prometheus keeps the same for longer.
//!
//! A request is recorded when it ends, but counted when things happened: its tokens are spread over
//! the time they took, and its time to first token counts in the step of the first token.

use std::collections::BTreeMap;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub(crate) mod recorder;
mod wait_histogram;

pub(crate) use recorder::Recorder;
use wait_histogram::WaitHistogram;

/// Length of a step.
pub(crate) const STEP: Duration = Duration::from_secs(5);
/// Whole steps kept: ten minutes.
pub(crate) const STEPS: u64 = 120;
/// Steps per minute.
const MINUTE_STEPS: u64 = 12;
/// Most tenants kept. Their names come from configured keys, including keys removed since.
const TENANTS_MAX: usize = 10_000;

/// How a request ended, coarsely.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HistoryOutcome {
    /// Answered completely.
    Answered,
    /// Refused by the gateway, or by a node on its merits.
    Refused,
    /// Failed by a node, and no other node could take over.
    Failed,
    /// Canceled by the client.
    Left,
}

/// A request that has ended.
#[derive(Debug, Clone, Copy)]
pub struct HistoryEntry<'a> {
    /// Tenant, if known.
    pub tenant: Option<&'a str>,
    /// How it ended.
    pub end: HistoryOutcome,
    /// From arrival to end.
    pub duration: Duration,
    /// From arrival to the first slot.
    pub queue_wait: Option<Duration>,
    /// From arrival to the first token.
    pub first_token: Option<Duration>,
    /// Prompt tokens.
    pub prompt_tokens: u64,
    /// Completion tokens.
    pub completion_tokens: u64,
    /// Paid to external endpoints.
    pub spent: f64,
}

/// What a tenant has used since the gateway started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TenantTotals {
    /// Finished requests.
    pub requests: u64,
    /// Refused requests.
    pub refused: u64,
    /// Prompt tokens.
    pub prompt_tokens: u64,
    /// Completion tokens.
    pub completion_tokens: u64,
    /// Spend at external endpoints.
    pub spent: f64,
}

/// Rates over one or more intervals.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Rates {
    /// Finished requests per second.
    pub requests: f64,
    /// Refused requests per second.
    pub refused: f64,
    /// Failed requests per second.
    pub failed: f64,
    /// Prompt tokens per second.
    pub prompt_tokens: f64,
    /// Completion tokens per second.
    pub completion_tokens: f64,
    /// Median time to first token, in seconds; null without requests.
    pub first_token_p50: Option<f64>,
    /// 95th percentile of the time to first token, in seconds.
    pub first_token_p95: Option<f64>,
}

/// A complete interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Point {
    /// Age of the end of the interval, in seconds.
    pub seconds_ago: f64,
    /// Rates of the step.
    #[serde(flatten)]
    pub rates: Rates,
}

#[derive(Debug, Clone, Default)]
struct Step {
    /// Number of the step since the gateway started.
    number: u64,
    requests: u64,
    refused: u64,
    failed: u64,
    prompt_tokens: f64,
    completion_tokens: f64,
    waits: WaitHistogram,
}

/// The history.
#[derive(Debug)]
pub(crate) struct RecentHistory {
    /// Ring buffer: step n is at index n modulo the length.
    steps: Box<[Step]>,
    tenants: BTreeMap<String, TenantTotals>,
}

impl Default for RecentHistory {
    fn default() -> Self {
        // One more than reported, for the current step.
        let steps = vec![Step::default(); STEPS as usize + 1];
        Self { steps: steps.into(), tenants: BTreeMap::new() }
    }
}

impl RecentHistory {
    /// Records a request that ends now. `now` is the time since the gateway started and never
    /// decreases.
    pub(crate) fn record(&mut self, ended: &HistoryEntry<'_>, now: Duration) {
        let begun = now.saturating_sub(ended.duration);
        let first = ended.first_token.map(|wait| begun + wait);
        if let Some(step) = self.step(now, now) {
            step.requests += 1;
            step.refused += u64::from(ended.end == HistoryOutcome::Refused);
            step.failed += u64::from(ended.end == HistoryOutcome::Failed);
        }
        if let (Some(first), Some(wait)) = (first, ended.first_token)
            && let Some(step) = self.step(first, now)
        {
            step.waits.add(wait);
        }
        let read_since = begun + ended.queue_wait.unwrap_or_default();
        let read_until = first.unwrap_or(now);
        self.spread_tokens(ended.prompt_tokens, [read_since, read_until], now, |s| {
            &mut s.prompt_tokens
        });
        let written = [read_until, now];
        self.spread_tokens(ended.completion_tokens, written, now, |step| {
            &mut step.completion_tokens
        });
        self.add_to_tenant(ended);
    }

    fn add_to_tenant(&mut self, ended: &HistoryEntry<'_>) {
        let Some(tenant) = ended.tenant else { return };
        let has_room = self.tenants.len() < TENANTS_MAX;
        if !self.tenants.contains_key(tenant) && has_room {
            self.tenants.insert(tenant.to_string(), TenantTotals::default());
        }
        let Some(used) = self.tenants.get_mut(tenant) else { return };
        used.requests += 1;
        used.refused += u64::from(ended.end == HistoryOutcome::Refused);
        used.prompt_tokens += ended.prompt_tokens;
        used.completion_tokens += ended.completion_tokens;
        used.spent += ended.spent;
    }

    /// The step of a moment, unless it is too long ago.
    fn step(&mut self, at: Duration, now: Duration) -> Option<&mut Step> {
        let (number, newest) = (step_number(at), step_number(now));
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

    /// Spreads tokens evenly over the time they took.
    fn spread_tokens(
        &mut self,
        tokens: u64,
        [from, until]: [Duration; 2],
        now: Duration,
        figure: impl Fn(&mut Step) -> &mut f64,
    ) {
        let from = from.min(until);
        let took = (until - from).as_secs_f64();
        let oldest = step_number(now).saturating_sub(STEPS).max(step_number(from));
        for number in oldest..=step_number(until) {
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

    /// All whole steps since the start, oldest first.
    pub(crate) fn points(&self, now: Duration) -> Vec<Point> {
        let newest = step_number(now);
        let point = |number: u64| {
            let ended = STEP * (number as u32 + 1);
            let mut sum = Step::default();
            self.at(number).into_iter().for_each(|step| sum.add(step));
            Point { seconds_ago: now.saturating_sub(ended).as_secs_f64(), rates: sum.rates(STEP) }
        };
        (newest.saturating_sub(STEPS)..newest).map(point).collect()
    }

    /// Rates of the last minute, or since the start if that is shorter.
    pub(crate) fn minute(&self, now: Duration) -> Rates {
        let newest = step_number(now);
        let oldest = newest.saturating_sub(MINUTE_STEPS - 1);
        let mut sum = Step::default();
        (oldest..=newest).filter_map(|n| self.at(n)).for_each(|step| sum.add(step));
        let passed = now.saturating_sub(STEP * oldest as u32);
        sum.rates(passed.max(Duration::from_secs(1)))
    }

    /// Totals of a tenant.
    pub(crate) fn tenant_totals(&self, tenant: &str) -> TenantTotals {
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

fn step_number(at: Duration) -> u64 {
    at.as_secs() / STEP.as_secs()
}

#[cfg(test)]
mod tests;
