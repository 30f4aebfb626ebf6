//! What the attempts of a request ask for, and what they are told: as the proxy does it, without
//! sockets.

use bytes::Bytes;
use flotilla_gateway::scheduler::Binding;
use flotilla_gateway::scheduler::ResponseUsage;
use flotilla_gateway::scheduler::attempts::{
    AttemptAction, AttemptEnd, AttemptId, Attempts, Purpose,
};
use flotilla_gateway::scheduler::fleet::{AttemptOutcome, RoutingInputs};
use flotilla_gateway::scheduler::routing::Policy;
use flotilla_gateway::scheduler::usage::MeasuredUsage;
use flotilla_gateway::types::class::Class;
use flotilla_gateway::types::error::Error;
use flotilla_gateway::types::external::ExternalPolicy;
use inference_protocol::sse::payloads;

use super::bugs::Bug;
use super::gateway::{Gateway, PRICES, Timer, at, take};
use super::requests::{Ended, Leg, Waiting};

impl Gateway {
    /// Executes what a request's attempts ask for.
    pub(super) fn perform(&mut self, number: usize, now: f64) {
        loop {
            let request = &mut self.requests[number];
            let is_left = request.ended == Some(Ended::ClientLeft);
            let is_rival = request.legs.iter().filter(|leg| leg.job.is_some()).count() > 1;
            let Some(action) = request.attempts.as_mut().and_then(Attempts::next_action) else {
                break;
            };
            if let Some(action) = self.bug.change(action, is_left, is_rival) {
                self.act(number, action, now);
            }
        }
        let [given, made] = self.budget;
        if made > given {
            self.violated(format!("request {number} is tried again beyond the budget"));
        }
        if self.requests[number].killed > 2 {
            self.violated(format!("request {number} has killed a third engine"));
        }
    }

    fn act(&mut self, number: usize, action: AttemptAction, now: f64) {
        match action {
            AttemptAction::Acquire { purpose, constraints, deadline } => {
                let deadline = deadline.as_secs_f64();
                let check_at = deadline;
                let waiting = Waiting { purpose, ticket: 0, constraints, deadline, check_at };
                self.acquire(number, waiting, now);
            }
            AttemptAction::Withdraw(_) => self.withdraw(number, now),
            AttemptAction::Send { attempt, purpose, hedge_after } => {
                self.send(number, attempt, purpose, now);
                let late = hedge_after.map(|after| now + after.as_secs_f64());
                self.timers.extend(late.map(|late| (late, number, Timer::Late(attempt))));
            }
            AttemptAction::Release(attempt, end) => self.releases(number, attempt, &end, now),
            AttemptAction::Progressed(attempt) => self.progressed(number, attempt, now),
            AttemptAction::Deliver(events) => self.requests[number].text.push_str(&texts(&events)),
            AttemptAction::DeliverWhole(..) => {
                self.violated("no endpoint answers in one piece".into())
            }
            AttemptAction::Complete => self.end(number, Ended::Complete),
            AttemptAction::Fail(error) => self.request_fails(number, error, now),
            AttemptAction::Quarantine => {
                let request = &self.requests[number];
                self.quarantine.add(&request.tenant, request.prompt.as_bytes());
            }
            AttemptAction::Retried(_) => {
                let is_begun = self.requests[number].tokens() > 0;
                *(if is_begun { &mut self.counts.resumes } else { &mut self.counts.retries }) += 1;
            }
            AttemptAction::Moved => self.counts.moved += 1,
            AttemptAction::Preempted => self.counts.preempted += 1,
            AttemptAction::Hedged { .. } => {
                self.counts.hedged += 1;
                if self.requests[number].legs.len() != 1 {
                    self.violated(format!("request {number} keeps both attempts of a hedge"));
                }
            }
            AttemptAction::RetryRefused => {
                self.counts.refused_retries += 1;
                self.is_refused = true;
            }
            AttemptAction::ExternalError(..) => {}
        }
    }

    fn request_fails(&mut self, number: usize, error: Error, now: f64) {
        let is_refused = std::mem::take(&mut self.is_refused);
        if self.bug.goes_on(&error, is_refused) {
            let settings = self.settings;
            return self.requests[number].start(settings, now);
        }
        let request = &self.requests[number];
        if error == Error::Quarantined {
            self.dangerous.insert((request.tenant.clone(), request.prompt.clone()));
            self.quarantined.push(number);
        }
        let is_turned_away = matches!(
            error,
            Error::UnknownModel(_)
                | Error::NoNode
                | Error::DeadlineUnmet { .. }
                | Error::QueueFull { .. }
        );
        let how = match is_turned_away && request.failed.is_empty() {
            true => Ended::Refused,
            false => Ended::Failed(error),
        };
        self.end(number, how);
    }

