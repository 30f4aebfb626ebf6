//! The closed sets of labels, and what the end of a request says.

use std::time::Duration;

use crate::types::api::Api;
use crate::types::class::Class;
use crate::types::error::Origin;

/// What gave an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndpointKind {
    /// A node of ours.
    Node,
    /// An external endpoint.
    External,
    /// Nothing: the request was refused, or left, before it had a slot.
    None,
}

impl EndpointKind {
    /// All of them, in order.
    pub const ALL: [Self; 3] = [Self::Node, Self::External, Self::None];

    /// Its label.
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
pub enum Again {
    /// Nothing of its answer was there.
    Retry,
    /// Its answer goes on.
    Resume,
}

impl Again {
    /// Its name in logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::Resume => "resume",
        }
    }
}

/// The reason of an attempt on another node that no failure led to.
pub const NODE_LEAVES: &str = "node_leaves";

/// Why a span is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lost {
    /// Too many waited for the collector, or the gateway has stopped.
    QueueFull,
    /// The collector did not take it.
    Refused,
}

impl Lost {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::QueueFull, Self::Refused];

    /// Its label.
    pub fn name(self) -> &'static str {
        match self {
            Self::QueueFull => "queue_full",
            Self::Refused => "refused",
        }
    }
}

/// The label of whose fault an outcome is.
pub fn fault(origin: Option<Origin>) -> &'static str {
    match origin {
        None => "none",
        Some(Origin::Client) => "client",
        Some(Origin::Gateway) => "gateway",
        Some(Origin::Node) => "node",
    }
}

/// What requests are counted by together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key<'a> {
    /// Which endpoint of the API.
    pub api: Api,
    /// How urgent.
    pub class: Class,
    /// Whose, where that is known.
    pub tenant: Option<&'a str>,
    /// The model, where it is one that is served.
    pub model: Option<&'a str>,
    /// What answered.
    pub endpoint: EndpointKind,
}

/// How a request ended.
#[derive(Debug, Clone, Copy)]
pub struct Ended {
    /// A closed set.
    pub outcome: &'static str,
    /// Whose fault that is, if anybody's.
    pub fault: Option<Origin>,
    /// Why it was refused, if it was.
    pub refusal: Option<&'static str>,
    /// From its arrival to the end of its response.
    pub duration: Duration,
    /// From its arrival to the first of its answer.
    pub first_token: Option<Duration>,
}
