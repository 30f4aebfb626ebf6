//! Responses and jobs in the background. Their requests are admitted as any other, and stored;
//! another task makes the response, in this process or in the next one ([`make`]).

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use hyper::Response;
use inference_protocol::openai::ParseError;
use inference_protocol::time::unix_seconds;
use inference_translation::store::Stored;
use serde_json::{Map, Value};

use super::accept::Received;
use super::account::Record;
use super::admit::{Admission, Admitted};
use super::authenticate::{Authenticated, Known};
use super::deferral::{Deferral, kept_headers};
use crate::access::keys::Caller;
use crate::context::Gateway;
use crate::context::settings::Settings;
use crate::scheduler::fleet::RouteConstraints;
use crate::store::{BackgroundTask, StoreError};
use crate::types::error::Error;
use crate::types::random::random;
use crate::types::response::{self, Body};
use crate::types::user::UserId;

/// The path of the Responses API.
const RESPONSES: &str = "/v1/responses";

mod events;
pub(crate) mod make;
mod streams;

pub(crate) use events::{live_events, past_events};
pub(crate) use streams::{EventId, ROOT};

/// Stores an admitted request, and returns the response that waits.
///
/// # Errors
/// The store cannot take it.
pub(crate) async fn defer(
    gateway: &Gateway,
    settings: &Settings,
    admitted: Admitted,
) -> Result<Response<Body>, Error> {
    let (store, limits) = gateway.store_of(settings)?;
    let Admitted { deferral, translation, user, tenant, model, external, .. } = admitted;
    let deferral = deferral.ok_or_else(|| Error::internal("no request to defer"))?;
    let (Some(background), Some(mut translation)) = (deferral.background, translation) else {
        let asked = (&tenant, user, model);
        return streams::defer(gateway, settings, *deferral, asked, external).await;
    };
    let queued = translation.enqueue();
    let (events, stored) = queued.ok_or_else(|| Error::internal("no response to defer"))?;
    let user = user.map(u64::from);
    let stored = stored.owned_by(user);
    let Deferral { request, headers, origin, is_bound, .. } = *deferral;
    let record = BackgroundTask {
        id: stored.id(),
        tenant: (*tenant).into(),
        created_at: origin.now,
        is_active: true,
        has_begun: false,
        bytes: 0,
        path: RESPONSES.into(),
        model,
        metadata: None,
        user,
        headers,
        is_streamed: background.is_streamed,
        is_bound,
        is_canceled: false,
    };
    let conversation = stored.to_json().ok_or_else(|| Error::internal("no JSON to store"))?;
    let (live, id) = (store.live(&record), record.id.clone());
    live.push(0, &events);
    let request = self_contained(&request, &stored)?;
    let inserted =
        store.insert_task(record, request, conversation, limits.background.per_tenant_max).await;
    inserted.map_err(refusal)?;
    match background.is_streamed {
        true => Ok(live_events(gateway, settings, &id, live, (0, false))),
        false => Ok(response::json(stored.response().to_vec())),
    }
}

fn refusal(error: StoreError) -> Error {
    match error {
        StoreError::TooMany(max) => Error::TooManyTasks(max),
        error => error.of(""),
    }
}

/// A request that is to be made in the background.
#[derive(Debug)]
pub(crate) struct JobRequest {
    /// The path of its API.
    pub path: String,
    /// Its body.
    pub body: Bytes,
    /// The client's notes.
    pub metadata: Option<Map<String, Value>>,
}

/// Admits the request of a job as any other, and stores it. Returns how long it would wait for a
/// slot now, if that can be predicted.
///
/// # Errors
/// The request is refused, or the store cannot take it.
pub(crate) async fn defer_job(
    gateway: &Gateway,
    settings: &Settings,
    received: Received,
    caller: Caller,
    job: JobRequest,
) -> Result<(BackgroundTask, Option<Duration>), Error> {
    let (store, limits) = gateway.store_of(settings)?;
    let mut record = Record::open(gateway, &received);
    let (tenant, kept) = (caller.tenant.clone(), kept_headers(&received.headers, &caller));
    let authenticated = Authenticated::new(received, Known { caller, again: None });
    let admitted = super::admit(gateway, settings, authenticated, &mut record).await;
    let checked = admitted.and_then(|admission| check_job(gateway, &admission));
    let Checked { user, model, wait } =
        checked.inspect_err(|error| record.record_failure(error))?;
    let task = BackgroundTask {
        id: format!("job_{:032x}", random()),
        tenant: (*tenant).into(),
        created_at: now(),
        is_active: true,
        has_begun: false,
        bytes: 0,
        path: job.path,
        model,
        metadata: job.metadata,
        user: user.map(u64::from),
        headers: kept,
        is_streamed: false,
        is_bound: false,
        is_canceled: false,
    };
    let request = job.body.to_vec();
    let max = limits.background.per_tenant_max;
    let inserted = store.insert_task(task.clone(), request, b"null".to_vec(), max).await;
    inserted.map_err(refusal).inspect_err(|error| record.record_failure(error))?;
    record.record_success(202, 0);
    Ok((task, wait))
}

/// What is known of an admitted request for a job.
#[derive(Default)]
struct Checked {
    user: Option<UserId>,
    /// Empty for a request that needs no endpoint.
    model: String,
    /// How long it would wait for a slot.
    wait: Option<Duration>,
}

fn check_job(gateway: &Gateway, admission: &Admission) -> Result<Checked, Error> {
    let invalid = |param: &str, message: &str| {
        Error::Invalid(ParseError { message: message.into(), param: Some(param.into()) })
    };
    let Admission::Request(admitted) = admission else { return Ok(Checked::default()) };
    if admitted.deferral.is_some() {
        return Err(invalid("body.background", "a job is in the background already"));
    }
    if admitted.is_streamed {
        return Err(invalid(
            "body.stream",
            "a job has its response in one piece: set stream to false",
        ));
    }
    let constraints =
        RouteConstraints { external: admitted.external, ..RouteConstraints::default() };
    let wait = gateway.dispatcher.predicted_wait(&admitted.slot_request(&constraints));
    Ok(Checked { user: admitted.user, model: admitted.model.clone(), wait })
}

/// The body of a request with its input as it was stored: without references to what may be gone
/// when the response is made.
fn self_contained(request: &[u8], stored: &Stored) -> Result<Vec<u8>, Error> {
    let mut fields: serde_json::Map<String, Value> =
        serde_json::from_slice(request).map_err(Error::internal)?;
    let input = serde_json::from_slice(stored.input()).map_err(Error::internal)?;
    fields.insert("input".into(), input);
    serde_json::to_vec(&fields).map_err(Error::internal)
}

/// Now, in seconds since 1970.
fn now() -> u64 {
    unix_seconds(SystemTime::now())
}
