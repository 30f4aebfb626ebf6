//! Stages 4 to 6 as one thing: an answer, from whichever nodes give it.
//!
//! [`Answer::next`] is the only place where an attempt follows another: before the first token
//! (a retry), after it (a resume), and when a node is about to leave (a move). What the client
//! has is never taken back, and what it has not is never lost with a node, as long as another one
//! comes before the deadline.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use hyper::StatusCode;
use hyper::header::HeaderMap;
use inference_protocol::openai::{ErrorBody, ErrorDetail, INVALID_REQUEST};
use inference_protocol::resume::{ENGINE_LOST, MISMATCH, Resume, Usage};
use tokio::time::Instant;

use super::account::Record;
use super::account::bill::Metered;
use super::admit::Admitted;
use super::forward::{self, Forwarded};
use super::route;
use crate::config::Config;
use crate::context::Gateway;
use crate::context::settings::Settings;
use crate::dispatcher::{Lease, Turn};
use crate::scheduler::attempt::{At, Pursuit, is_slow_by_size, outcome_of};
use crate::scheduler::fleet::Outcome;
use crate::scheduler::progress::event::Event;
use crate::scheduler::progress::{Block, Progress};
use crate::types::error::Error;
use crate::upstream::external::refusal::Refusal;

mod current;
mod hedge;

use current::{Current, Happening, Routing};

/// What a refused request has used.
const NOTHING: Usage = Usage { prompt: 0, completion: 0, cached: 0 };

/// An answer. Dropping it gives up its slot, ends its generation, and completes its record.
pub struct Answer {
    gateway: Gateway,
    /// Those that it began with.
    settings: Arc<Settings>,
    admitted: Arc<Admitted>,
    /// Where it comes from now. Dropped before the record, which settles what that has cost.
    current: Option<Current>,
    record: Record,
    progress: Progress,
    pursuit: Pursuit,
    /// What it was charged, to be corrected by what it uses.
    turn: Option<Turn>,
    /// How it ends, after what the client still gets.
    end: Option<Error>,
    /// When another node must have gone on.
    deadline: Instant,
}

/// What comes next of an answer.
#[derive(Debug)]
pub enum Next {
    /// Events for the client.
    Events(Bytes),
    /// Something else than events, in full: a refusal, or an answer of a node without marks.
    Whole {
        /// The node's status.
        status: StatusCode,
        /// The node's headers that concern the client.
        headers: HeaderMap,
        /// The body.
        body: Bytes,
    },
    /// Nothing.
    End,
}

impl Answer {
    /// The answer to an admitted request.
    pub fn new(
        gateway: Gateway,
        settings: Arc<Settings>,
        admitted: Admitted,
        record: Record,
    ) -> Self {
        Self {
            progress: Progress::new(first(&admitted)),
            pursuit: Pursuit::new(settings.config.retries_max, admitted.external),
            deadline: admitted.deadline,
            gateway,
            settings,
            admitted: Arc::new(admitted),
            record,
            current: None,
            turn: None,
            end: None,
        }
    }

    /// Its record.
    pub fn record(&mut self) -> &mut Record {
        &mut self.record
    }

    /// Whether the client wants a stream.
    pub fn is_streamed(&self) -> bool {
        self.admitted.is_streamed
    }

    /// How long a client waits for it without a word.
    pub fn comment_interval(&self) -> Duration {
        self.settings.config.timeouts.comment
    }

    /// Whether it is here in full.
    pub fn is_complete(&self) -> bool {
        self.progress.is_complete()
    }

    /// The node that gives it.
    pub fn node(&self) -> Option<&str> {
        self.record.node()
    }

    /// What comes next, whatever becomes of nodes; the record is told how it ends.
    pub async fn next(&mut self) -> Result<Next, Error> {
        let advanced = AssertUnwindSafe(self.advance()).catch_unwind().await;
        let next = advanced.unwrap_or_else(|_| Err(Error::internal("an answer panicked")));
        match &next {
            Ok(Next::Events(events)) => self.record.add_bytes(events.len()),
            Ok(Next::Whole { status, body, .. }) => {
                self.record.first_token();
                self.record.succeed(status.as_u16(), body.len());
            }
            Ok(Next::End) => {}
            Err(error) => {
                self.record.asked(&self.admitted.model, error);
                self.record.fail(error);
            }
        }
        if self.progress.is_complete() {
            self.used(None);
            self.current.take().into_iter().for_each(|current| self.answered(current));
            self.record.succeed(200, 0);
        }
        next
    }

    /// The answer is complete, and says what such requests cost.
    fn answered(&mut self, mut current: Current) {
        if let Some(reported) = self.progress.used() {
            let answers = current.is_first.then(|| self.progress.choices());
            self.learn(&mut current.lease, reported, self.progress.tokens(), answers);
        }
        current.ends(Outcome::Answered);
    }

