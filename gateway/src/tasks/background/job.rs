//! A job: a request of any API, made until it has a final response.

use std::time::Duration;

use hyper::StatusCode;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use serde::Serialize;
use serde_json::value::RawValue;
use tokio::time::Instant;

use crate::context::Gateway;
use crate::observability::metrics::BackgroundOutcome;
use crate::store::{BackgroundTask, Live};
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

/// Does a job. `None` if the gateway stops.
pub(super) async fn run(
    gateway: &Gateway,
    task: &BackgroundTask,
    live: &Live,
    request: Vec<u8>,
    left: Duration,
) -> Option<(BackgroundOutcome, Vec<u8>)> {
    let Some(asking) = asking(gateway, task, left) else {
        return Some(failed(&Error::KeyWrong));
    };
    // It waits or runs from here on, as readers at other gateways learn.
    if let Some(store) = gateway.store.as_ref().filter(|store| store.is_shared()) {
        let _ = store.record_begin(&task.id).await;
    }
    let begin = || live.begin();
    let asked = asking.run(request.into(), begin, || gateway.metrics.record_task_retry());
    let asked = tokio::select! {
        asked = asked => asked,
        () = live.canceled() => return Some((BackgroundOutcome::Canceled, b"null".to_vec())),
        () = gateway.stop.cancelled() => return None,
    };
    Some(match asked {
        Ok(Asked { status, body, .. }) => (outcome_of(status), result(status, &body)),
        Err(TooLarge) => failed(&Error::ResponseTooLarge(asking.bytes_max)),
    })
}

/// `None` if the key or the API is gone.
fn asking(gateway: &Gateway, task: &BackgroundTask, left: Duration) -> Option<Asking> {
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
