//! PURE. Ends attempts and decides what follows: what to learn, what to pay, and whether to try
//! again.

use std::time::Duration;

use inference_protocol::resume::Usage;

use super::{
    Action, Attempt, Attempts, Ended, Failure, Learned, Whole, is_slow_by_size, outcome_of,
};
use crate::scheduler::fleet::Outcome;
use crate::types::error::Error;

/// Usage of a refused request.
const NOTHING: Usage = Usage { prompt: 0, completion: 0, cached: 0 };

impl Attempts {
    /// Ends the request with a complete response.
    pub(super) fn complete(&mut self, current: Attempt) {
        let (choices, seen) = (self.progress.choices(), self.progress.tokens());
        let mut ended = ended(Outcome::Answered);
        if let Some(reported) = self.progress.used() {
            self.settle(
                &current,
                (reported, seen),
                current.is_first.then_some(choices),
                &mut ended,
            );
        }
        self.end(current, ended);
        self.stop();
        self.actions.push_back(Action::Complete);
    }

    /// Ends the request with a response in one piece or a refusal.
    pub(super) fn end_whole(&mut self, current: Attempt, whole: Whole) {
        let is_refused = !(200..300).contains(&whole.status);
        let mut ended = ended(if is_refused { Outcome::Alive } else { Outcome::Answered });
        if is_refused {
            self.settled = Some(NOTHING);
        } else if let Some(reported) = whole.usage {
            self.settle(&current, (reported, whole.bytes as u64), Some(1), &mut ended);
        }
        self.end(current, ended);
        self.stop();
    }

    /// Settles the usage of a complete response. An impossible report counts as misreported and
    /// teaches nothing about cost.
    fn settle(
        &mut self,
        attempt: &Attempt,
        (reported, seen): (Usage, u64),
        choices: Option<usize>,
        ended: &mut Ended,
    ) {
        let usage = self.believed(attempt, reported, seen);
        (self.reported, self.settled) = (Some(usage), Some(usage));
        ended.has_misreported = usage != reported;
        ended.learned =
            choices.filter(|_| usage == reported).map(|choices| Learned { usage, choices });
    }

    /// Caps the reported usage at what is possible, given that we saw `seen` tokens.
    pub(super) fn believed(&self, attempt: &Attempt, reported: Usage, seen: u64) -> Usage {
        let limits = &self.facts.usage;
        match attempt.is_external {
            true => limits.of_external(reported),
            false => limits.correct(reported, seen).unwrap_or(reported),
        }
    }

    /// Handles the failure of the current attempt: makes another attempt or fails the request.
    pub(super) fn recover(
        &mut self,
        current: Attempt,
        failure: Failure,
        now: Duration,
        may_retry: &mut dyn FnMut() -> bool,
    ) {
        let (target, outcome) = (current.target.clone(), self.outcome(&current, &failure));
        self.withdraw();
        self.release(current, outcome);
        let (error, is_resumable) = (failure.error, self.progress.is_resumable());
        if let Err(last) = self.retry.record_failure(&target, is_resumable, error.clone()) {
            return self.fail(last);
        }
        if error.costs_a_retry() && !may_retry() {
            self.actions.push_back(Action::RetryRefused);
            return self.fail(error);
        }
        self.deadline = self.deadline.max(now + self.settings.resume);
        self.actions.push_back(Action::Retried(error));
        self.acquire_next();
    }

    /// What a failure shows about the health of its endpoint.
    pub(super) fn outcome(&self, attempt: &Attempt, failure: &Failure) -> Outcome {
        let is_late = failure.error == Error::NodeTimeout && !attempt.target.has_answered;
        let predicted = failure.predicted_prefill;
        match is_late && is_slow_by_size(predicted, self.settings.first_token) {
            true => Outcome::Unknown,
            false => outcome_of(&failure.error),
        }
    }

    pub(super) fn fail(&mut self, error: Error) {
        self.stop();
        if error == Error::Quarantined {
            self.actions.push_back(Action::Quarantine);
        }
        self.actions.push_back(Action::Fail(error));
    }

    /// Ends the request: stops waiting for slots, and cancels the attempts that still run.
    pub(super) fn stop(&mut self) {
        self.is_over = true;
        self.withdraw();
        for attempt in [self.current.take(), self.rival.take()].into_iter().flatten() {
            self.release(attempt, Outcome::Unknown);
        }
    }

    pub(super) fn release(&mut self, attempt: Attempt, outcome: Outcome) {
        self.end(attempt, ended(outcome));
    }

    fn end(&mut self, attempt: Attempt, ended: Ended) {
        let pays = attempt.measured.usage(&self.facts.usage).filter(|_| attempt.is_external);
        self.actions.push_back(Action::Release(attempt.id, Ended { pays, ..ended }));
    }
}

fn ended(outcome: Outcome) -> Ended {
    Ended { outcome, learned: None, has_misreported: false, pays: None }
}
