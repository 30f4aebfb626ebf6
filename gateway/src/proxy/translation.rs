//! Requests and responses of APIs that are served by chat completions; see
//! [`inference_translation`].

use std::time::{Instant, SystemTime};

use bytes::Bytes;
use hyper::StatusCode;
use hyper::header::{self, HeaderMap, HeaderValue};
use inference_protocol::openai::{ErrorBody, ErrorDetail};
use inference_protocol::sse::payloads;
use inference_protocol::time::unix_seconds;
use inference_translation::{ClientApi, Origin, ResponseWriter, StreamFormat, Unreadable};

use super::drive::Next;
use super::forward::Whole;
use crate::types::api::RequestedApi;
use crate::types::error::Error;
use crate::types::random::random;
use crate::types::response;

/// The translation of one request's response.
#[derive(Debug)]
pub(crate) struct Translation {
    api: ClientApi,
    writer: ResponseWriter,
    /// When the request arrived.
    arrived: Instant,
}

/// What becomes of a request.
#[derive(Debug)]
pub(crate) enum Translated {
    /// An endpoint gets this body; its response is translated if need be.
    Request(Bytes, Option<Translation>),
    /// It needs no endpoint; the response.
    Reply(Vec<u8>),
}

/// The body of the request that endpoints get, and the translation of their response.
///
/// # Errors
/// The body asks for what cannot be translated, or becomes longer than `bytes_max`.
pub(crate) fn translate(
    api: RequestedApi,
    body: Bytes,
    bytes_max: usize,
    arrived: Instant,
) -> Result<Translated, Error> {
    let RequestedApi::Translated(api) = api else { return Ok(Translated::Request(body, None)) };
    let origin = Origin { random: random(), now: unix_seconds(SystemTime::now()) };
    if let Some(reply) = inference_translation::reply(api, &body, origin) {
        return Ok(Translated::Reply(reply));
    }
    let translated =
        inference_translation::translate(api, &body, origin).map_err(Error::Invalid)?;
    if translated.body.len() > bytes_max {
        return Err(Error::TooLarge(bytes_max));
    }
    let translation = Translation { api, writer: translated.writer, arrived };
    Ok(Translated::Request(translated.body.into(), Some(translation)))
}

const UNREADABLE: Error = Error::NodeAnswer("it is not a chat completion");

impl Translation {
    /// Translates a piece of the response. Refusals stay as they are, for [`Self::refusal`].
    pub(crate) fn piece(&mut self, piece: Next, is_streamed: bool) -> Result<Next, Error> {
        let unreadable = |Unreadable| UNREADABLE;
        self.writer.set_elapsed(self.arrived.elapsed());
        match piece {
            Next::Events(events) if is_streamed => self
                .writer
                .events(&events)
                .map(|events| Next::Events(events.into()))
                .map_err(unreadable),
            Next::Events(events) => {
                // A node's whole response is an event.
                let Some(completion) = payloads(&events).next() else { return Err(UNREADABLE) };
                self.writer.whole(completion).map(whole).map_err(unreadable)
            }
            Next::Whole(answer) if answer.status.is_success() => {
                self.writer.whole(&answer.body).map(whole).map_err(unreadable)
            }
            other => Ok(other),
        }
    }

    /// How the response is streamed.
    pub(crate) fn stream_format(&self) -> StreamFormat {
        self.writer.stream_format()
    }

    /// The body of an endpoint's refusal in the client's API.
    pub(crate) fn refusal(&self, refusal: &Whole, request_id: &str) -> String {
        self.api.error_body(refusal.status.as_u16(), &detail(refusal), Some(request_id))
    }

    /// The end of a stream that an endpoint refused after its head was sent.
    pub(crate) fn refusal_event(&mut self, refusal: &Whole) -> Bytes {
        self.writer.fail(refusal.status.as_u16(), &detail(refusal)).into()
    }

    /// The end of a stream that failed.
    pub(crate) fn error_event(&mut self, error: &Error) -> Bytes {
        self.writer.fail(error.status(), &response::error_detail(error)).into()
    }
}

fn whole(body: Vec<u8>) -> Next {
    let json = HeaderValue::from_static("application/json");
    let headers = HeaderMap::from_iter([(header::CONTENT_TYPE, json)]);
    Next::Whole(Box::new(Whole { status: StatusCode::OK, headers, body: body.into() }))
}

/// What an endpoint's refusal says.
fn detail(refusal: &Whole) -> ErrorDetail {
    let read = serde_json::from_slice::<ErrorBody>(&refusal.body);
    read.map_or_else(
        |_| response::error_detail(&Error::NodeRefused(refusal.status.as_u16())),
        |body| body.error,
    )
}
