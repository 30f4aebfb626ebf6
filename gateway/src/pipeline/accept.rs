//! Stage 1: a request has arrived. It gets its id; nothing of its body is read.

use std::time::Instant;

use hyper::body::Incoming;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::{Request, Response};
use inference_protocol::ids::{self, is_plain_id};

use crate::api::Api;
use crate::respond::Body;

/// The header of the request's id, in and out.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// A request as it arrived.
#[derive(Debug)]
pub struct Received {
    /// Its id: the client's, where it is a plain one, or ours.
    pub request_id: String,
    /// Which endpoint.
    pub api: Api,
    /// When.
    pub arrived: Instant,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body, unread.
    pub body: Incoming,
}

/// Takes a request in.
pub fn accept(api: Api, request: Request<Incoming>) -> Received {
    let (head, body) = request.into_parts();
    let request_id = request_id(&head.headers);
    Received { request_id, api, arrived: Instant::now(), headers: head.headers, body }
}

/// The id of a request: the client's, where it is a plain one, or a new one.
pub fn request_id(headers: &HeaderMap) -> String {
    let sent = headers.get(REQUEST_ID).and_then(|v| v.to_str().ok());
    sent.filter(|id| is_plain_id(id)).map_or_else(|| ids::request_id(crate::random()), Into::into)
}

/// Puts the request's id on its response.
pub fn mark(response: &mut Response<Body>, request_id: &str) {
    if let Ok(value) = HeaderValue::from_str(request_id) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
}
