//! One attempt's I/O: its slot, the request that is sent over it, and the events that come back.

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use inference_protocol::resume::Resume;
use tokio_util::sync::WaitForCancellationFutureOwned;

use super::super::admit::Admitted;
use super::super::forward::{Forwarded, Forwarding, Meter, Source, forward};
use super::Next;
use crate::context::settings::Settings;
use crate::dispatcher::Lease;
use crate::scheduler::attempts::{AttemptId, Whole};
use crate::scheduler::progress::event;
use crate::scheduler::usage::Measured;
use crate::types::error::Error;

/// How long tokens are counted before the node's pace is reported.
const PACE_SECONDS: f64 = 1.0;

/// What happens over an exchange.
pub enum Event {
    /// Its events begin.
    Began {
        /// Whether they hold a usage that the client did not ask for.
        hides_usage: bool,
    },
    /// A block of whole events.
    Block(Bytes),
    /// A response in one piece.
    Whole(Whole),
    /// It failed.
    Failed {
        /// Why.
        error: Error,
        /// Whether its events had not begun.
        is_opening: bool,
    },
    /// Its node is about to leave.
    Leaving,
}

/// One attempt's I/O. Dropping it resets the stream and gives the slot back.
pub struct Exchange {
    /// Its attempt.
    pub id: AttemptId,
    state: State,
    /// Until its node is about to leave.
    leaving: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    meter: Meter,
    pace: Pace,
    /// Its slot. Given back last.
    pub lease: Lease,
}

enum State {
    /// The slot was granted, and nothing sent.
    Granted,
    Opening(Forwarding),
    Streaming(Source),
    /// A response in one piece, until the client gets it.
    Whole(Option<Next>),
    Failed,
}

/// Measures how fast tokens come while we wait for them. A client that reads slowly holds us up,
/// and that says nothing about the node.
#[derive(Debug)]
struct Pace {
    /// When counting began; absent before the first token, while the node reads the prompt.
    since: Option<Instant>,
    waited: f64,
    /// The response's tokens when counting began.
    tokens: u64,
}

impl Exchange {
    /// A slot that was granted.
    pub fn new(id: AttemptId, lease: Lease) -> Self {
        let meter = Meter::new(lease.terms().is_some());
        let pace = Pace { since: None, waited: 0.0, tokens: 0 };
        Self { id, state: State::Granted, leaving: None, meter, pace, lease }
    }

    /// Sends the request, and what is known of its response.
    pub fn send(&mut self, admitted: &Arc<Admitted>, settings: &Arc<Settings>, resume: &Resume) {
        let opening = forward(&self.lease, admitted, settings, resume, self.meter.clone());
        self.state = State::Opening(opening);
    }

    /// What was seen of an attempt at an external endpoint before its events began.
    pub fn measured(&self) -> Measured {
        self.meter.read()
    }

    /// Whether nothing of the response has arrived.
    pub fn is_opening(&self) -> bool {
        matches!(self.state, State::Opening(_))
    }

    /// What happens next; may be cancelled.
    pub async fn next(&mut self) -> Event {
        match &mut self.state {
            State::Opening(opening) => {
                let opened = opening.await;
                self.opened(opened)
            }
            State::Streaming(source) => {
                let begun = Instant::now();
                tokio::select! {
                    biased;
                    block = source.next() => {
                        self.pace.waited += begun.elapsed().as_secs_f64();
                        match block {
                            Ok(block) => Event::Block(block),
                            Err(error) => self.failed(error, false),
                        }
                    }
                    () = some(&mut self.leaving) => {
                        self.leaving = None;
                        Event::Leaving
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
            Ok(Forwarded::Whole { status, headers, body }) => {
                let usage = event::Event::read(&body).usage.filter(|_| status.is_success());
                let whole = Whole { status: status.as_u16(), usage, bytes: body.len() };
                self.state = State::Whole(Some(Next::Whole { status, headers, body }));
                Event::Whole(whole)
            }
            Err(error) => self.failed(error, true),
        }
    }

    fn failed(&mut self, error: Error, is_opening: bool) -> Event {
        self.state = State::Failed;
        Event::Failed { error, is_opening }
    }

    /// The response in one piece, once.
    pub fn take_whole(&mut self) -> Option<Next> {
        match &mut self.state {
            State::Whole(whole) => whole.take(),
            _ => None,
        }
    }

    /// The response has so many tokens now, in so many choices. The next event must come within
    /// `idle`.
    pub fn progressed(&mut self, tokens: u64, choices: usize, idle: Duration) {
        if let State::Streaming(source) = &mut self.state {
            source.expect_within(idle);
        }
        let Some(since) = self.pace.since else {
            self.lease.speaks();
            self.pace = Pace { since: Some(Instant::now()), waited: 0.0, tokens };
            return;
        };
        let (passed, more) = (since.elapsed().as_secs_f64(), tokens - self.pace.tokens);
        if passed < PACE_SECONDS || more == 0 {
            return;
        }
        if self.pace.waited > passed / 2.0 {
            self.lease.paced(self.pace.waited * choices.max(1) as f64 / more as f64);
        }
        self.pace = Pace { since: Some(Instant::now()), waited: 0.0, tokens };
    }
}

/// Waits for what may not be there: forever, then.
async fn some<F: Future + Unpin>(future: &mut Option<F>) -> F::Output {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}
