//! I/O of one attempt: its slot, the request sent over it, and the events that come back.

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use inference_protocol::resume::Resume;
use tokio_util::sync::WaitForCancellationFutureOwned;

use super::super::admit::Admitted;
use super::super::forward::{Forwarded, Forwarding, Meter, Source, Whole, forward};
use super::Next;
use crate::context::settings::Settings;
use crate::dispatcher::Lease;
use crate::scheduler::attempts::{AttemptId, WholeResponse};
use crate::scheduler::progress::event;
use crate::scheduler::usage::MeasuredUsage;
use crate::types::error::Error;

/// Seconds over which the decoding speed is averaged before it is reported.
const PACE_SECONDS: f64 = 1.0;

/// Something that happened on an exchange.
pub(super) enum Event {
    /// The event stream began.
    Began {
        /// True if the events contain a usage that the client did not ask for.
        hides_usage: bool,
    },
    /// A block of whole events.
    Block(Bytes),
    /// A response in one piece.
    Whole(WholeResponse),
    /// The attempt failed.
    Failed(Error),
    /// The node is about to leave.
    Leaving,
    /// A more urgent request needs the slot.
    Preempted,
}

/// I/O of one attempt. Dropping it resets the stream and frees the slot.
pub(super) struct Exchange {
    /// Id of the attempt.
    pub id: AttemptId,
    state: State,
    /// Completes when the node is about to leave.
    leaving: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    /// Completes when a more urgent request needs the slot.
    preempted: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    meter: Meter,
    pace: PaceMeter,
    /// The slot. Declared last, so it is freed last.
    pub lease: Lease,
}

enum State {
    /// The slot is granted; nothing has been sent.
    Granted,
    Opening(Forwarding),
    Streaming(Source),
    /// A response in one piece, until the client takes it.
    Whole(Option<Next>),
    Failed,
}

/// Measures decoding speed while we wait for tokens. Time in which a slow client holds us up is not
/// the node's and does not count.
#[derive(Debug)]
struct PaceMeter {
    /// Start of the measurement; `None` before the first token, while the node prefills the prompt.
    since: Option<Instant>,
    waited: f64,
    /// Tokens of the response at the start of the measurement.
    tokens: u64,
}

impl Exchange {
    /// Starts an exchange on a granted slot, which a more urgent request may take if
    /// `is_preemptible`.
    pub(super) fn new(id: AttemptId, mut lease: Lease, is_preemptible: bool) -> Self {
        // What an external endpoint has begun is paid for.
        let is_preemptible = is_preemptible && lease.terms().is_none();
        let preempted = is_preemptible.then(|| Box::pin(lease.preempted()));
        let meter = Meter::new(lease.terms().is_some());
        let pace = PaceMeter { since: None, waited: 0.0, tokens: 0 };
        Self { id, state: State::Granted, leaving: None, preempted, meter, pace, lease }
    }

    /// Sends the request and the resume header.
    pub(super) fn send(
        &mut self,
        admitted: &Arc<Admitted>,
        settings: &Arc<Settings>,
        resume: &Resume,
    ) {
        let opening = forward(&self.lease, admitted, settings, resume, self.meter.clone());
        self.state = State::Opening(opening);
    }

    /// What was seen of an attempt at an external endpoint. `None` for a node.
    pub(super) fn measured(&self) -> Option<MeasuredUsage> {
        self.meter.read()
    }

    /// Waits for the next event. Cancel-safe.
    pub(super) async fn next(&mut self) -> Event {
        let Self { state, leaving, preempted, pace, .. } = self;
        match state {
            State::Opening(opening) => tokio::select! {
                biased;
                opened = opening => self.opened(opened),
                () = some(preempted) => {
                    *preempted = None;
                    Event::Preempted
                }
            },
            State::Streaming(source) => {
                let begun = Instant::now();
                tokio::select! {
                    biased;
                    block = source.next() => {
                        pace.waited += begun.elapsed().as_secs_f64();
                        match block {
                            Ok(block) => Event::Block(block),
                            Err(error) => self.failed(error),
                        }
                    }
                    () = some(leaving) => {
                        *leaving = None;
                        Event::Leaving
                    }
                    () = some(preempted) => {
                        *preempted = None;
                        Event::Preempted
                    }
                }
            }
            State::Granted | State::Whole(_) | State::Failed => std::future::pending().await,
        }
    }

    fn opened(&mut self, opened: Result<Forwarded, Error>) -> Event {
        match opened {
            Ok(Forwarded::Events(source, hides_usage)) => {
                self.state = State::Streaming(source);
                self.leaving = Some(Box::pin(self.lease.upstream().leaving()));
                Event::Began { hides_usage }
            }
            Ok(Forwarded::Whole(whole)) => {
                let Whole { status, body, .. } = &*whole;
                let usage = event::Event::read(body).usage.filter(|_| status.is_success());
                let summary = WholeResponse { status: status.as_u16(), usage, bytes: body.len() };
                self.state = State::Whole(Some(Next::Whole(whole)));
                Event::Whole(summary)
            }
            Err(error) => self.failed(error),
        }
    }

    fn failed(&mut self, error: Error) -> Event {
        self.state = State::Failed;
        Event::Failed(error)
    }

    /// Takes the response in one piece. `None` if it is taken already.
    pub(super) fn take_whole(&mut self) -> Option<Next> {
        match &mut self.state {
            State::Whole(whole) => whole.take(),
            _ => None,
        }
    }

    /// Records that the response now has `tokens` tokens in `choices` choices. The next event must
    /// arrive within `idle`.
    pub(super) fn record_progress(&mut self, tokens: u64, choices: usize, idle: Duration) {
        if let State::Streaming(source) = &mut self.state {
            source.expect_within(idle);
        }
        let Some(since) = self.pace.since else {
            self.lease.record_first_token();
            self.pace = PaceMeter { since: Some(Instant::now()), waited: 0.0, tokens };
            return;
        };
        let (passed, more) = (since.elapsed().as_secs_f64(), tokens - self.pace.tokens);
        if passed < PACE_SECONDS || more == 0 {
            return;
        }
        if self.pace.waited > passed / 2.0 {
            self.lease.record_pace(self.pace.waited * choices.max(1) as f64 / more as f64);
        }
        self.pace = PaceMeter { since: Some(Instant::now()), waited: 0.0, tokens };
    }
}

/// Awaits an optional future. Waits forever if it is `None`.
async fn some<F: Future + Unpin>(future: &mut Option<F>) -> F::Output {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}
