//! Request ids: the `x-request-id` header of requests and responses.

use hyper::Response;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use inference_protocol::ids::{self, is_plain_id};

use super::random::random;
use crate::types::response::Body;

/// Header with the request id, in requests and responses.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// A well-formed request id. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct RequestId(HeaderValue);

impl RequestId {
    /// The id that the client sent if it is well-formed, otherwise a new one.
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let sent = headers.get(REQUEST_ID).and_then(|v| v.to_str().ok());
        match sent.filter(|id| is_plain_id(id)) {
            Some(id) => Self::new(id.into()),
            None => Self::new(ids::request_id(random())),
        }
    }

    /// Copies the id: a received header value would keep the whole received buffer alive.
    fn new(id: String) -> Self {
        let unknown = HeaderValue::from_static("unknown");
        let mut value = HeaderValue::try_from(id).unwrap_or(unknown);
        // Keeps HTTP/2 from adding it to the header table, where it is never used again.
        value.set_sensitive(true);
        Self(value)
    }

    /// The id as text.
    pub(crate) fn as_str(&self) -> &str {
        self.0.to_str().unwrap_or_default()
    }

    /// The id as a header value.
    pub(crate) fn value(&self) -> HeaderValue {
        self.0.clone()
    }
}

/// Adds the request id to a response.
pub(crate) fn mark(response: &mut Response<Body>, request_id: &RequestId) {
    response.headers_mut().insert(REQUEST_ID, request_id.value());
}
