//! Runs stages 4 to 6 together: produces the response to one request, from however many endpoints
//! it takes.
//!
//! [`Attempts`], which is pure, makes all decisions. This file executes its actions with slots,
//! sockets, and timers, and reports the events back to it.

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures_util::FutureExt;
use inference_protocol::resume::Resume;
use inference_protocol::sse::payloads;
use inference_protocol::time::unix_seconds;
use inference_translation::StreamFormat;
use tokio::time::{Instant, Sleep, sleep};

use super::account::Record;
use super::admit::Admitted;
use super::budget::follow_payment;
use super::deferral::{Checkpoint, RECORD_INTERVAL};
use super::forward::Whole;
use super::route::{self, Routed, Routing};
use super::stored::keep;
use super::translation::Translation;
use crate::context::Gateway;
use crate::context::settings::Settings;
use crate::dispatcher::{ChargeGuard, Lease};
use crate::scheduler::attempts::{
    self, AttemptAction, AttemptEnd, AttemptFailure, AttemptId, Attempts, GrantedSlot, Purpose,
    RequestProperties,
};
use crate::types::error::Error;
use crate::types::random::random;
use crate::upstream::external::refusal::Refusal;

mod exchange;
mod waits;

use exchange::{Event, Exchange};
use waits::{acquired, late, next_of};

/// The response to one request. Dropping it cancels its attempts, frees their slots, and completes
/// the record.
pub(crate) struct Drive {
    gateway: Gateway,
    /// Settings at the start of the request.
    settings: Arc<Settings>,
    admitted: Arc<Admitted>,
    /// Translates the response, if the client called another API.
    translation: Option<Translation>,
    attempts: Attempts,
    /// Running attempts: one, or two while a hedge is undecided.
    exchanges: Vec<Exchange>,
    /// The slot that is being acquired.
    acquiring: Option<(Purpose, Routing)>,
    /// Timer for a late first token.
    hedge: Option<(AttemptId, Pin<Box<Sleep>>)>,
    /// Queue of output for the client.
    ready: VecDeque<Result<Next, Error>>,
    /// The tenant's charge in the queue, to be corrected by actual usage.
    charge: Option<ChargeGuard>,
    record: Record,
    /// A response in the background, once it is complete, with the turns before it.
    conversation: Option<Vec<u8>>,
    /// When it was last recorded how far the response is.
    recorded: Instant,
}

/// The next output for the client.
#[derive(Debug)]
pub(crate) enum Next {
    /// Server-sent events.
    Events(Bytes),
    /// A response in one piece: a refusal, or a response from an endpoint that sent no events.
    Whole(Box<Whole>),
    /// The end of the response.
    End,
}

/// An event that the drive waited for.
enum DriveEvent {
    Acquired(Purpose, Result<Box<Lease>, Error>),
    Exchanged(usize, Event),
    Late(AttemptId),
}

impl Drive {
    /// Starts the first attempt of an admitted request.
    pub(crate) fn new(
        gateway: Gateway,
        settings: Arc<Settings>,
        mut admitted: Admitted,
        record: Record,
    ) -> Self {
        let config = &settings.config;
        let limits = attempts::AttemptSettings {
            retries_max: config.retries_max,
            hedge: config.hedge,
            first_token: config.timeouts.first_token,
            resume: config.timeouts.resume,
        };
        let facts = RequestProperties {
            usage: admitted.usage,
            external: admitted.external,
            is_streamed: admitted.is_streamed,
            deadline: gateway.dispatcher.clock_of(admitted.deadline),
        };
        let attempts = Attempts::new(limits, facts, first(&admitted)).with_bill(admitted.bill());
        let mut attempts = attempts.restricted_to(admitted.origin.clone());
        if admitted.latest.is_some() {
            attempts = attempts.with_countable_events();
        }
        attempts.start();
        let translation = admitted.translation.take();
        Self {
            gateway,
            settings,
            admitted: Arc::new(admitted),
            translation,
            attempts,
            exchanges: Vec::with_capacity(1),
            acquiring: None,
            hedge: None,
            ready: VecDeque::with_capacity(1),
            charge: None,
            record,
            conversation: None,
            recorded: Instant::now(),
        }
    }

    /// The record of the request.
    pub(crate) fn record(&mut self) -> &mut Record {
        &mut self.record
    }

    /// True if the client wants a stream.
    pub(crate) fn is_streamed(&self) -> bool {
        self.admitted.is_streamed
    }

    /// How long a client waits for an event before it gets a comment.
    pub(crate) fn comment_interval(&self) -> Duration {
        self.settings.config.timeouts.comment
    }

