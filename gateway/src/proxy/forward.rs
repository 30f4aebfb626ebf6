//! Stage 5: the request goes to its node.
//!
//! What is known of the answer goes before the client's body, so that a node can begin it, or
//! go on with it; see [`inference_protocol::resume`].

use std::borrow::Cow;
use std::pin::Pin;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::{Request, Response, StatusCode};
use inference_protocol::fleet::{DIGEST_HEADER, TENANT_HEADER};
use inference_protocol::openai::ErrorBody;
use inference_protocol::resume::{ENGINE_LOST, RESUME_HEADER, Resume};
use inference_protocol::sse::Splitter;
use tokio::time::{Instant, Sleep, sleep};

use super::account::bill::Metered;
use super::admit::Admitted;
use crate::config::{Limits, Timeouts};
use crate::scheduler::progress::event::Event;
use crate::types::error::Error;
use crate::types::request_id::REQUEST_ID;
use crate::upstream::NodeBody;
use crate::upstream::external::refusal::Refusal;
use crate::upstream::external::request::{Translated, Wanted};
use crate::upstream::external::{Client, SendFailure};

const TENANT: HeaderName = HeaderName::from_static(TENANT_HEADER);
const DIGEST: HeaderName = HeaderName::from_static(DIGEST_HEADER);
const RESUME: HeaderName = HeaderName::from_static(RESUME_HEADER);

/// What a node sends.
#[derive(Debug)]
pub enum Forwarded {
    /// Something in full.
    Whole {
        /// The node's status.
        status: StatusCode,
        /// The node's headers that concern the client.
        headers: HeaderMap,
        /// The body.
        body: Bytes,
    },
    /// Events, and whether they tell a usage that the client did not ask for.
    Events(Source, bool),
}

/// An event beyond its limit, or more of them than can be right.
pub const TOO_LARGE: Error = Error::NodeAnswer(
    "an event is larger than limits.event_bytes_max, or all of it than limits.response_bytes_max",
);
/// A whole response beyond its limit that its request did not ask for.
const WHOLE_TOO_LARGE: Error = Error::NodeAnswer("it is larger than limits.response_bytes_max");

/// Sends a request to the endpoint of `lease`.
pub async fn forward(
    lease: &mut Metered,
    admitted: &Admitted,
    resume: &Resume,
    limits: &Limits,
    timeouts: &Timeouts,
) -> Result<Forwarded, Error> {
    let client = lease.upstream().client().cloned();
    let (request, hides_usage) = match &client {
        None => (upstream_request(admitted, resume, &lease.model().digest)?, false),
        Some(client) => external_request(admitted, client)?,
    };
    let too_large = too_large(lease, admitted, limits);
    let mut silence = Box::pin(sleep(timeouts.first_token));
    let attempt = async {
        let response = match &client {
            None => lease.upstream().send(request).await?,
            Some(client) => send_outside(client, request, lease).await?,
        };
        if client.is_some() && !response.status().is_success() {
            return Err(refusal_outside(response, admitted, lease).await);
        }
        if is_about_the_node(response.status()) {
            return Err(refusal(response).await);
        }
        if is_event_stream(&response) {
            return Ok(Sent::Events(response.into_body()));
        }
        read_whole(response, (limits.response_bytes_max, &too_large), lease).await.map(Sent::Whole)
    };
    let sent = tokio::select! {
        biased;
        sent = attempt => sent?,
        () = &mut silence => return Err(Error::NodeTimeout),
    };
    Ok(match sent {
        Sent::Whole(whole) => whole,
        Sent::Events(rest) => {
            let (bytes_max, too_large) = match admitted.is_streamed {
                true => (limits.event_bytes_max, TOO_LARGE),
                // All of it is one event.
                false => (limits.response_bytes_max, too_large),
            };
            let splitter = Splitter::new(bytes_max);
            Forwarded::Events(
                Source { rest, splitter, silence, too_large, heard: None },
                hides_usage,
            )
        }
    })
}

/// The error of a whole response beyond its limit: whether the request asked for as much, or the
/// node says more than it can have been asked for.
fn too_large(lease: &Metered, admitted: &Admitted, limits: &Limits) -> Error {
    let bytes_max = limits.response_bytes_max;
    match admitted.usage.may_fill(bytes_max, lease.model().context_tokens) {
        true => Error::ResponseTooLarge(bytes_max),
        false => WHOLE_TOO_LARGE,
    }
}

/// Sends a request to an external endpoint, which is paid for it from here on.
async fn send_outside(
    client: &Client,
    request: Request<Bytes>,
    lease: &mut Metered,
) -> Result<Response<NodeBody>, Error> {
    lease.measure(|measured| measured.is_sent = true);
    let (head, body) = request.into_parts();
    client.send(head, body).await.map_err(|failure| {
        lease.measure(|measured| measured.is_sent = failure == SendFailure::Lost);
        Error::NodeLost
    })
}

/// An external endpoint does not answer: that costs nothing, and its words stay here.
async fn refusal_outside(
    response: Response<NodeBody>,
    admitted: &Admitted,
    lease: &mut Metered,
) -> Error {
    let status = response.status().as_u16();
    lease.measure(|measured| measured.is_sent = false);
    let read = response.into_body().whole(REFUSAL_BYTES_MAX).await;
    let refusal = Refusal::read(&read.ok().and_then(Result::ok).unwrap_or_default());
    let request_id = admitted.request_id.as_str();
    tracing::warn!(request_id, endpoint = lease.node(), status, %refusal, "external refusal");
    refusal.error(admitted.api, status)
}

