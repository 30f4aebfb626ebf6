//! PURE. Handles everything that can happen to a request between admission and its end: first
//! attempt, retries, hedging, failover in the middle of a response, leaving a draining node,
//! overflow to external endpoints, quarantine, giving up, and billing.
//!
//! Events go in, actions come out; there is no I/O. The proxy drives it with sockets, the storm
//! simulation with simulated nodes. Times count from an epoch that the driver chooses. Output that
//! the client has received is never taken back. Output that it has not received survives the loss
//! of a node, as long as another node continues the response before the deadline.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use inference_protocol::openai::ErrorBody;
use inference_protocol::resume::{Resume, Usage, is_prefill_only};

use crate::access::spend::Bill;
use crate::scheduler::charge::ActualWork;
use crate::scheduler::fleet::health::is_hung;
use crate::scheduler::fleet::{AttemptOutcome, RouteConstraints};
use crate::scheduler::progress::{Block, Progress};
use crate::scheduler::usage::{MeasuredUsage, UsageLimits};
use crate::types::error::Error;
use crate::types::external::ExternalPolicy;

mod action;
mod ending;
mod leaving;
mod retry;
#[cfg(test)]
mod tests;

pub use action::{AttemptAction, AttemptEnd, AttemptId, GrantedSlot, Purpose};
pub(crate) use action::{AttemptFailure, CostSample, WholeResponse};

use retry::{RetryState, Target, error_of, is_slow_by_size, outcome_of};

/// An endpoint sent an event over the limit, or more events than the limit allows.
pub const TOO_LARGE: Error = Error::NodeAnswer(
    "an event exceeds limits.event_bytes_max, or the response limits.response_bytes_max",
);

/// Configuration that applies to all requests.
#[derive(Debug, Clone, Copy)]
pub struct AttemptSettings {
    /// Consecutive attempts that may fail before the request fails.
    pub retries_max: usize,
    /// Hedge with a second node if the first token takes this long. `None` turns hedging off.
    pub hedge: Option<Duration>,
    /// Timeout of the first token.
    pub first_token: Duration,
    /// How long a response waits for another node after its own has failed.
    pub resume: Duration,
}

/// Properties of the request that its attempts depend on.
#[derive(Debug, Clone, Copy)]
pub struct RequestProperties {
    /// Upper bounds on the tokens that the request can use.
    pub usage: UsageLimits,
    /// When the request may go to an external endpoint.
    pub external: ExternalPolicy,
    /// True if the client wants a stream.
    pub is_streamed: bool,
    /// When the request must have its first slot.
    pub deadline: Duration,
}

/// State machine of one request's attempts; see the module.
#[derive(Debug)]
pub struct Attempts {
    settings: AttemptSettings,
    facts: RequestProperties,
    retry: RetryState,
    progress: Progress,
    /// The attempt that produces the response. `None` while the request waits for a slot.
    current: Option<Attempt>,
    /// The second of two concurrent attempts, until one of them sends something.
    rival: Option<Attempt>,
    /// Purpose of the slot being acquired.
    pending: Option<Purpose>,
    deadline: Duration,
    /// Usage that the endpoint reported, capped at what is possible.
    reported: Option<Usage>,
    /// Final usage of the request, once it is settled.
    settled: Option<Usage>,
    /// True once the request was sent to any endpoint.
    was_sent: bool,
    is_over: bool,
    next_id: AttemptId,
    actions: VecDeque<AttemptAction>,
}

/// One attempt: a slot and what arrived over it.
#[derive(Debug)]
struct Attempt {
    id: AttemptId,
    target: Target,
    is_external: bool,
    /// When the request was sent.
    sent: Duration,
    /// True if the attempt produces the response from its first token.
    is_first: bool,
    /// Set when the event stream begins, until its first block is read: true if the events contain
    /// a usage that the client did not ask for.
    stream_hides_usage: Option<bool>,
    /// Measurements of an attempt at an external endpoint.
    measured: MeasuredUsage,
}

impl Attempts {
    /// Creates the state machine for an admitted request. `resume` is the resume state that the
    /// first node receives.
    pub fn new(settings: AttemptSettings, facts: RequestProperties, resume: Resume) -> Self {
        Self {
            retry: RetryState::new(settings.retries_max, facts.external),
            progress: Progress::new(resume),
            deadline: facts.deadline,
            settings,
            facts,
            current: None,
            rival: None,
            pending: None,
            reported: None,
            settled: None,
            was_sent: false,
            is_over: false,
            next_id: 0,
            actions: VecDeque::new(),
        }
    }

