//! All errors of a request at the gateway. Each has a status, a code, an origin (who caused it),
//! and whether another endpoint may be tried.

use std::time::Duration;

use hyper::header::HeaderName;
use inference_protocol::openai::{ErrorDetail, INVALID_REQUEST, Invalid, ParseError};
use inference_protocol::resume;

use crate::types::limits::BudgetLimit;
use crate::types::limits::LimitScope;
use crate::types::limits::QueueLimit;
use crate::types::limits::RateLimit;

mod message;

/// Why a request was refused or failed. Only [`crate::types::response`] renders it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Error {
    /// No such path.
    UnknownPath,
    /// The path exists, but only with these methods.
    Method(&'static str),
    /// No API key was sent.
    KeyMissing,
    /// The API key is unknown.
    KeyWrong,
    /// A node sent a wrong join key.
    JoinKeyWrong,
    /// A node sent no client certificate although one is required.
    JoinCertificate,
    /// The admin key is wrong.
    AdminKeyWrong,
    /// No admin key is configured.
    AdminOff,
    /// No node has this name.
    UnknownNode(String),
    /// The join request is malformed.
    JoinInvalid(String),
    /// The node speaks another version of the node link.
    JoinVersion,
    /// The node already has a link to this gateway, through another address.
    JoinedAlready,
    /// Another node with this name is linked.
    NodeNameTaken(String),
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
    /// A field has an invalid value.
    Invalid(ParseError),
    /// No endpoint serves this model.
    UnknownModel(String),
    /// The tenant has no stored response with this id.
    UnknownResponse(String),
    /// There is no store, which files, batches and responses in the background need.
    StoreOff,
    /// The store cannot be read or written now.
    StoreUnavailable,
    /// Keys of the store do not count at this gateway.
    StoredKeysOff,
    /// The store has no key with this name.
    UnknownKey(String),
    /// There is a key with this name already.
    KeyExists(String),
    /// The tenant has no file, batch or job with this id.
    UnknownRecord(String),
    /// A batch that has not ended reads the file.
    FileInUse(String),
    /// The batch has ended already.
    BatchFinished(String),
    /// The batch has not ended.
    BatchNotEnded(String),
    /// The tenant has so many batches that have not ended.
    TooManyBatches(usize),
    /// The tenant has so many responses and jobs in the background that have not ended.
    TooManyTasks(usize),
    /// The tenant, or all together, have stored as much as they may.
    StorageFull,
    /// No node is ready.
    NoNode,
    /// The key may not use this model.
    ModelForbidden(String),
    /// The key, or one of its users, has reached a rate limit.
    RateLimited {
        /// The limit.
        limit: RateLimit,
        /// Whose limit it is.
        scope: LimitScope,
        /// Time until the request would fit.
        wait: Duration,
    },
    /// The key, or one of its users, has used up its monthly budget.
    Quota(BudgetLimit, LimitScope),
    /// Too many requests are queued, or their bodies are too large together.
    QueueFull {
        /// The limit reached.
        full: QueueLimit,
        /// Suggested delay before a retry.
        retry_after_seconds: u32,
    },
    /// A header that we interpret has an invalid value; the text says what is valid.
    Header(HeaderName, String),
    /// The predicted wait exceeds the request's deadline.
    DeadlineUnmet {
        /// Suggested delay before a retry.
        retry_after_seconds: u32,
    },
    /// No slot became free in time.
    QueueTimeout {
        /// Suggested delay before a retry.
        retry_after_seconds: u32,
    },
    /// The connection to the node broke before the end of the response.
    NodeLost,
    /// The node refused the request with this status.
    NodeRefused(u16),
    /// The node's engine died.
    EngineLost,
    /// Two engines died while they ran this request.
    Quarantined,
    /// The node reported that it failed in the middle of the response.
    NodeFailed(String),
    /// The node reported in the middle of the response that the request cannot be fulfilled. The
    /// client gets the node's message.
    Unanswerable(Box<ErrorDetail>),
    /// The node did not respond in time.
    NodeTimeout,
    /// The node's response is too large or malformed.
    NodeAnswer(&'static str),
    /// A bug in the gateway: a panic or an impossible state. Created by [`Self::internal`].
    Internal,
    /// The request asks for a response larger than this many bytes.
    ResponseTooLarge(usize),
    /// An external endpoint refused the request.
    ExternalRefused {
        /// The status.
        status: u16,
        /// The field that the endpoint named, if it is one of the API.
        param: Option<&'static str>,
    },
    /// The prompt does not fit into the context of an external endpoint.
    ExternalTooLong,
    /// An external endpoint reported an error before or during its response.
    ExternalFailed,
}

/// Label of requests that a node refused, whatever the reason.
pub(crate) const REFUSED_BY_NODE: &str = "refused_by_node";

/// Who caused an error; decides the log level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultOrigin {
    /// The client.
    Client,
    /// The gateway: a limit, a lack of nodes, or a bug.
    Gateway,
    /// A node or external endpoint.
    Node,
}

