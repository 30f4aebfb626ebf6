//! Batches, as at OpenAI: `/v1/batches` and what is below it.

use std::time::SystemTime;

use flotilla_listeners::request_body::BodyLimits;
use hyper::body::Incoming;
use hyper::{Method, Request, Response};
use inference_protocol::openai::{ParseError, to_json};
use inference_protocol::time::unix_seconds;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::files::expiry;
use super::lists::{self, RecordPath, invalid};
use crate::access::keys::Caller;
use crate::config::store::StoreSettings;
use crate::context::Gateway;
use crate::control::only;
use crate::proxy::admit::read_body;
use crate::store::{Batch, BatchApi, BatchStatus, Store, StoreError, Times};
use crate::types::api::RequestedApi;
use crate::types::error::Error;
use crate::types::random::random;
use crate::types::response::{self, Body};

/// Most bytes of a request that creates a batch.
const CREATE_BYTES_MAX: usize = 64 * 1024;
const HOUR_S: u64 = 60 * 60;
/// Most hours of `completion_window`.
const WINDOW_H_MAX: u64 = 30 * 24;
/// Most pairs of `metadata`, and most characters of a key and a value, as at OpenAI.
const METADATA_MAX: (usize, usize, usize) = (16, 64, 512);
/// APIs that lines may call.
pub(crate) const ENDPOINTS: [&str; 6] = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/messages",
    "/v1/rerank",
    "/v1/responses",
];

/// The path of a request for batches.
pub(crate) fn path(path: &str) -> Option<RecordPath<'_>> {
    RecordPath::at(path, "/v1/batches", "cancel")
}

/// Handles a request for batches of the caller's tenant.
pub(crate) async fn serve(
    gateway: &Gateway,
    request: Request<Incoming>,
) -> Result<Response<Body>, Error> {
    let path = request.uri().path().to_string();
    let path = self::path(&path).ok_or(Error::UnknownPath)?;
    let methods = match path {
        RecordPath::All => "GET, POST",
        RecordPath::One(_) => "GET",
        RecordPath::Below(_) => "POST",
    };
    only(&request, methods)?;
    let settings = gateway.settings.now();
    let caller = settings.keys.authenticate(request.headers())?;
    let (store, limits) = gateway.store_of(&settings)?;
    let tenant = &*caller.tenant;
    let now = unix_seconds(SystemTime::now());
    let batch = match path {
        RecordPath::All if request.method() == Method::POST => {
            create(gateway, store, limits, &caller, request).await?
        }
        RecordPath::All => return list(store, tenant, request.uri().query()).await,
        RecordPath::One(id) => {
            check(id)?;
            store.batch(tenant, id).await.map_err(|error| error.of(id))?
        }
        RecordPath::Below(id) => {
            check(id)?;
            store.cancel_batch(tenant, id, now).await.map_err(|error| error.of(id))?
        }
    };
    Ok(response::json(to_json(&batch.view())))
}

/// Message batches are not seen here.
fn check(id: &str) -> Result<(), Error> {
    BatchApi::OpenAi.check(id).map_err(|error: StoreError| error.of(id))
}

async fn list(store: &Store, tenant: &str, query: Option<&str>) -> Result<Response<Body>, Error> {
    let page = lists::page(query, 20, 100)?;
    let after = page.after.clone().unwrap_or_default();
    check(&after)?;
    let listed = store.batches(tenant, BatchApi::OpenAi, page).await;
    let (batches, has_more) = listed.map_err(|error| error.of(&after))?;
    Ok(lists::response(batches.iter().map(Batch::view).collect(), has_more))
}

/// The body of a request that creates a batch.
#[derive(Deserialize)]
struct Create {
    input_file_id: String,
    endpoint: String,
    completion_window: String,
    metadata: Option<Map<String, Value>>,
    output_expires_after: Option<ExpiresAfter>,
}

#[derive(Deserialize)]
struct ExpiresAfter {
    seconds: u64,
}

