//! Everything that can go wrong with a request at the gateway, and four answers to each:
//! status, code, whose fault, and whether another endpoint may be tried.

use std::time::Duration;

use hyper::header::HeaderName;
use inference_protocol::openai::{ErrorDetail, INVALID_REQUEST, Invalid, ParseError};
use inference_protocol::resume;

use crate::types::limits::Exhausted;
use crate::types::limits::Full;
use crate::types::limits::Limit;

mod message;

/// Why a request was refused or failed. Rendered in [`crate::types::response`] only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Error {
    /// No such path.
    UnknownPath,
    /// The path exists, with other methods: these.
    Method(&'static str),
    /// No key was sent.
    KeyMissing,
    /// The key is not one of ours.
    KeyWrong,
    /// A node's join key is not ours.
    JoinKeyWrong,
    /// A node showed no certificate that we ask nodes for.
    JoinCertificate,
    /// The operators' key is not ours.
    AdminKeyWrong,
    /// There is no operators' key.
    AdminOff,
    /// There is no node of that name.
    UnknownNode(String),
    /// A join request that is not one.
    JoinInvalid(String),
    /// A node of another version.
    JoinVersion,
    /// A node that has a link to us already, by another address.
    JoinedAlready,
    /// Another node of this name has a link to us.
    NodeNameTaken(String),
    /// The body is larger than this many bytes.
    TooLarge(usize),
    /// The body did not arrive in time, or its connection broke.
    SlowBody,
    /// The body cannot be read.
    Malformed(ParseError),
    /// A field holds what it cannot.
    Invalid(ParseError),
    /// No node serves this model.
    UnknownModel(String),
    /// There is no node at all.
    NoNode,
    /// The key may not ask for this model.
    ModelForbidden(String),
    /// The key has used what it may.
    RateLimited {
        /// Which of its limits.
        limit: Limit,
        /// Until there is enough again.
        wait: Duration,
    },
    /// The key has used its budget of this month.
    Quota(Exhausted),
    /// Too many requests wait, or their bodies are too large together.
    QueueFull {
        /// By which limit.
        full: Full,
        /// When another try makes sense.
        retry_after_seconds: u32,
    },
    /// A header that we act on holds something else than it may.
    Header(HeaderName, String),
    /// The queue is so long that the request's deadline cannot be met.
    DeadlineUnmet {
        /// When another try makes sense.
        retry_after_seconds: u32,
    },
    /// No slot became free in time.
    QueueTimeout {
        /// When another try makes sense.
        retry_after_seconds: u32,
    },
    /// The connection to the node broke before it answered.
    NodeLost,
    /// The node said that it cannot answer now.
    NodeRefused(u16),
    /// The node's engine died.
    EngineLost,
    /// Two engines have died while they worked on this request.
    Quarantined,
    /// The node failed in the middle of its answer, as it says.
    NodeFailed(String),
    /// What the request asks for turned out in the middle of its answer to be impossible, as the
    /// node says. The client reads its words.
    Unanswerable(Box<ErrorDetail>),
    /// The node did not answer in time.
    NodeTimeout,
    /// The node's answer is larger than we hold, or not what it should be.
    NodeAnswer(&'static str),
    /// A bug of ours: a panic, or a state that cannot be. [`Self::internal`] makes it.
    Internal,
    /// The request asks for a response of more bytes than are held.
    ResponseTooLarge(usize),
    /// An external endpoint does not accept the request.
    ExternalRefused {
        /// With this status.
        status: u16,
        /// The field that it says is at fault, if that is one of the API.
        param: Option<&'static str>,
    },
    /// An external endpoint reported an error instead of its answer, or in the middle of it.
    ExternalFailed,
}

/// The label of requests that a node refused, in whatever words.
pub const REFUSED_BY_NODE: &str = "refused_by_node";

/// Whose fault an error is; decides how loudly it is logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The client's.
    Client,
    /// Ours: a limit, or a lack of nodes.
    Gateway,
    /// A node's.
    Node,
}

impl Error {
    /// A failure of the gateway itself. The log says what failed, and the client only that
    /// something did.
    pub fn internal(what: impl std::fmt::Display) -> Self {
        tracing::error!(%what, "internal error");
        Self::Internal
    }

