//! The API paths that nodes serve.

use std::sync::LazyLock;

use hyper::Uri;

/// An API endpoint that nodes serve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Api {
    /// `/v1/chat/completions`
    ChatCompletions,
    /// `/v1/completions`
    Completions,
    /// `/v1/embeddings`
    Embeddings,
    /// `/v1/rerank`
    Rerank,
}

impl Api {
    /// All endpoints, in declaration order.
    pub const ALL: [Self; 4] =
        [Self::ChatCompletions, Self::Completions, Self::Embeddings, Self::Rerank];

    /// The endpoint's URI on a node.
    pub fn uri(self) -> Uri {
        static CHAT: LazyLock<Uri> =
            LazyLock::new(|| Uri::from_static("http://node/v1/chat/completions"));
        static TEXT: LazyLock<Uri> =
            LazyLock::new(|| Uri::from_static("http://node/v1/completions"));
        static VECTORS: LazyLock<Uri> =
            LazyLock::new(|| Uri::from_static("http://node/v1/embeddings"));
        static RANKS: LazyLock<Uri> = LazyLock::new(|| Uri::from_static("http://node/v1/rerank"));
        match self {
            Self::ChatCompletions => CHAT.clone(),
            Self::Completions => TEXT.clone(),
            Self::Embeddings => VECTORS.clone(),
            Self::Rerank => RANKS.clone(),
        }
    }

    /// Label in metrics and logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::ChatCompletions => "chat_completions",
            Self::Completions => "completions",
            Self::Embeddings => "embeddings",
            Self::Rerank => "rerank",
        }
    }

    /// True if responses are generated token by token.
    pub fn generates(self) -> bool {
        matches!(self, Self::ChatCompletions | Self::Completions)
    }

    /// The endpoint at `path`, if there is one.
    pub fn at(path: &str) -> Option<Self> {
        match path {
            "/v1/chat/completions" => Some(Self::ChatCompletions),
            "/v1/completions" => Some(Self::Completions),
            "/v1/embeddings" => Some(Self::Embeddings),
            "/v1/rerank" | "/rerank" => Some(Self::Rerank),
            _ => None,
        }
    }
}
