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
    /// Set if the response was begun before.
    pub again: Option<Again>,
}

/// Finds the caller by the API key, unless it is `known` already. On an error, `leave` gets the
/// headers and the body.
pub(crate) fn authenticate(
    keys: &Keys,
    known: Option<Caller>,
    received: Received,
    leave: impl FnOnce(HeaderMap, RequestBody),
) -> Result<Authenticated, Error> {
    let caller = known.map_or_else(|| keys.authenticate(&received.headers), Ok);
    let Received { context, api, query_model, arrived, headers, body } = received;
    match caller {
        Ok(caller) => {
            let again = None;
            Ok(Authenticated { context, api, query_model, caller, arrived, headers, body, again })
        }
        Err(error) => {
            leave(headers, body);
            Err(error)
        }
    }
}
