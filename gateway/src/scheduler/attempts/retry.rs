//! PURE. Decides what follows a failed attempt: a retry, a failover, or an error.

use std::sync::Arc;
use std::time::Duration;

use inference_protocol::fleet::ModelStatus;
use inference_protocol::openai::{ErrorDetail, INVALID_REQUEST};
use inference_protocol::resume::{ENGINE_LOST, MISMATCH};

use super::Attempts;
use crate::access::spend::Bill;
use crate::scheduler::fleet::{AttemptOutcome, EngineId, RouteConstraints};
use crate::types::error::Error;
use crate::types::external::ExternalPolicy;

/// A request is quarantined after this many engines have died while they ran it.
const ENGINE_DEATHS_MAX: usize = 2;

/// The endpoint of an attempt.
#[derive(Debug, Clone)]
pub(super) struct Target {
    pub engine: EngineId,
    /// The model as the endpoint serves it.
    pub model: Arc<ModelStatus>,
    /// True once the endpoint has sent anything of the response.
    pub has_answered: bool,
}

impl Attempts {
    /// The model file that has made what there is of the response; `None` if there is nothing yet.
    pub fn origin(&self) -> Option<&Arc<ModelStatus>> {
        self.retry.constraints().origin.as_ref()
    }

    /// Rules out endpoints that serve another model file than `origin`, if it is set.
    #[must_use]
    pub fn restricted_to(mut self, origin: Option<Arc<ModelStatus>>) -> Self {
        self.retry.constraints.origin = origin;
        self
    }

    /// Makes the events a function of the response, so that they can be counted.
    pub(crate) fn with_countable_events(mut self) -> Self {
        self.progress.hide_prefill();
        self
    }
}

/// Retry state of one request.
#[derive(Debug, Default)]
pub(super) struct RetryState {
    constraints: RouteConstraints,
    retries_max: usize,
    /// Error of the last failed attempt.
    failure: Option<Error>,
    /// Failed attempts since the response last made progress.
    failed: usize,
    engine_deaths: usize,
}

impl RetryState {
    /// `retries_max`: consecutive attempts that may fail before the request fails.
    pub(super) fn new(retries_max: usize, external: ExternalPolicy) -> Self {
        let constraints = RouteConstraints { external, ..RouteConstraints::default() };
        Self { retries_max, constraints, ..Self::default() }
    }

    /// Sets what an attempt may cost.
    pub(super) fn set_bill(&mut self, bill: Bill) {
        self.constraints.bill = bill;
    }

    /// Route constraints of the next attempt.
    pub(super) fn constraints(&self) -> &RouteConstraints {
        &self.constraints
    }

    /// Route constraints of an attempt that replaces `target`.
    pub(super) fn constraints_without(&self, target: &Target) -> RouteConstraints {
        let mut constraints = self.constraints.clone();
        constraints.tried.push(target.engine);
        constraints
    }

    /// Rules out `target` for all further attempts.
    pub(super) fn exclude(&mut self, target: &Target) {
        self.constraints = self.constraints_without(target);
    }

    /// Records progress of the response at `target`. This resets the count of consecutive failures.
    /// From now on, only nodes with the same model file may continue it.
    pub(super) fn record_progress(&mut self, target: &Target) {
        self.failed = 0;
        self.constraints.origin.get_or_insert_with(|| target.model.clone());
    }

    /// Records a failed attempt. `is_resumable`: another node could continue everything that the
    /// client has received.
    ///
    /// # Errors
    /// The request must fail with this error.
    pub(super) fn record_failure(
        &mut self,
        target: &Target,
        is_resumable: bool,
        error: Error,
    ) -> Result<(), Error> {
        // A node that stalls after its first token may be replaced. A timeout before the first
        // token uses up the request's time.
        let error = match error {
            Error::NodeTimeout if target.has_answered && is_resumable => Error::NodeLost,
            error => error,
        };
        self.record_death(&error)?;
        if !is_resumable || !error.is_retryable() || self.failed >= self.retries_max {
            return Err(error);
        }
        self.failed += 1;
        self.exclude(target);
        self.failure = Some(error);
        Ok(())
    }

    /// Records the failure of one of two concurrent attempts. The other one may still succeed, so
    /// this is no retry.
    ///
    /// # Errors
    /// Too many engines have died: the request is quarantined.
    pub(super) fn record_concurrent_failure(
        &mut self,
        target: &Target,
        error: &Error,
    ) -> Result<(), Error> {
        self.exclude(target);
        self.record_death(error)
    }

