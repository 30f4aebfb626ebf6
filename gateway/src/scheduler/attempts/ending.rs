//! PURE. Ends attempts and decides what follows: what to learn, what to pay, and whether to try
//! again.

use std::time::Duration;

use inference_protocol::resume::Usage;

use super::{
    Attempt, AttemptAction, AttemptEnd, AttemptFailure, Attempts, CostSample, TOO_LARGE,
    WholeResponse, is_slow_by_size, outcome_of,
};
use crate::scheduler::fleet::AttemptOutcome;
use crate::scheduler::progress::{Block, Excess};
use crate::types::error::Error;

/// Usage of a refused request.
const NOTHING: Usage = Usage { prompt: 0, completion: 0, cached: 0 };

impl Attempts {
    /// Handles the block that ends an attempt: the response is complete, or it failed.
    pub(super) fn on_last_block(
        &mut self,
        read: Result<Block, Excess>,
        now: Duration,
        take_retry: &mut dyn FnMut() -> bool,
    ) {
        let Some(current) = self.current.take() else { return };
        let Ok(Block { events, error, .. }) = read else {
            self.release(current, AttemptOutcome::Failed);
            return self.fail(TOO_LARGE);
        };
        self.deliver(events);
        match error {
            Some(payload) => self.on_error_event(current, payload, now, take_retry),
            None => self.complete(current),
        }
    }

    /// Ends the request with a complete response.
    pub(super) fn complete(&mut self, current: Attempt) {
        let (choices, seen) = (self.progress.choices(), self.progress.tokens());
        let mut end = attempt_end(AttemptOutcome::Answered);
        if let Some(reported) = self.progress.usage() {
            self.settle(&current, (reported, seen), current.is_first.then_some(choices), &mut end);
        }
        self.end(current, end);
        self.stop();
        self.actions.push_back(AttemptAction::Complete);
    }

    /// Ends the request with a response in one piece or a refusal.
    pub(super) fn complete_whole(&mut self, current: Attempt, whole: WholeResponse) {
        let is_refused = !(200..300).contains(&whole.status);
        let mut end =
            attempt_end(if is_refused { AttemptOutcome::Alive } else { AttemptOutcome::Answered });
        if is_refused {
            self.settled = Some(NOTHING);
        } else if let Some(reported) = whole.usage {
            self.settle(&current, (reported, whole.bytes as u64), Some(1), &mut end);
        }
        self.end(current, end);
        self.stop();
    }

    /// Settles the usage of a complete response. An impossible report counts as misreported and
    /// teaches nothing about cost.
    fn settle(
        &mut self,
        attempt: &Attempt,
        (reported, seen): (Usage, u64),
        choices: Option<usize>,
        end: &mut AttemptEnd,
    ) {
        let usage = self.cap_usage(attempt.is_external, reported, seen);
        (self.reported, self.settled) = (Some(usage), Some(usage));
        end.has_misreported = usage != reported;
        end.cost_sample =
            choices.filter(|_| usage == reported).map(|choices| CostSample { usage, choices });
    }

    /// Caps the reported usage at what is possible, given that we saw `seen` tokens.
    pub(super) fn cap_usage(&self, is_external: bool, reported: Usage, seen: u64) -> Usage {
        let limits = &self.facts.usage;
        match is_external {
            true => limits.cap_external(reported),
            false => limits.cap(reported, seen).unwrap_or(reported),
        }
    }

    /// Handles the failure of the current attempt: makes another attempt or fails the request.
    pub(super) fn recover(
        &mut self,
        current: Attempt,
        failure: AttemptFailure,
        now: Duration,
        take_retry: &mut dyn FnMut() -> bool,
    ) {
        let (target, outcome) = (current.target.clone(), self.failure_outcome(&current, &failure));
        self.withdraw();
        self.release(current, outcome);
        let (error, is_resumable) = (failure.error, self.progress.is_resumable());
        if let Err(last) = self.retry.record_failure(&target, is_resumable, error.clone()) {
            return self.fail(last);
        }
        if error.spends_retry_budget() && !take_retry() {
            self.actions.push_back(AttemptAction::RetryRefused);
            return self.fail(error);
        }
        self.deadline = self.deadline.max(now + self.settings.resume);
        self.actions.push_back(AttemptAction::Retried(error));
        self.acquire_next();
    }

    /// What a failure shows about the health of its endpoint.
    pub(super) fn failure_outcome(
        &self,
        attempt: &Attempt,
        failure: &AttemptFailure,
    ) -> AttemptOutcome {
        let is_late = failure.error == Error::NodeTimeout && !attempt.target.has_answered;
        let predicted = failure.predicted_prefill;
        match is_late && is_slow_by_size(predicted, self.settings.first_token) {
            true => AttemptOutcome::Unknown,
            false => outcome_of(&failure.error),
        }
    }

    pub(super) fn fail(&mut self, error: Error) {
        self.stop();
        if error == Error::Quarantined {
            self.actions.push_back(AttemptAction::Quarantine);
        }
        self.actions.push_back(AttemptAction::Fail(error));
    }

    /// Ends the request: stops waiting for slots, and cancels the attempts that still run.
    pub(super) fn stop(&mut self) {
        self.is_over = true;
        self.withdraw();
        for attempt in [self.current.take(), self.rival.take()].into_iter().flatten() {
            self.release(attempt, AttemptOutcome::Unknown);
        }
    }

    pub(super) fn release(&mut self, attempt: Attempt, outcome: AttemptOutcome) {
        self.end(attempt, attempt_end(outcome));
    }

    fn end(&mut self, attempt: Attempt, end: AttemptEnd) {
        let billed_usage =
            attempt.measured.billed_usage(&self.facts.usage).filter(|_| attempt.is_external);
        self.actions
            .push_back(AttemptAction::Release(attempt.id, AttemptEnd { billed_usage, ..end }));
    }
}

fn attempt_end(outcome: AttemptOutcome) -> AttemptEnd {
    AttemptEnd { outcome, cost_sample: None, has_misreported: false, billed_usage: None }
}
