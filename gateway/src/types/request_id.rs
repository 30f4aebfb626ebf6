//! Request ids: `x-request-id`, in and out.

use hyper::Response;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use inference_protocol::ids::{self, is_plain_id};

use super::random::random;
use crate::types::response::Body;

/// The header of the request's id, in and out.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// A request's id; a plain one. Cloning shares it.
#[derive(Debug, Clone)]
pub struct RequestId(HeaderValue);

impl RequestId {
    /// A request's own id, where it is a plain one, or a new one.
    pub fn of(headers: &HeaderMap) -> Self {
        let sent = headers.get(REQUEST_ID).and_then(|v| v.to_str().ok());
        match sent.filter(|id| is_plain_id(id)) {
            Some(id) => Self::new(id.into()),
            None => Self::new(ids::request_id(random())),
        }
    }

    /// A copy: what was received holds on to all that was received with it.
    fn new(id: String) -> Self {
        let unknown = HeaderValue::from_static("unknown");
        let mut value = HeaderValue::try_from(id).unwrap_or(unknown);
        // HTTP/2 would remember it for the connection, where it is never seen again.
        value.set_sensitive(true);
        Self(value)
    }

    /// As text.
    pub fn as_str(&self) -> &str {
        self.0.to_str().unwrap_or_default()
    }

    /// As a header's value.
    pub fn value(&self) -> HeaderValue {
        self.0.clone()
    }
}

/// Puts the request's id on its response.
pub fn mark(response: &mut Response<Body>, request_id: &RequestId) {
    response.headers_mut().insert(REQUEST_ID, request_id.value());
}
