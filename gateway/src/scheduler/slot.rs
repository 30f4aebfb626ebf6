//! PURE. What a request asks of the scheduler, and what it gets.

use std::sync::Arc;
use std::time::Duration;

use inference_protocol::fleet::ModelStatus;
use inference_protocol::resume::Usage;

use crate::scheduler::charge::Charge;
use crate::scheduler::cost::Size;
use crate::scheduler::fleet::{EndpointId, RouteConstraints};
use crate::scheduler::prefix_index::Prefix;
use crate::scheduler::queue::TicketId;
use crate::types::class::Class;
use crate::types::limits::{Full, Share};

/// What a request asks for.
#[derive(Debug, Clone, Copy)]
pub struct SlotRequest<'a> {
    /// The model.
    pub model: &'a str,
    /// Whose it is.
    pub tenant: &'a str,
    /// What the tenant's key says of its share of the queue.
    pub share: Share,
    /// How urgent it is.
    pub class: Class,
    /// What is known of what it will cost.
    pub size: &'a Size,
    /// Bytes that the request holds.
    pub bytes: usize,
    /// How it begins.
    pub prefix: &'a Prefix,
    /// What an endpoint must be for it.
    pub constraints: &'a RouteConstraints,
}

impl SlotRequest<'_> {
    /// Whether an endpoint failed it already.
    pub fn is_retried(&self) -> bool {
        !self.constraints.tried.is_empty()
    }
}

/// Why a request may not even wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// No node serves the model.
    UnknownModel,
    /// There is no node.
    NoNode,
    /// It would wait longer than it can.
    DeadlineUnmet,
    /// Too many wait, by this limit.
    QueueFull(Full),
    /// It has waited as long as it could.
    Timeout,
}

impl Refused {
    /// Whether there are too few slots.
    pub fn is_overload(self) -> bool {
        matches!(self, Self::DeadlineUnmet | Self::QueueFull(_) | Self::Timeout)
    }
}

/// A request and the slot that it has.
#[derive(Debug, Clone)]
pub struct Binding {
    /// Which request.
    pub id: TicketId,
    /// Where its slot is.
    pub endpoint: EndpointId,
    /// What is served there.
    pub model: Arc<ModelStatus>,
    /// Since when.
    pub since: Duration,
    /// Requests that its endpoint was at work on then, with this one.
    pub busy: u32,
    /// What was charged for it, if it is the request's first.
    pub charge: Option<Charge>,
}

/// What a request used that was answered.
#[derive(Debug, Clone, Copy)]
pub struct Used {
    /// Tokens.
    pub usage: Usage,
    /// Its answers.
    pub answers: usize,
    /// When its first token came, if that was seen.
    pub first: Option<Duration>,
}
