//! Stage 6: send the response to the client.
//!
//! Nothing is sent before the first piece of the response. A stream is passed on in whole events
//! only, so the client reads either a complete stream or one explicit error. The body owns the
//! response: dropping it, for whatever reason, releases everything.

use std::convert::Infallible;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::unfold;
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use hyper::header::{HeaderName, HeaderValue};
use hyper::{Response, StatusCode};
use inference_protocol::sse::{self, payloads};
use inference_translation::StreamFormat;
use tokio::time::timeout;

use super::deferral::CLASS;
use super::drive::{Drive, Next};
use super::forward::Whole;
use crate::types::error::Error;
use crate::types::response::{self, Body, SHOULD_RETRY};

/// Response header with the name of the endpoint.
const ENDPOINT: HeaderName = HeaderName::from_static("x-flotilla-endpoint");

/// Comment sent while the response has not begun. It keeps the client and any proxies in between
/// connected.
pub(crate) const COMMENT: &str = ": waiting\n\n";

/// Returns the response once it begins or, if it is not streamed, once it is complete. A stream
/// that does not begin soon gets its head anyway, followed by comments.
pub(crate) async fn stream(mut drive: Box<Drive>) -> Result<Response<Body>, Error> {
    let class = HeaderValue::from_static(drive.record().class_name());
    let mut response = match drive.is_streamed() {
        true => begin_within(drive).await?,
        false => {
            let begun = begin(&mut drive).await;
            respond(drive, begun)?
        }
    };
    response.headers_mut().insert(CLASS, class);
    Ok(response)
}

/// Returns a stream, which starts with a comment if no event arrives in time.
async fn begin_within(mut drive: Box<Drive>) -> Result<Response<Body>, Error> {
    let patience = drive.comment_interval();
    let format = drive.stream_format();
    let mut beginning: Beginning = Box::pin(async move {
        let begun = begin(&mut drive).await;
        (drive, begun)
    });
    // Without comments nothing can be sent before the response begins.
    if !format.has_comments() {
        let (drive, begun) = beginning.await;
        return respond(drive, begun);
    }
    match timeout(patience, &mut beginning).await {
        Ok((drive, begun)) => respond(drive, begun),
        Err(_) => Ok(event_stream(format, relay(Rest::Comment(beginning, patience)))),
    }
}

/// A response that has not begun.
type Beginning = Pin<Box<dyn Future<Output = (Box<Drive>, Result<Next, Error>)> + Send>>;

fn respond(mut drive: Box<Drive>, begun: Result<Next, Error>) -> Result<Response<Body>, Error> {
    let node = drive.node().and_then(|node| HeaderValue::from_str(node).ok());
    let mut response = match begun? {
        Next::Whole(whole) => unstreamed(*translated(&mut drive, whole)),
        Next::Events(events) if drive.is_streamed() => {
            event_stream(drive.stream_format(), relay(Rest::More(drive, events)))
        }
        Next::Events(events) => response::json(whole(&events)?),
        Next::End => return Err(Error::NodeAnswer("it is empty")),
    };
    if let Some(node) = node {
        response.headers_mut().insert(ENDPOINT, node);
    }
    Ok(response)
}

fn unstreamed(whole: Whole) -> Response<Body> {
    let Whole { status, headers, body } = whole;
    let mut response = response::response(response::whole(body));
    *response.status_mut() = status;
    response.headers_mut().extend(headers);
    if status == StatusCode::TOO_MANY_REQUESTS {
        // The prompt is longer than what is left of a budget.
        response.headers_mut().insert(SHOULD_RETRY, HeaderValue::from_static("false"));
    }
    response
}

/// A response that several endpoints served together.
pub(crate) fn whole_response(
    whole: Whole,
    nodes: Option<HeaderValue>,
    class: HeaderValue,
) -> Response<Body> {
    let mut response = unstreamed(whole);
    if let Some(nodes) = nodes {
        response.headers_mut().insert(ENDPOINT, nodes);
    }
    response.headers_mut().insert(CLASS, class);
    response
}

