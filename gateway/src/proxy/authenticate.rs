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
    /// Set if the gateway makes the request itself. The key's limit of requests per minute has
    /// counted it before.
    pub again: Option<Again>,
}

/// A caller that needs no API key.
#[derive(Debug)]
pub(crate) struct Known {
    /// Who it is.
    pub caller: Caller,
    /// Set if the gateway makes the request itself.
    pub again: Option<Again>,
}

/// Finds the caller by the API key, unless it is `known` already. On an error, `leave` gets the
/// headers and the body.
pub(crate) fn authenticate(
    keys: &Keys,
    known: Option<Known>,
    received: Received,
    leave: impl FnOnce(HeaderMap, RequestBody),
) -> Result<Authenticated, Error> {
    let sent = || {
        let caller = keys.authenticate(&received.headers)?;
        Ok(Known { caller, again: None })
    };
    match known.map_or_else(sent, Ok) {
        Ok(known) => Ok(Authenticated::new(received, known)),
        Err(error) => {
            leave(received.headers, received.body);
            Err(error)
        }
    }
}

impl Authenticated {
    /// A request of a caller.
    pub(crate) fn new(received: Received, known: Known) -> Self {
        let Received { context, api, query_model, arrived, headers, body } = received;
        let Known { caller, again } = known;
        Self { context, api, query_model, caller, arrived, headers, body, again }
    }
}
