//! Anthropic's Messages API, `POST /v1/messages`.
//!
//! Source: <https://docs.anthropic.com/en/api/messages>, and what the official SDKs and Claude Code
//! send.

use inference_protocol::openai::ErrorDetail;
use serde::Serialize;

use crate::fields::Field;

pub(crate) mod count;
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
         Successive messages of the user become one. A last message of the assistant is continued.",
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
    Field::honored("service_tier", "`auto` and `standard_only` both ask for the class `standard`."),
    Field::ignored("cache_control", "Here and in blocks. Prefixes are cached without it."),
    Field::ignored("context_management", ""),
    Field::ignored("inference_geo", ""),
    Field::ignored("speed", ""),
    Field::rejected("container", "there is no code execution"),
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
    message: &'a str,
}

/// The body of an error response with this status.
pub fn error_body(status: u16, error: &ErrorDetail, request_id: Option<&str>) -> String {
    let error = Error { r#type: error_type(status), message: &error.message };
    inference_protocol::openai::to_json(&ErrorBody { r#type: "error", error, request_id })
}
