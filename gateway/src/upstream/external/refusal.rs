//! PURE. Reads the error of an external endpoint. Its message may contain addresses, keys,
//! organizations, or the prompt. So clients get an error of ours, and only plain identifiers are
//! logged.

use std::fmt::{self, Display, Formatter};

use serde::Deserialize;
use serde_json::Value;

use super::request::known_field;
use crate::types::api::Api;
use crate::types::error::Error;

/// Longest identifier to keep.
const WORD_BYTES_MAX: usize = 64;

/// Type, code, and parameter of the reported error.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Refusal {
    kind: Option<String>,
    code: Option<String>,
    param: Option<String>,
    /// True if the prompt does not fit into the endpoint's context.
    is_too_long: bool,
    /// True if a value is out of its range, whatever the status says.
    is_out_of_range: bool,
}

#[derive(Debug, Default, Deserialize)]
struct Reported {
    // TGI's name.
    #[serde(rename = "type", alias = "error_type")]
    kind: Option<Value>,
    code: Option<Value>,
    // The path of the field, in FastAPI's list of details.
    #[serde(alias = "loc")]
    param: Option<Value>,
    // FastAPI's names.
    #[serde(alias = "msg", alias = "detail")]
    message: Option<Value>,
}

/// Names of the error of a prompt that is too long: OpenAI's, and llama-server's.
const TOO_LONG: [&str; 2] = ["context_length_exceeded", "exceed_context_size_error"];
/// The same in the messages of engines that have no name for it.
const TOO_LONG_TEXTS: [&str; 6] = [
    "context length",
    "context size",
    "context window",
    "maximum model length",
    "maximum allowed length",
    "must have less than",
];

/// How the error of pydantic begins after a number, and how it names the field. llama-cpp-python
/// passes it on as an error of its own, with status 500.
const OUT_OF_RANGE: &str = " validation error";
const OUT_OF_RANGE_FIELD: &str = "'loc': ('body', '";

impl Refusal {
    /// Reads the body or event of an error, whichever form it has.
    pub(crate) fn read(body: &[u8]) -> Self {
        let mut body: Value = serde_json::from_slice(body).unwrap_or_default();
        let inner = body.get_mut("error").map(Value::take);
        let error = match inner {
            Some(error @ Value::Object(_)) => error,
            Some(text) if !text.is_null() => {
                body["message"] = text;
                body
            }
            _ => body,
        };
        let reported: Reported = serde_json::from_value(error).unwrap_or_default();
        // FastAPI's details are a text, or a list of what is wrong.
        let details = reported.message.as_ref().and_then(Value::as_array);
        let detail = details.and_then(|details| details.first()).cloned();
        let Reported { kind, code, param, message } = match detail {
            Some(detail) => serde_json::from_value(detail).unwrap_or_default(),
            None => reported,
        };
        let (kind, code) = (word(kind), word(code));
        let has_name = [&kind, &code].into_iter().flatten().any(|w| TOO_LONG.contains(&w.as_str()));
        let message = message.as_ref().and_then(Value::as_str).unwrap_or_default().to_lowercase();
        let is_too_long = has_name || TOO_LONG_TEXTS.iter().any(|text| message.contains(text));
        let is_out_of_range =
            message.trim_start_matches(|c: char| c.is_ascii_digit()).starts_with(OUT_OF_RANGE);
        let named = message.split_once(OUT_OF_RANGE_FIELD).filter(|_| is_out_of_range);
        let named = named.and_then(|(_, rest)| rest.split('\'').next()).map(Value::from);
        let param = word(param.map(last)).or_else(|| word(named));
        Self { kind, code, param, is_too_long, is_out_of_range }
    }

    /// Our error for a refusal with this status.
    pub(crate) fn error(&self, api: Api, status: u16) -> Error {
        match status {
            400 | 413 | 422 if self.is_too_long => Error::ExternalTooLong,
            500 if self.is_out_of_range => self.error(api, 422),
            // Caused by the request. Everything else is between the endpoint and us.
            400 | 413 | 415 | 422 => {
                let param = self.param.as_deref().and_then(|name| known_field(api, name));
                Error::ExternalRefused { status, param }
            }
            _ => Error::NodeRefused(status),
        }
    }

    /// Our error for an error event, which may have a status. `None` if the request is not at
    /// fault.
    pub(crate) fn request_error(&self, api: Api) -> Option<Error> {
        let status = self.code.as_ref().and_then(|code| code.parse().ok());
        let error = self.error(api, status.unwrap_or(400));
        let is_ours = self.is_too_long || status.is_some();
        Some(error).filter(|error| is_ours && !matches!(error, Error::NodeRefused(_)))
    }
}

/// The last part of a path of fields, or the field itself.
fn last(param: Value) -> Value {
    match param {
        Value::Array(mut path) => path.pop().unwrap_or_default(),
        name => name,
    }
}

impl Display for Refusal {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let word = |word: &Option<String>| word.as_deref().unwrap_or("-").to_string();
        let Self { kind, code, param, .. } = self;
        write!(f, "type {}, code {}, param {}", word(kind), word(code), word(param))
    }
}

