//! PURE. Slot requests and what they result in.

use std::sync::Arc;
use std::time::Duration;

use inference_protocol::fleet::ModelStatus;
use inference_protocol::resume::Usage;

use crate::access::spend::Payment;
use crate::scheduler::charge::Charge;
use crate::scheduler::cost::Size;
use crate::scheduler::fleet::{EndpointId, RouteConstraints};
use crate::scheduler::prefix_index::Prefix;
use crate::scheduler::queue::{Payer, TicketId};
use crate::types::class::Class;
use crate::types::limits::{QueueLimit, QueueShare};
use crate::types::user::UserId;

/// A request for a slot.
#[derive(Debug, Clone, Copy)]
pub struct SlotRequest<'a> {
    /// The requested model.
    pub model: &'a str,
    /// The tenant.
    pub tenant: &'a str,
    /// The user of the tenant, if its requests name users.
    pub user: Option<UserId>,
    /// The tenant's share of the queue, from its key.
    pub share: QueueShare,
    /// The scheduling class.
    pub class: Class,
    /// Expected size, for the cost.
    pub size: &'a Size,
    /// Bytes that the request holds in memory.
    pub bytes: usize,
    /// Prefix hashes of the body.
    pub prefix: &'a Prefix,
    /// Route constraints.
    pub constraints: &'a RouteConstraints,
}

impl SlotRequest<'_> {
    pub(super) fn payer(&self) -> Payer<'_> {
        Payer { class: self.class, tenant: self.tenant, user: self.user }
    }

    /// True if an endpoint has failed the request before.
    pub fn is_retried(&self) -> bool {
        !self.constraints.tried.is_empty()
    }
}

/// Why a request gets no slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotRefusal {
    /// No endpoint serves the model.
    UnknownModel,
    /// There are no nodes.
    NoNode,
    /// The predicted wait exceeds its deadline.
    DeadlineUnmet,
    /// The queue is full, by this limit.
    QueueFull(QueueLimit),
    /// Its deadline has passed in the queue.
    Timeout,
}

impl SlotRefusal {
    /// True if the reason is a lack of slots.
    pub(crate) fn is_overload(self) -> bool {
        matches!(self, Self::DeadlineUnmet | Self::QueueFull(_) | Self::Timeout)
    }
}

/// A request and its slot.
#[derive(Debug, Clone)]
pub struct Binding {
    /// Id of its place in the queue; 0 if it did not wait.
    pub id: TicketId,
    /// The endpoint.
    pub endpoint: EndpointId,
    /// What is reserved for it of budgets, if it may cost something.
    pub payment: Option<Payment>,
    /// The model as served there.
    pub model: Arc<ModelStatus>,
    /// When the slot was taken.
    pub since: Duration,
    /// Busy slots of the endpoint at that time, including this one.
    pub busy: u32,
    /// False for a text query.
    pub takes_slot: bool,
    /// The charge, for the first attempt of a request.
    pub charge: Option<Charge>,
}

impl Binding {
    /// A request that took no slot, did not wait, and pays nothing.
    pub(crate) fn new(
        endpoint: EndpointId,
        model: Arc<ModelStatus>,
        busy: u32,
        since: Duration,
    ) -> Self {
        let (payment, charge) = (None, None);
        Self { id: 0, endpoint, payment, model, since, busy, takes_slot: false, charge }
    }
}

/// Actual usage of an answered request.
#[derive(Debug, Clone, Copy)]
pub struct ResponseUsage {
    /// Tokens.
    pub usage: Usage,
    /// Number of choices.
    pub choices: usize,
    /// When the first token arrived, if seen.
    pub first_token: Option<Duration>,
}
