//! Stage 6: the answer goes to the client.
//!
//! Nothing is sent before there is something of the answer. A stream is passed on in whole
//! events only, so that the client reads either a complete stream or one explicit error. The
//! body owns the answer: whoever drops it, for whatever reason, releases everything.

use std::convert::Infallible;

use bytes::Bytes;
use futures_util::stream::unfold;
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use hyper::Response;
use hyper::header::HeaderValue;
use inference_protocol::sse::payloads;

use super::admit::CLASS;
use super::answer::{Answer, Next};
use crate::error::Error;
use crate::respond::{self, Body};

/// The header that names the node.
const ENDPOINT: &str = "x-flotilla-endpoint";

/// The response, once it begins; of an answer that is not streamed, once it is complete.
pub async fn stream(mut answer: Box<Answer>) -> Result<Response<Body>, Error> {
    let class = HeaderValue::from_static(answer.record().class_name());
    let begun = begin(&mut answer).await;
    let node = answer.node().and_then(|node| HeaderValue::from_str(node).ok());
    let mut response = match begun? {
        Next::Whole { status, headers, body } => {
            let mut response = Response::new(respond::whole(body));
            *response.status_mut() = status;
            *response.headers_mut() = headers;
            response
        }
        Next::Events(events) if answer.is_streamed() => {
            respond::event_stream(relay(answer, events))
        }
        Next::Events(events) => respond::json(whole(&events)?),
        Next::End => return Err(Error::NodeAnswer("it is empty")),
    };
    response.headers_mut().insert(CLASS, class);
    if let Some(node) = node {
        response.headers_mut().insert(ENDPOINT, node);
    }
    Ok(response)
}

/// The first of a stream, or all of an answer that is none.
async fn begin(answer: &mut Answer) -> Result<Next, Error> {
    loop {
        let next = answer.next().await?;
        let is_enough = answer.is_streamed() || answer.is_complete();
        if is_enough || !matches!(next, Next::Events(_)) {
            return Ok(next);
        }
    }
}

/// A whole answer out of its only event.
fn whole(events: &[u8]) -> Result<String, Error> {
    let payload = payloads(events).next().and_then(|p| String::from_utf8(p.to_vec()).ok());
    payload.ok_or(Error::NodeAnswer("it is not text"))
}

/// What is left to be sent.
enum Rest {
    /// The answer, after these events.
    More(Box<Answer>, Vec<u8>),
    /// The answer.
    Answer(Box<Answer>),
    /// Nothing.
    Nothing,
}

fn relay(answer: Box<Answer>, first: Vec<u8>) -> Body {
    let events = unfold(Rest::More(answer, first), |rest| async move {
        let mut answer = match rest {
            Rest::More(answer, events) => return Some((frame(events), Rest::Answer(answer))),
            Rest::Answer(answer) => answer,
            Rest::Nothing => return None,
        };
        match answer.next().await {
            Ok(Next::Events(events)) => Some((frame(events), Rest::Answer(answer))),
            Ok(Next::End | Next::Whole { .. }) => None,
            Err(error) => Some((frame(respond::error_event(&error)), Rest::Nothing)),
        }
    });
    StreamBody::new(events).boxed_unsync()
}

fn frame(events: impl Into<Bytes>) -> Result<Frame<Bytes>, Infallible> {
    Ok(Frame::data(events.into()))
}
