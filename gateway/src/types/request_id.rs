//! Request ids: the `x-request-id` header of requests and responses. Anthropic's clients read
//! `request-id`.

use hyper::Response;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use inference_protocol::ids::{self, is_plain_id};
use inference_translation::messages::models as anthropic;

use super::random::random;
use crate::types::response::Body;

/// Header with the request id, in requests and responses.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// A well-formed request id. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct RequestId {
    value: HeaderValue,
    /// True if the response has it in Anthropic's header, too.
    is_anthropic: bool,
}

impl RequestId {
    /// The id that the client sent if it is well-formed, otherwise a new one.
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let sent = headers.get(REQUEST_ID).and_then(|v| v.to_str().ok());
        let value = match sent.filter(|id| is_plain_id(id)) {
            Some(id) => header_value(id.into()),
            None => header_value(ids::request_id(random())),
        };
        Self { value, is_anthropic: headers.contains_key(anthropic::VERSION_HEADER) }
    }

    /// The id as text.
    pub(crate) fn as_str(&self) -> &str {
        self.value.to_str().unwrap_or_default()
    }

    /// The id as a header value.
    pub(crate) fn value(&self) -> HeaderValue {
        self.value.clone()
    }
}

/// Copies the id: a received header value would keep the whole received buffer alive.
fn header_value(id: String) -> HeaderValue {
    let unknown = HeaderValue::from_static("unknown");
    let mut value = HeaderValue::try_from(id).unwrap_or(unknown);
    // Keeps HTTP/2 from adding it to the header table, where it is never used again.
    value.set_sensitive(true);
    value
}

/// Adds the request id to a response.
pub(crate) fn mark(response: &mut Response<Body>, request_id: &RequestId) {
    let headers = response.headers_mut();
    headers.insert(REQUEST_ID, request_id.value());
    if request_id.is_anthropic {
        headers.insert(anthropic::REQUEST_ID_HEADER, request_id.value());
    }
}
