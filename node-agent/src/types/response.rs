//! Responses: the only place where an [`Error`] becomes HTTP.

use std::convert::Infallible;

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::header::{self, HeaderValue};
use hyper::{Response, StatusCode};
use inference_protocol::openai::{ErrorBody, ErrorDetail};

use crate::types::error::Error;

/// Body type of every response of the agent.
pub(crate) type Body = UnsyncBoxBody<Bytes, Infallible>;

/// A body from bytes that are all known.
pub(crate) fn whole(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).boxed_unsync()
}

/// A JSON response with status 200.
pub(crate) fn json(text: String) -> Response<Body> {
    json_with_status(StatusCode::OK, text)
}

/// A JSON response with this status.
pub(crate) fn json_with_status(status: StatusCode, text: String) -> Response<Body> {
    with_type(status, "application/json", text)
}

/// A plain text response with this status.
pub(crate) fn text(status: StatusCode, text: &'static str) -> Response<Body> {
    with_type(status, "text/plain; charset=utf-8", text)
}

/// A response with a whole body and its content type.
pub(crate) fn with_type(
    status: StatusCode,
    content_type: &'static str,
    body: impl Into<Bytes>,
) -> Response<Body> {
    with_type_and_body(status, content_type, whole(body))
}

/// A response with any body and its content type.
pub(crate) fn with_type_and_body(
    status: StatusCode,
    content_type: &'static str,
    body: Body,
) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// A response with a stream of server-sent events.
pub(crate) fn event_stream(body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Without this, nginx would buffer the events.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// The OpenAI-style body of an error.
pub(crate) fn error_body(error: &Error) -> ErrorBody {
    ErrorBody {
        error: ErrorDetail {
            message: error.to_string(),
            kind: error.kind().into(),
            param: error.param(),
            code: Some(error.code().into()),
        },
    }
}

/// Turns an error into a response.
pub(crate) fn error(error: &Error) -> Response<Body> {
    let status = StatusCode::from_u16(error.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = json_with_status(status, error_body(error).to_json());
    let headers = response.headers_mut();
    if let Some(seconds) = error.retry_after_seconds() {
        headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    match error {
        Error::Unauthenticated => {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        Error::Method(allowed) => {
            headers.insert(header::ALLOW, HeaderValue::from_static(allowed));
        }
        _ => {}
    }
    response
}
