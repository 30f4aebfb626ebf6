//! Stage 1: a request has arrived. It gets its id; nothing of its body is read.

use std::time::Instant;

use hyper::Request;
use hyper::body::Incoming;
use hyper::header::HeaderMap;

use crate::types::api::Api;
use crate::types::request_id::RequestId;

/// A request as it arrived.
#[derive(Debug)]
pub struct Received {
    /// Its id: the client's, where it is a plain one, or ours.
    pub request_id: RequestId,
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
    let request_id = RequestId::of(&head.headers);
    Received { request_id, api, arrived: Instant::now(), headers: head.headers, body }
}
