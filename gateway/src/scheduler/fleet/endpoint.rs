//! PURE. One link to one node, and what a request wants of it.

use std::sync::Arc;
use std::time::Duration;

use inference_protocol::fleet::{ModelStatus, NodeState, NodeStatus};

use super::external::Terms;
use super::figures::Part;
use super::health::Health;
use crate::scheduler::cost::pace::{Observation, Pace};
use crate::scheduler::routing::Candidate;
use crate::types::external::External;

/// A link's number; never used twice.
pub type EndpointId = u64;

/// An endpoint that failed a request, with the engine that it had then: one that has started
/// its engine again may be asked again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineId {
    /// Which endpoint.
    pub endpoint: EndpointId,
    /// Its engine's restarts at the time.
    pub engine_restarts: u64,
}

/// What an endpoint must be for a request, beside serving its model.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RouteConstraints {
    /// Attempts that failed: it is none of these.
    pub tried: Vec<EngineId>,
    /// For an answer that goes on: it serves the model file that the answer began with, with as
    /// large a context.
    pub origin: Option<Arc<ModelStatus>>,
    /// Whether it may be none of ours.
    pub external: External,
}

impl RouteConstraints {
    fn takes(&self, model: &ModelStatus) -> bool {
        self.origin.as_ref().is_none_or(|origin| {
            origin.digest == model.digest && origin.context_tokens <= model.context_tokens
        })
    }
}

/// Where an endpoint with a free slot stands among the others: the least busy first, and of
/// equals the one that waits longest for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank {
    /// Share of busy slots and what else makes it count as busier, in parts of 2^32.
    load: u64,
    /// The number of the claim that took a slot there last.
    last_claim: u64,
}

impl Rank {
    /// Its share of busy slots, without what depends on the request.
    pub fn share(self) -> f64 {
        self.load as f64 / PARTS
    }
}

const PARTS: f64 = (1u64 << 32) as f64;

/// One link to one node. `L` is how to send to it.
#[derive(Debug)]
pub struct Endpoint<L> {
    /// How to send to it.
    pub link: L,
    /// Its node's name.
    pub name: Arc<str>,
    /// Its last status.
    pub status: NodeStatus,
    /// How well it does what it says.
    pub health: Health,
    /// Its terms, if it is no node of ours.
    pub external: Option<Terms>,
    /// Whether the operator wants nothing new sent there.
    pub is_cordoned: bool,
    /// Responses whose reported tokens were more than can be.
    pub misreports: u64,
    /// The models it serves, or served before its engine went away.
    pub(super) models: Vec<Arc<ModelStatus>>,
    /// Slots that we hold.
    pub(super) leases: u32,
    /// When the link was made.
    pub(super) since: Duration,
    /// The number of the claim that took a slot here last.
    pub(super) last_claim: u64,
    /// Where it stands in the index, while it has a free slot.
    pub(super) indexed: Option<Rank>,
    /// What it adds to the figures of the fleet.
    pub(super) counted: Option<Part>,
    /// Whether its models are among those that are served.
    pub(super) is_listed: bool,
    /// The number of its last change.
    pub(super) changed: u64,
    /// How fast it works on each of its models, once it has.
    paces: Vec<(Arc<ModelStatus>, Pace)>,
}

impl<L> Endpoint<L> {
    pub(super) fn new(link: L, status: NodeStatus, now: Duration, last_claim: u64) -> Self {
        Self {
            link,
            name: status.node.as_str().into(),
            status,
            health: Health::new(now),
            external: None,
            is_cordoned: false,
            misreports: 0,
            models: Vec::new(),
            leases: 0,
            since: now,
            last_claim,
            indexed: None,
            counted: None,
            is_listed: false,
            changed: 0,
            paces: Vec::new(),
        }
    }

    /// How fast it works on a model, as far as it has.
    pub fn pace(&self, model: &str) -> Option<&Pace> {
        self.paces.iter().find(|(of, _)| of.id == model).map(|(_, pace)| pace)
    }

    /// It took that for a request.
    pub(super) fn learn(&mut self, model: &Arc<ModelStatus>, took: &Observation) {
        // A model that has changed is another one.
        let Self { paces, models, .. } = self;
        paces.retain(|(of, _)| models.contains(of));
        match paces.iter_mut().find(|(of, _)| of == model) {
            Some((_, pace)) => pace.observe(took),
            None if models.contains(model) => {
                let mut pace = Pace::default();
                pace.observe(took);
                paces.push((model.clone(), pace));
            }
            None => {}
        }
    }

    /// Whether it takes requests, as it says, and may.
    pub fn is_ready(&self) -> bool {
        self.status.state == NodeState::Ready && !self.is_cordoned
    }

    /// When its link was made.
    pub fn since(&self) -> Duration {
        self.since
    }

    /// What it serves under that name.
    pub fn model(&self, name: &str) -> Option<&Arc<ModelStatus>> {
        self.models.iter().find(|m| m.id == name)
    }

    /// One of those that it serves.
    pub fn any_model(&self) -> Option<&Arc<ModelStatus>> {
        self.models.first()
    }

    /// Slots that we hold.
    pub fn leases(&self) -> u32 {
        self.leases
    }

    pub(super) fn suits(&self, model: &str, constraints: &RouteConstraints) -> bool {
        let may = self.external.is_none() || constraints.external != External::Never;
        may && self.model(model).is_some_and(|model| constraints.takes(model))
    }

    /// Busy slots as far as we know.
    pub fn busy(&self) -> u32 {
        self.status.slots_busy_elsewhere.saturating_add(self.leases)
    }

    pub(super) fn has_failed(&self, id: EndpointId, tried: &[EngineId]) -> bool {
        tried.contains(&EngineId { endpoint: id, engine_restarts: self.status.engine_restarts })
    }

    pub(super) fn has_free_slot(&self) -> bool {
        self.is_ready() && !self.health.is_out() && self.busy() < self.status.slots
    }

    /// Where it ought to stand in the index, while it has a free slot.
    pub(super) fn rank(&self) -> Option<Rank> {
        let share = f64::from(self.busy()) / f64::from(self.status.slots.max(1));
        let load = ((share + self.health.penalty()) * PARTS) as u64;
        self.has_free_slot().then_some(Rank { load, last_claim: self.last_claim })
    }

    pub(super) fn candidate(
        &self,
        id: EndpointId,
        held: f64,
        now: Duration,
    ) -> Candidate<EndpointId> {
        Candidate {
            id,
            busy: self.busy(),
            capacity: self.status.slots,
            penalty: self.health.penalty(),
            held,
            age: now.saturating_sub(self.since),
            prefill_rate: self.status.prefill_tokens_per_second,
            last_chosen: self.last_claim,
        }
    }
}