/// Returns a plain identifier or number.
fn word(value: Option<Value>) -> Option<String> {
    let text = match value? {
        Value::String(text) => text,
        Value::Number(number) => number.to_string(),
        _ => return None,
    };
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || b"_.[]".contains(&b);
    // Drops anything that looks like a key.
    let is_key = text.len() >= 20 && text.bytes().any(|b| b.is_ascii_digit());
    let is_word = !text.is_empty() && text.len() <= WORD_BYTES_MAX && text.bytes().all(is_plain);
    (is_word && !is_key).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_identifiers_are_kept() {
        let body = br#"{"error":{"message":"key sk-1 of org-2 at http://10.0.0.1: the prompt",
            "type":"invalid_request_error","param":"temperature","code":"unsupported_value"}}"#;
        let refusal = Refusal::read(body);
        assert_eq!(
            refusal.to_string(),
            "type invalid_request_error, code unsupported_value, param temperature"
        );
        let error = refusal.error(Api::ChatCompletions, 400);
        assert_eq!(error, Error::ExternalRefused { status: 400, param: Some("temperature") });
        let flat = br#"{"object":"error","message":"x","type":"BadRequestError","code":400}"#;
        assert_eq!(Refusal::read(flat).to_string(), "type BadRequestError, code 400, param -");
    }

    #[test]
    fn every_form_of_an_error_is_read() {
        for (body, told) in [
            (r#"{"error":"a text","error_type":"validation"}"#, "type validation, code -, param -"),
            (r#"{"detail":"Not Found"}"#, "type -, code -, param -"),
            (
                r#"{"detail":[{"type":"int_parsing","loc":["body","top_k"],"msg":"an integer"}]}"#,
                "type int_parsing, code -, param top_k",
            ),
            (r#"{"error":{"detail":"x","code":400}}"#, "type -, code 400, param -"),
        ] {
            assert_eq!(Refusal::read(body.as_bytes()).to_string(), told, "{body}");
        }
    }

    #[test]
    fn a_value_out_of_range_is_the_requests_fault_whatever_the_status() {
        let body = br#"{"error":{"message":"1 validation error:\n  {'type': 'less_than_equal', 'loc': ('body', 'top_p'), 'msg': 'x'}","type":"internal_server_error"}}"#;
        let error = Refusal::read(body).error(Api::ChatCompletions, 500);
        assert_eq!(error, Error::ExternalRefused { status: 422, param: Some("top_p") });
        let other = br#"{"error":{"message":"the validation error log is full","param":"top_p"}}"#;
        assert_eq!(Refusal::read(other).error(Api::ChatCompletions, 500), Error::NodeRefused(500));
    }

    #[test]
    fn a_prompt_that_is_too_long_is_told_from_other_requests_at_fault() {
        for body in [
            r#"{"error":{"code":400,"type":"exceed_context_size_error","n_ctx":64}}"#,
            r#"{"error":{"message":"x","code":"context_length_exceeded"}}"#,
            r#"{"object":"error","message":"This model's maximum context length is 64 tokens."}"#,
            r#"{"error":"Input validation error: `inputs` must have less than 64 tokens."}"#,
            r#"{"detail":"The prompt exceeds the context window"}"#,
        ] {
            let refusal = Refusal::read(body.as_bytes());
            let error = refusal.error(Api::ChatCompletions, 400);
            assert_eq!(error, Error::ExternalTooLong, "{body}");
            assert_eq!(refusal.error(Api::Completions, 500), Error::NodeRefused(500));
        }
    }

    #[test]
    fn an_error_event_is_the_requests_fault_only_if_it_says_so() {
        let error = |body: &str| Refusal::read(body.as_bytes()).request_error(Api::ChatCompletions);
        let refused = Error::ExternalRefused { status: 400, param: Some("top_k") };
        assert_eq!(error(r#"{"error":{"code":400,"param":"top_k"}}"#), Some(refused));
        assert_eq!(
            error(r#"{"error":{"message":"the context size"}}"#),
            Some(Error::ExternalTooLong)
        );
        assert_eq!(error(r#"{"error":{"code":500}}"#), None);
        assert_eq!(error(r#"{"error":{"message":"x","type":"server_error"}}"#), None);
        assert_eq!(error(r#"{"error":{"type":"BadRequestError"}}"#), None);
    }

    #[test]
    fn words_that_are_none_are_left_out() {
        for value in [
            "\"http://10.0.0.1/v1\"",
            "\"sk-abc\"",
            "\"a b\"",
            "\"AKIA0123456789ABCDEFGH\"",
            "\"line\\nbreak\"",
            "{\"a\":1}",
            "null",
        ] {
            let body = format!(r#"{{"error":{{"code":{value},"param":{value}}}}}"#);
            let refusal = Refusal::read(body.as_bytes());
            assert_eq!(refusal, Refusal::default(), "{value}");
        }
        assert_eq!(Refusal::read(b"<html>"), Refusal::default());
        assert_eq!(Refusal::read(br#"{"error":"a text"}"#), Refusal::default());
        let long = format!(r#"{{"error":{{"code":"{}"}}}}"#, "x".repeat(65));
        assert_eq!(Refusal::read(long.as_bytes()), Refusal::default());
    }

    #[test]
    fn what_is_not_the_requests_making_is_tried_elsewhere() {
        let refusal = Refusal::default();
        for status in [301, 402, 404, 405, 401, 429, 500] {
            assert_eq!(refusal.error(Api::Embeddings, status), Error::NodeRefused(status));
        }
        let unknown = Refusal { param: Some("org_secret".into()), ..Refusal::default() };
        let error = unknown.error(Api::ChatCompletions, 422);
        assert_eq!(error, Error::ExternalRefused { status: 422, param: None });
    }
}