    fn progressed(&mut self, number: usize, attempt: AttemptId, now: f64) {
        let tokens = self.requests[number].tokens();
        let Some(leg) = self.requests[number].leg(attempt) else { return };
        (leg.heard, leg.tokens) = (now, tokens);
        let is_first = leg.first.is_none();
        leg.first.get_or_insert(now);
        if is_first && self.bug == Bug::ReleaseAtFirstToken {
            leg.is_released = true;
            let binding = leg.binding.clone();
            self.release(&binding, AttemptOutcome::Answered, now);
        }
    }

    fn releases(&mut self, number: usize, attempt: AttemptId, end: &AttemptEnd, now: f64) {
        let request = &mut self.requests[number];
        let Some(index) = request.legs.iter().position(|leg| leg.attempt == attempt) else {
            return;
        };
        let leg = request.legs.remove(index);
        self.cancelled.extend(leg.job.map(|job| (leg.link, job)));
        if end.outcome != AttemptOutcome::Answered && end.outcome != AttemptOutcome::Unknown {
            self.requests[number].failed.push(leg.engine);
        }
        self.pay(number, &leg, end);
        let size = self.requests[number].size;
        if let Some(sample) = end.cost_sample {
            let first = leg.first.map(at);
            let used =
                ResponseUsage { usage: sample.usage, choices: sample.choices, first_token: first };
            self.scheduler.learn(&leg.binding, &size, &used, at(now));
        }
        if end.has_misreported && !leg.is_external {
            self.violated(format!("request {number}: an honest node is said to lie"));
        }
        let is_moved = self.requests[number].legs.iter().any(|other| other.job.is_none());
        if self.bug == Bug::MoveKeepsTheSlot && is_moved {
            return;
        }
        if !leg.is_released {
            self.release(&leg.binding, end.outcome, now);
        }
        if self.bug == Bug::ReleaseTwice && end.outcome == AttemptOutcome::Answered {
            self.release(&leg.binding, end.outcome, now);
        }
    }

    /// An external endpoint is paid for each request that it took, once, and for what is possible.
    fn pay(&mut self, number: usize, leg: &Leg, end: &AttemptEnd) {
        let Some(job) = leg.job else { return };
        let is_owed = leg.is_external && leg.is_taken;
        let Some(usage) = end.billed_usage else {
            if is_owed {
                self.violated(format!("request {number}: an external attempt is not paid"));
            }
            return;
        };
        if !is_owed {
            self.violated(format!("request {number} pays for what was refused, or for a node"));
        }
        if usage.prompt == 0 || usage.completion > 1 << 20 {
            self.violated(format!("request {number} pays for {usage:?}"));
        }
        for _ in 0..=usize::from(self.bug == Bug::PayTwice) {
            if !self.paid.insert(job) {
                self.violated(format!("request {number} pays twice"));
            }
        }
        let amount = PRICES.of(usage);
        (self.spent, self.counts.paid) = (self.spent + amount, self.counts.paid + 1);
        let endpoint = self.scheduler.fleet.endpoint(leg.binding.endpoint);
        let name = endpoint.map(|endpoint| endpoint.status.node.clone()).unwrap_or_default();
        let tenant = self.requests[number].tenant.clone();
        self.scheduler.ledger.book_usage(&tenant, usage, Some((&name, amount)));
    }

    /// An external endpoint took a request, or did not, and its events begin.
    pub fn outside_begins(&mut self, number: usize, attempt: AttemptId, is_taken: bool) {
        let is_sent = is_taken || self.bug == Bug::PayForRefusals;
        let request = &mut self.requests[number];
        if let Some(leg) = request.leg(attempt) {
            leg.is_taken = is_taken;
        }
        if let Some(attempts) = &mut request.attempts {
            attempts.record_measurements(
                attempt,
                MeasuredUsage { is_sent, ..MeasuredUsage::default() },
            );
            if is_taken {
                attempts.on_stream_start(attempt, true);
            }
        }
    }

    /// An endpoint writes into a stream.
    pub fn hear(&mut self, number: usize, job: u64, written: &str, now: f64) {
        let request = &self.requests[number];
        let bytes = Bytes::copy_from_slice(written.as_bytes());
        let leg = request.leg_of(job);
        let attempt = match self.bug {
            Bug::HearTheDead if leg.is_none() => {
                self.requests[number].text.push_str(&texts(&bytes));
                return;
            }
            // The other attempt's words are taken for the winner's.
            Bug::HedgeMixes if request.legs.len() > 1 => request.legs[0].attempt,
            Bug::HedgeMixes if leg.is_none() && self.counts.hedged > 0 => {
                let Some(winner) = request.legs.first() else { return };
                winner.attempt
            }
            _ => match leg {
                Some(attempt) => attempt,
                None => return,
            },
        };
        let here = request.legs.iter().find(|leg| leg.attempt == attempt);
        let is_first = here.is_some_and(|leg| leg.first.is_none() && !leg.is_external);
        let Self { requests, scheduler, budget, bug, .. } = self;
        let mut take_retry = || bug.is_free(None) || take(scheduler, budget, now);
        let Some(attempts) = &mut requests[number].attempts else { return };
        if *bug == Bug::PayNodes {
            attempts.record_measurements(
                attempt,
                MeasuredUsage { is_sent: true, ..MeasuredUsage::default() },
            );
        }
        if is_first {
            attempts.on_stream_start(attempt, false);
        }
        attempts.on_block(attempt, &bytes, at(now), &mut take_retry);
        self.perform(number, now);
    }

