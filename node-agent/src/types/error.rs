//! All request errors of a node, and their responses.

use inference_core::types::request::{Failure, SlotFailure};
use inference_protocol::openai::{INVALID_REQUEST, ParseError};
use inference_protocol::resume;

/// Why a request failed. Only [`crate::types::response`] renders it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Error {
    UnknownPath,
    /// The path exists, but only with these methods.
    Method(&'static str),
    Unauthenticated,
    /// The body is larger than this many bytes.
    TooLarge(usize),
    /// The body did not arrive in time, or its connection broke.
    SlowBody,
    /// The chunked encoding of the body is invalid.
    InvalidChunks,
    /// The body is compressed, or encoded in another way.
    EncodedBody,
    /// The body cannot be parsed.
    Malformed(ParseError),
    /// A request of another API that cannot be translated.
    Translation(ParseError),
    /// A value is out of range or not supported.
    Invalid {
        param: &'static str,
        /// What is wrong, and what would be valid.
        message: String,
    },
    /// This node serves another model.
    UnknownModel {
        asked: String,
        served: String,
    },
    /// No stored response has this id.
    UnknownResponse(String),
    /// The engine rejected the request or failed on it.
    Engine(Failure),
    /// The engine rejected the request's constraint.
    Constraint {
        /// The field that has it.
        param: &'static str,
        failure: Failure,
    },
    /// The engine accepts no requests at the moment.
    NotAccepted(NotAccepted),
    /// No prefixes are offered, or another gateway has claimed them.
    NothingOffered,
    /// This agent saves no slots.
    NoSlotFiles,
    /// A file could not be read or written; the reason.
    Disk(String),
    /// The engine died while it worked on the request.
    EngineLost,
    /// A bug of ours: a panic.
    Internal,
}

impl Error {
    pub(crate) fn disk(error: std::io::Error) -> Self {
        Self::Disk(error.to_string())
    }

    pub(crate) fn status(&self) -> u16 {
        match self {
            Self::UnknownPath | Self::UnknownModel { .. } | Self::UnknownResponse(_) => 404,
            Self::Method(_) => 405,
            Self::Unauthenticated => 401,
            Self::TooLarge(_) => 413,
            Self::SlowBody => 408,
            Self::InvalidChunks => 400,
            Self::EncodedBody => 415,
            Self::Malformed(_) | Self::Translation(_) | Self::Invalid { .. } => 400,
            Self::Engine(failure) | Self::Constraint { failure, .. } => match failure {
                Failure::ContextExceeded { .. }
                | Failure::EmptyPrompt
                | Failure::Untokenizable
                | Failure::UnknownToken(_)
                | Failure::NoChatTemplate
                | Failure::BrokenTemplate(_)
                | Failure::Field { .. }
                | Failure::NoInfill
                | Failure::Schema(_)
                | Failure::Grammar(_)
                | Failure::Tools(_)
                | Failure::NotGenerative
                | Failure::NoEmbeddings
                | Failure::NoRanking
                | Failure::InputTooLong { .. }
                | Failure::Template(_)
                | Failure::TemplateFailed { .. } => 400,
                // A gateway passes it on as 429: from a node, that would be a full one.
                Failure::BudgetExceeded { .. } => 402,
                Failure::TooLarge => 413,
                Failure::QueueFull => 429,
                Failure::Decode(_) => 500,
                Failure::ResumeMismatch => 503,
                Failure::Slot(SlotFailure::NoFile(_)) => 404,
                Failure::Slot(SlotFailure::Empty(_) | SlotFailure::FolderFull(_)) => 409,
                Failure::Slot(SlotFailure::Unusable(_)) => 400,
                Failure::Slot(SlotFailure::TooLarge) => 413,
                Failure::Slot(SlotFailure::Disk(_)) => 507,
            },
            Self::NothingOffered => 409,
            Self::NoSlotFiles => 501,
            Self::Disk(_) => 507,
            Self::NotAccepted(_) | Self::EngineLost => 503,
            Self::Internal => 500,
        }
    }

