//! Stage 1: accept the request and give it an id. Reads nothing of the body.

use std::time::Instant;

use hyper::Request;
use hyper::body::Incoming;
use hyper::header::HeaderMap;

use crate::types::api::Api;
use crate::types::request_id::RequestId;

/// A request as it arrived.
#[derive(Debug)]
pub(crate) struct Received {
    /// The client's request id if it is well-formed, otherwise ours.
    pub request_id: RequestId,
    /// The API endpoint.
    pub api: Api,
    /// When the head arrived.
    pub arrived: Instant,
    /// Request headers.
    pub headers: HeaderMap,
    /// The unread body.
    pub body: Incoming,
}

/// Accepts a request.
pub(crate) fn accept(api: Api, request: Request<Incoming>) -> Received {
    let (head, body) = request.into_parts();
    let request_id = RequestId::of(&head.headers);
    Received { request_id, api, arrived: Instant::now(), headers: head.headers, body }
}