    /// The translation of the response, if the client called another API.
    pub(crate) fn translation(&mut self) -> Option<&mut Translation> {
        self.translation.as_mut()
    }

    /// How the response is streamed.
    pub(crate) fn stream_format(&self) -> StreamFormat {
        self.translation.as_ref().map_or(StreamFormat::Events, Translation::stream_format)
    }

    /// The client's request id if it is well-formed, otherwise ours.
    pub(crate) fn request_id(&self) -> &str {
        self.admitted.context.id().as_str()
    }

    /// What another gateway process needs to continue the response.
    fn checkpoint(&self) -> Checkpoint {
        let attempts = &self.attempts;
        Checkpoint::new(attempts.resume(), attempts.is_resumable(), attempts.origin())
    }

    /// Records how far the response is, if another attempt or process may continue it from here.
    pub(crate) fn record_checkpoint(&mut self) -> bool {
        self.recorded = Instant::now();
        let latest = self.admitted.latest.as_ref();
        latest.is_some_and(|it| it.record(self.checkpoint(), self.record.is_at_external()))
    }

    /// Takes a response in the background that is complete, with the turns before it, as JSON.
    pub(crate) fn take_conversation(&mut self) -> Option<Vec<u8>> {
        self.conversation.take()
    }

    /// True once the response is complete.
    pub(crate) fn is_complete(&self) -> bool {
        self.attempts.is_complete()
    }

    /// Name of the endpoint that serves the response.
    pub(crate) fn node(&self) -> Option<&str> {
        self.record.node()
    }

    /// Returns the next output for the client and records how the request ends.
    pub(crate) async fn next(&mut self) -> Result<Next, Error> {
        let context = self.admitted.context.clone();
        let advanced = context.run(AssertUnwindSafe(self.advance()).catch_unwind()).await;
        let next = advanced.unwrap_or_else(|_| Err(Error::internal("a request panicked")));
        match &next {
            Ok(Next::Events(events)) => self.record.add_bytes(events.len()),
            Ok(Next::Whole(whole)) => {
                self.record.record_first_token();
                self.record.record_success(whole.status.as_u16(), whole.body.len());
            }
            Ok(Next::End) => {}
            Err(error) => {
                if self.admitted.latest.is_some() && error.is_temporary() {
                    self.record.leave_to_next();
                }
                self.record.set_requested_model(&self.admitted.model, error);
                self.record.record_failure(error);
            }
        }
        if self.attempts.is_complete() {
            self.record.record_success(200, 0);
        }
        if let Some(stored) = self.translation.as_mut().and_then(Translation::stored) {
            let Admitted { tenant, user, deferral, .. } = &*self.admitted;
            let stored = stored.owned_by(user.map(u64::from));
            if deferral.is_some() {
                // It is stored with its task.
                self.conversation = stored.to_json();
                self.gateway.responses.insert(tenant, stored);
            } else {
                keep(&self.gateway, tenant, stored);
            }
        }
        next
    }

    async fn advance(&mut self) -> Result<Next, Error> {
        loop {
            self.perform();
            if let Some(next) = self.ready.pop_front() {
                match self.translate(next)? {
                    // There is nothing of it in the client's API.
                    Next::Events(events) if events.is_empty() => continue,
                    next => return Ok(next),
                }
            }
            if self.attempts.is_over() {
                return Ok(Next::End);
            }
            let event = self.next_event().await;
            self.handle(event);
        }
    }

    /// Translates output, but not refusals.
    fn translate(&mut self, next: Result<Next, Error>) -> Result<Next, Error> {
        let Some(translation) = &mut self.translation else { return next };
        match next? {
            Next::Events(events) if self.admitted.is_streamed => {
                translation.events(&events).map(Next::Events)
            }
            Next::Events(events) => {
                // A node's whole response is an event.
                let completion = payloads(&events).next().unwrap_or_default();
                translation.whole(completion).map(Whole::json).map(Next::Whole)
            }
            Next::Whole(whole) if whole.status.is_success() => {
                translation.whole(&whole.body).map(Whole::json).map(Next::Whole)
            }
            other => Ok(other),
        }
    }

    /// Waits for the next event. Cancel-safe.
    async fn next_event(&mut self) -> DriveEvent {
        let Self { exchanges, acquiring, hedge, .. } = self;
        let (first, second) = match &mut exchanges[..] {
            [] => (None, None),
            [first] => (Some(first), None),
            [first, second, ..] => (Some(first), Some(second)),
        };
        tokio::select! {
            biased;
            event = next_of(first) => DriveEvent::Exchanged(0, event),
            event = next_of(second) => DriveEvent::Exchanged(1, event),
            (purpose, lease) = acquired(acquiring) => DriveEvent::Acquired(purpose, lease.map(Box::new)),
            attempt = late(hedge) => DriveEvent::Late(attempt),
        }
    }

