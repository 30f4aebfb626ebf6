//! Parts that all responses share, and the model list.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Token counts of one request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Usage {
    /// Tokens of the prompt after templating.
    pub prompt_tokens: u32,
    /// Generated tokens, including the one that ends the response.
    pub completion_tokens: u32,
    /// Their sum.
    pub total_tokens: u32,
    /// Of the prompt.
    pub prompt_tokens_details: PromptTokensDetails,
    /// Of the response.
    pub completion_tokens_details: CompletionTokensDetails,
}

/// Part of [`Usage`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PromptTokensDetails {
    /// Prompt tokens read from the prefix cache instead of being computed.
    pub cached_tokens: u32,
}

/// Part of [`Usage`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CompletionTokensDetails {
    /// Reasoning tokens, including the one that closes the reasoning. 0 if the reasoning is part
    /// of the text.
    pub reasoning_tokens: u32,
}

impl Usage {
    /// Computes the total.
    pub fn new(prompt_tokens: u32, completion_tokens: u32, cached_tokens: u32) -> Self {
        Self {
            prompt_tokens,
            completion_tokens,
            total_tokens: prompt_tokens.saturating_add(completion_tokens),
            prompt_tokens_details: PromptTokensDetails { cached_tokens },
            completion_tokens_details: CompletionTokensDetails::default(),
        }
    }

    /// The same, with this many of the generated tokens for reasoning.
    #[must_use]
    pub fn with_reasoning(mut self, reasoning_tokens: u32) -> Self {
        self.completion_tokens_details = CompletionTokensDetails { reasoning_tokens };
        self
    }
}

/// Speed of a choice on the node that ended it, as llama-server reports it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Timings {
    /// Prompt tokens read from the prefix cache.
    pub cache_n: u32,
    /// Prompt tokens computed.
    pub prompt_n: u32,
    /// Milliseconds from the slot to the first token.
    pub prompt_ms: f64,
    /// `prompt_ms` divided by `prompt_n`.
    pub prompt_per_token_ms: f64,
    /// Prompt tokens computed per second.
    pub prompt_per_second: f64,
    /// Tokens generated.
    pub predicted_n: u32,
    /// Milliseconds since the first token.
    pub predicted_ms: f64,
    /// `predicted_ms` divided by `predicted_n`.
    pub predicted_per_token_ms: f64,
    /// Tokens generated per second.
    pub predicted_per_second: f64,
    /// Draft tokens that were computed, if there were any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub draft_n: Option<u32>,
    /// Draft tokens that were accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub draft_n_accepted: Option<u32>,
}

/// How much of a prompt is computed, as llama-server reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub struct PromptProgress {
    /// Tokens of the prompt.
    pub total: u32,
    /// Of those, the tokens read from the prefix cache.
    pub cache: u32,
    /// Tokens that are computed or were read from the cache.
    pub processed: u32,
    /// Milliseconds since the prefill started.
    pub time_ms: u64,
}

impl Timings {
    /// Computes the rates; what took no time has a rate of 0.
    pub fn new(cache_n: u32, prompt: (u32, f64), predicted: (u32, f64)) -> Self {
        let ratio = |of: f64, by: f64| if by > 0.0 { of / by } else { 0.0 };
        let rates = |(n, ms): (u32, f64)| (ratio(ms, n.into()), ratio(f64::from(n) * 1e3, ms));
        let ((prompt_n, prompt_ms), (predicted_n, predicted_ms)) = (prompt, predicted);
        let (prompt_per_token_ms, prompt_per_second) = rates(prompt);
        let (predicted_per_token_ms, predicted_per_second) = rates(predicted);
        Self {
            cache_n,
            prompt_n,
            prompt_ms,
            prompt_per_token_ms,
            prompt_per_second,
            predicted_n,
            predicted_ms,
            predicted_per_token_ms,
            predicted_per_second,
            draft_n: None,
            draft_n_accepted: None,
        }
    }

    /// Adds the numbers of draft tokens that were computed and accepted.
    pub fn with_drafts(self, drafted: u32, accepted: u32) -> Self {
        let some = |n| (drafted > 0).then_some(n);
        Self { draft_n: some(drafted), draft_n_accepted: some(accepted), ..self }
    }
}

/// `GET /v1/models`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ModelList {
    /// `list`
    pub object: String,
    /// The models.
    pub data: Vec<Model>,
}

impl ModelList {
    /// Creates a model list.
    pub fn new(data: Vec<Model>) -> Self {
        Self { object: "list".into(), data }
    }
}

/// One model of a [`ModelList`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Model {
    /// The name that requests use.
    pub id: String,
    /// `model`
    pub object: String,
    /// Unix time in seconds.
    pub created: u64,
    /// `flotilla`
    pub owned_by: String,
    /// On a node: the sampling parameters that the model recommends, for requests that do not set
    /// them; absent if it recommends none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub sampling_defaults: BTreeMap<String, f32>,
    /// Maximum tokens of prompt and response together (vLLM's name); absent while unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_model_len: Option<u32>,
    /// On a node: properties of the model file, as llama-server reports them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub meta: Option<ModelMeta>,
}

/// Part of [`Model`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ModelMeta {
    /// Tokens of the vocabulary.
    pub n_vocab: u32,
    /// Maximum tokens of prompt and response together.
    pub n_ctx: u32,
    /// Context that the model was trained with.
    pub n_ctx_train: u32,
    /// Dimensions of its embeddings.
    pub n_embd: u32,
    /// Parameters.
    pub n_params: u64,
    /// Size of the weights in bytes.
    pub size: u64,
}

impl Model {
    /// Creates the list entry of a model.
    pub fn new(id: String, created: u64) -> Self {
        let (object, owned_by) = ("model".into(), "flotilla".into());
        let (sampling_defaults, max_model_len, meta) = (BTreeMap::new(), None, None);
        Self { id, object, created, owned_by, sampling_defaults, max_model_len, meta }
    }
}
