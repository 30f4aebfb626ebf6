//! Stage 6: the answer goes to the client.
//!
//! A stream is passed on in whole events only, so that a node may die between any two
//! bytes and the client still reads either a complete stream or one explicit error. The
//! body owns slot and record: whoever drops it, for whatever reason, releases both.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body as _, Frame};
use http_body_util::BodyExt;
use hyper::Response;
use hyper::body::Incoming;
use hyper::header::HeaderValue;
use inference_protocol::sse::{DONE, Splitter, payloads};
use tokio::time::{Instant, Sleep};
use tokio_util::sync::WaitForCancellationFutureOwned;

use super::account::Record;
use super::admit::CLASS;
use super::forward::{Forwarded, TOO_LARGE, is_error};
use crate::app::Gateway;
use crate::dispatcher::Lease;
use crate::error::Error;
use crate::respond::{self, Body};

/// The header that names the node.
const ENDPOINT: &str = "x-flotilla-endpoint";

/// The response of an answer that has begun.
pub fn stream(forwarded: Forwarded, mut record: Record, gateway: &Gateway) -> Response<Body> {
    record.first_token();
    let class = HeaderValue::from_static(record.class_name());
    let (mut response, node) = match forwarded {
        Forwarded::Whole { status, headers, body, node } => {
            record.succeed(status.as_u16(), body.len());
            if let Some(tokens) = total_tokens(&body) {
                record.used(tokens);
            }
            let mut response = Response::new(respond::whole(body));
            *response.status_mut() = status;
            *response.headers_mut() = headers;
            (response, node)
        }
        Forwarded::Begun { first, splitter, rest, lease } => {
            let node = lease.node().to_string();
            let relay = Relay::new(lease, rest, splitter, record, gateway.timeouts.idle);
            (respond::event_stream(relay.opened_with(first).boxed_unsync()), node)
        }
    };
    response.headers_mut().insert(CLASS, class);
    if let Ok(value) = HeaderValue::from_str(&node) {
        response.headers_mut().insert(ENDPOINT, value);
    }
    response
}

/// The tokens that an event tells: the one with the usage.
fn told_tokens(payload: &[u8]) -> Option<u64> {
    let holds_usage = payload.windows(USAGE.len()).any(|window| window == USAGE);
    holds_usage.then(|| total_tokens(payload)).flatten()
}

/// `usage.total_tokens`, where there is one.
fn total_tokens(json: &[u8]) -> Option<u64> {
    #[derive(serde::Deserialize)]
    struct Told {
        usage: Option<Usage>,
    }
    #[derive(serde::Deserialize)]
    struct Usage {
        total_tokens: u64,
    }
    let told: Told = serde_json::from_slice(json).ok()?;
    told.usage.map(|usage| usage.total_tokens)
}

/// How a usage begins that is not null.
const USAGE: &[u8] = b"\"usage\":{";

/// Passes a node's events on.
struct Relay {
    rest: Incoming,
    splitter: Splitter,
    /// Events that are ready for the client.
    ready: Option<Bytes>,
    /// Held until the node has said its last word.
    lease: Option<Lease>,
    lost: Pin<Box<WaitForCancellationFutureOwned>>,
    idle: Pin<Box<Sleep>>,
    idle_max: Duration,
    record: Record,
    /// The node has said its last word: `[DONE]`, or an error.
    complete: bool,
    ended: bool,
}

impl Relay {
    fn new(
        lease: Lease,
        rest: Incoming,
        splitter: Splitter,
        record: Record,
        idle_max: Duration,
    ) -> Self {
        Self {
            rest,
            splitter,
            ready: None,
            lost: Box::pin(lease.upstream().lost()),
            lease: Some(lease),
            idle: Box::pin(tokio::time::sleep(idle_max)),
            idle_max,
            record,
            complete: false,
            ended: false,
        }
    }

    fn opened_with(mut self, first: Bytes) -> Self {
        self.take_events(first);
        self
    }

    fn take_events(&mut self, events: Bytes) {
        for payload in payloads(&events) {
            self.record.add_events(1);
            if let Some(tokens) = told_tokens(payload) {
                self.record.used(tokens);
            }
            if payload == DONE.as_bytes() {
                self.complete = true;
                self.record.succeed(200, 0);
            } else if is_error(payload) {
                self.complete = true;
                self.record.fail(&Error::NodeLost);
            }
        }
        if self.complete {
            self.lease = None;
        }
        self.record.add_bytes(events.len());
        self.ready = Some(events);
    }

    /// The node is gone in the middle of its answer.
    fn break_off(&mut self, error: &Error) {
        self.lease = None;
        self.ended = true;
        if !self.complete {
            self.record.fail(error);
            self.ready = Some(respond::error_event(error));
        }
    }

    /// Reads on until there is something to pass on, or the end.
    fn poll_node(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while self.ready.is_none() && !self.ended {
            match Pin::new(&mut self.rest).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => self.take_frame(&frame),
                Poll::Ready(Some(Err(_)) | None) => self.break_off(&Error::NodeLost),
                Poll::Pending if self.lost.as_mut().poll(cx).is_ready() => {
                    self.break_off(&Error::NodeLost);
                }
                Poll::Pending if self.idle.as_mut().poll(cx).is_ready() => {
                    self.break_off(&Error::NodeTimeout);
                }
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(())
    }

    fn take_frame(&mut self, frame: &Frame<Bytes>) {
        self.idle.as_mut().reset(Instant::now() + self.idle_max);
        let Some(bytes) = frame.data_ref() else { return };
        match self.splitter.push(bytes) {
            Ok(events) if events.is_empty() => {}
            Ok(events) => self.take_events(events.into()),
            Err(_) => self.break_off(&TOO_LARGE),
        }
    }
}

impl http_body::Body for Relay {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.poll_node(cx).is_pending() {
            return Poll::Pending;
        }
        Poll::Ready(self.ready.take().map(|events| Ok(Frame::data(events))))
    }
}