    /// Reports an event to the attempts.
    fn handle(&mut self, event: DriveEvent) {
        let now = self.gateway.dispatcher.now();
        self.measure();
        match event {
            DriveEvent::Acquired(purpose, lease) => {
                self.acquiring = None;
                match lease {
                    Ok(lease) => self.on_granted(purpose, *lease, now),
                    Err(error) => self.attempts.on_not_granted(purpose, error),
                }
            }
            DriveEvent::Exchanged(index, event) => self.on_exchange_event(index, event, now),
            DriveEvent::Late(attempt) => {
                self.hedge = None;
                self.attempts.on_hedge_timer(attempt, now);
            }
        }
    }

    /// Reports what was seen of attempts at external endpoints.
    fn measure(&mut self) {
        for exchange in &self.exchanges {
            if let Some(measured) = exchange.measured() {
                self.attempts.record_measurements(exchange.id, measured);
            }
        }
    }

    fn on_granted(&mut self, purpose: Purpose, mut lease: Lease, now: Duration) {
        follow_payment(&self.gateway, &mut lease);
        let slot = GrantedSlot {
            engine: lease.engine(),
            model: lease.model().clone(),
            is_external: lease.terms().is_some(),
        };
        let dispatcher = &self.gateway.dispatcher;
        let id = self.attempts.on_granted(purpose, slot, now, &mut || dispatcher.take_retry());
        self.exchanges.push(Exchange::new(id, lease, self.admitted.is_preemptible()));
    }

    fn on_exchange_event(&mut self, index: usize, event: Event, now: Duration) {
        let Some(exchange) = self.exchanges.get_mut(index) else { return };
        let (id, attempts) = (exchange.id, &mut self.attempts);
        let dispatcher = &self.gateway.dispatcher;
        let mut take_retry = || dispatcher.take_retry();
        match event {
            Event::Began { hides_usage } => attempts.on_stream_start(id, hides_usage),
            Event::Block(block) => attempts.on_block(id, &block, now, &mut take_retry),
            Event::Whole(whole) => attempts.on_whole_response(id, whole, now, &mut take_retry),
            Event::Failed(error) => {
                let predicted_prefill = (error == Error::NodeTimeout)
                    .then(|| exchange.lease.predicted_prefill(&self.admitted.size))
                    .flatten();
                attempts.on_failure(
                    id,
                    AttemptFailure { error, predicted_prefill },
                    now,
                    &mut take_retry,
                );
            }
            Event::Leaving => attempts.on_node_leaving(id, now),
            Event::Preempted => attempts.on_preempted(id, now),
        }
    }

    /// Executes the actions of the attempts.
    fn perform(&mut self) {
        while let Some(action) = self.attempts.next_action() {
            match action {
                AttemptAction::Acquire { purpose: Purpose::Hedge, constraints, .. } => {
                    let request = self.admitted.slot_request(&constraints);
                    if let Some(lease) = self.gateway.dispatcher.try_acquire(&request) {
                        let now = self.gateway.dispatcher.now();
                        self.on_granted(Purpose::Hedge, lease, now);
                    }
                }
                AttemptAction::Acquire { purpose, constraints, deadline } => {
                    match route::route(&self.gateway, &self.admitted, constraints, deadline) {
                        Ok(Routed::Waiting(routing)) => self.acquiring = Some((purpose, routing)),
                        Ok(Routed::Leased(lease)) => {
                            let now = self.gateway.dispatcher.now();
                            self.on_granted(purpose, lease, now);
                        }
                        Err(error) => self.attempts.on_not_granted(purpose, error),
                    }
                }
                AttemptAction::Withdraw(_) => self.acquiring = None,
                AttemptAction::Send { attempt, purpose, hedge_after } => {
                    self.send(attempt, purpose, hedge_after);
                }
                AttemptAction::Release(attempt, end) => self.release(attempt, &end),
                AttemptAction::Progressed(attempt) => self.on_progress(attempt),
                AttemptAction::Deliver(events) => self.ready.push_back(Ok(Next::Events(events))),
                AttemptAction::DeliverWhole(attempt, _) => self.deliver_whole(attempt),
                AttemptAction::Complete => self.ready.push_back(Ok(Next::End)),
                AttemptAction::Fail(error) => self.ready.push_back(Err(error)),
                other => self.note(other),
            }
        }
    }

