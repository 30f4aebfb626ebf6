//! One line of a batch: a request of its tenant, repeated until it has a final response.

use std::net::{IpAddr, Ipv4Addr};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use futures_util::poll;
use http_body_util::{BodyExt, Full, Limited};
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{Request, Response, StatusCode};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::gate::Starting;
use super::input::Line;
use crate::access::keys::Caller;
use crate::context::Gateway;
use crate::proxy;
use crate::server::guards::panics::confine;
use crate::types::api::RequestedApi;
use crate::types::random::random;
use crate::types::request_body::RequestBody;
use crate::types::request_context::RequestContext;
use crate::types::response::Body;

const CLASS: HeaderName = HeaderName::from_static("x-flotilla-class");
const DEADLINE: HeaderName = HeaderName::from_static("x-flotilla-deadline-ms");
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// How long a request waits for an endpoint before it is made again: one whose only node has failed
/// it waits for another one until then.
const DEADLINE_MAX: Duration = Duration::from_secs(10 * 60);
/// Pauses between attempts double from the first to the last.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// What becomes of a line: whether it goes into the error file, and its text there.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Outcome {
    pub(super) is_error: bool,
    pub(super) text: Vec<u8>,
}

impl Outcome {
    /// A line that got no response.
    pub(super) fn without_response(custom_id: &str, code: &str, message: &str) -> Self {
        let error = json!({"code": code, "message": message});
        Self::new(custom_id, true, None, &error)
    }

    fn new(custom_id: &str, is_error: bool, response: Option<Value>, error: &Value) -> Self {
        let id = format!("batch_req_{:032x}", random());
        let line = json!({"id": id, "custom_id": custom_id, "response": response, "error": error});
        let mut text = line.to_string().into_bytes();
        text.push(b'\n');
        Self { is_error, text }
    }
}

/// What a line needs to be run.
pub(super) struct Runner {
    pub(super) gateway: Gateway,
    pub(super) caller: Caller,
    pub(super) api: RequestedApi,
    pub(super) endpoint: String,
    /// When the batch must have ended.
    pub(super) expires: Instant,
    /// Most bytes of a response.
    pub(super) bytes_max: usize,
}

impl Runner {
    /// Asks until there is a final response. The caller stops it when the batch expires.
    pub(super) async fn run(self, line: Line, starting: Starting) -> Outcome {
        let (mut pause, pause_max) = PAUSES;
        let mut starting = Some(starting);
        let body = Bytes::from(line.body);
        loop {
            let mut asking = pin!(self.ask(body.clone()));
            // Asked once, it has its slot, or waits for one.
            let response = match poll!(&mut asking) {
                Poll::Ready(response) => response,
                Poll::Pending => {
                    drop(starting.take());
                    asking.await
                }
            };
            drop(starting.take());
            let asked_pause = retry_after(&response);
            let (head, body) = response.into_parts();
            #[expect(clippy::disallowed_methods, reason = "it is limited")]
            let read = Limited::new(body, self.bytes_max).collect().await;
            let Ok(read) = read.map(|body| body.to_bytes()) else {
                let why = "the response is too large";
                return Outcome::without_response(&line.custom_id, "response_too_large", why);
            };
            if !is_temporary(head.status, &read) {
                let request_id = head.headers.get(REQUEST_ID).and_then(|id| id.to_str().ok());
                return outcome(&line.custom_id, head.status, request_id, &read);
            }
            self.gateway.metrics.record_batch_retry();
            // Half to all of it, so that lines that failed together are not repeated together.
            let half = pause.max(asked_pause).min(pause_max) / 2;
            sleep(half + half.mul_f64(f64::from(random() as u16) / f64::from(u16::MAX))).await;
            pause = (pause * 2).min(pause_max);
        }
    }

