//! Label values from fixed sets, and the data of a request's end.

use std::time::Duration;

use crate::types::api::RequestedApi;
use crate::types::class::Class;
use crate::types::error::FaultOrigin;

/// The kind of endpoint that produced a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndpointKind {
    /// A node.
    Node,
    /// An external endpoint.
    External,
    /// None: the request was refused or canceled before it had a slot.
    None,
}

impl EndpointKind {
    /// All kinds, in declaration order.
    pub const ALL: [Self; 3] = [Self::Node, Self::External, Self::None];

    /// Label value.
    pub fn name(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::External => "external",
            Self::None => "none",
        }
    }
}

/// Why a request goes to another node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RetryKind {
    /// Nothing of its response had arrived.
    Retry,
    /// Another node continues the response.
    Resume,
}

impl RetryKind {
    /// Log message.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Retry => "attempt failed: retrying on another endpoint",
            Self::Resume => "attempt failed: continuing the response on another endpoint",
        }
    }
}

/// Reason of a failover without a failure: the node is about to leave.
pub(crate) const NODE_LEAVES: &str = "node_leaves";

/// What became of a prefix that a leaving node offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HandOverOutcome {
    /// Another node has it.
    Moved,
    /// It would have taken longer than computing it again.
    Slower,
    /// The other node did not want it: it is too large, or another one comes in.
    Refused,
    /// A node failed, or sent something else.
    Failed,
}

impl HandOverOutcome {
    /// All outcomes.
    pub(crate) const ALL: [Self; 4] = [Self::Moved, Self::Slower, Self::Refused, Self::Failed];

    /// Label value.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Moved => "moved",
            Self::Slower => "slower",
            Self::Refused => "refused",
            Self::Failed => "failed",
        }
    }
}

/// Why a span was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SpanLoss {
    /// Too many spans were waiting for the collector, or the gateway has stopped.
    QueueFull,
    /// The collector refused it.
    Refused,
}

impl SpanLoss {
    /// All reasons.
    pub(crate) const ALL: [Self; 2] = [Self::QueueFull, Self::Refused];

    /// Label value.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::QueueFull => "queue_full",
            Self::Refused => "refused",
        }
    }
}

/// Label value of who caused an outcome.
pub(super) fn fault(origin: Option<FaultOrigin>) -> &'static str {
    match origin {
        None => "none",
        Some(FaultOrigin::Client) => "client",
        Some(FaultOrigin::Gateway) => "gateway",
        Some(FaultOrigin::Node) => "node",
    }
}

/// Labels that requests are counted by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MetricLabels<'a> {
    /// The API endpoint.
    pub api: RequestedApi,
    /// The class.
    pub class: Class,
    /// The tenant, if known.
    pub tenant: Option<&'a str>,
    /// The model, if it is one that is served.
    pub model: Option<&'a str>,
    /// The kind of endpoint.
    pub endpoint: EndpointKind,
}

/// How a request ended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestSample {
    /// Outcome label, from a fixed set.
    pub outcome: &'static str,
    /// Who caused the outcome; `None` if it succeeded.
    pub fault: Option<FaultOrigin>,
    /// Why it was refused, if it was.
    pub refusal: Option<&'static str>,
    /// From arrival to the end of the response.
    pub duration: Duration,
    /// From arrival to the first token.
    pub first_token: Option<Duration>,
}
