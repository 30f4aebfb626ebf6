//! Stage 1: accept the request. Reads nothing of the body.

use std::sync::Arc;
use std::time::Instant;

use hyper::Request;
use hyper::body::Incoming;
use hyper::header::HeaderMap;

use crate::types::api::RequestedApi;
use crate::types::request_context::RequestContext;

/// A request as it arrived.
#[derive(Debug)]
pub(crate) struct Received {
    /// What the log says about the request, with its id.
    pub context: Arc<RequestContext>,
    /// The API endpoint.
    pub api: RequestedApi,
    /// When the head arrived.
    pub arrived: Instant,
    /// Request headers.
    pub headers: HeaderMap,
    /// The unread body.
    pub body: Incoming,
}

/// Accepts a request.
pub(crate) fn accept(
    context: Arc<RequestContext>,
    api: RequestedApi,
    request: Request<Incoming>,
) -> Received {
    let (head, body) = request.into_parts();
    Received { context, api, arrived: Instant::now(), headers: head.headers, body }
}