    /// What an endpoint reports of an answer of which so many tokens were seen, as far as it is
    /// possible; and whether all of it is.
    fn believed(&self, lease: &Metered, reported: Usage, seen: u64) -> (Usage, bool) {
        let limits = &self.admitted.usage;
        let usage = match lease.is_external() {
            true => limits.of_external(reported),
            false => limits.correct(reported, seen).unwrap_or(reported),
        };
        (usage, usage == reported)
    }

    /// The same of a whole answer. What cannot be is counted, and teaches nothing of costs.
    fn learn(&mut self, lease: &mut Metered, reported: Usage, seen: u64, answers: Option<usize>) {
        let (usage, is_possible) = self.believed(lease, reported, seen);
        self.record.used(Some(usage), self.progress.tokens());
        self.used(Some(usage));
        match answers {
            _ if !is_possible => lease.record_misreport(),
            Some(answers) => lease.used(self.admitted.size, usage, answers),
            None => {}
        }
    }

    async fn advance(&mut self) -> Result<Next, Error> {
        while !self.progress.is_complete() {
            if let Some(error) = self.end.take() {
                return Err(error);
            }
            let Some(mut current) = self.current.take() else {
                let lease = self.route().await?;
                if let Some(whole) = self.open(lease).await? {
                    return Ok(whole);
                }
                continue;
            };
            match current.happens().await {
                Happening::Said(Ok(block)) => {
                    let events = self.read(current, &block)?;
                    if !events.is_empty() {
                        return Ok(Next::Events(events));
                    }
                }
                Happening::Said(Err(error)) => self.interrupted(current, error)?,
                Happening::Leaves => {
                    if self.progress.is_resumable() {
                        current.look_elsewhere(self.elsewhere(&current));
                    }
                    self.current = Some(current);
                }
                Happening::Elsewhere(Ok(lease)) => {
                    self.pursuit.moves(&current.at());
                    self.record.moved(self.progress.tokens());
                    current.ends(Outcome::Unknown);
                    if let Some(whole) = self.open(*lease).await? {
                        return Ok(whole);
                    }
                }
                // It may still end where it is.
                Happening::Elsewhere(Err(_)) => self.current = Some(current),
            }
        }
        Ok(Next::End)
    }

    /// Reads a block of events; what the client gets of it.
    fn read(&mut self, mut current: Current, block: &Bytes) -> Result<Bytes, Error> {
        let before = self.progress.tokens();
        let read = self.progress.read(block, self.admitted.is_streamed);
        let Ok(Block { events, is_news, error }) = read else {
            current.ends(Outcome::Failed);
            return Err(forward::TOO_LARGE);
        };
        if is_news {
            self.pursuit.gets_on();
            self.record.first_token();
            let (reported, seen) = (self.progress.used(), self.progress.tokens());
            let told = reported.map(|reported| self.believed(&current.lease, reported, seen).0);
            self.record.used(told, seen);
            self.used(told);
            current.lease.measure(|measured| {
                (measured.reported, measured.generated) = (reported, seen);
            });
            current.generated(self.progress.tokens() - before, self.progress.choices());
            current.source.expect_within(self.settings.config.timeouts.idle);
        }
        match error {
            // What came before the error is the client's all the same.
            Some(payload) => self.end = self.reported(current, &payload).err(),
            None => self.current = Some(current),
        }
        Ok(events)
    }

    /// It has used so much by now: what its endpoint reports and can be, or the tokens that came
    /// and about those of its prompt.
    fn used(&mut self, told: Option<Usage>) {
        let Self { turn, progress, admitted, .. } = self;
        let (Some(turn), seen) = (turn, progress.tokens()) else { return };
        let estimated = (seen > 0).then(|| admitted.usage.estimate(seen));
        told.or(estimated).into_iter().for_each(|usage| turn.used(usage));
    }

    /// A slot on a node that begins, or goes on.
    async fn route(&mut self) -> Result<Lease, Error> {
        let Self { gateway, admitted, pursuit, deadline, .. } = self;
        let routed =
            route::route(&gateway.dispatcher, admitted, pursuit.constraints(), *deadline).await;
        routed.map_err(|error| pursuit.gives_up(error))
    }

    /// A slot elsewhere for an answer whose node is about to leave.
    fn elsewhere(&self, current: &Current) -> Routing {
        let (dispatcher, admitted) = (self.gateway.dispatcher.clone(), self.admitted.clone());
        let constraints = self.pursuit.seek_beyond(&current.at());
        let deadline = Instant::now() + self.settings.config.timeouts.resume;
        Box::pin(async move { route::route(&dispatcher, &admitted, &constraints, deadline).await })
    }

    /// A slot with the bill of what is done there.
    fn metered(&self, lease: Lease) -> Metered {
        Metered::new(lease, || self.record.payer(&self.admitted))
    }

