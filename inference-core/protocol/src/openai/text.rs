//! Text completion responses, whole and streamed.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

use super::{PromptProgress, Timings, Usage};

/// `text_completion`, whole or a chunk of a stream: OpenAI gives both the same shape.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Completion<'a> {
    /// `cmpl-...`
    pub id: &'a str,
    /// `text_completion`
    pub object: &'static str,
    /// Unix time in seconds.
    pub created: u64,
    /// The model's name.
    pub model: &'a str,
    /// Short hash of the model file and the version of the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system_fingerprint: Option<&'a str>,
    /// One choice in a chunk, none in the chunk that carries the usage.
    pub choices: Vec<CompletionChoice<'a>>,
    /// Token counts. In a stream, only if the request asks for them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// Speed of prefill and decode, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timings: Option<Timings>,
    /// How much of the prompt is computed: only in chunks before the first text, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_progress: Option<PromptProgress>,
}

/// A choice of a [`Completion`].
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct CompletionChoice<'a> {
    /// The text, or what is new of it.
    pub text: &'a str,
    /// Its place in the list of choices.
    pub index: u32,
    /// Log probabilities, if requested.
    pub logprobs: Option<TextLogprobs>,
    /// `stop` or `length`; null in all chunks but the last.
    pub finish_reason: Option<&'static str>,
    /// The stop string that ended the choice, as vLLM reports it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<&'a str>,
}

impl<'a> CompletionChoice<'a> {
    /// A choice that goes on after `text`.
    pub fn new(index: u32, text: &'a str) -> Self {
        Self { text, index, logprobs: None, finish_reason: None, stop_reason: None }
    }
}

/// Log probabilities of a text's tokens: four lists of the same length.
#[derive(Debug, Clone, Default, Serialize, JsonSchema)]
pub struct TextLogprobs {
    /// Texts of the tokens.
    pub tokens: Vec<String>,
    /// Log probabilities (natural logarithms); null for the first token of an echoed prompt.
    pub token_logprobs: Vec<Option<f32>>,
    /// The most likely tokens at each place; null for the first token of an echoed prompt.
    pub top_logprobs: Vec<Option<Map<String, Value>>>,
    /// Offset of each token in the response, in characters.
    pub text_offset: Vec<usize>,
}