    /// Says what the request may cost at external endpoints.
    pub(crate) fn with_bill(mut self, bill: Bill) -> Self {
        self.retry.set_bill(bill);
        self
    }

    /// Requests the first slot.
    pub fn start(&mut self) {
        self.acquire_next();
    }

    /// Takes the next action.
    pub fn next_action(&mut self) -> Option<AttemptAction> {
        self.actions.pop_front()
    }

    /// Resume state of the response, for the node that continues it.
    pub fn resume(&self) -> &Resume {
        self.progress.resume()
    }

    /// True if another node could continue everything that was delivered.
    pub fn is_resumable(&self) -> bool {
        self.progress.is_resumable()
    }

    /// True once nothing more can happen.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// True once the response is complete.
    pub fn is_complete(&self) -> bool {
        self.progress.is_complete()
    }

    /// Tokens generated so far, as far as known.
    pub fn tokens(&self) -> u64 {
        self.progress.tokens()
    }

    /// Choices in the response so far.
    pub fn choices(&self) -> usize {
        self.progress.choices()
    }

    /// Usage that endpoints have reported so far, capped at what is possible.
    pub fn reported(&self) -> Option<Usage> {
        self.reported
    }

    /// Work done so far, to correct the request's charge in the queue. `None` if the estimate
    /// stands.
    pub fn work(&self) -> Option<ActualWork> {
        if !self.was_sent {
            return Some(ActualWork::Nothing);
        }
        let seen = self.progress.tokens();
        let estimated = || (seen > 0).then(|| self.facts.usage.estimate(seen));
        self.settled.or(self.reported).or_else(estimated).map(ActualWork::Tokens)
    }

    /// Handles a granted slot and returns the id of its attempt. `take_retry` takes a retry from
    /// the budget.
    pub fn on_granted(
        &mut self,
        purpose: Purpose,
        slot: GrantedSlot,
        now: Duration,
        take_retry: &mut dyn FnMut() -> bool,
    ) -> AttemptId {
        let attempt = self.new_attempt(slot, now);
        let id = attempt.id;
        self.pending = self.pending.filter(|pending| *pending != purpose);
        match (purpose, self.current.take()) {
            _ if self.is_over => self.release(attempt, AttemptOutcome::Unknown),
            (Purpose::Next, None) => self.begin(attempt, purpose),
            (Purpose::Move, Some(old)) if self.progress.is_resumable() => {
                self.retry.exclude(&old.target);
                self.actions.push_back(AttemptAction::Moved);
                self.release(old, AttemptOutcome::Unknown);
                self.begin(attempt, purpose);
            }
            (Purpose::Hedge, Some(first)) if self.is_late(&first) && take_retry() => {
                self.current = Some(first);
                self.rival = Some(attempt);
                let send = AttemptAction::Send { attempt: id, purpose, hedge_after: None };
                self.actions.push_back(send);
            }
            (_, current) => {
                self.current = current;
                self.release(attempt, AttemptOutcome::Unknown);
            }
        }
        id
    }

    /// Handles a slot request that failed or timed out.
    pub fn on_not_granted(&mut self, purpose: Purpose, error: Error) {
        self.pending = self.pending.filter(|pending| *pending != purpose);
        if purpose == Purpose::Next && !self.is_over {
            let error = self.retry.give_up(error);
            self.fail(error);
        }
    }

    /// Handles the hedge timer: the attempt has sent nothing for `hedge_after`.
    pub fn on_hedge_timer(&mut self, attempt: AttemptId, now: Duration) {
        let Some(first) = self.current.as_ref().filter(|first| first.id == attempt) else { return };
        if !self.is_late(first) {
            return;
        }
        let mut constraints = self.retry.constraints_without(&first.target);
        constraints.external = ExternalPolicy::Never;
        let purpose = Purpose::Hedge;
        self.actions.push_back(AttemptAction::Acquire { purpose, constraints, deadline: now });
    }

    /// Handles the start of an event stream. `hides_usage`: the events contain a usage that the
    /// client did not ask for.
    pub fn on_stream_start(&mut self, attempt: AttemptId, hides_usage: bool) {
        if let Some(attempt) = self.find(attempt) {
            attempt.stream_hides_usage = Some(hides_usage);
        }
    }

