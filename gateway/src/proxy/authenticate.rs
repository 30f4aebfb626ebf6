//! Stage 2: authenticate the caller. Still reads nothing of the body.

use std::sync::Arc;
use std::time::Instant;

use hyper::header::HeaderMap;

use super::accept::Received;
use super::deferral::Again;
use crate::access::keys::{Caller, Keys};
use crate::types::api::RequestedApi;
use crate::types::error::Error;
use crate::types::request_body::RequestBody;
use crate::types::request_context::RequestContext;

/// An authenticated request.
#[derive(Debug)]
pub(crate) struct Authenticated {
    /// What the log says about the request, with its id.
    pub context: Arc<RequestContext>,
    /// The API endpoint.
    pub api: RequestedApi,
    /// The model that the query string names, for requests without a body.
    pub query_model: Option<String>,
    /// Tenant and key.
    pub caller: Caller,
    /// When the head arrived.
    pub arrived: Instant,
    /// Request headers.
    pub headers: HeaderMap,
    /// The unread body.
    pub body: RequestBody,
    /// True if the key's limit of requests per minute has counted the request before.
    pub is_counted: bool,
    /// Set if the response was begun before.
    pub again: Option<Again>,
}

/// A caller that needs no API key.
#[derive(Debug)]
pub(crate) struct Known {
    /// Who it is.
    pub caller: Caller,
    /// True if the key's limit of requests per minute has counted the request before.
    pub is_counted: bool,
}

/// Finds the caller by the API key, unless it is `known` already. On an error, `leave` gets the
/// headers and the body.
pub(crate) fn authenticate(
    keys: &Keys,
    known: Option<Known>,
    received: Received,
    leave: impl FnOnce(HeaderMap, RequestBody),
) -> Result<Authenticated, Error> {
    let is_counted = known.as_ref().is_some_and(|known| known.is_counted);
    let known = known.map(|known| known.caller);
    let caller = known.map_or_else(|| keys.authenticate(&received.headers), Ok);
    match caller {
        Ok(caller) => Ok(Authenticated { is_counted, ..Authenticated::new(received, caller) }),
        Err(error) => {
            leave(received.headers, received.body);
            Err(error)
        }
    }
}

impl Authenticated {
    /// A new request of a caller.
    pub(crate) fn new(received: Received, caller: Caller) -> Self {
        let Received { context, api, query_model, arrived, headers, body } = received;
        let (is_counted, again) = (false, None);
        Self { context, api, query_model, caller, arrived, headers, body, is_counted, again }
    }
}
