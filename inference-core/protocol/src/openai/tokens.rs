//! Tokenizing and detokenizing, with the field names of llama-server and vLLM.

use schemars::JsonSchema;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::numbers::wholes;

/// `POST /tokenize`: llama-server's `content`, or vLLM's `prompt` or `messages`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
pub struct Tokenize {
    /// A text (llama-server).
    pub content: Option<String>,
    /// A text (vLLM).
    pub prompt: Option<String>,
    /// A chat (vLLM).
    #[schemars(with = "Option<Vec<Value>>")]
    pub messages: Option<IgnoredAny>,
    /// The model's name.
    pub model: Option<String>,
    /// Add the tokens that begin a text.
    #[serde(alias = "add_special_tokens")]
    pub add_special: Option<bool>,
    /// Parse control tokens in the text.
    pub parse_special: Option<bool>,
    /// Return the text of each token.
    #[serde(alias = "return_token_strs")]
    pub with_pieces: Option<bool>,
}

/// The answer of `POST /tokenize`.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Tokenized {
    /// Tokens, or objects with `id` and `piece`.
    pub tokens: Vec<Value>,
    /// How many.
    pub count: usize,
    /// vLLM's name for the context that one request may fill.
    pub max_model_len: u32,
}

/// `POST /props` of a node, by which the gateway asks.
#[derive(Debug, Clone, Deserialize)]
pub struct PropsRequest {
    /// The model's name.
    pub model: Option<String>,
}

/// `POST /detokenize`
#[derive(Debug, Clone, Deserialize, JsonSchema)]
pub struct Detokenize {
    /// Tokens.
    #[serde(deserialize_with = "wholes")]
    pub tokens: Vec<u32>,
}

/// The answer of `POST /detokenize`.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Detokenized<'a> {
    /// The text (llama-server).
    pub content: &'a str,
    /// The text (vLLM).
    pub prompt: &'a str,
}

/// The answer of `POST /apply-template`.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Rendered<'a> {
    /// The prompt that the model reads.
    pub prompt: &'a str,
}

/// The answer of `POST /v1/chat/completions/input_tokens`.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct InputTokens {
    /// What it is.
    pub object: &'static str,
    /// Tokens of the prompt.
    pub input_tokens: usize,
}