/// The first piece of a stream, or the whole of a response that is not streamed.
pub(crate) async fn begin(drive: &mut Drive) -> Result<Next, Error> {
    loop {
        let next = drive.next().await?;
        let is_enough = drive.is_streamed() || drive.is_complete();
        if is_enough || !matches!(next, Next::Events(_)) {
            return Ok(next);
        }
    }
}

/// Extracts a whole response from its only event.
pub(crate) fn whole(events: &Bytes) -> Result<Bytes, Error> {
    let payload = payloads(events).next().filter(|payload| std::str::from_utf8(payload).is_ok());
    payload.map(|payload| events.slice_ref(payload)).ok_or(Error::NodeAnswer("it is not text"))
}

/// What remains to be sent.
enum Rest {
    /// A comment now, then as `Begin`.
    Comment(Beginning, Duration),
    /// The response, once it begins; a comment after every interval until then.
    Begin(Beginning, Duration),
    /// These events, then the rest of the response.
    More(Box<Drive>, Bytes),
    /// The rest of the response.
    Drive(Box<Drive>),
    /// Nothing.
    Nothing,
}

fn relay(rest: Rest) -> Body {
    StreamBody::new(unfold(rest, advance)).boxed_unsync()
}

type Piece = Result<Frame<Bytes>, Infallible>;

async fn advance(rest: Rest) -> Option<(Piece, Rest)> {
    let mut drive = match rest {
        Rest::Comment(beginning, interval) => {
            return Some((frame(COMMENT), Rest::Begin(beginning, interval)));
        }
        Rest::Begin(mut beginning, interval) => match timeout(interval, &mut beginning).await {
            Ok((drive, begun)) => return send(drive, begun),
            Err(_) => return Some((frame(COMMENT), Rest::Begin(beginning, interval))),
        },
        Rest::More(drive, events) => return Some((frame(events), Rest::Drive(drive))),
        Rest::Drive(drive) => drive,
        Rest::Nothing => return None,
    };
    let next = drive.next().await;
    send(drive, next)
}

/// The next piece of a response whose head was already sent. A refusal becomes an event, like any
/// error.
fn send(mut drive: Box<Drive>, next: Result<Next, Error>) -> Option<(Piece, Rest)> {
    match next {
        Ok(Next::Events(events)) => Some((frame(events), Rest::Drive(drive))),
        Ok(Next::Whole(whole)) => {
            let event = refusal_event(&mut drive, &whole);
            Some((frame(event), Rest::Nothing))
        }
        Ok(Next::End) => None,
        Err(error) => Some((frame(error_event(&mut drive, &error)), Rest::Nothing)),
    }
}

fn event_stream(format: StreamFormat, body: Body) -> Response<Body> {
    response::stream(format.content_type(), body)
}

/// A whole response or a refusal, in the client's API. Responses are translated already.
fn translated(drive: &mut Drive, mut whole: Box<Whole>) -> Box<Whole> {
    let id = drive.request_id().to_string();
    if let Some(translation) = drive.translation().filter(|_| !whole.status.is_success()) {
        whole.body = translation.refusal(whole.status, &whole.body, &id).into();
    }
    whole
}

/// A response in one piece as the final event of a stream.
pub(super) fn refusal_event(drive: &mut Drive, whole: &Whole) -> Bytes {
    match drive.translation() {
        Some(translation) => translation.refusal_event(whole.status, &whole.body),
        None => sse::data(&String::from_utf8_lossy(&whole.body)).into(),
    }
}

/// The final event of a stream that failed.
pub(super) fn error_event(drive: &mut Drive, error: &Error) -> Bytes {
    match drive.translation() {
        Some(translation) => translation.error_event(error),
        None => response::error_event(error),
    }
}

fn frame(events: impl Into<Bytes>) -> Piece {
    Ok(Frame::data(events.into()))
}
