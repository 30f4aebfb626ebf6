//! The APIs of the gateway and of nodes.

use std::sync::LazyLock;

use hyper::Uri;
use inference_translation::{ClientApi, Service};

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
    /// `/v1/chat/completions/input_tokens`
    InputTokens,
    /// `/tokenize`
    Tokenize,
    /// `/detokenize`
    Detokenize,
    /// `/apply-template`
    ApplyTemplate,
    /// `/props`, which clients ask for by `GET`.
    Props,
}

impl Api {
    /// All endpoints, in declaration order.
    pub const ALL: [Self; 9] = [
        Self::ChatCompletions,
        Self::Completions,
        Self::Embeddings,
        Self::Rerank,
        Self::InputTokens,
        Self::Tokenize,
        Self::Detokenize,
        Self::ApplyTemplate,
        Self::Props,
    ];

    /// Paths of `POST` requests. The first of an endpoint is OpenAI's, if it is at OpenAI.
    pub const PATHS: [(&'static str, Self); 15] = [
        ("/v1/chat/completions", Self::ChatCompletions),
        ("/chat/completions", Self::ChatCompletions),
        ("/v1/completions", Self::Completions),
        ("/completions", Self::Completions),
        ("/v1/embeddings", Self::Embeddings),
        ("/embeddings", Self::Embeddings),
        ("/v1/rerank", Self::Rerank),
        ("/v2/rerank", Self::Rerank),
        ("/rerank", Self::Rerank),
        ("/v1/reranking", Self::Rerank),
        ("/reranking", Self::Rerank),
        ("/v1/chat/completions/input_tokens", Self::InputTokens),
        ("/tokenize", Self::Tokenize),
        ("/detokenize", Self::Detokenize),
        ("/apply-template", Self::ApplyTemplate),
    ];

    /// The endpoint's URI on a node.
    pub fn uri(self) -> Uri {
        static URIS: LazyLock<[Uri; Api::ALL.len()]> =
            LazyLock::new(|| Api::ALL.map(|api| Uri::from_static(api.node_uri())));
        URIS[self as usize].clone()
    }

    fn node_uri(self) -> &'static str {
        match self {
            Self::ChatCompletions => "http://node/v1/chat/completions",
            Self::Completions => "http://node/v1/completions",
            Self::Embeddings => "http://node/v1/embeddings",
            Self::Rerank => "http://node/v1/rerank",
            Self::InputTokens => "http://node/v1/chat/completions/input_tokens",
            Self::Tokenize => "http://node/tokenize",
            Self::Detokenize => "http://node/detokenize",
            Self::ApplyTemplate => "http://node/apply-template",
            Self::Props => "http://node/props",
        }
    }

    /// Label in metrics and logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::ChatCompletions => "chat_completions",
            Self::Completions => "completions",
            Self::Embeddings => "embeddings",
            Self::Rerank => "rerank",
            Self::InputTokens => "input_tokens",
            Self::Tokenize => "tokenize",
            Self::Detokenize => "detokenize",
            Self::ApplyTemplate => "apply_template",
            Self::Props => "props",
        }
    }

    /// True if responses are generated token by token.
    pub fn generates(self) -> bool {
        matches!(self, Self::ChatCompletions | Self::Completions)
    }

    /// True if only the tokenizer or the chat template works on a request. Such a request uses no
    /// tokens, and only our nodes serve it.
    pub fn is_text_query(self) -> bool {
        match self {
            Self::InputTokens
            | Self::Tokenize
            | Self::Detokenize
            | Self::ApplyTemplate
            | Self::Props => true,
            Self::ChatCompletions | Self::Completions | Self::Embeddings | Self::Rerank => false,
        }
    }

    /// The endpoint at `path`, if there is one.
    pub fn at(path: &str) -> Option<Self> {
        Self::PATHS.iter().find(|(known, _)| *known == path).map(|(_, api)| *api)
    }
}

fn path_of<A: PartialEq>(paths: &[(&'static str, A)], api: A) -> Option<&'static str> {
    paths.iter().find(|(_, known)| *known == api).map(|(path, _)| *path)
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

    /// The properties of a model.
    pub const PROPS: Self = Self::Translated(ClientApi::LlamaProps);

    /// The API at `path` for `POST` requests, if there is one.
    pub fn at(path: &str) -> Option<Self> {
        let translated = || ClientApi::at(path).map(Self::Translated);
        Api::at(path).map(Self::Native).or_else(translated)
    }

    /// A path at which clients call it by `POST`; `None` if that depends on the body.
    pub(crate) fn path(self) -> Option<&'static str> {
        match self {
            Self::Native(api) => path_of(&Api::PATHS, api),
            Self::Translated(api) => path_of(&ClientApi::PATHS, api),
        }
    }

    /// The API by which an endpoint serves it.
    pub fn served_by(self) -> Api {
        match self {
            Self::Native(api) => api,
            Self::Translated(api) => match api.service() {
                Service::ChatCompletions => Api::ChatCompletions,
                Service::Completions => Api::Completions,
                Service::InputTokens => Api::InputTokens,
                Service::Embeddings => Api::Embeddings,
                Service::Rerank => Api::Rerank,
                Service::Props => Api::Props,
            },
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
