//! A request's way, on one screen:
//! accept -> authenticate -> admit -> route -> forward -> stream -> account.
//!
//! Each stage is one file and one verb. The record of the request is opened first and
//! completed by its Drop, at the end of the response's body, so that every request is
//! accounted for exactly once, however it ends. What becomes of an answer whose nodes fail is in
//! [`answer`].

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
pub mod answer;
pub mod authenticate;
pub mod forward;
pub mod route;
pub mod stream;

use account::Record;
use answer::Answer;

/// Answers a generation request.
pub async fn serve(gateway: Gateway, api: Api, request: Request<Incoming>) -> Response<Body> {
    let received = accept::accept(api, request);
    let request_id = received.request_id.clone();
    let mut record = Record::open(&gateway.metrics, api, &request_id);
    let mut limits = None;
    let admitted = admit(&gateway, received, &mut record, &mut limits).await;
    let answered = match admitted {
        Ok(admitted) => stream::stream(Box::new(Answer::new(gateway, admitted, record))).await,
        Err(error) => {
            record.fail(&error);
            Err(error)
        }
    };
    let mut response = answered.unwrap_or_else(|error| respond::error(&error));
    accept::mark(&mut response, &request_id);
    if let Some(limiter) = limits {
        limiter.mark(response.headers_mut());
    }
    response
}

async fn admit(
    gateway: &Gateway,
    received: accept::Received,
    record: &mut Record,
    limits: &mut Option<Arc<Limiter>>,
) -> Result<admit::Admitted, Error> {
    let authenticated = authenticate::authenticate(&gateway.keys, received)?;
    record.tenant(&authenticated.caller.tenant);
    let limiter = authenticated.caller.limiter.clone();
    *limits = Some(limiter.clone());
    let admitted = admit::admit(authenticated, &gateway.limits, &gateway.timeouts).await?;
    record.class(admitted.class);
    if gateway.quarantine.holds(&admitted.tenant, &admitted.body) {
        return Err(Error::Quarantined);
    }
    record.permit(limiter.admit(admitted.tokens)?);
    Ok(admitted)
}
