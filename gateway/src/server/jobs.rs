//! Jobs: requests of any API that are made in the background. `/v1/jobs` and what is below it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use flotilla_listeners::request_body::BodyLimits;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::{Method, Request, Response, StatusCode};
use inference_protocol::openai::{ParseError, to_json};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::batches::check_metadata;
use super::lists::{self, RecordPath, invalid};
use crate::access::keys::Caller;
use crate::access::responses::Reader;
use crate::context::Gateway;
use crate::context::settings::Settings;
use crate::control::only;
use crate::proxy::accept::Received;
use crate::proxy::admit::read_body;
use crate::proxy::background::{JobRequest, defer_job};
use crate::store::{BackgroundTask, Store, StoreError, TaskKind};
use crate::types::api::RequestedApi;
use crate::types::error::Error;
use crate::types::request_body::RequestBody;
use crate::types::request_context::RequestContext;
use crate::types::response::{self, Body};

const ROOT: &str = "/v1/jobs";
/// Bytes of a request for a job beside its body.
const ENVELOPE_BYTES_MAX: usize = 64 * 1024;

/// The path of a request for jobs.
pub(crate) fn path(path: &str) -> Option<RecordPath<'_>> {
    RecordPath::at(path, ROOT, "cancel")
}

/// The jobs that a client may see: those of its tenant, or of one user.
struct Jobs<'a> {
    store: &'a Store,
    tenant: &'a str,
    reader: Reader,
}

/// Handles a request for jobs of the caller's tenant.
pub(crate) async fn serve(
    gateway: &Gateway,
    context: Arc<RequestContext>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Error> {
    let path = request.uri().path().to_string();
    let path = self::path(&path).ok_or(Error::UnknownPath)?;
    let methods = match path {
        RecordPath::All => "GET, POST",
        RecordPath::One(_) => "GET, DELETE",
        RecordPath::Below(_) => "POST",
    };
    only(&request, methods)?;
    let settings = gateway.settings.now();
    let caller = settings.keys.authenticate(request.headers())?;
    let (store, _) = gateway.store_of(&settings)?;
    let reader = Reader::of(&caller, request.headers())?;
    let jobs = Jobs { store, tenant: &caller.tenant, reader };
    match path {
        RecordPath::All if request.method() == Method::POST => {
            let (task, wait) = create(gateway, &settings, context, &caller, request).await?;
            accepted(store, &task, wait).await
        }
        RecordPath::All => jobs.list(request.uri().query()).await,
        RecordPath::One(id) if request.method() == Method::DELETE => jobs.delete(id).await,
        RecordPath::One(id) => {
            let (task, result) = jobs.find(id).await?;
            jobs.show(&task, &result).await
        }
        RecordPath::Below(id) => jobs.cancel(id).await,
    }
}

/// The body of a request for a job.
#[derive(Deserialize)]
struct Create<'a> {
    url: String,
    #[serde(borrow)]
    body: &'a RawValue,
    metadata: Option<Map<String, Value>>,
}

async fn create(
    gateway: &Gateway,
    settings: &Settings,
    context: Arc<RequestContext>,
    caller: &Caller,
    request: Request<Incoming>,
) -> Result<(BackgroundTask, Option<Duration>), Error> {
    let (limits, time_max) = (&settings.config.limits, settings.config.timeouts.body);
    let (queue, class) = (caller.key.limits.queue, caller.key.class_max);
    let mut room = gateway.dispatcher.body_reservation(&caller.tenant, queue, class);
    let bounds = BodyLimits { bytes_max: limits.body_bytes_max + ENVELOPE_BYTES_MAX, time_max };
    let (head, mut body) = request.into_parts();
    let read = read_body(&head.headers, &mut body, bounds, &mut room).await?;
    let asked: Create<'_> = serde_json::from_slice(&read).map_err(|error| {
        Error::Malformed(ParseError { message: format!("the request body: {error}"), param: None })
    })?;
    check_metadata(asked.metadata.as_ref())?;
    let expected = || invalid("url", "expected the path of an API, such as /v1/chat/completions");
    let api = RequestedApi::at(&asked.url).ok_or_else(expected)?;
    let inner = Bytes::copy_from_slice(asked.body.get().as_bytes());
    let job = JobRequest { path: asked.url, body: inner.clone(), metadata: asked.metadata };
    drop(room);
    let received = Received {
        context,
        api,
        query_model: None,
        arrived: Instant::now(),
        // The length is that of the body around it.
        headers: without_length(head.headers),
        body: RequestBody::Own(Full::new(inner)),
    };
    defer_job(gateway, settings, received, caller.clone(), job).await
}