async fn create(
    gateway: &Gateway,
    store: &Store,
    limits: &StoreSettings,
    caller: &Caller,
    request: Request<Incoming>,
) -> Result<Batch, Error> {
    let _permit = caller.limiter.admit()?;
    let (queue, class) = (caller.key.limits.queue, caller.key.class_max);
    let mut room = gateway.dispatcher.body_reservation(&caller.tenant, queue, class);
    let time_max = gateway.settings.now().config.timeouts.body;
    let bounds = BodyLimits { bytes_max: CREATE_BYTES_MAX, time_max };
    let (head, mut body) = request.into_parts();
    let body = read_body(&head.headers, &mut body, bounds, &mut room).await?;
    let asked: Create = serde_json::from_slice(&body).map_err(|error| {
        Error::Malformed(ParseError { message: format!("the request body: {error}"), param: None })
    })?;
    let batch = read(asked, limits, unix_seconds(SystemTime::now()), random())?;
    let file = store.file(&caller.tenant, &batch.input_file_id).await;
    file.map_err(|error| error.of(&batch.input_file_id))?;
    let batch = Batch { tenant: (*caller.tenant).into(), ..batch };
    let created = store.insert_batch(batch, limits.batches.per_tenant_max).await;
    let created = created.map_err(|error| error.of(""))?;
    tracing::info!(batch = created.id, endpoint = created.endpoint, "batch created");
    Ok(created)
}

/// The batch that is asked for.
fn read(asked: Create, limits: &StoreSettings, now: u64, random: u128) -> Result<Batch, Error> {
    let is_known = ENDPOINTS.contains(&asked.endpoint.as_str());
    if !is_known || RequestedApi::at(&asked.endpoint).is_none() {
        let expected = format!("expected one of {}", ENDPOINTS.join(", "));
        return Err(invalid("endpoint", &expected));
    }
    let window_s = window(&asked.completion_window)?;
    check_metadata(asked.metadata.as_ref())?;
    let output_age_s = match asked.output_expires_after {
        Some(after) => expiry(Some(after.seconds), "output_expires_after.seconds")?,
        None => limits.age_s_max,
    };
    let times = Times { created_at: now, expires_at: now + window_s, ..Times::default() };
    Ok(Batch {
        id: BatchApi::OpenAi.new_id(random),
        tenant: String::new(),
        endpoint: asked.endpoint,
        input_file_id: asked.input_file_id,
        completion_window: asked.completion_window,
        status: BatchStatus::Validating,
        errors: Vec::new(),
        output_file_id: None,
        error_file_id: None,
        output_age_s: output_age_s.min(limits.age_s_max),
        times,
        total: 0,
        completed: 0,
        failed: 0,
        metadata: asked.metadata,
    })
}

/// Seconds of a window such as `24h` or `7d`.
fn window(text: &str) -> Result<u64, Error> {
    let hours = match (text.strip_suffix('h'), text.strip_suffix('d')) {
        (Some(hours), _) => hours.parse().ok(),
        (_, Some(days)) => days.parse().ok().and_then(|days: u64| days.checked_mul(24)),
        _ => None,
    };
    let hours = hours.filter(|hours| (1..=WINDOW_H_MAX).contains(hours));
    let expected =
        || invalid("completion_window", "expected hours or days, such as 24h or 7d, up to 30d");
    hours.map(|hours| hours * HOUR_S).ok_or_else(expected)
}

pub(crate) fn check_metadata(metadata: Option<&Map<String, Value>>) -> Result<(), Error> {
    let (pairs_max, key_max, value_max) = METADATA_MAX;
    let pairs = metadata.into_iter().flatten();
    let is_right = |(key, value): (&String, &Value)| {
        let value = value.as_str();
        key.chars().count() <= key_max && value.is_some_and(|v| v.chars().count() <= value_max)
    };
    if metadata.is_some_and(|all| all.len() > pairs_max) || !pairs.into_iter().all(is_right) {
        let expected = format!(
            "expected at most {pairs_max} pairs of a key of up to {key_max} and a string of up to \
             {value_max} characters"
        );
        return Err(invalid("metadata", &expected));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_hours_or_days() {
        assert_eq!(window("24h").unwrap(), 24 * HOUR_S);
        assert_eq!(window("7d").unwrap(), 7 * 24 * HOUR_S);
        for wrong in ["", "24", "0h", "31d", "721h", "-1h", "h", "99999999999999999999d"] {
            assert!(window(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn every_endpoint_of_batches_is_an_api() {
        for endpoint in ENDPOINTS {
            assert!(RequestedApi::at(endpoint).is_some(), "{endpoint}");
        }
    }
}