    /// Executes actions that only change counters and logs.
    fn note(&mut self, action: AttemptAction) {
        let tokens = self.attempts.tokens();
        match action {
            AttemptAction::Quarantine => {
                self.gateway.quarantine.add(&self.admitted.tenant, &self.admitted.body);
            }
            AttemptAction::Retried(error) => self.record.record_retry(&error, tokens),
            AttemptAction::Moved => self.record.record_move(tokens),
            AttemptAction::Preempted => self.record.record_preemption(tokens),
            AttemptAction::Hedged { by_rival } => {
                self.gateway.metrics.record_hedge(by_rival);
                if let Some(exchange) = self.exchanges.first().filter(|_| by_rival) {
                    self.record.record_route(&exchange.lease);
                }
            }
            AttemptAction::RetryRefused => self.gateway.metrics.record_retry_refused(),
            AttemptAction::ExternalError(attempt, payload) => {
                // It is not passed on: it may contain addresses, keys, or the prompt.
                let refusal = Refusal::read(&payload);
                let endpoint = self.find(attempt).map(|exchange| exchange.lease.node());
                tracing::warn!(endpoint, %refusal, "external endpoint failed");
            }
            _ => {}
        }
    }

    fn send(&mut self, attempt: AttemptId, purpose: Purpose, hedge_after: Option<Duration>) {
        let Self { exchanges, settings, admitted, attempts, record, charge, .. } = self;
        let Some(exchange) = exchanges.iter_mut().find(|known| known.id == attempt) else { return };
        if purpose != Purpose::Hedge {
            record.record_route(&exchange.lease);
        }
        ChargeGuard::replace(charge, exchange.lease.start());
        exchange.send(admitted, settings, attempts.resume());
        self.hedge = hedge_after.map(|after| (attempt, Box::pin(sleep(after))));
    }

    fn release(&mut self, attempt: AttemptId, end: &AttemptEnd) {
        let Some(index) = self.exchanges.iter().position(|known| known.id == attempt) else {
            return;
        };
        let mut exchange = self.exchanges.remove(index);
        let lease = &mut exchange.lease;
        lease.set_outcome(end.outcome);
        if end.has_misreported {
            lease.record_misreport();
        }
        if let Some(sample) = end.cost_sample {
            lease.record_usage(self.admitted.size, sample.usage, sample.choices);
        }
        if let Some(usage) = end.billed_usage {
            self.record.record_payment(lease, &self.admitted, usage);
        }
        self.record.record_usage(self.attempts.reported(), self.attempts.tokens());
        self.hedge = None;
    }

    fn on_progress(&mut self, attempt: AttemptId) {
        let (tokens, choices) = (self.attempts.tokens(), self.attempts.choices());
        self.record.record_first_token();
        self.record.record_usage(self.attempts.reported(), tokens);
        let idle = self.settings.config.timeouts.idle;
        if let Some(exchange) = self.find(attempt) {
            exchange.record_progress(tokens, choices, idle);
        }
        if self.recorded.elapsed() >= RECORD_INTERVAL {
            self.record_checkpoint();
        }
    }

    fn deliver_whole(&mut self, attempt: AttemptId) {
        if let Some(whole) = self.find(attempt).and_then(Exchange::take_whole) {
            self.ready.push_back(Ok(whole));
        }
    }

    fn find(&mut self, attempt: AttemptId) -> Option<&mut Exchange> {
        self.exchanges.iter_mut().find(|known| known.id == attempt)
    }
}

impl Drop for Drive {
    fn drop(&mut self) {
        if !self.attempts.is_complete() {
            self.record_checkpoint();
            if self.admitted.latest.is_some() && self.gateway.stop.is_cancelled() {
                self.record.leave_to_next();
            }
        }
        self.admitted.context.clone().enter(|| {
            self.measure();
            self.attempts.on_client_disconnect();
            self.perform();
        });
        if let (Some(charge), Some(work)) = (&mut self.charge, self.attempts.work()) {
            charge.settle(work);
        }
    }
}

/// The resume state that the first node receives.
fn first(admitted: &Admitted) -> Resume {
    let new = || Resume::new(random(), unix_seconds(SystemTime::now()));
    let known = admitted.latest.as_ref().map(|latest| latest.get().resume);
    Resume {
        model: admitted.is_alias.then(|| admitted.model.clone()),
        tokens_max: admitted.tokens_max,
        usage_max: admitted.usage.usage_max(),
        service_tier: admitted.tells_tier.then(|| admitted.class.service_tier().into()),
        entries_before: admitted.entries_before,
        ..known.unwrap_or_else(new)
    }
}
