//! PURE. Retries: how often a file is requested again, and after which wait.

use std::time::Duration;

use crate::types::backoff::Backoff;

/// Minimum and maximum wait that we choose.
const WAIT_MIN: Duration = Duration::from_millis(500);
const WAIT_MAX: Duration = Duration::from_secs(30);
/// Maximum wait that a server may ask for.
pub(crate) const RETRY_AFTER_MAX: Duration = Duration::from_secs(120);
/// Consecutive failures before a server has responded at all: most likely a name is wrong.
const FIRST_FAILURES_MAX: u32 = 4;
/// Maximum requests for one file, however much progress each makes.
const REQUESTS_MAX: u32 = 10_000;
/// Maximum restarts of one file from its first byte.
const RESTARTS_MAX: u32 = 5;

/// Why a file is given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GiveUp {
    /// It took too many requests.
    Requests,
    /// This many attempts in a row failed.
    Failures(u32),
    /// The server asked for a wait of this many seconds.
    LongWait(u64),
    /// It started over too often.
    Restarts,
}

impl std::fmt::Display for GiveUp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Requests => write!(f, "the file is incomplete after {REQUESTS_MAX} requests"),
            Self::Failures(attempts) => write!(f, "gave up after {attempts} attempts"),
            Self::LongWait(seconds) => {
                write!(f, "the server asks to wait {seconds} s: run this again after that")
            }
            Self::Restarts => write!(f, "gave up: the download started over {RESTARTS_MAX} times"),
        }
    }
}

/// Retry state of one file.
#[derive(Debug)]
pub(crate) struct RetryState {
    backoff: Backoff,
    failures_max: u32,
    failures: u32,
    requests: u32,
    restarts: u32,
    has_response: bool,
    /// Most bytes ever present. Only more count as progress, so that a file which restarts again
    /// and again does not continue forever.
    bytes_max: u64,
}

impl RetryState {
    /// `failures_max`: maximum consecutive failures.
    pub(crate) fn new(failures_max: u32, seed: u64) -> Self {
        Self {
            backoff: Backoff::new(WAIT_MIN, WAIT_MAX, seed),
            failures_max,
            failures: 0,
            requests: 0,
            restarts: 0,
            has_response: false,
            bytes_max: 0,
        }
    }

    /// Records a request; fails if there were too many.
    pub(crate) fn record_request(&mut self) -> Result<(), GiveUp> {
        self.requests += 1;
        if self.requests > REQUESTS_MAX {
            return Err(GiveUp::Requests);
        }
        Ok(())
    }

    /// Records that a server responded with bytes of the file.
    pub(crate) fn record_response(&mut self) {
        self.has_response = true;
    }

    /// Records that `bytes` bytes are present.
    pub(crate) fn record_progress(&mut self, bytes: u64) {
        if bytes > self.bytes_max {
            self.bytes_max = bytes;
            self.failures = 0;
            self.backoff.reset();
        }
    }

    /// Records a failure: returns how long to wait, or why to give up. `retry_after`: seconds that
    /// the server asked for.
    pub(crate) fn record_failure(&mut self, retry_after: Option<u64>) -> Result<Duration, GiveUp> {
        self.failures += 1;
        let first = if self.has_response { u32::MAX } else { FIRST_FAILURES_MAX };
        if self.failures > self.failures_max.min(first) {
            return Err(GiveUp::Failures(self.failures));
        }
        let asked = Duration::from_secs(retry_after.unwrap_or(0));
        if asked > RETRY_AFTER_MAX {
            return Err(GiveUp::LongWait(asked.as_secs()));
        }
        Ok(self.backoff.next_wait().max(asked))
    }

    /// Records a restart of the file; fails if there were too many.
    pub(crate) fn record_restart(&mut self) -> Result<(), GiveUp> {
        self.restarts += 1;
        if self.restarts > RESTARTS_MAX {
            return Err(GiveUp::Restarts);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_in_a_row_are_bounded_and_progress_forgives_them() {
        let mut retry = RetryState::new(2, 1);
        retry.record_response();
        for bytes in 1..100 {
            assert!(retry.record_failure(None).is_ok());
            assert!(retry.record_failure(None).is_ok());
            retry.record_progress(bytes);
        }
        assert!(retry.record_failure(None).is_ok());
        assert!(retry.record_failure(None).is_ok());
        assert!(retry.record_failure(None).is_err());
    }

    #[test]
    fn the_same_bytes_again_are_no_progress() {
        let mut retry = RetryState::new(1, 1);
        retry.record_response();
        retry.record_progress(50);
        assert!(retry.record_failure(None).is_ok());
        retry.record_progress(50);
        assert!(retry.record_failure(None).is_err());
    }

    #[test]
    fn a_server_that_never_answered_is_given_up_early() {
        let mut retry = RetryState::new(50, 1);
        let waits = (0..).take_while(|_| retry.record_failure(None).is_ok()).count();
        assert_eq!(waits, FIRST_FAILURES_MAX as usize);
    }

    #[test]
    fn a_server_may_ask_for_some_wait_and_not_for_more() {
        let mut retry = RetryState::new(9, 1);
        assert!(retry.record_failure(Some(60)).unwrap() >= Duration::from_secs(60));
        assert_eq!(retry.record_failure(Some(3600)), Err(GiveUp::LongWait(3600)));
    }

    #[test]
    fn requests_and_restarts_are_bounded() {
        let mut retry = RetryState::new(9, 1);
        assert_eq!((0..).take_while(|_| retry.record_restart().is_ok()).count(), 5);
        assert_eq!((0..).take_while(|_| retry.record_request().is_ok()).count(), 10_000);
    }
}
