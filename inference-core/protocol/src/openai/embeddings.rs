//! Embeddings, and reranking of documents by a query.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Prompt;
use super::numbers::whole;

/// What `POST /v1/embeddings` reads.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
pub struct EmbeddingsRequest {
    /// The model's name; a node, which serves one, can do without.
    pub model: Option<String>,
    /// A text, texts, tokens or lists of tokens, at most 2048.
    pub input: Prompt,
    /// `float` or `base64`.
    pub encoding_format: Option<String>,
    /// Shorten embeddings to their first dimensions.
    #[serde(default, deserialize_with = "whole")]
    pub dimensions: Option<usize>,
}

/// What `POST /v1/rerank` reads.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
pub struct RerankRequest {
    /// The model's name; a node, which serves one, can do without.
    pub model: Option<String>,
    /// The query.
    pub query: String,
    /// The documents.
    pub documents: Vec<Document>,
    /// How many of the best documents to return; absent returns all.
    #[serde(default, deserialize_with = "whole")]
    #[schemars(range(min = 1))]
    pub top_n: Option<usize>,
    /// Return the documents with their scores.
    pub return_documents: Option<bool>,
}

/// A document to rank.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "expected a string, or an object with `text`")]
pub enum Document {
    /// `"text"`
    Text(String),
    /// `{"text": "text"}`
    Object {
        /// The text.
        text: String,
    },
}

/// `POST /v1/embeddings`
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Embeddings<'a> {
    /// `list`
    pub object: &'static str,
    /// One for each input, in order.
    pub data: Vec<Embedding>,
    /// The model's name.
    pub model: &'a str,
    /// Token counts.
    pub usage: PromptUsage,
}

/// The embedding of one input.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Embedding {
    /// `embedding`
    pub object: &'static str,
    /// Index of the input.
    pub index: u32,
    /// The embedding.
    pub embedding: Vector,
}

/// An embedding in one of OpenAI's two encodings.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum Vector {
    /// A list of numbers.
    Floats(Vec<f32>),
    /// Little-endian 32-bit floats in base64.
    Base64(String),
}

/// Token counts of a request that generates nothing.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
pub struct PromptUsage {
    /// Tokens of all inputs.
    pub prompt_tokens: u32,
    /// The same.
    pub total_tokens: u32,
}

impl PromptUsage {
    /// Creates a usage without completion tokens.
    pub fn new(prompt_tokens: u32) -> Self {
        Self { prompt_tokens, total_tokens: prompt_tokens }
    }
}

/// `POST /v1/rerank`
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Reranked<'a> {
    /// `list`
    pub object: &'static str,
    /// The model's name.
    pub model: &'a str,
    /// The best first.
    pub results: Vec<Ranked>,
    /// Token counts.
    pub usage: PromptUsage,
}

/// A document of [`Reranked`].
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Ranked {
    /// Its place in the request.
    pub index: usize,
    /// Relevance to the query, 0 to 1.
    pub relevance_score: f32,
    /// The document, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub document: Option<Value>,
}
