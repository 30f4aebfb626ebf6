//! PURE. Decides what follows a failed attempt: a retry, a failover, or the end.

use std::sync::Arc;
use std::time::Duration;

use inference_protocol::fleet::ModelStatus;

use crate::scheduler::fleet::{EngineId, Outcome, RouteConstraints};
use crate::types::error::Error;
use crate::types::external::External;

/// A request is quarantined once this many engines have died while they worked on it.
const ENGINE_DEATHS_MAX: usize = 2;

/// Where an attempt is made.
#[derive(Debug, Clone)]
pub(super) struct Target {
    pub engine: EngineId,
    /// The model as the endpoint serves it.
    pub model: Arc<ModelStatus>,
    /// Whether the endpoint has sent anything of the response.
    pub has_answered: bool,
}

/// What is known from the attempts so far.
#[derive(Debug, Default)]
pub(super) struct RetryState {
    constraints: RouteConstraints,
    retries_max: usize,
    /// Why the last attempt failed.
    failure: Option<Error>,
    /// Failed attempts since the response last made progress.
    failed: usize,
    engine_deaths: usize,
}

impl RetryState {
    /// `retries_max`: attempts in a row that may fail before the request does.
    pub fn new(retries_max: usize, external: External) -> Self {
        let constraints = RouteConstraints { external, ..RouteConstraints::default() };
        Self { retries_max, constraints, ..Self::default() }
    }

    /// Where the next attempt may go.
    pub fn constraints(&self) -> &RouteConstraints {
        &self.constraints
    }

    /// Where an attempt may go that takes over from `target`. A response that has begun continues
    /// only with the same model file.
    pub fn beyond(&self, target: &Target) -> RouteConstraints {
        let mut constraints = self.constraints.clone();
        constraints.tried.push(target.engine);
        if target.has_answered {
            constraints.origin = Some(target.model.clone());
        }
        constraints
    }

    /// Never goes back to `target`.
    pub fn exclude(&mut self, target: &Target) {
        self.constraints = self.beyond(target);
    }

    /// The response made progress: failures in a row are counted anew.
    pub fn record_progress(&mut self) {
        self.failed = 0;
    }

    /// Records a failed attempt. `is_resumable`: another node could continue all that the client
    /// has of the response.
    ///
    /// # Errors
    /// The request fails with this error.
    pub fn record_failure(
        &mut self,
        target: &Target,
        is_resumable: bool,
        error: Error,
    ) -> Result<(), Error> {
        // A node that answered and then fell silent may be replaced. Before the first token, the
        // request's time is up.
        let error = match error {
            Error::NodeTimeout if target.has_answered && is_resumable => Error::NodeLost,
            error => error,
        };
        self.engine_deaths += usize::from(error == Error::EngineLost);
        if self.engine_deaths >= ENGINE_DEATHS_MAX {
            return Err(Error::Quarantined);
        }
        if !is_resumable || !error.is_retryable() || self.failed >= self.retries_max {
            return Err(error);
        }
        self.failed += 1;
        self.exclude(target);
        self.failure = Some(error);
        Ok(())
    }

    /// Records that one of two concurrent attempts failed. The other one may still answer, so this
    /// is no retry.
    pub fn record_failure_beside(&mut self, target: &Target, error: &Error) {
        self.engine_deaths += usize::from(*error == Error::EngineLost);
        self.exclude(target);
    }

    /// The error of a request that got no further slot: the last failure says more than that.
    pub fn give_up(&mut self, error: Error) -> Error {
        self.failure.take().unwrap_or(error)
    }
}

/// What an error says about the endpoint where it happened.
pub(super) fn outcome_of(error: &Error) -> Outcome {
    match error {
        // The node is full, or about to leave.
        Error::NodeRefused(429 | 503) => Outcome::Unknown,
        // Nothing was sent, or the gateway is at fault.
        Error::Malformed(_) | Error::Invalid(_) | Error::Internal => Outcome::Unknown,
        Error::NodeFailed(_) | Error::Unanswerable(_) => Outcome::Alive,
        // The node did what it was asked, or was asked for what it cannot do.
        Error::ResponseTooLarge(_) | Error::ExternalRefused { .. } => Outcome::Alive,
        _ => Outcome::Failed,
    }
}

