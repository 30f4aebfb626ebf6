//! PURE. What follows when a node fails a request: another one, or the end.

use std::sync::Arc;
use std::time::Duration;

use inference_protocol::fleet::ModelStatus;

use crate::scheduler::fleet::{EngineId, Outcome, RouteConstraints};
use crate::types::error::Error;
use crate::types::external::External;

/// A request that was at work when so many engines died is not tried again.
const ENGINE_DEATHS_MAX: usize = 2;

/// A request's attempts.
#[derive(Debug, Default)]
pub struct Pursuit {
    constraints: RouteConstraints,
    retries_max: usize,
    /// What the last attempt failed of.
    failure: Option<Error>,
    /// Attempts that failed since the answer got on.
    failed: usize,
    engine_deaths: usize,
}

/// Where an attempt is made.
#[derive(Debug, Clone)]
pub struct At {
    /// The endpoint, with the engine that it has.
    pub attempt: EngineId,
    /// What is served there.
    pub model: Arc<ModelStatus>,
    /// Whether it has said anything of the answer.
    pub has_spoken: bool,
}

impl Pursuit {
    /// Of a request that may fail `retries_max` times in a row and still go on, and may go outside.
    pub fn new(retries_max: usize, external: External) -> Self {
        let constraints = RouteConstraints { external, ..RouteConstraints::default() };
        Self { retries_max, constraints, ..Self::default() }
    }

    /// What the next endpoint must be.
    pub fn constraints(&self) -> &RouteConstraints {
        &self.constraints
    }

    /// What an endpoint must be to take over from another.
    pub fn seek_beyond(&self, at: &At) -> RouteConstraints {
        let mut constraints = self.constraints.clone();
        constraints.tried.push(at.attempt);
        if at.has_spoken {
            constraints.origin = Some(at.model.clone());
        }
        constraints
    }

    /// Another endpoint takes over.
    pub fn moves(&mut self, at: &At) {
        self.constraints = self.seek_beyond(at);
    }

    /// The answer gets on.
    pub fn gets_on(&mut self) {
        self.failed = 0;
    }

    /// An attempt has failed. `is_resumable`: all that the client has of the answer can be gone on
    /// with.
    ///
    /// # Errors
    /// The request ends with that.
    pub fn failed(&mut self, at: &At, is_resumable: bool, error: Error) -> Result<(), Error> {
        // It said something and then fell silent: another may go on. Before the first token, the
        // request's time is up.
        let error = match error {
            Error::NodeTimeout if at.has_spoken && is_resumable => Error::NodeLost,
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
        self.constraints = self.seek_beyond(at);
        self.failure = Some(error);
        Ok(())
    }

    /// One of two that were asked at once has failed; the other may still answer.
    pub fn failed_beside(&mut self, at: &At, error: &Error) {
        self.engine_deaths += usize::from(*error == Error::EngineLost);
        self.moves(at);
    }

    /// No endpoint took it in time: what the last one said tells more than that.
    pub fn gives_up(&mut self, error: Error) -> Error {
        self.failure.take().unwrap_or(error)
    }
}

/// What an error says of the node that it happened at.
pub fn outcome_of(error: &Error) -> Outcome {
    match error {
        // It is full, or about to leave: it says so.
        Error::NodeRefused(429 | 503) => Outcome::Unknown,
        // Nothing was sent, or the fault is ours.
        Error::Malformed(_) | Error::Invalid(_) | Error::Internal => Outcome::Unknown,
        Error::NodeFailed(_) | Error::Unanswerable(_) => Outcome::Alive,
        // It did what was asked, or was asked for what it cannot do.
        Error::ResponseTooLarge(_) | Error::ExternalRefused { .. } => Outcome::Alive,
        _ => Outcome::Failed,
    }
}

/// Part of the time for a first token that may be predicted for the prompt alone: prompts are read
/// beside others' answers, which take as much time again.
const PREFILL_SHARE: f64 = 0.5;

/// Whether the request's own prompt explains that there was no first token within `timeout`.
/// `predicted`: how long that node takes for such a prompt, as far as it was measured.
pub fn is_slow_by_size(predicted: Option<Duration>, timeout: Duration) -> bool {
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

    fn at(endpoint: u64, has_spoken: bool) -> At {
        let attempt = EngineId { endpoint, engine_restarts: 0 };
        let (id, digest) = ("m".to_string(), "d".to_string());
        let model = Arc::new(ModelStatus { id, digest, context_tokens: 8, created: 0 });
        At { attempt, model, has_spoken }
    }

    #[test]
    fn an_answer_that_has_begun_seeks_the_same_model_file() {
        let mut pursuit = Pursuit::new(2, External::Never);
        assert_eq!(pursuit.failed(&at(1, false), true, Error::NodeLost), Ok(()));
        assert_eq!(pursuit.constraints().origin, None);
        assert_eq!(pursuit.failed(&at(2, true), true, Error::NodeLost), Ok(()));
        assert!(pursuit.constraints().origin.is_some());
        let tried: Vec<u64> = pursuit.constraints().tried.iter().map(|a| a.endpoint).collect();
        assert_eq!(tried, [1, 2]);
        assert_eq!(pursuit.gives_up(Error::NoNode), Error::NodeLost);
    }

    #[test]
    fn failures_in_a_row_are_counted_and_getting_on_forgives_them() {
        let mut pursuit = Pursuit::new(1, External::Never);
        for endpoint in 0..9 {
            assert_eq!(pursuit.failed(&at(endpoint, true), true, Error::NodeLost), Ok(()));
            pursuit.gets_on();
        }
        assert_eq!(pursuit.failed(&at(10, false), true, Error::NodeRefused(500)), Ok(()));
        let last = pursuit.failed(&at(11, false), true, Error::NodeRefused(503));
        assert_eq!(last, Err(Error::NodeRefused(503)));
    }

    #[test]
    fn silence_is_the_nodes_only_after_it_has_spoken() {
        let fails = |spoken, resumable| {
            Pursuit::new(2, External::Never).failed(&at(1, spoken), resumable, Error::NodeTimeout)
        };
        assert_eq!(fails(true, true), Ok(()));
        assert_eq!(fails(false, true), Err(Error::NodeTimeout));
        assert_eq!(fails(true, false), Err(Error::NodeTimeout));
    }

    #[test]
    fn the_second_engine_that_dies_is_the_last() {
        let mut pursuit = Pursuit::new(9, External::Never);
        assert_eq!(pursuit.failed(&at(1, true), true, Error::EngineLost), Ok(()));
        pursuit.gets_on();
        let second = pursuit.failed(&at(2, true), true, Error::EngineLost);
        assert_eq!(second, Err(Error::Quarantined));
    }

    #[test]
    fn one_that_fails_beside_another_is_remembered_and_costs_no_retry() {
        let mut pursuit = Pursuit::new(0, External::Never);
        pursuit.failed_beside(&at(1, false), &Error::EngineLost);
        assert_eq!(pursuit.constraints().tried.len(), 1);
        let last = pursuit.failed(&at(2, false), true, Error::EngineLost);
        assert_eq!(last, Err(Error::Quarantined));
    }
}
