//! Rate limits of a key: requests per minute, tokens per minute, and concurrent requests.
//!
//! The buckets are governor's (generic cell rate algorithm). A bucket can only be drawn from. If a
//! request used more or less than its estimate, the difference is settled with the next request.
//! The refund and the contents of the bucket together never exceed its limit.

use std::fmt::{self, Display, Formatter};
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use governor::clock::{Clock, DefaultClock};
use governor::middleware::StateInformationMiddleware;
use governor::state::{InMemoryState, NotKeyed};
use governor::{Quota, RateLimiter};
use hyper::header::{HeaderMap, HeaderName};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::types::error::Error;
use crate::types::header::HeaderWriter;
use crate::types::limits::{LimitScope, QueueShare, RateLimit};

/// Configured limits of a key; `None` is unlimited.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeyLimits {
    /// Requests per minute.
    pub requests_per_minute: Option<NonZeroU32>,
    /// Prompt and completion tokens per minute.
    pub tokens_per_minute: Option<NonZeroU32>,
    /// Concurrent requests.
    pub concurrent_max: Option<NonZeroU32>,
    /// Share of the queue.
    pub queue: QueueShare,
    /// Models that the key may use; empty allows all.
    pub models: Vec<String>,
}

/// Current use of a key's rate limits, as operators see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LimitUsage {
    /// Running requests.
    pub running: u32,
    /// Most concurrent requests; null is unlimited.
    pub concurrent_max: Option<u32>,
    /// Requests per minute; null is unlimited.
    pub requests_per_minute: Option<Allowance>,
    /// Tokens per minute; null is unlimited.
    pub tokens_per_minute: Option<Allowance>,
}

/// A rate limit per minute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Allowance {
    /// The limit.
    pub limit: u32,
    /// Remaining amount.
    pub left: u32,
}

/// Limits of a key and their current use.
#[derive(Debug, Default)]
pub struct Limiter {
    requests: Option<Bucket>,
    tokens: Option<Bucket>,
    /// Tokens used beyond their reservation; negative for a refund.
    owed: AtomicI64,
    concurrent_max: Option<u32>,
    running: AtomicU32,
    models: Vec<String>,
    scope: LimitScope,
}

impl Limiter {
    /// Starts with full buckets.
    pub fn new(limits: &KeyLimits) -> Self {
        Self {
            requests: limits.requests_per_minute.map(Bucket::per_minute),
            tokens: limits.tokens_per_minute.map(Bucket::per_minute),
            owed: AtomicI64::new(0),
            concurrent_max: limits.concurrent_max.map(NonZeroU32::get),
            running: AtomicU32::new(0),
            models: limits.models.clone(),
            scope: LimitScope::Key,
        }
    }

    /// The same for a user of a key.
    pub(crate) fn of_user(limits: &KeyLimits) -> Self {
        Self { scope: LimitScope::User, ..Self::new(limits) }
    }

    /// True if the key may use the model.
    pub fn allows(&self, model: &str) -> bool {
        self.models.is_empty() || self.models.iter().any(|allowed| allowed == model)
    }

    /// Checks the limits that do not depend on the body: concurrent requests and requests per
    /// minute.
    ///
    /// # Errors
    /// A limit is reached.
    pub(crate) fn admit(self: &Arc<Self>) -> Result<Permit, Error> {
        self.enter(true)
    }

    /// Checks the limit of concurrent requests for one that was counted when it was stored.
    ///
    /// # Errors
    /// The limit is reached.
    pub(crate) fn admit_again(self: &Arc<Self>) -> Result<Permit, Error> {
        self.enter(false)
    }

    fn enter(self: &Arc<Self>, counts: bool) -> Result<Permit, Error> {
        let before = self.running.fetch_add(1, Ordering::Relaxed);
        let permit = Permit { limiter: self.clone(), reserved: 0, places: 1 };
        if self.concurrent_max.is_some_and(|max| before >= max) {
            return Err(self.refusal(RateLimit::Concurrent, Duration::from_secs(1)));
        }
        if let Some(bucket) = self.requests.as_ref().filter(|_| counts) {
            bucket.take(1).map_err(|wait| self.refusal(RateLimit::Requests, wait))?;
        }
        Ok(permit)
    }

    fn refusal(&self, limit: RateLimit, wait: Duration) -> Error {
        Error::RateLimited { limit, scope: self.scope, wait }
    }

