//! Creates a message batch. Its requests pass through files, so that a batch of any size needs
//! little memory.

use std::time::{Duration, SystemTime};

use flotilla_listeners::request_body::{self, DISCARD_FIRST_MAX, announced_bytes};
use flotilla_listeners::request_head::is_encoded;
use hyper::Request;
use hyper::body::Incoming;
use hyper::header::HeaderMap;
use inference_protocol::time::unix_seconds;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::API;
use super::requests::{self, Rules};
use crate::access::keys::Caller;
use crate::config::store::StoreSettings;
use crate::server::files::{too_large, upload_time_max};
use crate::store::{Batch, BatchStatus, FileRecord, MESSAGES_PURPOSE, Store, Times, Upload};
use crate::types::error::Error;
use crate::types::random::random;

/// Most requests, as at Anthropic. The configuration may allow fewer.
const REQUESTS_MAX: usize = 100_000;
/// After how long a batch expires, as at Anthropic.
const WINDOW_S: u64 = 24 * 60 * 60;
/// The path of the API that requests call.
const ENDPOINT: &str = "/v1/messages";
/// Parts of the input on their way to the store.
const PARTS_MAX: usize = 2;

/// Limits of a batch.
pub(super) struct Bounds<'a> {
    pub(super) store: &'a StoreSettings,
    /// How long a client may send nothing.
    pub(super) stalls: Duration,
    /// Bytes of one request.
    pub(super) body_bytes_max: usize,
}

/// Stores the requests of a body and begins the batch, or stores nothing.
pub(super) async fn create(
    store: &Store,
    bounds: &Bounds<'_>,
    caller: &Caller,
    request: Request<Incoming>,
) -> Result<Batch, Error> {
    let _permit = caller.limiter.admit()?;
    let (head, mut body) = request.into_parts();
    let tenant = &*caller.tenant;
    let receiving = receive(store, bounds, tenant, &head.headers, &mut body);
    let received = timeout(upload_time_max(bounds.store, bounds.stalls), receiving).await;
    let received = match received.unwrap_or(Err(Error::SlowBody)) {
        Ok(received) => received,
        Err(error) => {
            // A client that still sends would see a connection reset instead of the response.
            request_body::discard(&head.headers, body, DISCARD_FIRST_MAX).await;
            return Err(error);
        }
    };
    let (lines, count) = convert(store, bounds, tenant, received).await?;
    begin(store, bounds.store, tenant, lines, count as u64).await
}

/// Writes the body into a file without a record.
async fn receive(
    store: &Store,
    bounds: &Bounds<'_>,
    tenant: &str,
    headers: &HeaderMap,
    body: &mut Incoming,
) -> Result<Upload, Error> {
    let bytes_max = bounds.store.file_bytes_max;
    if is_encoded(headers) {
        return Err(Error::EncodedBody);
    }
    announced_bytes(body, usize::try_from(bytes_max).unwrap_or(usize::MAX))?;
    let mut upload = store.upload(tenant).await.map_err(|error| error.of(""))?;
    loop {
        let next = timeout(bounds.stalls, request_body::next_part(body)).await;
        let Some(part) = next.map_err(|_| Error::SlowBody)?? else { return Ok(upload) };
        if upload.bytes() + part.len() as u64 > bytes_max {
            return Err(too_large(bounds.store));
        }
        upload.write(&part).await.map_err(|error| error.of(""))?;
    }
}

/// Writes the requests of a received body as lines of a batch, and counts them.
async fn convert(
    store: &Store,
    bounds: &Bounds<'_>,
    tenant: &str,
    mut received: Upload,
) -> Result<(Upload, usize), Error> {
    let source = received.reopen().await.map_err(|error| error.of(""))?;
    let requests_max = bounds.store.batches.lines_max.min(REQUESTS_MAX);
    let rules = Rules { requests_max, request_bytes_max: bounds.body_bytes_max };
    let (sender, mut parts) = mpsc::channel(PARTS_MAX);
    let reading = spawn_blocking(move || {
        requests::read(source, &rules, ENDPOINT, |part| sender.blocking_send(part).is_ok())
    });
    let mut lines = store.upload(tenant).await.map_err(|error| error.of(""))?;
    while let Some(part) = parts.recv().await {
        lines.write(&part).await.map_err(|error| error.of(""))?;
    }
    let count = reading.await.map_err(Error::internal)??;
    Ok((lines, count))
}

/// Gives the input its record, and begins the batch.
async fn begin(
    store: &Store,
    limits: &StoreSettings,
    tenant: &str,
    input: Upload,
    total: u64,
) -> Result<Batch, Error> {
    let now = unix_seconds(SystemTime::now());
    let times = Times { created_at: now, expires_at: now + WINDOW_S, ..Times::default() };
    let batch = Batch {
        id: API.new_id(random()),
        tenant: tenant.into(),
        endpoint: ENDPOINT.into(),
        input_file_id: input.id().into(),
        completion_window: "24h".into(),
        status: BatchStatus::Validating,
        errors: Vec::new(),
        output_file_id: None,
        error_file_id: None,
        output_age_s: limits.age_s_max,
        times,
        total,
        completed: 0,
        failed: 0,
        metadata: None,
    };
    let record = FileRecord {
        id: input.id().into(),
        name: format!("{}_input.jsonl", batch.id),
        purpose: MESSAGES_PURPOSE.into(),
        bytes: input.bytes(),
        created_at: now,
        // Nobody can read it after the batch.
        expires_at: now + WINDOW_S.min(limits.age_s_max),
    };
    let active_max = limits.batches.per_tenant_max;
    let created = store.insert_batch_with_input(batch, (input, record), active_max).await;
    let created = created.map_err(|error| error.of(""))?;
    tracing::info!(batch = created.id, requests = total, "message batch created");
    Ok(created)
}
