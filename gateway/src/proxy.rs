//! The path of a request on one screen: accept -> authenticate -> admit -> route -> forward ->
//! stream -> account.
//!
//! Each stage is one file and one verb. The record of a request is opened first, and its Drop
//! completes it at the end of the response body. So every request is accounted for exactly once,
//! however it ends. [`drive`] runs routing, forwarding, and streaming as
//! [`crate::scheduler::attempts`] decides.

use std::sync::Arc;

use flotilla_listeners::request_body::{self, DISCARD_FIRST_MAX};
use http_body::Body as _;
use hyper::header::{HeaderMap, HeaderName};
use hyper::{Request, Response};

use crate::context::Gateway;
use crate::context::settings::Settings;
use crate::observability::traces::{self, Arrival};
use crate::types::api::RequestedApi;
use crate::types::error::Error;
use crate::types::header::HeaderWriter;
use crate::types::request_body::RequestBody;
use crate::types::request_context::RequestContext;
use crate::types::response::{self, Body};

pub(crate) mod accept;
pub(crate) mod account;
pub(crate) mod admit;
pub(crate) mod authenticate;
pub(crate) mod background;
mod budget;
pub(crate) mod deferral;
pub(crate) mod drive;
pub(crate) mod forward;
pub(crate) mod route;
pub(crate) mod split;
pub(crate) mod stored;
pub(crate) mod stream;
pub(crate) mod translation;

use crate::dispatcher::BudgetReservation;
use crate::types::user::UserId;
use account::Record;
use admit::Admission;
use authenticate::{Authenticated, Known};
use drive::Drive;

/// Milliseconds until the response began. OpenAI uses the same header.
const PROCESSING: HeaderName = HeaderName::from_static("openai-processing-ms");

/// Longest body that is read of a client without a valid key, so that it sees why it is refused
/// and may use the connection again. A longer one closes the connection.
const UNKNOWN_BYTES_MAX: u64 = 1024 * 1024;

/// Serves an inference request. A `known` caller needs no API key: an operator has authenticated
/// with another key.
pub(crate) async fn serve(
    gateway: Gateway,
    context: Arc<RequestContext>,
    api: RequestedApi,
    request: Request<impl Into<RequestBody>>,
    known: Option<Known>,
) -> Response<Body> {
    let settings = gateway.settings.now();
    let traces = settings.config.traces.as_ref();
    let traces = traces.map(|to| (to, Arrival::now(request.headers())));
    let received = accept::accept(context.clone(), api, request.map(Into::into));
    let arrived = received.arrived;
    let mut record = Record::open(&gateway, &received);
    let caller = authenticate::authenticate(&settings.keys, known, received, |headers, body| {
        if body.size_hint().upper().is_some_and(|bytes| bytes <= UNKNOWN_BYTES_MAX) {
            discard_later(&gateway, &settings, headers, body);
        }
    });
    let may_force = caller.as_ref().is_ok_and(|known| known.caller.key.force_trace);
    let trace = traces.and_then(|(to, arrival)| traces::start(to, arrival, may_force));
    record.set_trace(trace.map(|trace| (trace, gateway.spans.clone())));
    let limits = caller.as_ref().ok().map(|known| known.caller.limiter.clone());
    let admitted = match caller {
        Ok(authenticated) => admit(&gateway, &settings, authenticated, &mut record).await,
        Err(error) => Err(error),
    };
    let answered = match admitted {
        Ok(Admission::Reply(reply)) => {
            record.record_success(200, reply.len());
            Ok(response::json(reply))
        }
        Ok(Admission::Request(admitted)) if admitted.deferral.is_some() => {
            let deferred = background::defer(&gateway, &settings, admitted).await;
            record.record_end(&deferred);
            deferred
        }
        Ok(Admission::Request(admitted)) => match split::plan(&gateway, &admitted, &mut record) {
            Some(plan) => split::serve(gateway, settings, admitted, record, plan).await,
            None => {
                let drive = Drive::new(gateway, settings, admitted, record);
                stream::stream(Box::new(drive)).await
            }
        },
        Err(error) => {
            record.record_failure(&error);
            Err(error)
        }
    };
    let mut response =
        answered.unwrap_or_else(|error| response::error_for(api, &error, context.id().as_str()));
    let (headers, mut values) = (response.headers_mut(), HeaderWriter::default());
    headers.insert(PROCESSING, values.write(arrived.elapsed().as_millis()));
    if let Some(limiter) = limits {
        limiter.add_headers(headers, &mut values);
    }
    response
}