    /// Draws a request's tokens and what is owed, up to the size of the bucket.
    fn draw(&self, bucket: &Bucket, tokens: u32) -> Result<(), Error> {
        let owed = self.owed.swap(0, Ordering::Relaxed).max(bucket.refund_max());
        let price = i64::from(tokens).saturating_add(owed);
        let now = price.clamp(0, i64::from(bucket.limit));
        match bucket.take(now as u32) {
            Ok(()) => {
                self.add_debt(bucket, price.saturating_sub(now));
                Ok(())
            }
            Err(wait) => {
                self.add_debt(bucket, owed);
                Err(self.refusal(RateLimit::Tokens, wait))
            }
        }
    }

    /// Adds to what is owed. Refunds are capped at the space in the bucket.
    fn add_debt(&self, bucket: &Bucket, tokens: i64) {
        let least = bucket.refund_max();
        let sum = |owed: i64| Some(owed.saturating_add(tokens).max(least));
        let _ = self.owed.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum);
    }

    /// Current use of the limits.
    pub fn usage(&self) -> LimitUsage {
        let bucket = |bucket: &Option<Bucket>| {
            let bucket = bucket.as_ref()?;
            Some(Allowance { limit: bucket.limit, left: bucket.state().0 })
        };
        LimitUsage {
            running: self.running.load(Ordering::Relaxed),
            concurrent_max: self.concurrent_max,
            requests_per_minute: bucket(&self.requests),
            tokens_per_minute: bucket(&self.tokens),
        }
    }

    /// Adds OpenAI's rate limit headers.
    pub(crate) fn add_headers(&self, headers: &mut HeaderMap, values: &mut HeaderWriter) {
        for (names, bucket) in [(REQUESTS, &self.requests), (TOKENS, &self.tokens)] {
            let Some(bucket) = bucket else { continue };
            let (remaining, reset) = bucket.state();
            let [limit_name, remaining_name, reset_name] = names;
            headers.insert(limit_name, values.write(bucket.limit));
            headers.insert(remaining_name, values.write(remaining));
            headers.insert(reset_name, values.write(OpenAiDuration(reset)));
        }
    }
}

/// Header names: limit, remaining, and time until full.
const REQUESTS: [HeaderName; 3] = [
    HeaderName::from_static("x-ratelimit-limit-requests"),
    HeaderName::from_static("x-ratelimit-remaining-requests"),
    HeaderName::from_static("x-ratelimit-reset-requests"),
];
const TOKENS: [HeaderName; 3] = [
    HeaderName::from_static("x-ratelimit-limit-tokens"),
    HeaderName::from_static("x-ratelimit-remaining-tokens"),
    HeaderName::from_static("x-ratelimit-reset-tokens"),
];

/// A running request of a key. Dropping it frees its places among concurrent requests.
#[derive(Debug)]
pub(crate) struct Permit {
    limiter: Arc<Limiter>,
    reserved: u32,
    /// One, or one for each of its parts that run at a time.
    places: u32,
}

impl Permit {
    /// Reserves the estimated tokens once the size of the request is known.
    ///
    /// # Errors
    /// Fewer tokens are left.
    pub(crate) fn reserve(&mut self, tokens: u32) -> Result<(), Error> {
        if let Some(bucket) = &self.limiter.tokens {
            self.limiter.draw(bucket, tokens)?;
            self.reserved = tokens;
        }
        Ok(())
    }

    /// Takes places among concurrent requests until it has `wanted`, as far as there are any.
    /// Returns how many it has.
    pub(crate) fn widen(&mut self, wanted: u32) -> u32 {
        let Limiter { running, concurrent_max, .. } = &*self.limiter;
        let wanted = wanted.saturating_sub(self.places);
        let free = |running: u32| {
            concurrent_max.map_or(wanted, |max| max.saturating_sub(running).min(wanted))
        };
        let claim = |running: u32| Some(running + free(running));
        let before = running.fetch_update(Ordering::Relaxed, Ordering::Relaxed, claim);
        self.places += before.map_or(0, free);
        self.places
    }