impl Error {
    /// Reports a failure of the gateway itself. The details are logged; the client learns only that
    /// something failed.
    pub(crate) fn internal(what: impl std::fmt::Display) -> Self {
        tracing::error!(%what, "internal error");
        Self::Internal
    }

    /// HTTP status.
    pub fn status(&self) -> u16 {
        match self {
            Self::UnknownPath | Self::UnknownModel(_) | Self::UnknownNode(_) => 404,
            Self::UnknownResponse(_) | Self::UnknownRecord(_) | Self::UnknownKey(_) => 404,
            Self::KeyExists(_) => 409,
            Self::FileInUse(_) | Self::BatchFinished(_) | Self::BatchNotEnded(_) => 409,
            Self::TooManyBatches(_) | Self::TooManyTasks(_) => 429,
            Self::StorageFull => 413,
            Self::StoreUnavailable => 503,
            Self::ModelForbidden(_) | Self::AdminOff => 403,
            Self::StoreOff | Self::StoredKeysOff => 403,
            Self::RateLimited { .. } | Self::Quota(..) => 429,
            Self::QueueFull { full: QueueLimit::Tenant | QueueLimit::User, .. } => 429,
            Self::Method(_) => 405,
            Self::KeyMissing | Self::KeyWrong | Self::AdminKeyWrong => 401,
            Self::JoinKeyWrong | Self::JoinCertificate => 401,
            Self::JoinInvalid(_) | Self::Malformed(_) | Self::Header(..) => 400,
            Self::Invalid(_) => 400,
            Self::Unanswerable(_) => 400,
            Self::JoinVersion => 426,
            Self::JoinedAlready => 409,
            // Agents take a 409 as a sign of their own link, and retry after any status that is not
            // a known refusal.
            Self::NodeNameTaken(_) => 423,
            Self::TooLarge(_) | Self::ExternalRefused { status: 413, .. } => 413,
            Self::ExternalRefused { .. } | Self::ExternalTooLong => 400,
            Self::SlowBody => 408,
            Self::InvalidChunks => 400,
            Self::EncodedBody => 415,
            Self::NoNode | Self::QueueTimeout { .. } | Self::QueueFull { .. } => 503,
            Self::DeadlineUnmet { .. } => 503,
            Self::NodeRefused(_) => 503,
            // Clients retry after a 5xx.
            Self::Quarantined | Self::ResponseTooLarge(_) => 422,
            Self::NodeLost | Self::EngineLost | Self::NodeAnswer(_) | Self::NodeFailed(_) => 502,
            Self::ExternalFailed => 502,
            Self::NodeTimeout => 504,
            Self::Internal => 500,
        }
    }

