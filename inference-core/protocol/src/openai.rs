//! The OpenAI API: the request fields that we use, and the response formats.
//!
//! [`parse`] reads one struct from a request body; [`RawObject`] reads several, and parses the body
//! once. Both ignore unknown fields and reject wrong types with the name of the parameter.
//! Responses are plain structs that are serialized as they are.

use std::fmt::Display;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

mod aliases;
mod chat;
mod embeddings;
mod error_text;
mod numbers;
mod raw_object;
mod request;
mod response;
mod routing;
pub mod split;
mod text;
mod tokens;
mod unsupported;

pub use aliases::ALIASES;
pub use chat::{
    ChatChoice, ChatChunk, ChatChunkChoice, ChatCompletion, ChatLogprobs, ChatToken, Delta,
    FunctionCall, FunctionDelta, LikelyToken, ResponseMessage, ToolCall, ToolCallDelta,
};
pub use embeddings::{
    Document, Embedding, Embeddings, EmbeddingsRequest, PromptUsage, Ranked, RerankRequest,
    Reranked, Vector,
};
pub use raw_object::{RawField, RawObject};
pub use request::{
    BiasFields, ChatMessage, ChatRequest, CompletionRequest, ConstraintFields, ExtraFile,
    NamedSchema, OneOrMany, PredictedContent, PredictedPart, Prediction, Prompt, PromptEntry,
    ResponseFormat, SamplingFields, StreamOptions, StructuredOutputs,
};
pub use response::{Model, ModelList, ModelMeta, PromptProgress, Timings, Usage};
pub use routing::{CHOICES_MAX, Invalid, Lengths, RoutingFields, TEXT_CHOICES_MAX};
pub use text::{Completion, CompletionChoice, TextLogprobs};
pub use tokens::{
    Detokenize, Detokenized, InputTokens, PropsRequest, Rendered, Tokenize, Tokenized,
};
pub use unsupported::{Api, Endpoint, IGNORED, UNSUPPORTED, Unsupported, first_unsupported};

/// A request body that cannot be parsed: `message` for people, `param` the JSON path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParseError {
    /// What is wrong.
    pub message: String,
    /// The invalid parameter, if there is one.
    pub param: Option<String>,
}

/// Parses a request body, which must be a JSON object, into one struct. Ignores unknown fields. To
/// read several structs from one body, parse it as a [`RawObject`].
///
/// ```
/// use inference_protocol::openai::{self, ChatRequest};
///
/// let chat: ChatRequest = openai::parse(br#"{"model":"m","messages":[],"invented":1}"#).unwrap();
/// assert_eq!(chat.model.as_deref(), Some("m"));
///
/// let error = openai::parse::<ChatRequest>(br#"{"messages":[{}, 7]}"#).unwrap_err();
/// assert_eq!(error.param.as_deref(), Some("messages[1]"));
/// assert!(error.message.starts_with("invalid value for 'messages[1]': expected"));
/// ```
///
/// # Errors
/// The body is not a JSON object, a value has the wrong type, or a field is missing or occurs
/// twice.
pub fn parse<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, ParseError> {
    // Serde would also accept a list for the fields of a struct.
    if !body.trim_ascii_start().starts_with(b"[")
        && let Ok(value) = serde_json::from_slice(body)
    {
        return Ok(value);
    }
    // Only an error is worth a second look.
    RawObject::parse(body)?.read()
}

fn wrong_type(path: &str, what: &str) -> ParseError {
    let message = format!("invalid value for '{path}': {what}");
    ParseError { message, param: Some(path.into()) }
}

fn malformed(what: &dyn Display) -> ParseError {
    let message = format!("the request body is not valid JSON for this endpoint: {what}");
    ParseError { message, param: None }
}

/// The body of every error response: `{"error": {...}}` with all four keys present.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ErrorBody {
    /// The error.
    pub error: ErrorDetail,
}

/// The error `type` of client errors.
pub const INVALID_REQUEST: &str = "invalid_request_error";

/// An error in OpenAI's format.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ErrorDetail {
    /// For people: what is wrong and what to do.
    pub message: String,
    /// OpenAI's class, such as `invalid_request_error`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The parameter at fault.
    pub param: Option<String>,
    /// For programs: a closed set, such as `model_not_found`.
    pub code: Option<String>,
}

impl ErrorBody {
    /// Serializes it as JSON.
    pub fn to_json(&self) -> String {
        to_json(self)
    }
}

/// Serializes one of this module's types as JSON. They contain no maps with foreign keys and no
/// failing serializers, so this cannot fail; the fallback avoids a panic regardless.
pub fn to_json<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).unwrap_or_else(|_| Value::Null.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_error(body: &str) -> ParseError {
        parse::<ChatRequest>(body.as_bytes()).unwrap_err()
    }

    #[test]
    fn a_wrong_type_names_its_parameter() {
        let e = parse::<SamplingFields>(br#"{"temperature":"hot"}"#).unwrap_err();
        assert_eq!(e.param.as_deref(), Some("temperature"));
        let e = parse_error(r#"{"model":"m","messages":[{}, 7]}"#);
        assert_eq!(e.param.as_deref(), Some("messages[1]"));
    }

    #[test]
    fn malformed_json_has_no_parameter() {
        assert_eq!(parse_error("{").param, None);
        assert_eq!(parse_error("{} {}").param, None);
        assert!(parse_error(" [1]").message.contains("list; expected an object"));
    }

    #[test]
    fn unknown_fields_pass() {
        let r: ChatRequest = parse(br#"{"model":"m","messages":[],"invented":{"x":[1]}}"#).unwrap();
        assert_eq!(r.model.as_deref(), Some("m"));
    }

    #[test]
    fn an_error_body_has_all_four_keys() {
        let body = ErrorBody {
            error: ErrorDetail { message: "m".into(), kind: "k".into(), param: None, code: None },
        };
        assert_eq!(
            body.to_json(),
            r#"{"error":{"message":"m","type":"k","param":null,"code":null}}"#
        );
    }
}