    async fn ask(&self, body: Bytes) -> Response<Body> {
        let left = self.expires.saturating_duration_since(Instant::now());
        let left = left.clamp(Duration::from_millis(1), DEADLINE_MAX);
        let mut request = Request::new(RequestBody::Own(Full::new(body)));
        *request.method_mut() = hyper::Method::POST;
        if let Ok(uri) = self.endpoint.parse() {
            *request.uri_mut() = uri;
        }
        let headers = request.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(CLASS, HeaderValue::from_static("batch"));
        headers.insert(DEADLINE, (left.as_millis() as u64).into());
        let client = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        let context = RequestContext::open(client, request.headers());
        let (gateway, caller) = (self.gateway.clone(), self.caller.clone());
        let served = proxy::serve(gateway, context.clone(), self.api, request, Some(caller));
        confine(context, served).await
    }
}

fn retry_after(response: &Response<Body>) -> Duration {
    let seconds = response.headers().get(header::RETRY_AFTER).and_then(|value| value.to_str().ok());
    Duration::from_secs(seconds.and_then(|seconds| seconds.parse().ok()).unwrap_or_default())
}

#[derive(Deserialize)]
struct Refused {
    error: Option<Code>,
}

#[derive(Deserialize)]
struct Code {
    code: Option<String>,
}

/// True if the same request may get another response later. A used-up monthly budget does not come
/// back within a batch's time.
fn is_temporary(status: StatusCode, body: &[u8]) -> bool {
    match status.as_u16() {
        408 | 500 | 502..=504 => true,
        429 => {
            let refused: Option<Refused> = serde_json::from_slice(body).ok();
            let code = refused.and_then(|refused| refused.error?.code);
            code.as_deref() != Some("insufficient_quota")
        }
        _ => false,
    }
}

fn outcome(custom_id: &str, status: StatusCode, request_id: Option<&str>, body: &[u8]) -> Outcome {
    // As it was written, if it is JSON, which it is but for errors of external endpoints.
    let body: Value = match serde_json::from_slice::<&RawValue>(body) {
        Ok(raw) => serde_json::from_str(raw.get()).unwrap_or_default(),
        Err(_) => Value::String(String::from_utf8_lossy(body).into_owned()),
    };
    let response = json!({"status_code": status.as_u16(), "request_id": request_id, "body": body});
    Outcome::new(custom_id, status != StatusCode::OK, Some(response), &Value::Null)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(outcome: &Outcome) -> Value {
        assert_eq!(outcome.text.last(), Some(&b'\n'));
        serde_json::from_slice(&outcome.text).unwrap()
    }

    #[test]
    fn responses_are_written_as_at_openai() {
        let done = outcome("a", StatusCode::OK, Some("r"), br#"{"id":"x"}"#);
        assert!(!done.is_error);
        let written = read(&done);
        assert_eq!(written["custom_id"], "a");
        assert!(written["id"].as_str().is_some_and(|id| id.starts_with("batch_req_")));
        let response = json!({"status_code": 200, "request_id": "r", "body": {"id": "x"}});
        assert_eq!((&written["response"], &written["error"]), (&response, &Value::Null));
        let refused = outcome("a", StatusCode::BAD_REQUEST, None, b"no JSON");
        assert!(refused.is_error);
        assert_eq!(read(&refused)["response"]["body"], "no JSON");
        let expired = Outcome::without_response("a", "batch_expired", "too late");
        assert!(expired.is_error);
        assert_eq!(read(&expired)["error"]["code"], "batch_expired");
        assert_eq!(read(&expired)["response"], Value::Null);
    }

    #[test]
    fn only_what_may_change_is_asked_again() {
        for (status, body, temporary) in [
            (503, "", true),
            (502, "no JSON", true),
            (429, r#"{"error":{"code":"rate_limit_exceeded"}}"#, true),
            (429, r#"{"error":{"code":"insufficient_quota"}}"#, false),
            (400, "", false),
            (422, "", false),
            (404, "", false),
            (501, "", false),
            (200, "", false),
        ] {
            let status = StatusCode::from_u16(status).unwrap();
            assert_eq!(is_temporary(status, body.as_bytes()), temporary, "{status} {body}");
        }
    }
}
