//! One line of a batch: a request of its tenant, repeated until it has a final response.

use hyper::StatusCode;
use hyper::header::{HeaderMap, HeaderValue};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::gate::Starting;
use super::input::Line;
use crate::proxy::deferral::CLASS;
use crate::tasks::asking::{Asked, Asking, TooLarge};
use crate::types::random::random;
use crate::types::request_id::REQUEST_ID;

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

/// Runs a line until it has a final response. The caller stops it when the batch expires.
pub(super) async fn run(asking: Asking, line: Line, starting: Starting) -> Outcome {
    let metrics = asking.gateway.metrics.clone();
    // Asked once, it has its slot, or waits for one.
    let asked = asking.run(line.body.into(), || drop(starting), || metrics.record_batch_retry());
    match asked.await {
        Ok(Asked { status, headers, body }) => {
            let request_id = headers.get(REQUEST_ID).and_then(|id| id.to_str().ok());
            outcome(&line.custom_id, status, request_id, &body)
        }
        Err(TooLarge) => {
            let why = "the response is too large";
            Outcome::without_response(&line.custom_id, "response_too_large", why)
        }
    }
}

/// The headers of lines.
pub(super) fn headers() -> HeaderMap {
    HeaderMap::from_iter([(CLASS, HeaderValue::from_static("batch"))])
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
}
