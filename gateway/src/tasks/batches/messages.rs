//! The results of a message batch: one file with a line for each request, in their order. Requests
//! that were not run have a line, too.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use hyper::StatusCode;
use inference_protocol::openai::{ErrorDetail, to_json};
use inference_translation::ClientApi;
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;
use tokio::task::spawn_blocking;

use super::RESULTS_PAGE;
use super::input::Input;
use crate::store::{Batch, BatchStatus, Store, StoreError, Upload};

/// Requests that were not run, written at a time.
const REST: u64 = 256;

/// A result as it is stored while the batch runs: as a line of OpenAI's output.
#[derive(Deserialize)]
struct Stored<'a> {
    #[serde(borrow)]
    custom_id: Cow<'a, str>,
    #[serde(borrow)]
    response: Option<Response<'a>>,
    error: Option<Failure>,
}

#[derive(Deserialize)]
struct Response<'a> {
    status_code: u16,
    #[serde(borrow)]
    body: &'a RawValue,
}

/// Why there is no response.
#[derive(Deserialize)]
struct Failure {
    code: String,
    message: String,
}

/// Writes the results of a batch that ends with this status.
pub(super) async fn write(
    store: &Store,
    batch: &Batch,
    input: &Arc<Input>,
    status: BatchStatus,
) -> Result<Upload, StoreError> {
    let kind = if status == BatchStatus::Expired { "expired" } else { "canceled" };
    let mut upload = store.upload(&batch.tenant).await?;
    let (mut next, mut after) = (0, None);
    loop {
        let results = store.results(batch, None, after, RESULTS_PAGE).await?;
        let Some((last, _)) = results.last() else { break };
        after = Some(*last);
        for (line, text) in &results {
            write_rest(&mut upload, input, next..*line, kind).await?;
            // The results have their room until they are deleted.
            upload.force(result(text)?.as_bytes()).await?;
            next = line + 1;
        }
    }
    write_rest(&mut upload, input, next..input.len() as u64, kind).await?;
    Ok(upload)
}

/// Writes the lines of requests that were not run.
async fn write_rest(
    upload: &mut Upload,
    input: &Arc<Input>,
    lines: Range<u64>,
    kind: &'static str,
) -> Result<(), StoreError> {
    let mut begin = lines.start;
    while begin < lines.end {
        let end = lines.end.min(begin + REST);
        let input = input.clone();
        let read = spawn_blocking(move || rest(&input, begin..end, kind)).await;
        upload.force(read.map_err(|_| StoreError::Unavailable)??.as_bytes()).await?;
        begin = end;
    }
    Ok(())
}

fn rest(input: &Input, lines: Range<u64>, kind: &str) -> Result<String, StoreError> {
    let mut text = String::new();
    for line in lines {
        let read = input.read(usize::try_from(line).unwrap_or(usize::MAX));
        let read = read.map_err(|error| {
            tracing::error!(line, %error, "input of a message batch cannot be read");
            StoreError::Unavailable
        })?;
        text += &json!({"custom_id": read.custom_id, "result": {"type": kind}}).to_string();
        text.push('\n');
    }
    Ok(text)
}

/// The line of a stored result.
fn result(text: &[u8]) -> Result<String, StoreError> {
    let Stored { custom_id, response, error } = serde_json::from_slice(text).map_err(|error| {
        tracing::error!(%error, "a stored result of a message batch cannot be read");
        StoreError::Unavailable
    })?;
    let (kind, field, value) = match response {
        Some(Response { status_code, body }) if status_code == StatusCode::OK.as_u16() => {
            ("succeeded", "message", Cow::Borrowed(body.get()))
        }
        Some(Response { status_code, body }) => ("errored", "error", refusal(status_code, body)),
        None => ("errored", "error", Cow::Owned(failure(error))),
    };
    let custom_id = to_json(&custom_id);
    Ok(format!(
        "{{\"custom_id\":{custom_id},\"result\":{{\"type\":\"{kind}\",\"{field}\":{value}}}}}\n"
    ))
}

/// The error of a response, in Anthropic's format, which it has unless its end was another one.
fn refusal(status: u16, body: &RawValue) -> Cow<'_, str> {
    #[derive(Deserialize)]
    struct Refused<'a> {
        #[serde(borrow)]
        r#type: Cow<'a, str>,
    }
    let refused: Option<Refused<'_>> = serde_json::from_str(body.get()).ok();
    match refused {
        Some(Refused { r#type }) if r#type == "error" => Cow::Borrowed(body.get()),
        _ => Cow::Owned(error(status, format!("the request failed with status {status}"))),
    }
}

/// The error of a request without a response.
fn failure(failure: Option<Failure>) -> String {
    let Some(Failure { code, message }) = failure else {
        return error(500, "the request got no response".into());
    };
    let status = match code.as_str() {
        "invalid_api_key" => 401,
        "response_too_large" | "storage_limit_exceeded" => 400,
        _ => 500,
    };
    error(status, message)
}

fn error(status: u16, message: String) -> String {
    let detail = ErrorDetail { message, kind: String::new(), param: None, code: None };
    ClientApi::Messages.error_body(status, &detail, None)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn read(stored: &Value) -> Value {
        let line = result(stored.to_string().as_bytes()).unwrap();
        assert!(line.ends_with('\n') && line.matches('\n').count() == 1, "{line}");
        serde_json::from_str(&line).unwrap()
    }

    fn of_response(status: u16, body: &Value) -> Value {
        let response = json!({"status_code": status, "request_id": "r", "body": body});
        read(&json!({"id": "x", "custom_id": "a", "response": response, "error": null}))
    }

    fn of_failure(code: &str) -> Value {
        let error = json!({"code": code, "message": "why"});
        read(&json!({"id": "x", "custom_id": "a", "response": null, "error": error}))["result"]
            .take()
    }

    #[test]
    fn a_message_succeeds_as_it_was_made() {
        let message = json!({"id": "msg_1", "type": "message", "content": []});
        let expected =
            json!({"custom_id": "a", "result": {"type": "succeeded", "message": message}});
        assert_eq!(of_response(200, &message), expected);
    }

    #[test]
    fn an_error_has_anthropics_format_whatever_its_body_is() {
        let body = json!({"type": "error", "error": {"type": "not_found_error", "message": "no"}});
        let expected = json!({"type": "errored", "error": body});
        assert_eq!(of_response(404, &body)["result"], expected);
        for body in [json!("no JSON"), json!({"error": "x"}), json!(null), json!([])] {
            let result = of_response(413, &body)["result"].take();
            let error = json!({"type": "request_too_large",
                "message": "the request failed with status 413"});
            let expected = json!({"type": "error", "error": error});
            assert_eq!((&result["type"], &result["error"]), (&json!("errored"), &expected));
        }
    }

    #[test]
    fn a_request_without_a_response_says_why() {
        for (code, kind) in [
            ("invalid_api_key", "authentication_error"),
            ("storage_limit_exceeded", "invalid_request_error"),
            ("line_unreadable", "api_error"),
        ] {
            let error = json!({"type": "error", "error": {"type": kind, "message": "why"}});
            assert_eq!(of_failure(code), json!({"type": "errored", "error": error}));
        }
        assert!(result(b"nonsense").is_err());
    }
}
