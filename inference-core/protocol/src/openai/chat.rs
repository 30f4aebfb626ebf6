//! Chat completion responses, whole and streamed.

use schemars::JsonSchema;
use serde::Serialize;

use super::{PromptProgress, Timings, Usage};

/// `chat.completion`
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct ChatCompletion<'a> {
    /// `chatcmpl-...`
    pub id: &'a str,
    /// `chat.completion`
    pub object: &'static str,
    /// Unix time in seconds.
    pub created: u64,
    /// The model's name.
    pub model: &'a str,
    /// Tier that served the request: `priority`, `default` or `flex`. Only if the request names
    /// one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_tier: Option<&'a str>,
    /// Short hash of the model file and the version of the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system_fingerprint: Option<&'a str>,
    /// One for each requested choice.
    pub choices: Vec<ChatChoice>,
    /// Token counts.
    pub usage: Usage,
    /// Speed of prefill and decode, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timings: Option<Timings>,
}

/// A choice of a [`ChatCompletion`].
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct ChatChoice {
    /// Its place in the list.
    pub index: u32,
    /// The answer.
    pub message: ResponseMessage,
    /// Log probabilities, if requested.
    pub logprobs: Option<ChatLogprobs>,
    /// `stop`, `length` or `tool_calls`.
    pub finish_reason: &'static str,
    /// The stop string that ended the choice, as vLLM reports it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<String>,
}

/// The message of a chat choice.
#[derive(Debug, Clone, Default, Serialize, JsonSchema)]
pub struct ResponseMessage {
    /// `assistant`
    pub role: &'static str,
    /// The text; null where there are only tool calls.
    pub content: Option<String>,
    /// Always null.
    pub refusal: Option<()>,
    /// Reasoning of an earlier turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// Tool calls of the model.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
}

/// A call of a tool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ToolCall {
    /// `call_...`
    pub id: String,
    /// `function`
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// Which, and with what.
    pub function: FunctionCall,
}

/// Part of a [`ToolCall`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct FunctionCall {
    /// The tool's name.
    pub name: String,
    /// JSON text.
    pub arguments: String,
}

/// `chat.completion.chunk`
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct ChatChunk<'a> {
    /// `chatcmpl-...`
    pub id: &'a str,
    /// `chat.completion.chunk`
    pub object: &'static str,
    /// Unix time in seconds.
    pub created: u64,
    /// The model's name.
    pub model: &'a str,
    /// Tier that served the request: `priority`, `default` or `flex`. Only if the request names
    /// one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_tier: Option<&'a str>,
    /// Short hash of the model file and the version of the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system_fingerprint: Option<&'a str>,
    /// One choice, or none in the chunk that carries the usage.
    pub choices: Vec<ChatChunkChoice<'a>>,
    /// Only with `stream_options.include_usage`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// Speed of prefill and decode, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timings: Option<Timings>,
    /// How much of the prompt is computed: only in chunks before the first token, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_progress: Option<PromptProgress>,
}

/// A choice of a [`ChatChunk`].
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct ChatChunkChoice<'a> {
    /// Index of the choice.
    pub index: u32,
    /// The new part of the message.
    pub delta: Delta<'a>,
    /// Log probabilities of the new tokens, if requested.
    pub logprobs: Option<ChatLogprobs>,
    /// Null until the last.
    pub finish_reason: Option<&'static str>,
    /// The stop string that ended the choice, in its last chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<&'a str>,
}

impl ChatChunkChoice<'_> {
    /// A choice without anything new.
    pub fn empty(index: u32) -> Self {
        let (logprobs, finish_reason, stop_reason) = (None, None, None);
        Self { index, delta: Delta::default(), logprobs, finish_reason, stop_reason }
    }
}

/// A chunk's part of the message.
#[derive(Debug, Clone, Default, Serialize, JsonSchema)]
pub struct Delta<'a> {
    /// `assistant`, in the first chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<&'static str>,
    /// More text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<&'a str>,
    /// More of the reasoning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<&'a str>,
    /// More of a call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<[ToolCallDelta<'a>; 1]>,
}

/// A chunk's part of a tool call. The first part has its id and name.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct ToolCallDelta<'a> {
    /// Index of the tool call.
    pub index: usize,
    /// `call_...`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<&'a str>,
    /// `function`
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<&'static str>,
    /// More of it.
    pub function: FunctionDelta<'a>,
}

/// Part of a [`ToolCallDelta`].
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct FunctionDelta<'a> {
    /// The tool's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<&'a str>,
    /// More JSON text.
    pub arguments: &'a str,
}

/// Log probabilities of a message's tokens.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct ChatLogprobs {
    /// One for each token.
    pub content: Vec<ChatToken>,
    /// Always null.
    pub refusal: Option<()>,
}

/// A token of [`ChatLogprobs`].
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct ChatToken {
    /// The token.
    #[serde(flatten)]
    pub chosen: LikelyToken,
    /// The most likely tokens at its place.
    pub top_logprobs: Vec<LikelyToken>,
}

/// A token and its log probability.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct LikelyToken {
    /// Its text; bytes that are no text are replaced.
    pub token: String,
    /// Log probability (natural logarithm).
    pub logprob: f32,
    /// Its bytes.
    pub bytes: Vec<u8>,
}
