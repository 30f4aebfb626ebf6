//! PURE. Retries: how often a file is requested again, and after which wait.

use std::time::Duration;

use crate::types::backoff::Backoff;

/// Minimum and maximum wait that we choose.
const WAIT_MIN: Duration = Duration::from_millis(500);
const WAIT_MAX: Duration = Duration::from_secs(30);
/// Maximum wait that a server may ask for.
pub(crate) const ASKED_MAX: Duration = Duration::from_secs(120);
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
            Self::Requests => write!(f, "the file did not come in {REQUESTS_MAX} requests"),
            Self::Failures(attempts) => write!(f, "given up after {attempts} attempts"),
            Self::LongWait(seconds) => {
                write!(f, "it asks us to wait {seconds} s: run this again then")
            }
            Self::Restarts => write!(f, "given up: it began again {RESTARTS_MAX} times"),
        }
    }
}

/// Retry state of one file.
#[derive(Debug)]
pub(crate) struct Patience {
    backoff: Backoff,
    failures_max: u32,
    failures: u32,
    requests: u32,
    restarts: u32,
    answered: bool,
    /// Most bytes ever present. Only more count as progress, so that a file which restarts again
    /// and again does not continue forever.
    furthest: u64,
}

impl Patience {
    /// `failures_max`: maximum consecutive failures.
    pub(crate) fn new(failures_max: u32, seed: u64) -> Self {
        Self {
            backoff: Backoff::new(WAIT_MIN, WAIT_MAX, seed),
            failures_max,
            failures: 0,
            requests: 0,
            restarts: 0,
            answered: false,
            furthest: 0,
        }
    }

    /// Records a request; fails if there were too many.
    pub(crate) fn request(&mut self) -> Result<(), GiveUp> {
        self.requests += 1;
        if self.requests > REQUESTS_MAX {
            return Err(GiveUp::Requests);
        }
        Ok(())
    }

    /// Records that a server responded with bytes of the file.
    pub(crate) fn answered(&mut self) {
        self.answered = true;
    }

    /// Records that `bytes` bytes are present.
    pub(crate) fn progressed(&mut self, bytes: u64) {
        if bytes > self.furthest {
            self.furthest = bytes;
            self.failures = 0;
            self.backoff.reset();
        }
    }

    /// Records a failure: returns how long to wait, or why to give up. `asked`: seconds that the
    /// server asked for.
    pub(crate) fn after_failure(&mut self, asked: Option<u64>) -> Result<Duration, GiveUp> {
        self.failures += 1;
        let first = if self.answered { u32::MAX } else { FIRST_FAILURES_MAX };
        if self.failures > self.failures_max.min(first) {
            return Err(GiveUp::Failures(self.failures));
        }
        let asked = Duration::from_secs(asked.unwrap_or(0));
        if asked > ASKED_MAX {
            return Err(GiveUp::LongWait(asked.as_secs()));
        }
        Ok(self.backoff.next_wait().max(asked))
    }

    /// Records a restart of the file; fails if there were too many.
    pub(crate) fn restart(&mut self) -> Result<(), GiveUp> {
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
        let mut patience = Patience::new(2, 1);
        patience.answered();
        for bytes in 1..100 {
            assert!(patience.after_failure(None).is_ok());
            assert!(patience.after_failure(None).is_ok());
            patience.progressed(bytes);
        }
        assert!(patience.after_failure(None).is_ok());
        assert!(patience.after_failure(None).is_ok());
        assert!(patience.after_failure(None).is_err());
    }

    #[test]
    fn the_same_bytes_again_are_no_progress() {
        let mut patience = Patience::new(1, 1);
        patience.answered();
        patience.progressed(50);
        assert!(patience.after_failure(None).is_ok());
        patience.progressed(50);
        assert!(patience.after_failure(None).is_err());
    }

    #[test]
    fn a_server_that_never_answered_is_given_up_early() {
        let mut patience = Patience::new(50, 1);
        let waits = (0..).take_while(|_| patience.after_failure(None).is_ok()).count();
        assert_eq!(waits, FIRST_FAILURES_MAX as usize);
    }

    #[test]
    fn a_server_may_ask_for_some_wait_and_not_for_more() {
        let mut patience = Patience::new(9, 1);
        assert!(patience.after_failure(Some(60)).unwrap() >= Duration::from_secs(60));
        assert_eq!(patience.after_failure(Some(3600)), Err(GiveUp::LongWait(3600)));
    }

    #[test]
    fn requests_and_restarts_are_bounded() {
        let mut patience = Patience::new(9, 1);
        assert_eq!((0..).take_while(|_| patience.restart().is_ok()).count(), 5);
        assert_eq!((0..).take_while(|_| patience.request().is_ok()).count(), 10_000);
    }
}