    /// What an error says of the endpoint that it happened at.
    fn outcome(&self, lease: &Lease, has_spoken: bool, error: &Error) -> Outcome {
        let timeout = self.settings.config.timeouts.first_token;
        let is_late = *error == Error::NodeTimeout && !has_spoken;
        match is_late && is_slow_by_size(lease.predicted_prefill(&self.admitted.size), timeout) {
            true => Outcome::Unknown,
            false => outcome_of(error),
        }
    }

    /// Sends the request, and what is known of the answer, to a node.
    async fn open(&mut self, lease: Lease) -> Result<Option<Next>, Error> {
        self.record.routed(&lease);
        let mut lease = self.metered(lease);
        self.turn = lease.begins().or(self.turn.take());
        let Config { limits, timeouts, hedge, .. } = &self.settings.config;
        let resume = self.progress.resume();
        let forwarded = match hedge.filter(|_| self.progress.tokens() == 0) {
            None => forward::forward(&mut lease, &self.admitted, resume, limits, timeouts).await,
            Some(late) => {
                let begun = Box::pin(self.first_of_two(lease, late)).await;
                lease = begun.0;
                self.record.routed(&lease);
                begun.1
            }
        };
        let at = current::at(&lease, false);
        match forwarded {
            Ok(Forwarded::Events(source, hides_usage)) => {
                let is_first = self.progress.tokens() == 0;
                self.progress.moves(hides_usage);
                self.current = Some(Current::new(source, lease, is_first));
                Ok(None)
            }
            // A node that does not go on with what another began.
            Ok(Forwarded::Whole { status, .. }) if self.progress.tokens() > 0 => {
                self.failed_at(&at, Error::NodeRefused(status.as_u16())).map(|()| None)
            }
            Ok(Forwarded::Whole { status, headers, body }) => {
                let is_refused = !status.is_success();
                self.used(is_refused.then_some(NOTHING));
                if let Some(reported) = Event::read(&body).usage.filter(|_| !is_refused) {
                    self.learn(&mut lease, reported, body.len() as u64, Some(1));
                }
                lease.ends(if is_refused { Outcome::Alive } else { Outcome::Answered });
                Ok(Some(Next::Whole { status, headers, body }))
            }
            Err(error) => {
                let outcome = self.outcome(&lease, false, &error);
                lease.ends(outcome);
                drop(lease);
                self.failed_at(&at, error).map(|()| None)
            }
        }
    }

    /// A node says in its stream that it failed.
    fn reported(&mut self, current: Current, payload: &[u8]) -> Result<(), Error> {
        if current.lease.is_external() {
            // Its words stay here: they may name addresses, keys, or the prompt.
            let refusal = Refusal::read(payload);
            tracing::warn!(endpoint = current.lease.node(), %refusal, "external endpoint failed");
            return self.interrupted(current, Error::ExternalFailed);
        }
        let told: Option<ErrorBody> = serde_json::from_slice(payload).ok();
        self.interrupted(current, told.map_or(Error::NodeLost, |told| error_of(told.error)))
    }

    /// Where the answer comes from has failed; an error is final.
    fn interrupted(&mut self, mut current: Current, error: Error) -> Result<(), Error> {
        let outcome = self.outcome(&current.lease, current.has_spoken, &error);
        current.lease.ends(outcome);
        let at = current.at();
        drop(current);
        self.failed_at(&at, error)
    }

    /// An attempt has failed; an error is final.
    fn failed_at(&mut self, at: &At, error: Error) -> Result<(), Error> {
        let failed = self.pursuit.failed(at, self.progress.is_resumable(), error.clone());
        if failed == Err(Error::Quarantined) {
            self.gateway.quarantine.add(&self.admitted.tenant, &self.admitted.body);
        }
        failed?;
        if error.costs_a_retry() && !self.gateway.dispatcher.may_retry() {
            self.gateway.metrics.retry_refused();
            return Err(error);
        }
        self.deadline = self.deadline.max(Instant::now() + self.settings.config.timeouts.resume);
        self.record.retried(&error, self.progress.tokens());
        Ok(())
    }
}

/// What a node's error in its stream says.
fn error_of(told: ErrorDetail) -> Error {
    if told.kind == INVALID_REQUEST {
        return Error::Unanswerable(Box::new(told));
    }
    match told.code.as_deref() {
        Some(ENGINE_LOST) => Error::EngineLost,
        Some(MISMATCH | "engine_error" | "node_draining") | None => Error::NodeLost,
        Some(_) => Error::NodeFailed(told.message),
    }
}

/// What a node is told of an answer that begins.
fn first(admitted: &Admitted) -> Resume {
    Resume {
        model: admitted.is_alias.then(|| admitted.model.clone()),
        tokens_max: admitted.tokens_max,
        service_tier: admitted.tells_tier.then(|| admitted.class.service_tier().into()),
        ..Resume::new(crate::types::random::random(), unix_seconds())
    }
}

fn unix_seconds() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |d| d.as_secs())
}
