//! Chat completion responses, whole and streamed.

use schemars::JsonSchema;
use serde::Serialize;

use super::Usage;

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
    /// How urgent it was: `priority`, `default` or `flex`, where the request asked for one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_tier: Option<&'a str>,
    /// As many as were asked for.
    pub choices: Vec<ChatChoice>,
    /// Token counts.
    pub usage: Usage,
}

/// A choice of a [`ChatCompletion`].
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct ChatChoice {
    /// Its place in the list.
    pub index: u32,
    /// The answer.
    pub message: ResponseMessage,
    /// Where they were asked for.
    pub logprobs: Option<ChatLogprobs>,
    /// `stop`, `length` or `tool_calls`.
    pub finish_reason: &'static str,
}

/// The answer of a chat.
#[derive(Debug, Clone, Default, Serialize, JsonSchema)]
pub struct ResponseMessage {
    /// `assistant`
    pub role: &'static str,
    /// The text; null where there are only tool calls.
    pub content: Option<String>,
    /// Always null.
    pub refusal: Option<()>,
    /// What the model thought before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// What the model wants to be called.
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
    /// How urgent it was: `priority`, `default` or `flex`, where the request asked for one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_tier: Option<&'a str>,
    /// One choice, or none in the chunk that carries the usage.
    pub choices: Vec<ChatChunkChoice<'a>>,
    /// Only where `stream_options.include_usage` asked for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
}

/// A choice of a [`ChatChunk`].
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct ChatChunkChoice<'a> {
    /// Which choice goes on.
    pub index: u32,
    /// What is new.
    pub delta: Delta<'a>,
    /// Of the tokens that are new, where they were asked for.
    pub logprobs: Option<ChatLogprobs>,
    /// Null until the last.
    pub finish_reason: Option<&'static str>,
}

/// What a chunk adds.
#[derive(Debug, Clone, Default, Serialize, JsonSchema)]
pub struct Delta<'a> {
    /// `assistant`, in the first chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<&'static str>,
    /// More text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<&'a str>,
    /// More of what the model thinks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<&'a str>,
    /// More of a call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<[ToolCallDelta<'a>; 1]>,
}

/// What a chunk adds to a tool call. The first of a call has its id and name.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct ToolCallDelta<'a> {
    /// Which call.
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

/// How likely the tokens of a message were.
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
    /// The likeliest ones at its place.
    pub top_logprobs: Vec<LikelyToken>,
}

/// A token and how likely it was.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct LikelyToken {
    /// Its text; bytes that are no text are replaced.
    pub token: String,
    /// Natural logarithm of its probability.
    pub logprob: f32,
    /// Its bytes.
    pub bytes: Vec<u8>,
}
