//! The APIs of the gateway and of nodes.

use std::sync::LazyLock;

use hyper::Uri;
use inference_translation::ClientApi;

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

/// An API of the gateway: one that nodes serve, or one that is translated to chat completions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestedApi {
    /// Nodes serve it.
    Native(Api),
    /// It is translated.
    Translated(ClientApi),
}

impl RequestedApi {
    /// How many there are.
    pub const COUNT: usize = Api::ALL.len() + ClientApi::ALL.len();

    /// The API at `path`, if there is one.
    pub fn at(path: &str) -> Option<Self> {
        let translated = || ClientApi::at(path).map(Self::Translated);
        Api::at(path).map(Self::Native).or_else(translated)
    }

    /// The API by which an endpoint serves it.
    pub fn served_by(self) -> Api {
        match self {
            Self::Native(api) => api,
            Self::Translated(_) => Api::ChatCompletions,
        }
    }

    /// A number below [`Self::COUNT`], different for each.
    pub(crate) fn index(self) -> usize {
        match self {
            Self::Native(api) => api as usize,
            Self::Translated(api) => Api::ALL.len() + api as usize,
        }
    }

    /// Label in metrics and logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Native(api) => api.name(),
            Self::Translated(api) => api.name(),
        }
    }
}