    /// What worked on a request has failed.
    pub fn fails(&mut self, number: usize, attempt: AttemptId, error: Error, now: f64) {
        let request = &mut self.requests[number];
        let Some(engine) = request.leg(attempt).map(|leg| leg.engine) else { return };
        request.killed += usize::from(error == Error::EngineLost);
        request.failed.push(engine);
        request.owes_retry |= error.spends_retry_budget() && request.legs.len() == 1;
        if self.bug == Bug::EndSilently && request.tokens() > 0 {
            if !request.is_done() {
                self.end(number, Ended::Complete);
            }
            return;
        }
        let Self { requests, scheduler, budget, bug, .. } = self;
        let mut take_retry = || bug.is_free(None) || take(scheduler, budget, now);
        let Some(attempts) = &mut requests[number].attempts else { return };
        attempts.on_failure(attempt, error.into(), at(now), &mut take_retry);
        self.perform(number, now);
    }

    /// Its client is gone.
    pub fn leave(&mut self, number: usize, now: f64) {
        if self.requests[number].is_done() {
            return;
        }
        let Some(attempts) = &mut self.requests[number].attempts else { return };
        attempts.on_client_disconnect();
        self.end(number, Ended::ClientLeft);
        self.perform(number, now);
        // Nobody takes a slot that is granted from now on.
        if let Some(Waiting { ticket, .. }) = self.requests[number].waiting.take() {
            self.tickets.remove(&ticket);
        }
    }

    pub(super) fn check_send(&mut self, number: usize, attempt: AttemptId, purpose: Purpose) {
        let is_hedge = purpose == Purpose::Hedge;
        let is_owed = !is_hedge && std::mem::take(&mut self.requests[number].owes_retry);
        self.budget[1] += u64::from(is_hedge || is_owed);
        let request = &self.requests[number];
        let like = (request.tenant.clone(), request.prompt.clone());
        let is_dangerous = self.dangerous.contains(&like);
        let Some(leg) = request.legs.iter().find(|leg| leg.attempt == attempt) else { return };
        let other = request.legs.iter().find(|other| other.attempt != attempt);
        let is_same = other.is_some_and(|other| other.engine == leg.engine);
        let goes_outside = leg.is_external;
        let wrong = [
            (request.legs.len() > 1 + usize::from(is_hedge), "has too many attempts"),
            (is_hedge && is_same, "is hedged on the same engine"),
            (is_hedge && goes_outside, "is hedged outside"),
            (goes_outside && request.external == ExternalPolicy::Never, "may not go outside"),
            (goes_outside && request.tokens() > 0, "continues outside"),
            (is_dangerous, "was quarantined"),
        ];
        for (_, what) in wrong.iter().filter(|(is_wrong, _)| *is_wrong) {
            self.violated(format!("request {number} {what}"));
        }
    }

    /// Who may overflow goes outside only if no node can begin it.
    pub(super) fn check_overflow(
        &mut self,
        number: usize,
        waiting: &Waiting,
        binding: &Binding,
        now: f64,
    ) {
        let request = &self.requests[number];
        let fleet = &self.scheduler.fleet;
        let is_outside = fleet.endpoint(binding.endpoint).is_some_and(|e| e.external.is_some());
        let prefers =
            request.external == ExternalPolicy::Prefer && request.class == Class::Interactive;
        let inputs =
            RoutingInputs { policy: Policy::default(), cached: &[], now: at(now), seed: 0 };
        let is_free = || fleet.pick("m", &waiting.constraints, inputs).is_some();
        if is_outside && !prefers && self.scheduler.depth() == 0 && is_free() {
            self.violated(format!("request {number} goes outside although a node is free"));
        }
    }
}

/// The text of events: of nodes, JSON strings; of external endpoints, as OpenAI writes it.
pub fn texts(events: &[u8]) -> String {
    let read = |payload: &[u8]| match serde_json::from_slice::<serde_json::Value>(payload).ok()? {
        serde_json::Value::String(text) => Some(text),
        value => value["choices"][0]["delta"]["content"].as_str().map(String::from),
    };
    payloads(events).filter_map(read).collect()
}