    /// Settles the reservation by the tokens actually used.
    pub(crate) fn settle(&self, tokens: u64) {
        if let Some(bucket) = &self.limiter.tokens {
            let used = i64::try_from(tokens).unwrap_or(i64::MAX);
            self.limiter.add_debt(bucket, used.saturating_sub(i64::from(self.reserved)));
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.limiter.running.fetch_sub(self.places, Ordering::Relaxed);
    }
}

/// Rate limit of one minute.
#[derive(Debug)]
struct Bucket {
    limit: u32,
    state: RateLimiter<NotKeyed, InMemoryState, DefaultClock, StateInformationMiddleware>,
    clock: DefaultClock,
    /// Remaining capacity at the last draw, and when that was.
    left: Mutex<(u32, Option<<DefaultClock as Clock>::Instant>)>,
}

impl Bucket {
    fn per_minute(limit: NonZeroU32) -> Self {
        let clock = DefaultClock::default();
        let state = RateLimiter::direct_with_clock(Quota::per_minute(limit), clock.clone());
        let left = Mutex::new((limit.get(), None));
        Self { limit: limit.get(), state: state.with_middleware(), clock, left }
    }

    /// Draws `count`, or returns how long until that is possible.
    fn take(&self, count: u32) -> Result<(), Duration> {
        let Some(count) = NonZeroU32::new(count) else { return Ok(()) };
        let now = self.clock.now();
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        match self.state.check_n(count) {
            Ok(Ok(snapshot)) => {
                *left = (snapshot.remaining_burst_capacity(), Some(now));
                Ok(())
            }
            Ok(Err(not_until)) => Err(not_until.wait_time_from(now)),
            // More than the bucket ever holds; the caller prevents this.
            Err(_) => Err(Duration::from_secs(60)),
        }
    }

    /// The largest possible refund as a negative debt: the space in the bucket now.
    fn refund_max(&self) -> i64 {
        i64::from(self.state().0) - i64::from(self.limit)
    }