fn without_length(mut headers: hyper::HeaderMap) -> hyper::HeaderMap {
    for name in [hyper::header::CONTENT_LENGTH, hyper::header::TRANSFER_ENCODING] {
        headers.remove(name);
    }
    headers
}

/// The response to a request for a job. `wait`: what it would wait for a slot, were it the next.
async fn accepted(
    store: &Store,
    task: &BackgroundTask,
    wait: Option<Duration>,
) -> Result<Response<Body>, Error> {
    let before = store.tasks_before(task).await.map_err(|error| error.of(&task.id))?;
    let mut view = view(task, "queued", b"null");
    let start = wait.map(|wait| task.created_at + wait.as_secs());
    view["queue_position"] = before.into();
    view["predicted_start_at"] = json!(start);
    let mut response = response::json(to_json(&view));
    *response.status_mut() = StatusCode::ACCEPTED;
    Ok(response)
}

/// A job as clients see it.
fn view(task: &BackgroundTask, status: &str, result: &[u8]) -> Value {
    let response: Value = serde_json::from_slice(result).unwrap_or_default();
    json!({"id": task.id, "task_id": task.id, "object": "job", "status": status,
        "status_url": format!("{ROOT}/{}", task.id), "url": task.path,
        "created_at": task.created_at, "expires_at": task.expires_at(),
        "metadata": task.metadata, "response": response})
}

impl Jobs<'_> {
    async fn find(&self, id: &str) -> Result<(BackgroundTask, Vec<u8>), Error> {
        let found = self.store.task(self.tenant, id).await.map_err(|error| error.of(id))?;
        match (found.0.kind() == TaskKind::Job) && self.reader.sees_those_of(found.0.user) {
            true => Ok(found),
            false => Err(StoreError::Unknown.of(id)),
        }
    }

    /// The job with its status.
    fn view(&self, task: &BackgroundTask, result: &[u8]) -> Value {
        let has_begun = task.has_begun || self.store.live(task).has_begun();
        let is_success = || {
            let result: Value = serde_json::from_slice(result).unwrap_or_default();
            result["status_code"].as_u64().is_some_and(|status| (200..300).contains(&status))
        };
        let status = match (task.is_active, has_begun) {
            (true, true) => "in_progress",
            (true, false) => "queued",
            (false, _) if is_success() => "completed",
            (false, _) if task.is_canceled && result == b"null" => "cancelled",
            (false, _) => "failed",
        };
        view(task, status, result)
    }

    async fn show(&self, task: &BackgroundTask, result: &[u8]) -> Result<Response<Body>, Error> {
        let mut view = self.view(task, result);
        if task.is_active {
            let before = self.store.tasks_before(task).await;
            view["queue_position"] = before.map_err(|error| error.of(&task.id))?.into();
        }
        Ok(response::json(to_json(&view)))
    }

    async fn list(&self, query: Option<&str>) -> Result<Response<Body>, Error> {
        let page = lists::page(query, 20, 100)?;
        let after = page.after.clone().unwrap_or_default();
        let listed = self.store.jobs(self.tenant, page).await;
        let (jobs, has_more) = listed.map_err(|error| error.of(&after))?;
        let seen = jobs.iter().filter(|(task, _)| self.reader.sees_those_of(task.user));
        // Whole responses may be long: each is shown by its own path.
        let views = seen.map(|(task, result)| {
            let mut view = self.view(task, result);
            if let Value::Object(view) = &mut view {
                view.remove("response");
            }
            view
        });
        Ok(lists::response(views.collect(), has_more))
    }

    async fn cancel(&self, id: &str) -> Result<Response<Body>, Error> {
        let (task, _) = self.find(id).await?;
        if task.is_active {
            self.store.end_task(&task).await.map_err(|error| error.of(id))?;
        } else if !task.is_canceled {
            return Err(Error::BatchFinished(id.into()));
        }
        let (task, result) = self.find(id).await?;
        self.show(&task, &result).await
    }

    async fn delete(&self, id: &str) -> Result<Response<Body>, Error> {
        let (task, _) = self.find(id).await?;
        let live = self.store.live(&task);
        self.store.delete_task(self.tenant, id).await.map_err(|error| error.of(id))?;
        live.cancel();
        Ok(response::json(to_json(&json!({"id": id, "object": "job", "deleted": true}))))
    }
}
