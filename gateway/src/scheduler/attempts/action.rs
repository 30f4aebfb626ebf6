//! PURE. The interface between a request's attempts and their driver: actions out, event data in.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use inference_protocol::fleet::ModelStatus;
use inference_protocol::resume::Usage;

use crate::scheduler::fleet::{AttemptOutcome, EngineId, RouteConstraints};
use crate::types::error::Error;

/// Id of an attempt, unique within its request.
pub type AttemptId = u32;

/// What a slot is acquired for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// The next attempt: the first one, or the one after a failure.
    Next,
    /// A second, concurrent attempt because the first is late. Takes only an idle slot.
    Hedge,
    /// A new slot for a response whose node is about to leave.
    Move,
}

/// A slot granted to an attempt.
#[derive(Debug, Clone)]
pub struct GrantedSlot {
    /// The endpoint and its engine.
    pub engine: EngineId,
    /// The model as the endpoint serves it.
    pub model: Arc<ModelStatus>,
    /// True if the endpoint is external.
    pub is_external: bool,
}

/// A response that arrived in one piece, without events.
#[derive(Debug, Clone, Copy)]
pub struct WholeResponse {
    /// HTTP status of the endpoint.
    pub status: u16,
    /// Usage reported in the body.
    pub usage: Option<Usage>,
    /// Size of the body.
    pub bytes: usize,
}

/// A failed attempt.
#[derive(Debug, Clone)]
pub struct AttemptFailure {
    /// The error.
    pub error: Error,
    /// Predicted prefill time at this endpoint, if measured. Matters only if the first token was
    /// late.
    pub predicted_prefill: Option<Duration>,
}

impl From<Error> for AttemptFailure {
    fn from(error: Error) -> Self {
        Self { error, predicted_prefill: None }
    }
}

/// What a complete response shows about cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CostSample {
    /// Tokens used.
    pub usage: Usage,
    /// Number of choices.
    pub choices: usize,
}

/// How an attempt ended.
#[derive(Debug, Clone, PartialEq)]
pub struct AttemptEnd {
    /// What the attempt shows about the health of its endpoint.
    pub outcome: AttemptOutcome,
    /// Set if a single endpoint produced the whole response.
    pub cost_sample: Option<CostSample>,
    /// True if the endpoint reported more tokens than it can have used.
    pub has_misreported: bool,
    /// Usage to pay an external endpoint for, however the attempt ended.
    pub billed_usage: Option<Usage>,
}

/// Actions for the driver, to be executed in order.
#[derive(Debug)]
pub enum AttemptAction {
    /// Acquire a slot. The driver calls `granted` or `not_granted`.
    Acquire {
        /// Purpose of the slot.
        purpose: Purpose,
        /// Endpoints that qualify.
        constraints: RouteConstraints,
        /// When the request gives up, on the clock of the events.
        deadline: Duration,
    },
    /// Cancel the pending acquisition.
    Withdraw(Purpose),
    /// Send the request and its resume state over a granted slot.
    Send {
        /// The attempt that has the slot.
        attempt: AttemptId,
        /// Its purpose.
        purpose: Purpose,
        /// Call `late` if nothing of the response has arrived after this time.
        hedge_after: Option<Duration>,
    },
    /// End an attempt: cancel it and free its slot.
    Release(AttemptId, AttemptEnd),
    /// This attempt made progress.
    Progressed(AttemptId),
    /// Send events to the client.
    Deliver(Bytes),
    /// Send an attempt's response in one piece to the client.
    DeliverWhole(AttemptId, WholeResponse),
    /// The response is complete.
    Complete,
    /// The request fails.
    Fail(Error),
    /// Refuse the same request for a while: engines died while they ran it.
    Quarantine,
    /// Count a retry or a failover, with its reason.
    Retried(Error),
    /// Count a response that left a draining node.
    Moved,
    /// Count a response that gave its slot to a more urgent one.
    Preempted,
    /// Count a decided hedge.
    Hedged {
        /// True if the second attempt won.
        by_rival: bool,
    },
    /// Count a retry that the budget refused.
    RetryRefused,
    /// Log the error that an external endpoint sent in its stream. Clients never see it.
    ExternalError(AttemptId, Vec<u8>),
}