/// Applies the limits of the key. Those that depend only on the head are applied before the body is
/// read.
pub(crate) async fn admit(
    gateway: &Gateway,
    settings: &Settings,
    mut authenticated: Authenticated,
    record: &mut Record,
) -> Result<Admission, Error> {
    record.set_tenant(&authenticated.caller.tenant);
    let entered = enter(gateway, &authenticated, record);
    let admitted = match entered {
        Ok(()) => admit::admit(&mut authenticated, &settings.config, gateway).await,
        Err(error) => Err(error),
    };
    let mut admitted = match admitted {
        Ok(Admission::Request(admitted)) => admitted,
        Ok(reply) => return Ok(reply),
        Err(error) => {
            discard(gateway, settings, authenticated, &error).await;
            return Err(error);
        }
    };
    record.set_class(admitted.class);
    if let Some(user) = admitted.user.filter(|_| !record.has_user()) {
        enter_user(gateway, &authenticated, user, record)?;
    }
    if gateway.quarantine.contains(&admitted.tenant, &admitted.body) {
        return Err(Error::Quarantined);
    }
    record.reserve(&admitted)?;
    let reserved = budget::reserve(gateway, &authenticated.caller, &admitted).await?;
    admitted.usage = admitted.usage.within(reserved.as_ref().map(BudgetReservation::tokens));
    record.set_budget(reserved, admitted.usage, authenticated.again.is_none());
    Ok(Admission::Request(admitted))
}

/// Reads the rest of a refused request's body, in the background or before the response.
async fn discard(gateway: &Gateway, settings: &Settings, refused: Authenticated, error: &Error) {
    let Authenticated { headers, body, .. } = refused;
    if admit::is_read_first(error, &body) {
        return request_body::discard(&headers, body, DISCARD_FIRST_MAX).await;
    }
    discard_later(gateway, settings, headers, body);
}

/// Reads the rest of a body in the background.
pub(crate) fn discard_later(
    gateway: &Gateway,
    settings: &Settings,
    headers: HeaderMap,
    body: RequestBody,
) {
    let (stop, time) = (gateway.stop.clone(), settings.config.timeouts.body);
    gateway.tasks.spawn(async move {
        stop.run_until_cancelled(request_body::discard(&headers, body, time)).await;
    });
}

/// Claims the limits of the key, after those of its user if the head names the user: what a user is
/// refused does not count for the key.
fn enter(
    gateway: &Gateway,
    authenticated: &Authenticated,
    record: &mut Record,
) -> Result<(), Error> {
    let Authenticated { caller, headers, again, .. } = authenticated;
    if let Some(user) = caller.user_of_head(headers)? {
        enter_user(gateway, authenticated, user, record)?;
    }
    gateway.dispatcher.check_budget(&caller.tenant, &caller.key.budget)?;
    record.set_permit(match again {
        None => caller.limiter.admit()?,
        Some(_) => caller.limiter.admit_again()?,
    });
    Ok(())
}

/// Claims the limits of a user of the key.
fn enter_user(
    gateway: &Gateway,
    authenticated: &Authenticated,
    user: UserId,
    record: &mut Record,
) -> Result<(), Error> {
    let Authenticated { caller, again, .. } = authenticated;
    let policy = &caller.key.users;
    record.set_user(user, policy);
    gateway.dispatcher.check_user_budget(&caller.tenant, user, &policy.budget)?;
    let entered = match again {
        None => caller.users.enter(user),
        Some(_) => caller.users.enter_again(user),
    };
    gateway.metrics.record_users(&caller.tenant, &entered);
    record.set_user_permit(entered.permit?);
    Ok(())
}
