//! Requests: only what we act on is typed.

use serde::Deserialize;
use serde_json::Value;

/// The fields of any generation request that the gateway routes by.
#[derive(Debug, Clone, Deserialize)]
pub struct Routed {
    /// The model's name.
    pub model: String,
    /// Whether the answer is streamed.
    #[serde(default)]
    pub stream: Option<bool>,
}

/// Sampling and length, shared by chat and text completions and read from the same body
/// in a second pass (a flattened field would lose its path in errors). `null` is the default.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct SamplingFields {
    /// 0 is greedy; default 1.
    pub temperature: Option<f32>,
    /// Nucleus: smallest set of tokens with this probability; default 1.
    pub top_p: Option<f32>,
    /// The k likeliest tokens only; 0 or absent is off.
    pub top_k: Option<u32>,
    /// Tokens at least this likely relative to the likeliest; default 0.
    pub min_p: Option<f32>,
    /// Seed of the sampler; absent is random.
    pub seed: Option<i64>,
    /// Most tokens to generate.
    pub max_tokens: Option<u32>,
    /// Up to 16 strings that end the answer.
    pub stop: Option<OneOrMany>,
    /// Must be 1 or absent.
    pub n: Option<u32>,
    /// Must be 0 or absent.
    pub frequency_penalty: Option<f32>,
    /// Must be 0 or absent.
    pub presence_penalty: Option<f32>,
    /// Must be empty or absent.
    pub logit_bias: Option<serde_json::Map<String, Value>>,
}

/// A string or a list of strings.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub enum OneOrMany {
    /// `"a"`
    One(String),
    /// `["a", "b"]`
    Many(Vec<String>),
}

impl OneOrMany {
    /// The strings as a list.
    pub fn into_vec(self) -> Vec<String> {
        match self {
            Self::One(s) => vec![s],
            Self::Many(all) => all,
        }
    }
}

/// `stream_options`.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
pub struct StreamOptions {
    /// Send one last chunk with the usage and no choices.
    #[serde(default)]
    pub include_usage: Option<bool>,
}

/// `POST /v1/chat/completions`.
#[derive(Debug, Clone, Deserialize)]
pub struct ChatRequest {
    /// The model's name.
    pub model: String,
    /// The conversation so far.
    pub messages: Vec<ChatMessage>,
    /// Tools, passed to the chat template as they are.
    pub tools: Option<Vec<Value>>,
    /// Only `auto` and `none` can be honoured.
    pub tool_choice: Option<Value>,
    /// Only `{"type": "text"}` can be honoured.
    pub response_format: Option<Value>,
    /// Must be false or absent.
    pub logprobs: Option<bool>,
    /// Newer name of `max_tokens`; wins over it.
    pub max_completion_tokens: Option<u32>,
    /// Whether the answer is streamed.
    pub stream: Option<bool>,
    /// Options of the stream.
    pub stream_options: Option<StreamOptions>,
}

/// One message, as the client wrote it: the chat template may know more fields than we do.
pub type ChatMessage = serde_json::Map<String, Value>;

/// `POST /v1/completions`.
#[derive(Debug, Clone, Deserialize)]
pub struct CompletionRequest {
    /// The model's name.
    pub model: String,
    /// The text to go on with.
    pub prompt: Prompt,
    /// Must be absent.
    pub suffix: Option<String>,
    /// Must be false or absent.
    pub echo: Option<bool>,
    /// Must be absent.
    pub logprobs: Option<u32>,
    /// Must be 1 or absent.
    pub best_of: Option<u32>,
    /// Whether the answer is streamed.
    pub stream: Option<bool>,
    /// Options of the stream.
    pub stream_options: Option<StreamOptions>,
}

/// A prompt: text, a list that must hold one text, or a list of token ids.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub enum Prompt {
    /// `"text"`
    Text(String),
    /// `["text"]`
    Texts(Vec<String>),
    /// `[1, 2, 3]`
    Tokens(Vec<u32>),
}
