//! A request's way, on one screen:
//! accept -> authenticate -> admit -> route -> forward -> stream -> account.
//!
//! Each stage is one file and one verb. The record of the request is opened first and
//! completed by its Drop, at the end of the response's body, so that every request is
//! accounted for exactly once, however it ends. This is the only retry loop.

use std::sync::Arc;

use hyper::body::Incoming;
use hyper::{Request, Response};

use crate::api::Api;
use crate::app::Gateway;
use crate::error::Error;
use crate::limiter::Limiter;
use crate::respond::{self, Body};

pub mod accept;
pub mod account;
pub mod admit;
pub mod authenticate;
pub mod forward;
pub mod route;
pub mod stream;

use account::Record;

/// Answers a generation request.
pub async fn serve(gateway: Gateway, api: Api, request: Request<Incoming>) -> Response<Body> {
    let received = accept::accept(api, request);
    let request_id = received.request_id.clone();
    let mut record = Record::open(&gateway.metrics, api, &request_id);
    let mut limits = None;
    let mut response = match answer(&gateway, received, &mut record, &mut limits).await {
        Ok(forwarded) => stream::stream(forwarded, record, &gateway),
        Err(error) => {
            record.fail(&error);
            respond::error(&error)
        }
    };
    accept::mark(&mut response, &request_id);
    if let Some(limiter) = limits {
        limiter.mark(response.headers_mut());
    }
    response
}

async fn answer(
    gateway: &Gateway,
    received: accept::Received,
    record: &mut Record,
    limits: &mut Option<Arc<Limiter>>,
) -> Result<forward::Forwarded, Error> {
    let authenticated = authenticate::authenticate(&gateway.keys, received)?;
    record.tenant(&authenticated.caller.tenant);
    let limiter = authenticated.caller.limiter.clone();
    *limits = Some(limiter.clone());
    let admitted = admit::admit(authenticated, &gateway.limits, &gateway.timeouts).await?;
    record.class(admitted.class);
    record.permit(limiter.admit(admitted.tokens)?);
    let (mut tried, mut failure) = (Vec::new(), None);
    loop {
        let lease = match route::route(&gateway.dispatcher, &admitted, &tried).await {
            Ok(lease) => lease,
            // No other node took it: what the last one said tells more.
            Err(error) => return Err(failure.unwrap_or(error)),
        };
        record.routed(&admitted.model, lease.node());
        let attempt = lease.attempt();
        match forward::forward(lease, &admitted, &gateway.limits, &gateway.timeouts).await {
            Err(error) if error.is_retryable() && tried.len() < gateway.retries_max => {
                record.retried(&error);
                tried.push(attempt);
                failure = Some(error);
            }
            outcome => return outcome,
        }
    }
}
