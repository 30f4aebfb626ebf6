//! What each API is called and how its errors look.

use inference_protocol::openai::ErrorDetail;

use crate::writer::ClientApi;
use crate::{messages, ollama};

impl ClientApi {
    /// All APIs, in declaration order.
    pub const ALL: [Self; 4] =
        [Self::Messages, Self::CountTokens, Self::OllamaChat, Self::OllamaGenerate];

    /// Label in metrics and logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Messages => "messages",
            Self::CountTokens => "count_tokens",
            Self::OllamaChat => "ollama_chat",
            Self::OllamaGenerate => "ollama_generate",
        }
    }

    /// True if it counts the tokens of a prompt: the translated request goes to
    /// `/v1/chat/completions/input_tokens`.
    pub fn counts_tokens(self) -> bool {
        matches!(self, Self::CountTokens)
    }

    /// The API at a path, if there is one.
    pub fn at(path: &str) -> Option<Self> {
        match path {
            "/v1/messages" => Some(Self::Messages),
            "/v1/messages/count_tokens" => Some(Self::CountTokens),
            "/api/chat" => Some(Self::OllamaChat),
            "/api/generate" => Some(Self::OllamaGenerate),
            _ => None,
        }
    }

    /// The body of an error response with this status.
    pub fn error_body(self, status: u16, error: &ErrorDetail, request_id: Option<&str>) -> String {
        match self {
            Self::Messages | Self::CountTokens => messages::error_body(status, error, request_id),
            Self::OllamaChat | Self::OllamaGenerate => ollama::error_body(error),
        }
    }
}
