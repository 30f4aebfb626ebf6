//! What each API is called and how its errors look.

use inference_protocol::openai::{ErrorBody, ErrorDetail};

use crate::writer::ClientApi;
use crate::{messages, ollama};

/// An API of nodes that serves translated requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Service {
    /// `/v1/chat/completions`
    ChatCompletions,
    /// `/v1/completions`
    Completions,
    /// `/v1/chat/completions/input_tokens`
    InputTokens,
    /// `/v1/embeddings`
    Embeddings,
    /// `/v1/rerank`
    Rerank,
    /// `/props`
    Props,
}

impl ClientApi {
    /// All APIs, in declaration order.
    pub const ALL: [Self; 13] = [
        Self::Messages,
        Self::CountTokens,
        Self::OllamaChat,
        Self::OllamaGenerate,
        Self::OllamaEmbed,
        Self::OllamaEmbeddings,
        Self::Responses,
        Self::InputTokens,
        Self::RerankTexts,
        Self::LlamaCompletion,
        Self::LlamaInfill,
        Self::LlamaEmbedding,
        Self::LlamaProps,
    ];

    /// Paths of `POST` requests.
    pub const PATHS: [(&'static str, Self); 11] = [
        ("/v1/messages", Self::Messages),
        ("/v1/messages/count_tokens", Self::CountTokens),
        ("/api/chat", Self::OllamaChat),
        ("/api/generate", Self::OllamaGenerate),
        ("/api/embed", Self::OllamaEmbed),
        ("/api/embeddings", Self::OllamaEmbeddings),
        ("/v1/responses", Self::Responses),
        ("/v1/responses/input_tokens", Self::InputTokens),
        ("/completion", Self::LlamaCompletion),
        ("/infill", Self::LlamaInfill),
        ("/embedding", Self::LlamaEmbedding),
    ];

    /// Label in metrics and logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Messages => "messages",
            Self::CountTokens => "count_tokens",
            Self::OllamaChat => "ollama_chat",
            Self::OllamaGenerate => "ollama_generate",
            Self::OllamaEmbed => "ollama_embed",
            Self::OllamaEmbeddings => "ollama_embeddings",
            Self::Responses => "responses",
            Self::InputTokens => "responses_input_tokens",
            Self::RerankTexts => "rerank_texts",
            Self::LlamaCompletion => "llama_completion",
            Self::LlamaInfill => "llama_infill",
            Self::LlamaEmbedding => "llama_embedding",
            Self::LlamaProps => "llama_props",
        }
    }

    /// What serves the translated request.
    pub fn service(self) -> Service {
        match self {
            Self::Messages | Self::OllamaChat | Self::OllamaGenerate | Self::Responses => {
                Service::ChatCompletions
            }
            Self::CountTokens | Self::InputTokens => Service::InputTokens,
            Self::LlamaCompletion | Self::LlamaInfill => Service::Completions,
            Self::OllamaEmbed | Self::OllamaEmbeddings | Self::LlamaEmbedding => {
                Service::Embeddings
            }
            Self::RerankTexts => Service::Rerank,
            Self::LlamaProps => Service::Props,
        }
    }

    /// The API at a path for `POST` requests, if there is one. [`Self::RerankTexts`] shares its
    /// path with rerank requests; see [`crate::rerank::has_texts`]. [`Self::LlamaProps`] has no
    /// body.
    pub fn at(path: &str) -> Option<Self> {
        Self::PATHS.iter().find(|(known, _)| *known == path).map(|(_, api)| *api)
    }

    /// The body of an error response with this status.
    pub fn error_body(self, status: u16, error: &ErrorDetail, request_id: Option<&str>) -> String {
        match self {
            Self::Messages | Self::CountTokens => messages::error_body(status, error, request_id),
            Self::OllamaChat
            | Self::OllamaGenerate
            | Self::OllamaEmbed
            | Self::OllamaEmbeddings => ollama::error_body(error),
            Self::Responses
            | Self::InputTokens
            | Self::RerankTexts
            | Self::LlamaCompletion
            | Self::LlamaInfill
            | Self::LlamaEmbedding
            | Self::LlamaProps => ErrorBody { error: error.clone() }.to_json(),
        }
    }
}