    /// HTTP status.
    pub fn status(&self) -> u16 {
        match self {
            Self::UnknownPath | Self::UnknownModel(_) | Self::UnknownNode(_) => 404,
            Self::ModelForbidden(_) | Self::AdminOff => 403,
            Self::RateLimited { .. } | Self::Quota(_) => 429,
            Self::QueueFull { full: Full::Tenant, .. } => 429,
            Self::Method(_) => 405,
            Self::KeyMissing | Self::KeyWrong | Self::AdminKeyWrong => 401,
            Self::JoinKeyWrong | Self::JoinCertificate => 401,
            Self::JoinInvalid(_) | Self::Malformed(_) | Self::Header(..) => 400,
            Self::Invalid(_) => 400,
            Self::Unanswerable(_) => 400,
            Self::JoinVersion => 426,
            Self::JoinedAlready => 409,
            // Agents take a 409 for a link of their own, and try again after anything that is no
            // refusal of theirs.
            Self::NodeNameTaken(_) => 423,
            Self::TooLarge(_) | Self::ExternalRefused { status: 413, .. } => 413,
            Self::ExternalRefused { .. } => 400,
            Self::SlowBody => 408,
            Self::NoNode | Self::QueueTimeout { .. } | Self::QueueFull { .. } => 503,
            Self::DeadlineUnmet { .. } => 503,
            Self::NodeRefused(_) => 503,
            // Clients send again what gets a 5xx.
            Self::Quarantined | Self::ResponseTooLarge(_) => 422,
            Self::NodeLost | Self::EngineLost | Self::NodeAnswer(_) | Self::NodeFailed(_) => 502,
            Self::ExternalFailed => 502,
            Self::NodeTimeout => 504,
            Self::Internal => 500,
        }
    }

    /// A closed set: OpenAI's `code`, and the label of metrics. Of [`Self::Unanswerable`] the label
    /// only: its `code` is the node's.
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
            Self::Malformed(_) => "invalid_json",
            Self::Invalid(_) => "invalid_value",
            Self::Header(..) => "invalid_header",
            Self::UnknownModel(_) => "model_not_found",
            Self::ModelForbidden(_) => "model_not_allowed",
            Self::RateLimited { .. } => "rate_limit_exceeded",
            Self::Quota(_) => "insufficient_quota",
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
            Self::ExternalFailed => "external_failed",
        }
    }

    /// Its code, and of a limit which one: the label of refusals.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::QueueFull { full, .. } => full.reason(),
            Self::RateLimited { limit: Limit::Requests, .. } => "limit_requests",
            Self::RateLimited { limit: Limit::Tokens, .. } => "limit_tokens",
            Self::RateLimited { limit: Limit::Concurrent, .. } => "limit_concurrent",
            _ => self.code(),
        }
    }

    /// Whose fault it is.
    pub fn origin(&self) -> Origin {
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
            | Self::Malformed(_)
            | Self::Invalid(_)
            | Self::Header(..)
            | Self::ModelForbidden(_)
            | Self::RateLimited { .. }
            | Self::Quota(_)
            | Self::Unanswerable(_)
            | Self::ResponseTooLarge(_)
            | Self::ExternalRefused { .. }
            | Self::UnknownModel(_) => Origin::Client,
            Self::NoNode
            | Self::QueueFull { .. }
            | Self::DeadlineUnmet { .. }
            | Self::QueueTimeout { .. }
            | Self::Internal => Origin::Gateway,
            Self::NodeLost
            | Self::EngineLost
            | Self::Quarantined
            | Self::NodeFailed(_)
            | Self::NodeRefused(_)
            | Self::NodeTimeout
            | Self::ExternalFailed
            | Self::NodeAnswer(_) => Origin::Node,
        }
    }

    /// Whether another endpoint may be tried. A node that is too slow is not the request's
    /// last chance, but its time is up; an answer that is too large is so everywhere.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::NodeLost | Self::EngineLost | Self::NodeRefused(_) | Self::ExternalFailed => true,
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
            | Self::Malformed(_)
            | Self::Invalid(_)
            | Self::Header(..)
            | Self::UnknownModel(_)
            | Self::ModelForbidden(_)
            | Self::RateLimited { .. }
            | Self::Quota(_)
            | Self::NoNode
            | Self::QueueFull { .. }
            | Self::DeadlineUnmet { .. }
            | Self::QueueTimeout { .. }
            | Self::Quarantined
            | Self::NodeFailed(_)
            | Self::Unanswerable(_)
            | Self::NodeTimeout
            | Self::ResponseTooLarge(_)
            | Self::ExternalRefused { .. }
            | Self::NodeAnswer(_)
            | Self::Internal => false,
        }
    }

    /// Whether another attempt costs of the budget for retries: whoever refuses may refuse because
    /// there is too much to do. What is dead takes nothing more.
    pub fn costs_a_retry(&self) -> bool {
        matches!(self, Self::NodeRefused(_))
    }

    /// Whether it says that there are too few slots.
    pub fn is_overload(&self) -> bool {
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
            (429, _) if matches!(self, Self::Quota(_)) => "insufficient_quota",
            (429, _) => "rate_limit_error",
            (_, Origin::Client) => INVALID_REQUEST,
            (_, Origin::Gateway) => "server_error",
            (_, Origin::Node) => "upstream_error",
        }
    }

    /// The parameter at fault.
    pub fn param(&self) -> Option<String> {
        match self {
            Self::Malformed(e) | Self::Invalid(e) => e.param.clone(),
            Self::UnknownModel(_) | Self::ModelForbidden(_) => Some("model".into()),
            Self::Header(name, _) => Some(name.as_str().into()),
            Self::ExternalRefused { param, .. } => param.map(Into::into),
            _ => None,
        }
    }

    /// After how long another try makes sense.
    pub fn retry_after(&self) -> Option<Duration> {
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

/// Clients that are told to wait for longer give up.
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