    /// Updates the measurements of an external attempt. Once its events have begun, they tell what
    /// was generated.
    pub fn record_measurements(&mut self, attempt: AttemptId, measured: MeasuredUsage) {
        let Some(attempt) = self.find(attempt) else { return };
        if attempt.stream_hides_usage.is_none() && !attempt.target.has_answered {
            attempt.measured = measured;
        } else {
            attempt.measured.is_sent = measured.is_sent;
            attempt.measured.reported = measured.reported.or(attempt.measured.reported);
        }
    }

    /// Handles a block of whole events.
    pub fn on_block(
        &mut self,
        attempt: AttemptId,
        block: &Bytes,
        now: Duration,
        take_retry: &mut dyn FnMut() -> bool,
    ) {
        if is_prefill_only(block) {
            return self.on_prefill(attempt, block);
        }
        let Some(current) = self.choose(attempt, now) else { return };
        if let Some(hides_usage) = current.stream_hides_usage.take() {
            self.progress.switch_endpoint(hides_usage);
        }
        let read = self.progress.read(block, self.facts.is_streamed);
        if read.as_ref().is_ok_and(|read| read.is_progress) {
            self.record_progress();
        }
        if self.progress.is_complete() || !matches!(&read, Ok(Block { error: None, .. })) {
            return self.on_last_block(read, now, take_retry);
        }
        if let Ok(Block { events, .. }) = read {
            self.deliver(events);
        }
    }

    /// Passes on how far the prefill is, which decides nothing: a hedge may still win, and the
    /// timeout of the first token runs. Of two attempts, only the first one's is passed on.
    fn on_prefill(&mut self, attempt: AttemptId, block: &Bytes) {
        let is_current = self.current.as_ref().is_some_and(|current| current.id == attempt);
        if is_current && let Ok(read) = self.progress.read(block, self.facts.is_streamed) {
            self.deliver(read.events);
        }
    }

    fn deliver(&mut self, events: Bytes) {
        if !events.is_empty() {
            self.actions.push_back(AttemptAction::Deliver(events));
        }
    }

    fn record_progress(&mut self) {
        let (reported, seen) = (self.progress.usage(), self.progress.tokens());
        let Some(current) = &mut self.current else { return };
        self.retry.record_progress(&current.target);
        current.target.has_answered = true;
        current.measured.reported = reported.or(current.measured.reported);
        current.measured.generated = seen;
        let (id, is_external) = (current.id, current.is_external);
        let believed = reported.map(|reported| self.cap_usage(is_external, reported, seen));
        self.reported = believed.or(self.reported);
        self.actions.push_back(AttemptAction::Progressed(id));
    }

    /// Handles an error event in the stream of an endpoint.
    fn on_error_event(
        &mut self,
        current: Attempt,
        payload: Vec<u8>,
        now: Duration,
        take_retry: &mut dyn FnMut() -> bool,
    ) {
        let error = match current.is_external {
            true => {
                self.actions.push_back(AttemptAction::ExternalError(current.id, payload));
                Error::ExternalFailed
            }
            false => {
                let body: Option<ErrorBody> = serde_json::from_slice(&payload).ok();
                body.map_or(Error::NodeLost, |body| error_of(body.error))
            }
        };
        self.recover(current, error.into(), now, take_retry);
    }

    /// Handles a response in one piece.
    pub(crate) fn on_whole_response(
        &mut self,
        attempt: AttemptId,
        whole: WholeResponse,
        now: Duration,
        take_retry: &mut dyn FnMut() -> bool,
    ) {
        if self.choose(attempt, now).is_none() {
            return;
        }
        let Some(current) = self.current.take() else { return };
        if self.progress.tokens() > 0 {
            // This node does not continue a response that another node began.
            let error = Error::NodeRefused(whole.status);
            return self.recover(current, error.into(), now, take_retry);
        }
        self.actions.push_back(AttemptAction::DeliverWhole(attempt, whole));
        self.complete_whole(current, whole);
    }

    /// Handles a failed attempt.
    pub fn on_failure(
        &mut self,
        attempt: AttemptId,
        failure: AttemptFailure,
        now: Duration,
        take_retry: &mut dyn FnMut() -> bool,
    ) {
        if let Some(rival) = self.rival.take() {
            return self.on_failure_beside_rival(attempt, rival, failure);
        }
        if let Some(current) = self.current.take_if(|current| current.id == attempt) {
            self.recover(current, failure, now, take_retry);
        }
    }

