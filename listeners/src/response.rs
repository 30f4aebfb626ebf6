//! Builds responses. Each program renders its own errors: the body is
//! `inference_protocol::openai::ErrorBody`, the rest is [`json_error`].

use std::convert::Infallible;

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};

const ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");
const JSON: &str = "application/json";

/// Body of every response.
pub type Body = UnsyncBoxBody<Bytes, Infallible>;

/// Initial capacity for headers, so that the map is allocated once.
const HEADERS: usize = 12;

/// A body in one piece.
pub fn whole(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).boxed_unsync()
}

/// A 200 response with capacity for headers.
pub fn response(body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    response.headers_mut().reserve(HEADERS);
    response
}

/// A 200 response with JSON.
pub fn json(text: impl Into<Bytes>) -> Response<Body> {
    json_with_status(StatusCode::OK, text)
}

/// A JSON response with this status.
pub fn json_with_status(status: StatusCode, text: impl Into<Bytes>) -> Response<Body> {
    with_type(status, JSON, text)
}

/// A plain text response.
pub fn text(status: StatusCode, text: &'static str) -> Response<Body> {
    with_type(status, "text/plain; charset=utf-8", text)
}

/// A response in one piece with this content type.
pub fn with_type(
    status: StatusCode,
    content_type: &'static str,
    body: impl Into<Bytes>,
) -> Response<Body> {
    with_type_and_body(status, content_type, whole(body))
}

/// A response with any body and its content type.
pub fn with_type_and_body(
    status: StatusCode,
    content_type: &'static str,
    body: Body,
) -> Response<Body> {
    let mut response = response(body);
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// A response with the headers of an event stream.
pub fn event_stream(body: Body) -> Response<Body> {
    stream("text/event-stream", body)
}

/// A response with the headers of a stream with this content type.
pub fn stream(content_type: &'static str, body: Body) -> Response<Body> {
    let mut response = with_type_and_body(StatusCode::OK, content_type, body);
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Otherwise nginx would buffer the events.
    headers.insert(ACCEL_BUFFERING, HeaderValue::from_static("no"));
    response
}

/// The response for an error, with its JSON body. An invalid `status` becomes 500.
pub fn json_error(status: u16, body: String) -> Response<Body> {
    json_with_status(
        StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
        body,
    )
}

/// Adds the header that a 401 needs: which authentication the server expects.
pub fn require_bearer(headers: &mut HeaderMap) {
    headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
}

/// Adds the header that a 415 needs: the encodings of request bodies that the server accepts.
pub fn refuse_encodings(headers: &mut HeaderMap) {
    headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
}

/// Adds the header that a 405 needs: the methods that the path supports, separated by commas.
pub fn allow_methods(headers: &mut HeaderMap, methods: &'static str) {
    headers.insert(header::ALLOW, HeaderValue::from_static(methods));
}