    /// OpenAI's `code`, which is also a metric label: a closed set.
    pub(crate) fn code(&self) -> &'static str {
        match self {
            Self::UnknownPath => "unknown_url",
            Self::Method(_) => "method_not_allowed",
            Self::Unauthenticated => "invalid_api_key",
            Self::TooLarge(_) => "request_too_large",
            Self::SlowBody => "request_timeout",
            Self::InvalidChunks => "invalid_chunks",
            Self::EncodedBody => "unsupported_encoding",
            Self::UnknownResponse(_) => "response_not_found",
            Self::Malformed(e) if e.param.is_none() => "invalid_json",
            Self::Malformed(_) | Self::Translation(_) | Self::Invalid { .. } => "invalid_value",
            Self::UnknownModel { .. } => "model_not_found",
            Self::Engine(failure) | Self::Constraint { failure, .. } => match failure {
                Failure::ContextExceeded { .. } => "context_length_exceeded",
                Failure::BudgetExceeded { .. } => "insufficient_quota",
                Failure::EmptyPrompt => "empty_prompt",
                Failure::Untokenizable => "untokenizable",
                Failure::UnknownToken(_) => "unknown_token",
                Failure::NoChatTemplate | Failure::BrokenTemplate(_) => "no_chat_template",
                Failure::Field { .. } => "invalid_value",
                Failure::NoInfill => "no_infill",
                Failure::Schema(_) => "invalid_json_schema",
                Failure::Grammar(_) => "invalid_grammar",
                Failure::Tools(_) => "invalid_tools",
                Failure::NotGenerative => "not_generative",
                Failure::NoEmbeddings => "no_embeddings",
                Failure::NoRanking => "no_ranking",
                Failure::InputTooLong { .. } => "input_too_long",
                Failure::Template(_) | Failure::TemplateFailed { .. } => "chat_template_error",
                Failure::TooLarge => "request_too_large",
                Failure::QueueFull => "queue_full",
                Failure::Decode(_) => "engine_error",
                Failure::ResumeMismatch => resume::MISMATCH,
                Failure::Slot(SlotFailure::Empty(_)) => "slot_empty",
                Failure::Slot(SlotFailure::NoFile(_)) => "slot_file_not_found",
                Failure::Slot(SlotFailure::Unusable(_)) => "slot_file_unusable",
                Failure::Slot(SlotFailure::TooLarge) => "slot_too_large",
                Failure::Slot(SlotFailure::FolderFull(_)) => "slot_folder_full",
                Failure::Slot(SlotFailure::Disk(_)) => "disk_error",
            },
            Self::NotAccepted(NotAccepted::Loading) => "model_loading",
            Self::NotAccepted(NotAccepted::Restarting) => "engine_restarting",
            Self::NotAccepted(NotAccepted::Draining) => "node_draining",
            Self::NotAccepted(NotAccepted::OtherWeights) => "model_changed",
            Self::NothingOffered => "nothing_offered",
            Self::NoSlotFiles => "slots_not_saved",
            Self::Disk(_) => "disk_error",
            Self::EngineLost => resume::ENGINE_LOST,
            Self::Internal => "internal_error",
        }
    }

    /// OpenAI's `type`.
    pub(crate) fn kind(&self) -> &'static str {
        match self.status() {
            401 => "authentication_error",
            402 => "insufficient_quota",
            429 => "rate_limit_error",
            500.. => "server_error",
            _ => INVALID_REQUEST,
        }
    }

    /// The invalid parameter.
    pub(crate) fn param(&self) -> Option<String> {
        match self {
            Self::Malformed(e) | Self::Translation(e) => e.param.clone(),
            Self::Invalid { param, .. } | Self::Constraint { param, .. } => Some((*param).into()),
            Self::UnknownModel { .. } => Some("model".into()),
            Self::Engine(Failure::ContextExceeded { chat: true, .. }) => Some("messages".into()),
            Self::Engine(
                Failure::ContextExceeded { .. } | Failure::EmptyPrompt | Failure::UnknownToken(_),
            ) => Some("prompt".into()),
            Self::Engine(Failure::NoInfill) => Some("suffix".into()),
            Self::Engine(Failure::Field { param, .. }) => Some(param.clone()),
            Self::Engine(Failure::Schema(_)) => Some("response_format".into()),
            Self::Engine(Failure::Grammar(_)) => Some("grammar".into()),
            Self::Engine(Failure::Tools(_)) => Some("tools".into()),
            Self::Engine(Failure::InputTooLong { .. }) => Some("input".into()),
            Self::Engine(Failure::NotGenerative | Failure::NoEmbeddings | Failure::NoRanking) => {
                Some("model".into())
            }
            Self::Engine(Failure::Template(_)) => Some("messages".into()),
            Self::Engine(Failure::TemplateFailed { is_own: true, .. }) => {
                Some("chat_template".into())
            }
            _ => None,
        }
    }

    /// Seconds after which a retry makes sense.
    pub(crate) fn retry_after_seconds(&self) -> Option<u32> {
        match self {
            Self::Engine(Failure::QueueFull) | Self::EngineLost => Some(1),
            Self::NotAccepted(
                NotAccepted::Restarting | NotAccepted::Loading | NotAccepted::OtherWeights,
            ) => Some(1),
            Self::NotAccepted(NotAccepted::Draining) => Some(5),
            _ => None,
        }
    }
}

