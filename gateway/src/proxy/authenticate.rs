//! Stage 2: who asks. Still nothing of the body is read.

use std::time::Instant;

use hyper::body::Incoming;
use hyper::header::HeaderMap;

use super::accept::Received;
use crate::access::keys::{Caller, Keys};
use crate::types::api::Api;
use crate::types::error::Error;
use crate::types::request_id::RequestId;

/// A request whose sender is known.
#[derive(Debug)]
pub struct Authenticated {
    /// Its id.
    pub request_id: RequestId,
    /// Which endpoint.
    pub api: Api,
    /// Who asks.
    pub caller: Caller,
    /// When it arrived.
    pub arrived: Instant,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body, unread.
    pub body: Incoming,
}

/// Finds the tenant of a request, where it is not known already.
pub fn authenticate(
    keys: &Keys,
    known: Option<Caller>,
    received: Received,
) -> Result<Authenticated, Error> {
    let caller = known.map_or_else(|| keys.caller(&received.headers), Ok)?;
    let Received { request_id, api, arrived, headers, body } = received;
    Ok(Authenticated { request_id, api, caller, arrived, headers, body })
}
