//! A job: a request of any API, made until it has a final response.

use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use serde::Serialize;
use serde_json::value::RawValue;
use tokio::time::{Instant, sleep};

use super::One;
use crate::context::Gateway;
use crate::observability::metrics::BackgroundOutcome;
use crate::proxy::deferral::{CHECKPOINT_INTERVAL, LatestCheckpoint};
use crate::store::{BackgroundTask, Store, TaskInput};
use crate::tasks::asking::{Asked, Asking, TooLarge};
use crate::types::api::RequestedApi;
use crate::types::error::Error;
use crate::types::response;

/// The result of a job, as it is stored.
#[derive(Serialize)]
struct JobResult<'a> {
    status_code: u16,
    body: &'a RawValue,
}

/// Does a job, or what is left of it. `None` if the gateway stops.
pub(super) async fn run(
    one: &One,
    input: TaskInput,
    left: Duration,
) -> Option<(BackgroundOutcome, Vec<u8>)> {
    let One { gateway, store, task, live, .. } = one;
    let TaskInput { request, progress, .. } = input;
    let latest = Arc::new(LatestCheckpoint::new(one.checkpoint(progress), false));
    let Some(asking) = asking(gateway, task, latest.clone(), left) else {
        return Some(failed(&Error::KeyWrong));
    };
    // It waits or runs from here on, as readers at other gateways learn.
    if store.is_shared() {
        let _ = store.record_begin(&task.id).await;
    }
    let begin = || live.begin();
    let end = {
        let asked = asking.run(request.into(), begin, || gateway.metrics.record_task_retry());
        tokio::select! {
            asked = asked => End::Asked(asked),
            () = live.canceled() => End::Canceled,
            () = gateway.stop.cancelled() => End::Interrupted,
            never = save_regularly(store, task, &latest) => never,
        }
    };
    Some(match end {
        End::Asked(Ok(Asked { status, body, .. })) => (outcome_of(status), result(status, &body)),
        End::Asked(Err(TooLarge)) => failed(&Error::ResponseTooLarge(asking.bytes_max)),
        End::Canceled => (BackgroundOutcome::Canceled, b"null".to_vec()),
        End::Interrupted => {
            save(store, task, &latest).await;
            return None;
        }
    })
}

/// Why a job is no longer being done.
enum End {
    Asked(Result<Asked, TooLarge>),
    Canceled,
    Interrupted,
}

/// Stores how far a job is until it is dropped.
async fn save_regularly(store: &Store, task: &BackgroundTask, latest: &LatestCheckpoint) -> ! {
    loop {
        sleep(CHECKPOINT_INTERVAL).await;
        save(store, task, latest).await;
    }
}

/// Stores how far a job is. If that fails, more is made again.
async fn save(store: &Store, task: &BackgroundTask, latest: &LatestCheckpoint) {
    if let Some(progress) = latest.take() {
        let _ = store.record_progress(task, progress, None).await;
    }
}

/// `None` if the key or the API is gone.
fn asking(
    gateway: &Gateway,
    task: &BackgroundTask,
    latest: Arc<LatestCheckpoint>,
    left: Duration,
) -> Option<Asking> {
    let settings = gateway.settings.now();
    let caller = settings.keys.tenants().find(|caller| *caller.tenant == task.tenant)?.clone();
    let headers = task.headers.iter().filter_map(|(name, value)| {
        let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
        Some((name, HeaderValue::from_str(value).ok()?))
    });
    Some(Asking {
        gateway: gateway.clone(),
        caller,
        api: RequestedApi::at(&task.path)?,
        path: task.path.clone(),
        headers: HeaderMap::from_iter(headers),
        latest,
        expires: Instant::now() + left,
        bytes_max: settings.config.limits.response_bytes_max,
    })
}

fn outcome_of(status: StatusCode) -> BackgroundOutcome {
    match status.is_success() {
        true => BackgroundOutcome::Completed,
        false => BackgroundOutcome::Failed,
    }
}

fn failed(error: &Error) -> (BackgroundOutcome, Vec<u8>) {
    let status = StatusCode::from_u16(error.status()).unwrap_or_default();
    (BackgroundOutcome::Failed, result(status, response::error_body(error).to_json().as_bytes()))
}

/// A body that is no JSON is stored as a string.
fn result(status: StatusCode, body: &[u8]) -> Vec<u8> {
    let text = || {
        let text = String::from_utf8_lossy(body);
        serde_json::value::to_raw_value(&*text).ok()
    };
    let raw = serde_json::from_slice::<Box<RawValue>>(body).ok().or_else(text);
    let result = raw.and_then(|body| {
        serde_json::to_vec(&JobResult { status_code: status.as_u16(), body: &body }).ok()
    });
    result.unwrap_or_else(|| b"null".to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_has_the_body_as_it_was_sent() {
        let stored =
            |body: &str| String::from_utf8(result(StatusCode::OK, body.as_bytes())).unwrap();
        assert_eq!(
            stored(r#"{"b": 1,"a":[1.0]}"#),
            r#"{"status_code":200,"body":{"b": 1,"a":[1.0]}}"#
        );
        assert_eq!(stored("no \"JSON\""), r#"{"status_code":200,"body":"no \"JSON\""}"#);
        let (outcome, gone) = failed(&Error::KeyWrong);
        assert_eq!(outcome, BackgroundOutcome::Failed);
        assert!(gone.starts_with(br#"{"status_code":401,"body":{"error":"#));
    }
}
