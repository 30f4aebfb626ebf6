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
}

/// Part of [`Usage`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PromptTokensDetails {
    /// Prompt tokens read from the prefix cache instead of being computed.
    pub cached_tokens: u32,
}

impl Usage {
    /// Computes the total.
    pub fn new(prompt_tokens: u32, completion_tokens: u32, cached_tokens: u32) -> Self {
        let total_tokens = prompt_tokens.saturating_add(completion_tokens);
        let prompt_tokens_details = PromptTokensDetails { cached_tokens };
        Self { prompt_tokens, completion_tokens, total_tokens, prompt_tokens_details }
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
}

impl Model {
    /// Creates the list entry of a model.
    pub fn new(id: String, created: u64) -> Self {
        let (object, owned_by) = ("model".into(), "flotilla".into());
        Self { id, object, created, owned_by, sampling_defaults: BTreeMap::new() }
    }
}