    /// Remaining capacity now, and how long until full.
    fn state(&self) -> (u32, Duration) {
        let (left, since) = *self.left.lock().unwrap_or_else(PoisonError::into_inner);
        let passed = since.map_or(0.0, |at| self.clock.now().duration_since(at).as_secs_f64());
        let per_second = f64::from(self.limit) / 60.0;
        let left = (f64::from(left) + passed * per_second).min(f64::from(self.limit));
        (left as u32, Duration::from_secs_f64((f64::from(self.limit) - left) / per_second))
    }
}

/// Duration in OpenAI's format: `1m30s`, `2.5s`, `120ms`.
struct OpenAiDuration(Duration);

impl Display for OpenAiDuration {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let ms = self.0.as_millis();
        match ms {
            0..1000 => write!(f, "{ms}ms"),
            1000..60_000 => write!(f, "{}s", (ms as f64 / 100.0).ceil() / 10.0),
            _ => write!(f, "{}m{}s", ms / 60_000, ms % 60_000 / 1000),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limiter(requests: u32, tokens: u32, concurrent: u32) -> Arc<Limiter> {
        Arc::new(Limiter::new(&KeyLimits {
            requests_per_minute: NonZeroU32::new(requests),
            tokens_per_minute: NonZeroU32::new(tokens),
            concurrent_max: NonZeroU32::new(concurrent),
            ..KeyLimits::default()
        }))
    }

    fn admit(limiter: &Arc<Limiter>, tokens: u32) -> Result<Permit, Error> {
        let mut permit = limiter.admit()?;
        permit.reserve(tokens).map(|()| permit)
    }

    fn refused(outcome: Result<Permit, Error>) -> (RateLimit, Duration) {
        match outcome {
            Err(Error::RateLimited { limit, wait, .. }) => (limit, wait),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn requests_a_minute_are_counted_and_the_wait_is_told() {
        let limiter = limiter(3, 0, 0);
        let permits: Vec<Permit> = (0..3).map(|_| admit(&limiter, 1).unwrap()).collect();
        drop(permits);
        let (limit, wait) = refused(admit(&limiter, 1));
        assert_eq!(limit, RateLimit::Requests);
        assert!((15..=20).contains(&wait.as_secs()), "{wait:?}: the third of a minute");
    }

    #[test]
    fn requests_side_by_side_are_counted_and_given_back() {
        let limiter = limiter(0, 0, 2);
        let first = admit(&limiter, 1).unwrap();
        let _second = admit(&limiter, 1).unwrap();
        assert_eq!(refused(admit(&limiter, 1)).0, RateLimit::Concurrent);
        drop(first);
        assert!(admit(&limiter, 1).is_ok());
        assert_eq!(limiter.running.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn tokens_are_reserved_and_settled() {
        let limiter = limiter(0, 600, 0);
        let permit = admit(&limiter, 100).unwrap();
        permit.settle(500);
        // 500 are left, and 400 of them are owed.
        assert_eq!(refused(admit(&limiter, 150)).0, RateLimit::Tokens);
        let permit = admit(&limiter, 90).unwrap();
        permit.settle(0);
        // The next request can use the unused reservation.
        assert!(admit(&limiter, 80).is_ok());
        assert!(admit(&limiter, 300).is_err());
    }

    #[test]
    fn a_request_larger_than_the_bucket_empties_it_and_owes_the_rest() {
        let limiter = limiter(0, 600, 0);
        assert!(admit(&limiter, 1000).is_ok());
        assert_eq!(limiter.owed.load(Ordering::Relaxed), 400);
        assert!(admit(&limiter, 1).is_err());
        assert_eq!(limiter.owed.load(Ordering::Relaxed), 400, "a refusal costs nothing");
    }

    #[test]
    fn refunds_never_add_up_to_more_than_what_a_minute_allows() {
        let limiter = limiter(0, 600, 0);
        let bucket = limiter.tokens.as_ref().unwrap();
        for _ in 0..1000 {
            // Because of the refund before it, none of these draws from the bucket.
            if let Ok(permit) = admit(&limiter, 500) {
                permit.settle(0);
            }
            let refunded = -limiter.owed.load(Ordering::Relaxed);
            let left = i64::from(bucket.state().0);
            assert!(left + refunded <= 601, "{left} are left and {refunded} refunded");
        }
        // A refund that the bucket has refilled in the meantime is void.
        limiter.owed.store(-1_000_000, Ordering::Relaxed);
        admit(&limiter, 1).unwrap();
        assert!(limiter.owed.load(Ordering::Relaxed) >= -600);
    }

    #[test]
    fn a_debt_has_a_ceiling_and_does_not_become_a_refund() {
        let limiter = limiter(0, 600, 0);
        for _ in 0..3 {
            let permit = Permit { limiter: limiter.clone(), reserved: 0, places: 1 };
            limiter.running.fetch_add(1, Ordering::Relaxed);
            permit.settle(u64::MAX);
        }
        assert_eq!(limiter.owed.load(Ordering::Relaxed), i64::MAX);
        assert!(admit(&limiter, 1).is_ok(), "the bucket is full");
        assert!(limiter.owed.load(Ordering::Relaxed) > 1_000_000);
        assert!(admit(&limiter, 1).is_err());
    }

    #[test]
    fn headers_tell_what_is_left() {
        let limiter = limiter(60, 6000, 0);
        admit(&limiter, 600).unwrap();
        let mut headers = HeaderMap::new();
        limiter.add_headers(&mut headers, &mut HeaderWriter::default());
        let value = |name: &str| headers[name].to_str().unwrap();
        assert_eq!(value("x-ratelimit-limit-requests"), "60");
        assert_eq!(value("x-ratelimit-remaining-requests"), "59");
        assert_eq!(value("x-ratelimit-limit-tokens"), "6000");
        assert_eq!(value("x-ratelimit-remaining-tokens"), "5400");
        assert!(value("x-ratelimit-reset-tokens").ends_with('s'));
        let mut none = HeaderMap::new();
        Limiter::default().add_headers(&mut none, &mut HeaderWriter::default());
        assert!(none.is_empty());
        let standing = limiter.usage();
        assert_eq!(standing.requests_per_minute, Some(Allowance { limit: 60, left: 59 }));
        assert_eq!(standing.tokens_per_minute, Some(Allowance { limit: 6000, left: 5400 }));
        assert_eq!((standing.running, standing.concurrent_max), (0, None));
    }

    #[test]
    fn durations_are_written_as_the_public_api_does() {
        let written = [0, 120, 1000, 2450, 60_000, 95_000];
        let written = written.map(|ms| OpenAiDuration(Duration::from_millis(ms)).to_string());
        assert_eq!(written, ["0ms", "120ms", "1s", "2.5s", "1m0s", "1m35s"]);
    }

    #[test]
    fn a_request_with_parts_takes_the_places_that_are_left_and_frees_them() {
        let limiter = Arc::new(Limiter::new(&KeyLimits {
            concurrent_max: NonZeroU32::new(4),
            ..KeyLimits::default()
        }));
        let other = limiter.admit().unwrap();
        let mut permit = limiter.admit().unwrap();
        assert_eq!((permit.widen(2), permit.widen(9), permit.widen(9)), (2, 3, 3));
        assert!(limiter.admit().is_err());
        drop(permit);
        assert_eq!(limiter.usage().running, 1);
        drop(other);
        let mut unlimited = Arc::new(Limiter::default()).admit().unwrap();
        assert_eq!((unlimited.widen(16), unlimited.widen(1)), (16, 16));
    }
}
