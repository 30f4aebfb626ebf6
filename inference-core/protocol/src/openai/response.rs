//! Responses, whole and streamed.

use serde::{Deserialize, Serialize};

/// Token counts of one request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Tokens of the prompt after templating.
    pub prompt_tokens: u32,
    /// Tokens generated, the ending one included.
    pub completion_tokens: u32,
    /// Their sum.
    pub total_tokens: u32,
    /// Of the prompt.
    pub prompt_tokens_details: PromptTokensDetails,
}

/// Part of [`Usage`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PromptTokensDetails {
    /// Tokens that did not have to be computed, because a prompt before began alike.
    pub cached_tokens: u32,
}

impl Usage {
    /// Counts with their sum.
    pub fn new(prompt_tokens: u32, completion_tokens: u32, cached_tokens: u32) -> Self {
        let total_tokens = prompt_tokens.saturating_add(completion_tokens);
        let prompt_tokens_details = PromptTokensDetails { cached_tokens };
        Self { prompt_tokens, completion_tokens, total_tokens, prompt_tokens_details }
    }
}

/// `chat.completion`
#[derive(Debug, Clone, Serialize)]
pub struct ChatCompletion {
    /// `chatcmpl-...`
    pub id: String,
    /// `chat.completion`
    pub object: &'static str,
    /// Unix time in seconds.
    pub created: u64,
    /// The model's name.
    pub model: String,
    /// One choice.
    pub choices: Vec<ChatChoice>,
    /// Token counts.
    pub usage: Usage,
}

/// A choice of a [`ChatCompletion`].
#[derive(Debug, Clone, Serialize)]
pub struct ChatChoice {
    /// 0
    pub index: u32,
    /// The answer.
    pub message: ResponseMessage,
    /// Always null.
    pub logprobs: Option<()>,
    /// `stop` or `length`.
    pub finish_reason: &'static str,
}

/// The answer of a chat.
#[derive(Debug, Clone, Serialize)]
pub struct ResponseMessage {
    /// `assistant`
    pub role: &'static str,
    /// The text.
    pub content: String,
    /// Always null.
    pub refusal: Option<()>,
}

/// `chat.completion.chunk`
#[derive(Debug, Clone, Serialize)]
pub struct ChatChunk<'a> {
    /// `chatcmpl-...`
    pub id: &'a str,
    /// `chat.completion.chunk`
    pub object: &'static str,
    /// Unix time in seconds.
    pub created: u64,
    /// The model's name.
    pub model: &'a str,
    /// One choice, or none in the chunk that carries the usage.
    pub choices: Vec<ChatChunkChoice<'a>>,
    /// Only where `stream_options.include_usage` asked for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
}

/// A choice of a [`ChatChunk`].
#[derive(Debug, Clone, Serialize)]
pub struct ChatChunkChoice<'a> {
    /// 0
    pub index: u32,
    /// What is new.
    pub delta: Delta<'a>,
    /// Always null.
    pub logprobs: Option<()>,
    /// Null until the last.
    pub finish_reason: Option<&'static str>,
}

/// What a chunk adds.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Delta<'a> {
    /// `assistant`, in the first chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<&'static str>,
    /// More text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<&'a str>,
}

/// `text_completion`, whole or a chunk of a stream: OpenAI gives both the same shape.
#[derive(Debug, Clone, Serialize)]
pub struct Completion<'a> {
    /// `cmpl-...`
    pub id: &'a str,
    /// `text_completion`
    pub object: &'static str,
    /// Unix time in seconds.
    pub created: u64,
    /// The model's name.
    pub model: &'a str,
    /// One choice, or none in the chunk that carries the usage.
    pub choices: Vec<CompletionChoice<'a>>,
    /// Always in a whole answer; in a stream only where it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
}

/// A choice of a [`Completion`].
#[derive(Debug, Clone, Serialize)]
pub struct CompletionChoice<'a> {
    /// The text, or what is new of it.
    pub text: &'a str,
    /// 0
    pub index: u32,
    /// Always null.
    pub logprobs: Option<()>,
    /// `stop` or `length`; null in all chunks but the last.
    pub finish_reason: Option<&'static str>,
}

/// `GET /v1/models`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelList {
    /// `list`
    pub object: String,
    /// The models.
    pub data: Vec<Model>,
}

impl ModelList {
    /// A list of `data`.
    pub fn new(data: Vec<Model>) -> Self {
        Self { object: "list".into(), data }
    }
}

/// One model of a [`ModelList`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Model {
    /// The name that requests use.
    pub id: String,
    /// `model`
    pub object: String,
    /// Unix time in seconds.
    pub created: u64,
    /// `flotilla`
    pub owned_by: String,
}

impl Model {
    /// A model as it is listed.
    pub fn new(id: String, created: u64) -> Self {
        Self { id, object: "model".into(), created, owned_by: "flotilla".into() }
    }
}
