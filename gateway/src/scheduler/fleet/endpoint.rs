//! PURE. One link to one endpoint, and the constraints that requests put on it.

use std::sync::Arc;
use std::time::Duration;

use inference_protocol::fleet::{ModelStatus, NodeState, NodeStatus};

use super::external::Terms;
use super::health::Health;
use super::totals::Contribution;
use crate::access::spend::Bill;
use crate::scheduler::cost::request_pace::{Observation, RequestPace};
use crate::scheduler::routing::Candidate;
use crate::types::external::ExternalPolicy;

/// Id of a link; never reused.
pub type EndpointId = u64;

/// An endpoint and the engine process that it ran. After an engine restart, the endpoint may be
/// tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineId {
    /// The endpoint.
    pub endpoint: EndpointId,
    /// Engine restarts at the time.
    pub engine_restarts: u64,
}

/// Route constraints: what an endpoint must meet besides serving the model.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RouteConstraints {
    /// Endpoints that have failed this request; they are ruled out.
    pub tried: Vec<EngineId>,
    /// For a response that continues: the endpoint must serve the same model file, with at least
    /// the same context size.
    pub origin: Option<Arc<ModelStatus>>,
    /// When the request may go to an external endpoint.
    pub external: ExternalPolicy,
    /// What it may cost there.
    pub bill: Bill,
}

impl RouteConstraints {
    fn allows_model(&self, model: &ModelStatus) -> bool {
        self.origin.as_ref().is_none_or(|origin| {
            origin.digest == model.digest && origin.context_tokens <= model.context_tokens
        })
    }
}

/// Rank of an endpoint among those with a free slot: by load, then by the time of the last claim,
/// oldest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    /// Share of busy slots plus penalty, in units of 2^-32.
    load: u64,
    /// Number of the last claim of a slot here.
    last_claim: u64,
}

impl Rank {
    /// Share of busy slots plus penalty, without what depends on the request.
    pub(super) fn share(self) -> f64 {
        self.load as f64 / PARTS
    }
}

const PARTS: f64 = (1u64 << 32) as f64;

/// One link to one endpoint. `L` is the handle that sends to it.
#[derive(Debug)]
pub struct Endpoint<L> {
    /// The handle that sends to it.
    pub link: L,
    /// Name of the node or external endpoint.
    pub name: Arc<str>,
    /// The last status.
    pub status: NodeStatus,
    /// Health, as observed from requests.
    pub health: Health,
    /// Terms of an external endpoint; `None` for nodes.
    pub external: Option<Terms>,
    /// True if an operator has cordoned it.
    pub is_cordoned: bool,
    /// Responses that reported more tokens than possible.
    pub misreports: u64,
    /// Models that it serves, or served before its engine went away.
    pub(super) models: Vec<Arc<ModelStatus>>,
    /// Slots that we hold.
    pub(super) leases: u32,
    /// Text queries of ours that it answers now, which take no slot.
    pub(super) queries: u32,
    /// When the link was established.
    pub(super) since: Duration,
    /// Number of the last claim of a slot here.
    pub(super) last_claim: u64,
    /// Its rank in the index, while it has a free slot.
    pub(super) indexed: Option<Rank>,
    /// Its contribution to the totals.
    pub(super) counted: Option<Contribution>,
    /// True if its models are in the list of served models.
    pub(super) is_listed: bool,
    /// Number of its last change.
    pub(super) changed: u64,
    /// Measured speed per model.
    paces: Vec<(Arc<ModelStatus>, RequestPace)>,
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
            queries: 0,
            since: now,
            last_claim,
            indexed: None,
            counted: None,
            is_listed: false,
            changed: 0,
            paces: Vec::new(),
        }
    }

    /// Measured speed for a model.
    pub fn pace(&self, model: &str) -> Option<&RequestPace> {
        self.paces.iter().find(|(of, _)| of.id == model).map(|(_, pace)| pace)
    }

    /// Records the measurements of a complete response.
    pub(super) fn learn(&mut self, model: &Arc<ModelStatus>, observation: &Observation) {
        // A model whose status has changed counts as another model.
        let Self { paces, models, .. } = self;
        paces.retain(|(of, _)| models.contains(of));
        match paces.iter_mut().find(|(of, _)| of == model) {
            Some((_, pace)) => pace.observe(observation),
            None if models.contains(model) => {
                let mut pace = RequestPace::default();
                pace.observe(observation);
                paces.push((model.clone(), pace));
            }
            None => {}
        }
    }

    /// True if the status is ready and the endpoint is not cordoned.
    pub fn is_ready(&self) -> bool {
        self.status.state == NodeState::Ready && !self.is_cordoned
    }

    /// When the link was established.
    pub fn since(&self) -> Duration {
        self.since
    }

    /// The model with this name, if served here.
    pub fn model(&self, name: &str) -> Option<&Arc<ModelStatus>> {
        self.models.iter().find(|m| m.id == name)
    }

    /// Any model served here.
    pub(crate) fn any_model(&self) -> Option<&Arc<ModelStatus>> {
        self.models.first()
    }

    /// Slots that we hold.
    pub fn leases(&self) -> u32 {
        self.leases
    }

    /// True if it works on nothing of ours.
    pub(crate) fn is_idle(&self) -> bool {
        self.leases == 0 && self.queries == 0
    }

    /// True if it is cordoned and works on nothing.
    pub(crate) fn is_drained(&self) -> bool {
        self.is_cordoned && self.is_idle() && self.busy() == 0
    }

    pub(super) fn can_serve(&self, model: &str, constraints: &RouteConstraints) -> bool {
        let may = self.external.is_none() || constraints.external != ExternalPolicy::Never;
        may && self.model(model).is_some_and(|model| constraints.allows_model(model))
    }

    /// Busy slots: our leases plus what the node reports about others.
    pub fn busy(&self) -> u32 {
        self.status.slots_busy_elsewhere.saturating_add(self.leases)
    }

    pub(super) fn has_failed(&self, id: EndpointId, tried: &[EngineId]) -> bool {
        tried.contains(&EngineId { endpoint: id, engine_restarts: self.status.engine_restarts })
    }

    pub(super) fn has_free_slot(&self) -> bool {
        self.is_ready() && !self.health.is_ejected() && self.busy() < self.status.slots
    }

    /// The rank that it should have in the index, if it has a free slot.
    pub(super) fn rank(&self) -> Option<Rank> {
        let share = f64::from(self.busy()) / f64::from(self.status.slots.max(1));
        let load = ((share + self.health.penalty()) * PARTS) as u64;
        self.has_free_slot().then_some(Rank { load, last_claim: self.last_claim })
    }

    pub(super) fn candidate(
        &self,
        id: EndpointId,
        cached: f64,
        now: Duration,
    ) -> Candidate<EndpointId> {
        Candidate {
            id,
            busy: self.busy(),
            capacity: self.status.slots,
            penalty: self.health.penalty(),
            cached,
            age: now.saturating_sub(self.since),
            prefill_rate: self.status.prefill_tokens_per_second,
            last_chosen: self.last_claim,
        }
    }
}