/// What a node has begun to send.
enum Sent {
    Whole(Forwarded),
    Events(NodeBody),
}

/// Whether another node may answer better: this one failed, is full, or refuses our key,
/// which is not the client's.
fn is_about_the_node(status: StatusCode) -> bool {
    status.is_server_error()
        || [StatusCode::TOO_MANY_REQUESTS, StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN]
            .contains(&status)
}

/// Most bytes of a refusal that are read.
const REFUSAL_BYTES_MAX: usize = 16 * 1024;

async fn refusal(response: Response<NodeBody>) -> Error {
    let refused = Error::NodeRefused(response.status().as_u16());
    let read = response.into_body().whole(REFUSAL_BYTES_MAX).await;
    let told = read.ok().and_then(Result::ok);
    let told = told.and_then(|body| serde_json::from_slice::<ErrorBody>(&body).ok());
    match told.and_then(|told| told.error.code).as_deref() {
        Some(ENGINE_LOST) => Error::EngineLost,
        _ => refused,
    }
}

/// Enough for what is known of an answer that begins.
const RESUME_BYTES: usize = 192;

/// `digest`: what the node serves, as far as we know. It refuses if that is no longer so: its
/// status may be under way.
fn upstream_request(
    admitted: &Admitted,
    resume: &Resume,
    digest: &str,
) -> Result<Request<Bytes>, Error> {
    let mut body = BytesMut::with_capacity(RESUME_BYTES + admitted.body.len());
    let written = serde_json::to_writer((&mut body).writer(), resume);
    written.map_err(Error::internal)?;
    let resume_bytes = body.len();
    body.put(&admitted.body[..]);
    Request::post(admitted.api.uri())
        .header(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))
        .header(REQUEST_ID, admitted.request_id.value())
        .header(TENANT, &*admitted.tenant)
        .header(RESUME, resume_bytes)
        .header(DIGEST, digest)
        .body(body.freeze())
        .map_err(Error::internal)
}

/// The request to an external endpoint, and whether its answer tells more than was asked for.
fn external_request(admitted: &Admitted, client: &Client) -> Result<(Request<Bytes>, bool), Error> {
    let Admitted { api, body, model, is_streamed, choice_max, .. } = admitted;
    let wanted = Wanted { api: *api, model, is_streamed: *is_streamed, tokens_max: *choice_max };
    let Translated { body, hides_usage } = client.translate(body, wanted)?;
    let request = Request::post(admitted.api.uri())
        .header(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))
        .header(REQUEST_ID, admitted.request_id.value())
        .body(body.into());
    request.map(|request| (request, hides_usage)).map_err(Error::internal)
}

fn is_event_stream(response: &Response<NodeBody>) -> bool {
    let content_type = response.headers().get(header::CONTENT_TYPE);
    content_type.is_some_and(|v| v.as_bytes().starts_with(b"text/event-stream"))
}

async fn read_whole(
    response: Response<NodeBody>,
    (bytes_max, too_large): (usize, &Error),
    lease: &mut Metered,
) -> Result<Forwarded, Error> {
    let (head, mut rest) = response.into_parts();
    let mut body = BytesMut::new();
    while let Some(bytes) = rest.data().await {
        let bytes = bytes?;
        if body.len() + bytes.len() > bytes_max {
            return Err(too_large.clone());
        }
        body.extend_from_slice(&bytes);
        lease.measure(|measured| measured.partial_bytes = body.len() as u64);
    }
    let body = body.freeze();
    if lease.is_external() {
        let told = Event::read(&body);
        lease.measure(|measured| {
            (measured.reported, measured.generated) = (told.usage, told.tokens);
            measured.partial_bytes = 0;
        });
        if told.is_error {
            return Err(Error::ExternalFailed);
        }
    }
    let mut headers = HeaderMap::new();
    for name in [header::CONTENT_TYPE, header::RETRY_AFTER] {
        if let Some(value) = head.headers.get(&name) {
            headers.insert(name, value.clone());
        }
    }
    Ok(Forwarded::Whole { status: head.status, headers, body })
}

/// A node's events. Dropping it resets the stream.
#[derive(Debug)]
pub struct Source {
    rest: NodeBody,
    splitter: Splitter,
    silence: Pin<Box<Sleep>>,
    /// What is wrong with an event beyond its limit.
    too_large: Error,
    /// Events that came already.
    heard: Option<Bytes>,
}

impl Source {
    /// The next events must come within this.
    pub fn expect_within(&mut self, within: Duration) {
        self.silence.as_mut().reset(Instant::now() + within);
    }

    /// Waits for its first events, which are still the next ones then.
    pub async fn heard(mut self) -> Result<Self, Error> {
        self.heard = Some(self.next().await?);
        Ok(self)
    }

    /// The next whole events; may be cancelled. A stream that simply ends has lost its node: the
    /// last event of a whole one says so.
    pub async fn next(&mut self) -> Result<Bytes, Error> {
        if let Some(events) = self.heard.take() {
            return Ok(events);
        }
        loop {
            let data = tokio::select! {
                biased;
                data = self.rest.data() => data,
                () = &mut self.silence => return Err(Error::NodeTimeout),
            };
            let Some(Ok(bytes)) = data else { return Err(Error::NodeLost) };
            let events = match self.splitter.push(&bytes).map_err(|_| self.too_large.clone())? {
                Cow::Borrowed(_) => bytes.clone(),
                Cow::Owned(events) => events.into(),
            };
            if !events.is_empty() {
                return Ok(events);
            }
        }
    }
}
