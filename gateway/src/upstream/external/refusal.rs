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
}

#[derive(Debug, Default, Deserialize)]
struct Reported {
    #[serde(rename = "type")]
    kind: Option<Value>,
    code: Option<Value>,
    param: Option<Value>,
}

impl Refusal {
    /// Reads the body or event of an error, with or without OpenAI's `error` envelope.
    pub(crate) fn read(body: &[u8]) -> Self {
        let mut body: Value = serde_json::from_slice(body).unwrap_or_default();
        let error = body.get_mut("error").map(Value::take).filter(Value::is_object);
        let reported: Reported = serde_json::from_value(error.unwrap_or(body)).unwrap_or_default();
        Self { kind: word(reported.kind), code: word(reported.code), param: word(reported.param) }
    }

    /// Our error for a refusal with this status.
    pub(crate) fn error(&self, api: Api, status: u16) -> Error {
        match status {
            // Caused by the request. Everything else is between the endpoint and us.
            400 | 413 | 415 | 422 => {
                let param = self.param.as_deref().and_then(|name| known_field(api, name));
                Error::ExternalRefused { status, param }
            }
            _ => Error::NodeRefused(status),
        }
    }
}

impl Display for Refusal {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let word = |word: &Option<String>| word.as_deref().unwrap_or("-").to_string();
        let Self { kind, code, param } = self;
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