    fn record_death(&mut self, error: &Error) -> Result<(), Error> {
        self.engine_deaths += usize::from(*error == Error::EngineLost);
        match self.engine_deaths < ENGINE_DEATHS_MAX {
            true => Ok(()),
            false => Err(Error::Quarantined),
        }
    }

    /// Returns the error of a request that got no further slot: that of the last failed attempt if
    /// there is one, because it says more.
    pub(super) fn give_up(&mut self, error: Error) -> Error {
        self.failure.take().unwrap_or(error)
    }
}

/// What an error shows about the health of its endpoint.
pub(super) fn outcome_of(error: &Error) -> AttemptOutcome {
    match error {
        // The node is full or about to leave.
        Error::NodeRefused(429 | 503) => AttemptOutcome::Unknown,
        // Nothing was sent, or the gateway is at fault.
        Error::Malformed(_) | Error::Invalid(_) | Error::Internal => AttemptOutcome::Unknown,
        Error::NodeFailed(_) | Error::Unanswerable(_) => AttemptOutcome::Alive,
        // The node did its work, or the request asked for something it cannot do.
        Error::ResponseTooLarge(_) | Error::ExternalRefused { .. } | Error::ExternalTooLong => {
            AttemptOutcome::Alive
        }
        _ => AttemptOutcome::Failed,
    }
}

/// A late first token counts as explained by the prompt if the predicted prefill takes this share
/// of the timeout. Prefill runs next to other requests' decoding, which takes as much time again.
const PREFILL_SHARE: f64 = 0.5;

/// True if the request's own prompt explains why no first token came within `timeout`. `predicted`
/// is the prefill time at this node, if measured.
pub(super) fn is_slow_by_size(predicted: Option<Duration>, timeout: Duration) -> bool {
    predicted.is_some_and(|predicted| predicted >= timeout.mul_f64(PREFILL_SHARE))
}

/// Translates an error that a node sent in its stream.
pub(super) fn error_of(error: ErrorDetail) -> Error {
    if error.kind == INVALID_REQUEST {
        return Error::Unanswerable(Box::new(error));
    }
    match error.code.as_deref() {
        Some(ENGINE_LOST) => Error::EngineLost,
        Some(MISMATCH | "engine_error" | "node_draining") | None => Error::NodeLost,
        Some(_) => Error::NodeFailed(error.message),
    }
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
            assert_eq!(outcome_of(&error), AttemptOutcome::Alive);
        }
        assert_eq!(outcome_of(&Error::NodeAnswer("x")), AttemptOutcome::Failed);
        assert_eq!(outcome_of(&Error::NodeTimeout), AttemptOutcome::Failed);
        assert_eq!(outcome_of(&Error::Internal), AttemptOutcome::Unknown);
    }

    fn target(endpoint: u64, has_answered: bool) -> Target {
        let engine = EngineId { endpoint, engine_restarts: 0 };
        let (id, digest) = ("m".to_string(), "d".to_string());
        let model =
            Arc::new(ModelStatus { id, digest, context_tokens: 8, ..ModelStatus::default() });
        Target { engine, model, has_answered }
    }

    fn state(retries_max: usize) -> RetryState {
        RetryState::new(retries_max, ExternalPolicy::Never)
    }

    #[test]
    fn a_response_that_has_begun_continues_only_with_the_same_model_file() {
        let mut retry = state(2);
        assert_eq!(retry.record_failure(&target(1, false), true, Error::NodeLost), Ok(()));
        assert_eq!(retry.constraints().origin, None);
        retry.record_progress(&target(2, true));
        assert!(retry.constraints().origin.is_some());
        assert_eq!(retry.record_failure(&target(2, true), true, Error::NodeLost), Ok(()));
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
            retry.record_progress(&target(endpoint, true));
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
        retry.record_progress(&target(9, true));
        let second = retry.record_failure(&target(2, true), true, Error::EngineLost);
        assert_eq!(second, Err(Error::Quarantined));
    }

    #[test]
    fn one_that_fails_beside_another_is_remembered_and_is_no_retry() {
        let mut retry = state(0);
        assert_eq!(retry.record_concurrent_failure(&target(1, false), &Error::EngineLost), Ok(()));
        assert_eq!(retry.constraints().tried.len(), 1);
        let last = retry.record_failure(&target(2, false), true, Error::EngineLost);
        assert_eq!(last, Err(Error::Quarantined));
    }
}
