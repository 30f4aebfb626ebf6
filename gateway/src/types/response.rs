//! Builds responses. The only place where an [`Error`] becomes HTTP or a final event.

use std::convert::Infallible;

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};
use inference_protocol::openai::{ErrorBody, ErrorDetail};
use inference_protocol::sse;

use crate::types::error::Error;

/// Retry delay in milliseconds; OpenAI's SDKs prefer it over `Retry-After`.
const RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");

const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");
const ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

/// Body of every response.
pub(crate) type Body = UnsyncBoxBody<Bytes, Infallible>;

/// A body in one piece.
pub(crate) fn whole(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).boxed_unsync()
}

/// Initial capacity for headers, so that the map is allocated once.
const HEADERS: usize = 12;

/// A 200 response with capacity for headers.
pub(crate) fn response(body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    response.headers_mut().reserve(HEADERS);
    response
}

/// A 200 response with JSON.
pub(crate) fn json(text: impl Into<Bytes>) -> Response<Body> {
    with_type(StatusCode::OK, "application/json", text)
}

/// A plain text response.
pub(crate) fn text(status: StatusCode, text: &'static str) -> Response<Body> {
    with_type(status, "text/plain; charset=utf-8", text)
}

/// A response in one piece with this content type.
pub(crate) fn with_type(
    status: StatusCode,
    content_type: &'static str,
    body: impl Into<Bytes>,
) -> Response<Body> {
    let mut response = response(whole(body));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// A response with the headers of an event stream.
pub(crate) fn event_stream(body: Body) -> Response<Body> {
    let mut response = response(body);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Otherwise nginx would buffer the events.
    headers.insert(ACCEL_BUFFERING, HeaderValue::from_static("no"));
    response
}

/// The response for an error.
pub(crate) fn error(error: &Error) -> Response<Body> {
    let status = StatusCode::from_u16(error.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = with_type(status, "application/json", error_body(error).to_json());
    let headers = response.headers_mut();
    if let Some(after) = error.retry_after() {
        headers.insert(header::RETRY_AFTER, (after.as_secs_f64().ceil() as u64).into());
        headers.insert(RETRY_AFTER_MS, (after.as_millis() as u64).into());
    }
    match error {
        Error::KeyMissing | Error::KeyWrong | Error::JoinKeyWrong | Error::AdminKeyWrong => {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        // OpenAI's SDKs retry other 429s.
        Error::Quota(_) => {
            headers.insert(SHOULD_RETRY, HeaderValue::from_static("false"));
        }
        Error::Method(allowed) => {
            headers.insert(header::ALLOW, HeaderValue::from_static(allowed));
        }
        _ => {}
    }
    response
}

/// The final event of a stream that fails after its head. No `[DONE]` follows, because a broken
/// stream must not look complete.
pub(crate) fn error_event(error: &Error) -> Bytes {
    Bytes::from(sse::data(&error_body(error).to_json()))
}

fn error_body(error: &Error) -> ErrorBody {
    // The node knows which parameter is invalid, and why.
    if let Error::Unanswerable(told) = error {
        return ErrorBody { error: (**told).clone() };
    }
    ErrorBody {
        error: ErrorDetail {
            message: error.to_string(),
            kind: error.kind().into(),
            param: error.param(),
            code: Some(error.code().into()),
        },
    }
}
