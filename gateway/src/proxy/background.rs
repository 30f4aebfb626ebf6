//! Responses in the background. Their requests are admitted as any other, and stored; another task
//! makes the response, in this process or in the next one ([`make`]).

use std::time::SystemTime;

use hyper::Response;
use inference_protocol::time::unix_seconds;
use inference_translation::store::Stored;
use serde_json::Value;

use super::admit::Admitted;
use super::deferral::Deferral;
use crate::context::Gateway;
use crate::context::settings::Settings;
use crate::store::{BackgroundResponse, StoreError};
use crate::types::error::Error;
use crate::types::response::{self, Body};

mod events;
pub(crate) mod make;

pub(crate) use events::live_events;

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
    let Admitted { deferral, translation, user, tenant, .. } = admitted;
    let (Some(deferral), Some(mut translation)) = (deferral, translation) else {
        return Err(Error::internal("no request to defer"));
    };
    let queued = translation.enqueue();
    let (events, stored) = queued.ok_or_else(|| Error::internal("no response to defer"))?;
    let user = user.map(u64::from);
    let stored = stored.owned_by(user);
    let Deferral { request, headers, origin, background } = *deferral;
    let record = BackgroundResponse {
        id: stored.id(),
        tenant: (*tenant).into(),
        created_at: origin.now,
        is_active: true,
        user,
        random: format!("{:x}", origin.random),
        headers,
        is_streamed: background.is_streamed,
        is_bound: background.has_logprobs,
        is_canceled: false,
    };
    let conversation = stored.to_json().ok_or_else(|| Error::internal("no JSON to store"))?;
    let live = store.live(&record);
    live.push(0, &events);
    let request = self_contained(&request, &stored)?;
    let inserted = store
        .insert_response(record, request, conversation, limits.background.per_tenant_max)
        .await;
    inserted.map_err(|error| match error {
        StoreError::TooMany(max) => Error::TooManyResponses(max),
        error => error.of(""),
    })?;
    match background.is_streamed {
        true => Ok(live_events(gateway, settings, live, 0)),
        false => Ok(response::json(stored.response().to_vec())),
    }
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