    /// OpenAI's `code`, and a metrics label from a fixed set. For [`Self::Unanswerable`] it is only
    /// the label: its `code` comes from the node.
    pub fn code(&self) -> &'static str {
        match self {
            Self::UnknownPath => "unknown_url",
            Self::Method(_) => "method_not_allowed",
            Self::KeyMissing | Self::KeyWrong => "invalid_api_key",
            Self::JoinKeyWrong => "invalid_join_key",
            Self::JoinCertificate => "join_certificate_missing",
            Self::AdminKeyWrong => "invalid_admin_key",
            Self::AdminOff => "admin_disabled",
            Self::UnknownNode(_) => "node_not_found",
            Self::JoinInvalid(_) => "invalid_join",
            Self::JoinVersion => "join_version",
            Self::JoinedAlready => "joined_already",
            Self::NodeNameTaken(_) => "node_name_taken",
            Self::TooLarge(_) => "request_too_large",
            Self::SlowBody => "request_timeout",
            Self::InvalidChunks => "invalid_chunks",
            Self::EncodedBody => "unsupported_encoding",
            Self::Malformed(e) if e.param.is_none() => "invalid_json",
            Self::Malformed(_) | Self::Invalid(_) => "invalid_value",
            Self::Header(..) => "invalid_header",
            Self::UnknownModel(_) => "model_not_found",
            Self::UnknownResponse(_) => "response_not_found",
            Self::StoreOff => "store_disabled",
            Self::StoreUnavailable => "store_unavailable",
            Self::StoredKeysOff => "stored_keys_disabled",
            Self::UnknownKey(_) => "key_not_found",
            Self::KeyExists(_) => "key_exists",
            Self::UnknownRecord(_) => "not_found",
            Self::FileInUse(_) => "file_in_use",
            Self::BatchFinished(_) => "batch_finished",
            Self::BatchNotEnded(_) => "batch_not_ended",
            Self::TooManyBatches(_) => "too_many_batches",
            Self::TooManyTasks(_) => "too_many_tasks",
            Self::StorageFull => "storage_limit_exceeded",
            Self::ModelForbidden(_) => "model_not_allowed",
            Self::RateLimited { .. } => "rate_limit_exceeded",
            Self::Quota(..) => "insufficient_quota",
            Self::NoNode => "no_node",
            Self::QueueFull { .. } => "queue_full",
            Self::DeadlineUnmet { .. } => "deadline_unmet",
            Self::QueueTimeout { .. } => "queue_timeout",
            Self::NodeLost => "node_lost",
            Self::NodeRefused(_) => "node_refused",
            Self::EngineLost => resume::ENGINE_LOST,
            Self::Quarantined => "request_quarantined",
            Self::NodeFailed(_) => "node_failed",
            Self::Unanswerable(_) => REFUSED_BY_NODE,
            Self::NodeTimeout => "node_timeout",
            Self::NodeAnswer(_) => "node_answer",
            Self::Internal => "internal_error",
            Self::ResponseTooLarge(_) => "response_too_large",
            Self::ExternalRefused { .. } => "external_refused",
            Self::ExternalTooLong => "context_length_exceeded",
            Self::ExternalFailed => "external_failed",
        }
    }

    /// Refusal label: the code, or a name of the limit.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::QueueFull { full, .. } => full.reason(),
            Self::RateLimited { limit, scope: LimitScope::Key, .. } => match limit {
                RateLimit::Requests => "limit_requests",
                RateLimit::Tokens => "limit_tokens",
                RateLimit::Concurrent => "limit_concurrent",
                RateLimit::Users => "limit_users",
                RateLimit::Budget => "limit_budget",
            },
            Self::RateLimited { limit, scope: LimitScope::User, .. } => match limit {
                RateLimit::Requests => "limit_user_requests",
                RateLimit::Tokens => "limit_user_tokens",
                RateLimit::Concurrent | RateLimit::Users => "limit_user_concurrent",
                RateLimit::Budget => "limit_user_budget",
            },
            Self::Quota(_, LimitScope::User) => "insufficient_user_quota",
            _ => self.code(),
        }
    }

    /// Who caused the error.
    pub fn origin(&self) -> FaultOrigin {
        match self {
            Self::UnknownPath
            | Self::Method(_)
            | Self::KeyMissing
            | Self::KeyWrong
            | Self::JoinKeyWrong
            | Self::JoinCertificate
            | Self::AdminKeyWrong
            | Self::AdminOff
            | Self::UnknownNode(_)
            | Self::JoinInvalid(_)
            | Self::JoinVersion
            | Self::JoinedAlready
            | Self::NodeNameTaken(_)
            | Self::TooLarge(_)
            | Self::SlowBody
            | Self::InvalidChunks
            | Self::EncodedBody
            | Self::Malformed(_)
            | Self::Invalid(_)
            | Self::Header(..)
            | Self::ModelForbidden(_)
            | Self::RateLimited { .. }
            | Self::Quota(..)
            | Self::Unanswerable(_)
            | Self::ResponseTooLarge(_)
            | Self::ExternalRefused { .. }
            | Self::ExternalTooLong
            | Self::UnknownResponse(_)
            | Self::UnknownRecord(_)
            | Self::FileInUse(_)
            | Self::BatchFinished(_)
            | Self::BatchNotEnded(_)
            | Self::TooManyBatches(_)
            | Self::TooManyTasks(_)
            | Self::StorageFull
            | Self::StoreOff
            | Self::StoredKeysOff
            | Self::UnknownKey(_)
            | Self::KeyExists(_)
            | Self::UnknownModel(_) => FaultOrigin::Client,
            Self::NoNode
            | Self::StoreUnavailable
            | Self::QueueFull { .. }
            | Self::DeadlineUnmet { .. }
            | Self::QueueTimeout { .. }
            | Self::Internal => FaultOrigin::Gateway,
            Self::NodeLost
            | Self::EngineLost
            | Self::Quarantined
            | Self::NodeFailed(_)
            | Self::NodeRefused(_)
            | Self::NodeTimeout
            | Self::ExternalFailed
            | Self::NodeAnswer(_) => FaultOrigin::Node,
        }
    }

    /// True if another endpoint may be tried. After a timeout another node might succeed, but the
    /// request's time is up; a response that is too large would be so on any node.
    pub(crate) fn is_retryable(&self) -> bool {
        matches!(
            self,
            Self::NodeLost | Self::EngineLost | Self::NodeRefused(_) | Self::ExternalFailed
        )
    }

    /// True if a retry takes from the retry budget: a node that refuses may be overloaded. A lost
    /// node is not loaded by retries elsewhere.
    pub fn spends_retry_budget(&self) -> bool {
        matches!(self, Self::NodeRefused(_))
    }

    /// True if the cause is a lack of slots.
    pub(crate) fn is_overload(&self) -> bool {
        matches!(
            self,
            Self::QueueFull { .. } | Self::DeadlineUnmet { .. } | Self::QueueTimeout { .. }
        )
    }

    /// OpenAI's `type`.
    pub fn kind(&self) -> &'static str {
        match (self.status(), self.origin()) {
            (401, _) => "authentication_error",
            (403, _) => "permission_error",
            (429, _) if matches!(self, Self::Quota(..)) => "insufficient_quota",
            (429, _) => "rate_limit_error",
            (_, FaultOrigin::Client) => INVALID_REQUEST,
            (_, FaultOrigin::Gateway) => "server_error",
            (_, FaultOrigin::Node) => "upstream_error",
        }
    }

    /// The invalid parameter.
    pub fn param(&self) -> Option<String> {
        match self {
            Self::Malformed(e) | Self::Invalid(e) => e.param.clone(),
            Self::UnknownModel(_) | Self::ModelForbidden(_) => Some("model".into()),
            Self::Header(name, _) => Some(name.as_str().into()),
            Self::ExternalRefused { param, .. } => param.map(Into::into),
            _ => None,
        }
    }

    /// True if the same request may succeed later. A used-up monthly budget does not come back in
    /// time.
    pub(crate) fn is_temporary(&self) -> bool {
        match self.status() {
            429 => !matches!(self, Self::Quota(..)),
            status => matches!(status, 408 | 500 | 502..=504),
        }
    }

    /// Suggested delay before a retry.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        let seconds = match self {
            Self::QueueFull { retry_after_seconds, .. }
            | Self::DeadlineUnmet { retry_after_seconds }
            | Self::QueueTimeout { retry_after_seconds } => *retry_after_seconds,
            Self::RateLimited { wait, .. } => {
                return Some((*wait).clamp(Duration::from_millis(1), RETRY_AFTER_MAX));
            }
            Self::NoNode => 5,
            Self::NodeLost | Self::EngineLost | Self::NodeRefused(_) => 1,
            _ => return None,
        };
        Some(Duration::from_secs(seconds.into()).min(RETRY_AFTER_MAX))
    }
}

/// Clients do not wait longer than this.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(120);

impl std::error::Error for Error {}

impl From<ParseError> for Error {
    fn from(e: ParseError) -> Self {
        Self::Malformed(e)
    }
}

impl From<Invalid> for Error {
    fn from(e: Invalid) -> Self {
        match e {
            Invalid::Type(e) => Self::Malformed(e),
            Invalid::Value(e) => Self::Invalid(e),
        }
    }
}

#[cfg(test)]
mod tests;