/// The prompt alone explains a missing first token if reading it is predicted to take this share of
/// the timeout. Prompts are read beside the decoding of others, which takes as much time again.
const PREFILL_SHARE: f64 = 0.5;

/// Whether the request's own prompt explains why there was no first token within `timeout`.
/// `predicted`: how long the node needs for such a prompt, as far as that was measured.
pub(super) fn is_slow_by_size(predicted: Option<Duration>, timeout: Duration) -> bool {
    predicted.is_some_and(|predicted| predicted >= timeout.mul_f64(PREFILL_SHARE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_measured_speed_excuses_a_late_first_token() {
        let timeout = Duration::from_secs(600);
        assert!(!is_slow_by_size(None, timeout));
        assert!(!is_slow_by_size(Some(Duration::from_secs(299)), timeout));
        assert!(is_slow_by_size(Some(Duration::from_secs(300)), timeout));
    }

    #[test]
    fn what_a_request_asks_for_is_not_its_nodes_failure() {
        for error in
            [Error::ResponseTooLarge(9), Error::ExternalRefused { status: 400, param: None }]
        {
            assert_eq!(outcome_of(&error), Outcome::Alive);
        }
        assert_eq!(outcome_of(&Error::NodeAnswer("x")), Outcome::Failed);
        assert_eq!(outcome_of(&Error::NodeTimeout), Outcome::Failed);
        assert_eq!(outcome_of(&Error::Internal), Outcome::Unknown);
    }

    fn target(endpoint: u64, has_answered: bool) -> Target {
        let engine = EngineId { endpoint, engine_restarts: 0 };
        let (id, digest) = ("m".to_string(), "d".to_string());
        let model = Arc::new(ModelStatus { id, digest, context_tokens: 8, created: 0 });
        Target { engine, model, has_answered }
    }

    fn state(retries_max: usize) -> RetryState {
        RetryState::new(retries_max, External::Never)
    }

    #[test]
    fn a_response_that_has_begun_continues_only_with_the_same_model_file() {
        let mut retry = state(2);
        assert_eq!(retry.record_failure(&target(1, false), true, Error::NodeLost), Ok(()));
        assert_eq!(retry.constraints().origin, None);
        assert_eq!(retry.record_failure(&target(2, true), true, Error::NodeLost), Ok(()));
        assert!(retry.constraints().origin.is_some());
        let tried: Vec<u64> = retry.constraints().tried.iter().map(|a| a.endpoint).collect();
        assert_eq!(tried, [1, 2]);
        assert_eq!(retry.give_up(Error::NoNode), Error::NodeLost);
    }

    #[test]
    fn failures_in_a_row_are_counted_and_progress_forgives_them() {
        let mut retry = state(1);
        for endpoint in 0..9 {
            let failed = retry.record_failure(&target(endpoint, true), true, Error::NodeLost);
            assert_eq!(failed, Ok(()));
            retry.record_progress();
        }
        let refused = |status| Error::NodeRefused(status);
        assert_eq!(retry.record_failure(&target(10, false), true, refused(500)), Ok(()));
        let last = retry.record_failure(&target(11, false), true, refused(503));
        assert_eq!(last, Err(refused(503)));
    }

    #[test]
    fn silence_is_the_nodes_fault_only_after_it_has_answered() {
        let fails = |has_answered, is_resumable| {
            let target = target(1, has_answered);
            state(2).record_failure(&target, is_resumable, Error::NodeTimeout)
        };
        assert_eq!(fails(true, true), Ok(()));
        assert_eq!(fails(false, true), Err(Error::NodeTimeout));
        assert_eq!(fails(true, false), Err(Error::NodeTimeout));
    }

    #[test]
    fn the_second_engine_that_dies_is_the_last() {
        let mut retry = state(9);
        assert_eq!(retry.record_failure(&target(1, true), true, Error::EngineLost), Ok(()));
        retry.record_progress();
        let second = retry.record_failure(&target(2, true), true, Error::EngineLost);
        assert_eq!(second, Err(Error::Quarantined));
    }

    #[test]
    fn one_that_fails_beside_another_is_remembered_and_is_no_retry() {
        let mut retry = state(0);
        retry.record_failure_beside(&target(1, false), &Error::EngineLost);
        assert_eq!(retry.constraints().tried.len(), 1);
        let last = retry.record_failure(&target(2, false), true, Error::EngineLost);
        assert_eq!(last, Err(Error::Quarantined));
    }
}
