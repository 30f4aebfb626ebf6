//! Anthropic's Messages API, `POST /v1/messages`.
//!
//! Source: <https://docs.anthropic.com/en/api/messages>, and what the official SDKs and Claude Code
//! send.

use std::borrow::Cow;

use inference_protocol::openai::ErrorDetail;
use serde::Serialize;

use crate::fields::Field;

pub mod models;
pub(crate) mod request;
pub(crate) mod response;

/// Every field of a request.
pub const FIELDS: &[Field] = &[
    Field::honored("model", "Required."),
    Field::honored(
        "messages",
        "Required. Blocks of type `text`, `thinking`, `tool_use`, `tool_result`, `search_result`, and `document` with \
         plain text. `redacted_thinking`, and calls and results of server tools, are left out. Images are rejected. \
         Successive messages of the user become one. Instructions (`system`) after the first message become part of the \
         user's turn, between `<system-reminder>` tags: many templates take them only at the start. A last message of the assistant is continued.",
    ),
    Field::honored("max_tokens", "Required; at least 1."),
    Field::honored(
        "system",
        "Text, or a list of text blocks. A line `x-anthropic-billing-header`, which differs in each request of \
         Claude Code, is left out.",
    ),
    Field::honored("stream", "Server-sent events."),
    Field::honored("stop_sequences", "Up to 16."),
    Field::honored("temperature", ""),
    Field::honored("top_p", ""),
    Field::honored("top_k", ""),
    Field::honored(
        "tools",
        "Tools with an `input_schema`. Server tools (web search, web fetch, code execution, tool search) are left \
         out: the model does not learn of them. Other tools without a schema are rejected.",
    ),
    Field::honored(
        "tool_choice",
        "`auto`, `any`, `tool`, `none`; with `disable_parallel_tool_use`.",
    ),
    Field::honored(
        "thinking",
        "`enabled` and `disabled` (the default) set the switch of templates that have one; `adaptive` leaves it to \
         the template. A model without a switch may think in any case. `budget_tokens` has no effect.",
    ),
    Field::honored(
        "output_config",
        "`format` of type `json_schema`; `effort` is a variable of some templates.",
    ),
    Field::honored("output_format", "The older name of `output_config.format`."),
    Field::honored("metadata", "`user_id` is the end user; see `users` of API keys."),
    Field::ignored(
        "service_tier",
        "The header `x-flotilla-class`, the alias and the key say which class a request has.",
    ),
    Field::ignored("cache_control", "Here and in blocks. Prefixes are cached without it."),
    Field::ignored("context_management", ""),
    Field::ignored("inference_geo", ""),
    Field::ignored("speed", ""),
    Field::rejected("container", "there is no code execution"),
    Field::rejected(
        "thread",
        "conversations are not kept here. The error tells the SDKs' tool runners to send the whole conversation",
    ),
    Field::rejected(
        "mcp_servers",
        "connect to MCP servers in the client, and send their tools in tools",
    ),
];

/// Name of an error, by its HTTP status.
pub fn error_type(status: u16) -> &'static str {
    match status {
        401 => "authentication_error",
        403 => "permission_error",
        404 | 405 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        408 | 504 => "timeout_error",
        503 | 529 => "overloaded_error",
        400..=499 => "invalid_request_error",
        _ => "api_error",
    }
}

/// The body of an error response, and the data of an `error` event.
#[derive(Debug, Serialize)]
struct ErrorBody<'a> {
    r#type: &'static str,
    error: Error<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    request_id: Option<&'a str>,
}

#[derive(Debug, Serialize)]
struct Error<'a> {
    r#type: &'static str,
    message: Cow<'a, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<Details>,
}

/// What the SDKs read to recover from an error.
#[derive(Debug, Serialize)]
struct Details {
    error_code: &'static str,
    unsupported: [&'static str; 1],
}

impl<'a> Error<'a> {
    fn new(status: u16, error: &'a ErrorDetail) -> Self {
        let is_thread = error.param.as_deref() == Some(THREAD);
        let details = Details { error_code: "thread_unsupported_request", unsupported: [THREAD] };
        Self {
            r#type: error_type(status),
            message: message(error),
            details: is_thread.then_some(details),
        }
    }
}

/// The field by which a request continues a conversation that Anthropic keeps.
const THREAD: &str = "thread";

/// Claude Code and LangChain recognize a prompt that is too long by Anthropic's wording, and make
/// it shorter.
fn message(error: &ErrorDetail) -> Cow<'_, str> {
    if error.code.as_deref() != Some("context_length_exceeded") {
        return Cow::Borrowed(&error.message);
    }
    let number = |before: &str| {
        let (_, after) = error.message.split_once(before)?;
        after.split(|c: char| !c.is_ascii_digit()).next().filter(|digits| !digits.is_empty())
    };
    let counts = number("the prompt has at least ").zip(number("maximum context length is "));
    Cow::Owned(match counts {
        Some((tokens, maximum)) => {
            format!("prompt is too long: {tokens} tokens > {maximum} maximum")
        }
        None => format!("prompt is too long: {}", error.message),
    })
}

/// The body of an error response with this status.
pub fn error_body(status: u16, error: &ErrorDetail, request_id: Option<&str>) -> String {
    let error = Error::new(status, error);
    inference_protocol::openai::to_json(&ErrorBody { r#type: "error", error, request_id })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn body(message: &str, param: Option<&str>, code: Option<&str>) -> Value {
        let (param, code) = (param.map(Into::into), code.map(Into::into));
        let error = ErrorDetail { message: message.into(), kind: "k".into(), param, code };
        serde_json::from_str(&error_body(400, &error, None)).unwrap()
    }

    #[test]
    fn a_prompt_that_is_too_long_is_named_as_programs_expect_it() {
        let code = Some("context_length_exceeded");
        let ours = "Input tokens exceed the configured limit: this model's maximum context length is \
            1024 tokens, the answer included, and the prompt has at least 3009; shorten it";
        let message = "prompt is too long: 3009 tokens > 1024 maximum";
        assert_eq!(body(ours, None, code)["error"]["message"], message);
        let others = body("too many", None, code);
        assert_eq!(others["error"]["message"], "prompt is too long: too many");
        assert_eq!(body("too many", None, None)["error"]["message"], "too many");
    }

    #[test]
    fn a_thread_is_refused_so_that_the_sdks_send_the_conversation() {
        let error = body("no", Some("thread"), None);
        assert_eq!(
            error["error"]["details"],
            json!({"error_code": "thread_unsupported_request", "unsupported": ["thread"]})
        );
        assert_eq!(body("no", Some("model"), None)["error"].get("details"), None);
    }
}
