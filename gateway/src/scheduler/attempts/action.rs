//! PURE. What the attempts of a request ask of whoever drives them, and what they are told.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use inference_protocol::fleet::ModelStatus;
use inference_protocol::resume::Usage;

use crate::scheduler::fleet::{EngineId, Outcome, RouteConstraints};
use crate::types::error::Error;

/// Numbers the attempts of one request.
pub type AttemptId = u32;

/// What a slot is acquired for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// The next attempt: the first one, or the one after a failure.
    Next,
    /// A second attempt beside a late first one. Only a slot that idles will do.
    Hedge,
    /// A new place for a response whose node is about to leave.
    Move,
}

/// A slot that was granted.
#[derive(Debug, Clone)]
pub struct Granted {
    /// Where it is.
    pub engine: EngineId,
    /// The model as the endpoint serves it.
    pub model: Arc<ModelStatus>,
    /// Whether it is an external endpoint's.
    pub is_external: bool,
}

/// A response that arrived in one piece, without events.
#[derive(Debug, Clone, Copy)]
pub struct Whole {
    /// The endpoint's HTTP status.
    pub status: u16,
    /// The usage that its body reports.
    pub usage: Option<Usage>,
    /// Bytes of its body.
    pub bytes: usize,
}

/// An attempt that failed.
#[derive(Debug, Clone)]
pub struct Failure {
    /// Why.
    pub error: Error,
    /// How long the endpoint needs for the prompt, as far as that was measured. Only looked at if
    /// the first token was late.
    pub predicted_prefill: Option<Duration>,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self { error, predicted_prefill: None }
    }
}

/// What a complete response teaches about costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Learned {
    /// Tokens that it used.
    pub usage: Usage,
    /// Its choices.
    pub choices: usize,
}

/// How an attempt ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Ended {
    /// What that says about the endpoint.
    pub outcome: Outcome,
    /// What it teaches, if one endpoint gave the whole response.
    pub learned: Option<Learned>,
    /// Whether the endpoint reported more tokens than it can have used.
    pub has_misreported: bool,
    /// What an external endpoint is paid for, however the attempt ended.
    pub pays: Option<Usage>,
}

/// What is to be done next, in this order.
#[derive(Debug)]
pub enum Action {
    /// Acquire a slot until a deadline. The answer is `granted` or `not_granted`.
    Acquire {
        /// What for.
        purpose: Purpose,
        /// Where it may be.
        constraints: RouteConstraints,
        /// When the request gives up, on the clock of the events.
        deadline: Duration,
    },
    /// Stop waiting for a slot.
    Withdraw(Purpose),
    /// Send the request, and what is known of the response, over a slot that was granted.
    Send {
        /// Over which.
        attempt: AttemptId,
        /// What for.
        purpose: Purpose,
        /// Call `late` if nothing of the response has arrived after this time.
        hedge_after: Option<Duration>,
    },
    /// End an attempt: cancel it, and give its slot back.
    Release(AttemptId, Ended),
    /// The response made progress, by an event of this attempt.
    Progressed(AttemptId),
    /// Pass events on to the client.
    Deliver(Bytes),
    /// Pass the whole response of an attempt on to the client.
    DeliverWhole(AttemptId, Whole),
    /// The response is complete.
    Complete,
    /// The request fails.
    Fail(Error),
    /// Refuse the same request for a while: it was running when engines died.
    Quarantine,
    /// Count a retry or a failover, for this reason.
    Retried(Error),
    /// Count a response that leaves its node before that is gone.
    Moved,
    /// Count a hedge, won by the second attempt or the first.
    Hedged {
        /// Whether the second attempt won.
        by_rival: bool,
    },
    /// Count a retry that the budget refused.
    RetryRefused,
    /// Log what an external endpoint reported in its stream; clients never see it.
    ExternalError(AttemptId, Vec<u8>),
}