    /// Handles the failure of one of two concurrent attempts: the other one may still succeed.
    fn on_failure_beside_rival(
        &mut self,
        attempt: AttemptId,
        rival: Attempt,
        failure: AttemptFailure,
    ) {
        let (failed, by_rival) = match self.current.take() {
            Some(first) if first.id == attempt => {
                self.current = Some(rival);
                (first, true)
            }
            first if rival.id == attempt => {
                self.current = first;
                (rival, false)
            }
            first => return (self.current, self.rival) = (first, Some(rival)),
        };
        let outcome = self.failure_outcome(&failed, &failure);
        let beside = self.retry.record_concurrent_failure(&failed.target, &failure.error);
        self.release(failed, outcome);
        match beside {
            Ok(()) => self.actions.push_back(AttemptAction::Hedged { by_rival }),
            // The other attempt must not cost a further engine.
            Err(error) => self.fail(error),
        }
    }

    /// Handles a client that disconnected.
    pub fn on_client_disconnect(&mut self) {
        if !self.is_over {
            self.stop();
        }
    }

    /// Makes this attempt the one that produces the response from now on, and cancels the other one
    /// of two. `None` if this attempt is already over.
    fn choose(&mut self, attempt: AttemptId, now: Duration) -> Option<&mut Attempt> {
        let by_rival = self.rival.as_ref().is_some_and(|rival| rival.id == attempt);
        if by_rival || self.current.as_ref().is_some_and(|current| current.id == attempt) {
            self.end_hedge(by_rival, now);
        }
        self.current.as_mut().filter(|current| current.id == attempt)
    }

    /// Cancels one of two concurrent attempts; the other one produces the response.
    fn end_hedge(&mut self, by_rival: bool, now: Duration) {
        let Some(rival) = self.rival.take() else { return };
        let Some(first) = self.current.take() else { return self.current = Some(rival) };
        let (winner, loser) = if by_rival { (rival, first) } else { (first, rival) };
        let silent = |attempt: &Attempt| now.saturating_sub(attempt.sent);
        // Otherwise a node that never responds would go unnoticed.
        let outcome = match by_rival && is_hung(silent(&loser), silent(&winner)) {
            true => AttemptOutcome::Failed,
            false => AttemptOutcome::Unknown,
        };
        if outcome == AttemptOutcome::Failed {
            self.retry.exclude(&loser.target);
        }
        self.release(loser, outcome);
        self.actions.push_back(AttemptAction::Hedged { by_rival });
        self.current = Some(winner);
    }

    fn new_attempt(&mut self, slot: GrantedSlot, now: Duration) -> Attempt {
        let GrantedSlot { engine, model, is_external } = slot;
        let id = self.next_id;
        self.next_id += 1;
        Attempt {
            id,
            target: Target { engine, model, has_answered: false },
            is_external,
            sent: now,
            is_first: self.progress.tokens() == 0,
            stream_hides_usage: None,
            measured: MeasuredUsage::default(),
        }
    }

    fn begin(&mut self, attempt: Attempt, purpose: Purpose) {
        let hedge_after = self.settings.hedge.filter(|_| attempt.is_first);
        self.was_sent = true;
        self.actions.push_back(AttemptAction::Send { attempt: attempt.id, purpose, hedge_after });
        self.current = Some(attempt);
    }

    fn find(&mut self, attempt: AttemptId) -> Option<&mut Attempt> {
        let all = self.current.iter_mut().chain(self.rival.iter_mut());
        all.into_iter().find(|known| known.id == attempt)
    }

    /// True if a hedge may still start next to `first`.
    fn is_late(&self, first: &Attempt) -> bool {
        self.rival.is_none() && !first.target.has_answered && self.progress.tokens() == 0
    }

    fn acquire_next(&mut self) {
        let constraints = self.retry.constraints().clone();
        self.acquire(Purpose::Next, constraints, self.deadline);
    }

    fn acquire(&mut self, purpose: Purpose, constraints: RouteConstraints, deadline: Duration) {
        self.pending = Some(purpose);
        self.actions.push_back(AttemptAction::Acquire { purpose, constraints, deadline });
    }

    fn withdraw(&mut self) {
        self.actions.extend(self.pending.take().map(AttemptAction::Withdraw));
    }
}