/// Why a request was not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotAccepted {
    Loading,
    Restarting,
    Draining,
    /// The engine has loaded other weights than the intended ones.
    OtherWeights,
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::UnknownPath => write!(
                f,
                "no such path; the API is at /v1/chat/completions, /v1/completions, \
                 /v1/embeddings, /v1/rerank and /v1/models"
            ),
            Self::Method(allowed) => write!(f, "this path supports {allowed} only"),
            Self::Unauthenticated => {
                write!(f, "the API key is missing or wrong; send 'Authorization: Bearer <key>'")
            }
            Self::TooLarge(max) => write!(f, "the request body is larger than {max} bytes"),
            Self::SlowBody => write!(f, "the request body did not arrive in time"),
            Self::InvalidChunks => {
                write!(f, "the chunked transfer encoding of the request body is invalid")
            }
            Self::EncodedBody => write!(
                f,
                "content-encoding: only identity is supported; send the request body uncompressed"
            ),
            Self::UnknownResponse(id) => {
                write!(f, "no response with id '{id}' is stored; it may have expired")
            }
            Self::Malformed(e) | Self::Translation(e) => write!(f, "{}", e.message),
            Self::Invalid { message, .. } => write!(f, "{message}"),
            Self::UnknownModel { asked, served } => {
                write!(f, "this node does not serve the model '{asked}'; it serves '{served}'")
            }
            Self::Engine(failure) | Self::Constraint { failure, .. } => write!(f, "{failure}"),
            Self::NotAccepted(NotAccepted::Loading) => {
                write!(f, "the model is still loading; try again later")
            }
            Self::NotAccepted(NotAccepted::Restarting) => {
                write!(f, "the engine is restarting after a failure; try again later")
            }
            Self::NotAccepted(NotAccepted::Draining) => write!(f, "this node is shutting down"),
            Self::NotAccepted(NotAccepted::OtherWeights) => {
                write!(f, "this node now serves another model file; send the request again")
            }
            Self::NothingOffered => write!(f, "no prefixes are offered, or not any more"),
            Self::NoSlotFiles => {
                write!(f, "this agent saves no slots; start it with --slot-save-path")
            }
            Self::Disk(reason) => write!(f, "a file cannot be read or written: {reason}"),
            Self::EngineLost => write!(f, "the engine died while it processed this request"),
            Self::Internal => write!(f, "internal error in the agent; see its log"),
        }
    }
}

impl std::error::Error for Error {}

impl From<ParseError> for Error {
    fn from(e: ParseError) -> Self {
        Self::Malformed(e)
    }
}

impl From<NotAccepted> for Error {
    fn from(e: NotAccepted) -> Self {
        Self::NotAccepted(e)
    }
}

impl From<Failure> for Error {
    fn from(e: Failure) -> Self {
        Self::Engine(e)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_has_its_status_code_type_and_retry() {
        let context = Failure::ContextExceeded { prompt_tokens: 9, context_tokens: 8, chat: false };
        let budget = Failure::BudgetExceeded { tokens: 9, usage_max: 8 };
        let invalid = Error::Invalid { param: "n", message: "m".into() };
        let unknown = Error::UnknownModel { asked: "a".into(), served: "b".into() };
        let table: [(Error, u16, &str, &str, Option<u32>); 26] = [
            (Error::UnknownPath, 404, "unknown_url", "invalid_request_error", None),
            (Error::Method("GET"), 405, "method_not_allowed", "invalid_request_error", None),
            (Error::Unauthenticated, 401, "invalid_api_key", "authentication_error", None),
            (Error::TooLarge(1), 413, "request_too_large", "invalid_request_error", None),
            (Error::SlowBody, 408, "request_timeout", "invalid_request_error", None),
            (Error::InvalidChunks, 400, "invalid_chunks", "invalid_request_error", None),
            (Error::EncodedBody, 415, "unsupported_encoding", "invalid_request_error", None),
            (invalid, 400, "invalid_value", "invalid_request_error", None),
            (unknown, 404, "model_not_found", "invalid_request_error", None),
            (context.into(), 400, "context_length_exceeded", "invalid_request_error", None),
            (Failure::EmptyPrompt.into(), 400, "empty_prompt", "invalid_request_error", None),
            (Failure::Untokenizable.into(), 400, "untokenizable", "invalid_request_error", None),
            (Failure::UnknownToken(1).into(), 400, "unknown_token", "invalid_request_error", None),
            (
                Failure::NoChatTemplate.into(),
                400,
                "no_chat_template",
                "invalid_request_error",
                None,
            ),
            (budget.into(), 402, "insufficient_quota", "insufficient_quota", None),
            (Failure::QueueFull.into(), 429, "queue_full", "rate_limit_error", Some(1)),
            (Failure::Decode("x".into()).into(), 500, "engine_error", "server_error", None),
            (NotAccepted::Loading.into(), 503, "model_loading", "server_error", Some(1)),
            (NotAccepted::Restarting.into(), 503, "engine_restarting", "server_error", Some(1)),
            (NotAccepted::Draining.into(), 503, "node_draining", "server_error", Some(5)),
            (NotAccepted::OtherWeights.into(), 503, "model_changed", "server_error", Some(1)),
            (Error::NothingOffered, 409, "nothing_offered", "invalid_request_error", None),
            (Error::Disk("full".into()), 507, "disk_error", "server_error", None),
            (Error::EngineLost, 503, "engine_lost", "server_error", Some(1)),
            (Failure::ResumeMismatch.into(), 503, "resume_mismatch", "server_error", None),
            (Error::Internal, 500, "internal_error", "server_error", None),
        ];
        for (error, status, code, kind, retry) in table {
            assert_eq!(error.status(), status, "{error}");
            assert_eq!((error.code(), error.kind()), (code, kind));
            assert_eq!(error.retry_after_seconds(), retry, "{error}");
        }
    }

    #[test]
    fn errors_about_slots_have_their_status_and_code() {
        let table = [
            (SlotFailure::Empty(1), 409, "slot_empty"),
            (SlotFailure::NoFile("a".into()), 404, "slot_file_not_found"),
            (SlotFailure::Unusable("a".into()), 400, "slot_file_unusable"),
            (SlotFailure::TooLarge, 413, "slot_too_large"),
            (SlotFailure::FolderFull(1 << 20), 409, "slot_folder_full"),
            (SlotFailure::Disk("full".into()), 507, "disk_error"),
        ];
        for (failure, status, code) in table {
            let error = Error::from(Failure::Slot(failure));
            assert_eq!((error.status(), error.code()), (status, code), "{error}");
            assert_eq!(error.retry_after_seconds(), None);
        }
        assert_eq!((Error::NoSlotFiles.status(), Error::NoSlotFiles.kind()), (501, "server_error"));
    }
}
