//! PURE. The endpoints, their state, and the slots that we hold on each.
//!
//! An [`Endpoint`] is one link to one node. A node that reconnects is a new endpoint whose counters
//! start at zero; counters are never reset. The load of a node is what it reports about other
//! gateways' requests, plus the leases that we hold.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use inference_protocol::fleet::{ModelStatus, NodeStatus, STATUS_DEADLINE_MS};

use crate::scheduler::cost::request_pace::{Observation, RequestPace};
use crate::scheduler::routing_stats::Ejections;

mod changes;
mod cordon;
mod endpoint;
pub(crate) mod external;
pub(crate) mod health;
mod heir;
mod index;
mod names;
mod pick;
mod queries;
mod room;
mod totals;

use crate::types::external::ExternalPolicy;
use crate::types::served_model::ServedModel;
use changes::Changes;

use cordon::Cordon;
pub use endpoint::{Endpoint, EndpointId, EngineId, RouteConstraints};
pub use external::Terms;
use index::{Index, ModelEndpoints};
pub(crate) use names::NodeOrigin;
pub use pick::RoutingInputs;
pub(crate) use room::Room;
pub(crate) use totals::Totals;
use totals::{Contribution, RunningTotals};

/// A node without a status for this long is removed.
pub(crate) const STATUS_DEADLINE: Duration = Duration::from_millis(STATUS_DEADLINE_MS);

/// A model counts as served for this long after its last node was lost: requests queue for it
/// instead of failing with an unknown model.
const MODEL_REMEMBERED: Duration = Duration::from_secs(30);
/// Most models remembered; the names come from authenticated nodes.
const MODELS_MAX: usize = 1024;

/// How a request ended, as far as it shows the health of its endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttemptOutcome {
    /// It was answered.
    Answered,
    /// The endpoint responded, but the response shows nothing about cost: it refused the request on
    /// its merits, or the request was a health check.
    Alive,
    /// The endpoint failed the request.
    Failed,
    /// The client left, or the request moved to another endpoint.
    Unknown,
}

/// All endpoints.
#[derive(Debug)]
pub struct Fleet<L> {
    endpoints: BTreeMap<EndpointId, Endpoint<L>>,
    names: HashMap<String, EndpointId>,
    /// Index of nodes.
    index: Index,
    /// Index of external endpoints.
    externals: Index,
    cordon: Cordon,
    next_id: EndpointId,
    claims: u64,
    /// Counts ejections.
    pub ejections: Ejections,
    /// When each model was last served.
    remembered: BTreeMap<String, Duration>,
    running_totals: RunningTotals,
    changes: Changes,
    /// Counts how many endpoints were examined, for tests.
    #[cfg(test)]
    pub looks: std::cell::Cell<usize>,
}

/// Availability of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Availability {
    /// Some endpoint serves the model, or served it recently.
    Served,
    /// There are nodes, but none serves the model.
    UnknownModel,
    /// There are no nodes.
    NoNode,
}

impl<L> Default for Fleet<L> {
    fn default() -> Self {
        Self {
            endpoints: BTreeMap::new(),
            names: HashMap::new(),
            index: Index::default(),
            externals: Index::default(),
            cordon: Cordon::default(),
            next_id: 0,
            claims: 0,
            ejections: Ejections::default(),
            remembered: BTreeMap::new(),
            running_totals: RunningTotals::default(),
            changes: Changes::default(),
            #[cfg(test)]
            looks: std::cell::Cell::default(),
        }
    }
}

/// Most health checks started at once, so that a fleet that connects all at once is not checked all
/// at once.
const PROBES_MAX: usize = 256;

impl<L> Fleet<L> {
    /// Adds a node by its first status over a new link. Returns the new id and, if another link had
    /// the same name, that link, which is removed; [`Fleet::is_name_taken`] tells beforehand
    /// whether that is allowed.
    pub fn add(&mut self, link: L, status: NodeStatus, now: Duration) -> (EndpointId, Option<L>) {
        let endpoint = Endpoint::new(link, status, now, self.claims);
        self.insert(endpoint, now)
    }

    fn insert(&mut self, mut endpoint: Endpoint<L>, now: Duration) -> (EndpointId, Option<L>) {
        let name = endpoint.status.node.clone();
        let old = self.names.get(&name).copied();
        let old = old.and_then(|id| self.remove(id, now));
        self.next_id += 1;
        let id = self.next_id;
        endpoint.is_cordoned = self.cordon.contains(&name);
        self.names.insert(name, id);
        self.endpoints.insert(id, endpoint);
        self.apply_models(id, now);
        (id, old)
    }

    /// Records a status of a node. Returns whether its state changed; `None` if the link is gone.
    pub fn update_status(
        &mut self,
        id: EndpointId,
        status: NodeStatus,
        now: Duration,
    ) -> Option<bool> {
        // A node must keep its name, because the index of names depends on it.
        let endpoint = self.endpoints.get_mut(&id).filter(|e| *e.name == *status.node)?;
        let flipped = endpoint.status.state != status.state;
        let is_new_engine = endpoint.status.engine_restarts != status.engine_restarts;
        endpoint.status = status;
        self.apply_models(id, now);
        if is_new_engine {
            self.record_change(id);
        }
        Some(flipped)
    }

    /// Removes a link and its leases.
    pub fn remove(&mut self, id: EndpointId, now: Duration) -> Option<L> {
        let endpoint = self.endpoints.remove(&id)?;
        endpoint.counted.into_iter().for_each(|part| self.running_totals.subtract(part));
        if endpoint.is_listed {
            self.running_totals.remove_models(&endpoint.models);
        }
        self.changes.remove(endpoint.changed);
        match endpoint.external {
            None => {
                self.index.remove(id, &endpoint.models, endpoint.indexed);
                self.remember_models(&endpoint.models, now);
            }
            Some(_) => self.externals.remove(id, &endpoint.models, endpoint.indexed),
        }
        self.names.remove(&endpoint.status.node);
        Some(endpoint.link)
    }

    /// Applies the models of a status.
    fn apply_models(&mut self, id: EndpointId, now: Duration) {
        let Some(endpoint) = self.endpoints.get_mut(&id) else { return };
        let reported = &endpoint.status.models;
        let has_changed =
            !reported.is_empty() && !reported.iter().eq(endpoint.models.iter().map(|m| &**m));
        let index = match endpoint.external {
            None => &mut self.index,
            Some(_) => &mut self.externals,
        };
        if has_changed {
            if std::mem::take(&mut endpoint.is_listed) {
                self.running_totals.remove_models(&endpoint.models);
            }
            index.remove(id, &endpoint.models, endpoint.indexed);
            endpoint.models = reported.iter().cloned().map(Arc::new).collect();
            index.insert(id, &endpoint.models, endpoint.indexed);
        }
        let is_node = endpoint.external.is_none();
        let models = endpoint.models.clone();
        self.reindex(id);
        if has_changed {
            self.record_change(id);
        }
        if is_node {
            self.remember_models(&models, now);
        }
    }

    /// Records that the endpoint may now suit requests that it did not suit before.
    fn record_change(&mut self, id: EndpointId) {
        if let Some(endpoint) = self.endpoints.get_mut(&id).filter(|e| e.indexed.is_some()) {
            endpoint.changed = self.changes.record(id, endpoint.changed);
        }
    }

    /// Updates index, figures, and changes. Call it after any change that they depend on.
    fn reindex(&mut self, id: EndpointId) {
        let Some(endpoint) = self.endpoints.get_mut(&id) else { return };
        let index = match endpoint.external {
            None => &mut self.index,
            Some(_) => &mut self.externals,
        };
        let (from, to) = (endpoint.indexed, endpoint.rank());
        if to != from {
            index.change_rank(id, &endpoint.models, from, to);
            endpoint.indexed = to;
        }
        let part = Contribution::of(endpoint);
        if endpoint.counted != Some(part) {
            self.running_totals.add(part);
            let before = endpoint.counted.replace(part);
            before.into_iter().for_each(|part| self.running_totals.subtract(part));
        }
        match (endpoint.is_listed, endpoint.is_ready()) {
            (false, true) => self.running_totals.add_models(&endpoint.models),
            (true, false) => self.running_totals.remove_models(&endpoint.models),
            _ => {}
        }
        endpoint.is_listed = endpoint.is_ready();
        if from.is_none() && to.is_some() {
            self.record_change(id);
        }
    }

    fn remember_models(&mut self, models: &[Arc<ModelStatus>], now: Duration) {
        for model in models {
            match self.remembered.get_mut(&model.id) {
                Some(seen) => *seen = now,
                None => {
                    let since = |seen: &Duration| now.saturating_sub(*seen);
                    self.remembered.retain(|_, seen| since(seen) < MODEL_REMEMBERED);
                    if self.remembered.len() < MODELS_MAX {
                        self.remembered.insert(model.id.clone(), now);
                    }
                }
            }
        }
    }

    /// Availability of `model` for a request with this `external` setting.
    pub(crate) fn availability(
        &self,
        model: &str,
        external: ExternalPolicy,
        now: Duration,
    ) -> Availability {
        let remembered = self.remembered.get(model);
        let is_outside = external != ExternalPolicy::Never && self.externals.of(model).is_some();
        if is_outside
            || self.index.of(model).is_some()
            || remembered.is_some_and(|seen| now.saturating_sub(*seen) < MODEL_REMEMBERED)
        {
            return Availability::Served;
        }
        let Totals { ready, externals, .. } = self.totals();
        match ready > 0 || (externals > 0 && external != ExternalPolicy::Never) {
            true => Availability::UnknownModel,
            false => Availability::NoNode,
        }
    }

    fn endpoints_of(&self, model: &str) -> impl Iterator<Item = (EndpointId, &Endpoint<L>)> {
        let ids = [&self.index, &self.externals].into_iter().filter_map(|index| index.of(model));
        ids.flat_map(ModelEndpoints::all).filter_map(|id| Some((id, self.endpoints.get(&id)?)))
    }

    /// True if all nodes that meet the constraints are ready and have failed the request. Cordoned
    /// nodes do not count.
    pub(crate) fn all_have_failed(&self, model: &str, constraints: &RouteConstraints) -> bool {
        // External endpoints do not count while any node serves the model: they are tried after the
        // nodes.
        let others = self.is_external_only(model);
        let counts = |e: &Endpoint<L>| others || e.external.is_none();
        let suits =
            |e: &Endpoint<L>| counts(e) && e.can_serve(model, constraints) && !e.is_cordoned;
        let mut suiting = self.endpoints_of(model).filter(|(_, e)| suits(e)).peekable();
        let has_failed = |id, e: &Endpoint<L>| e.is_ready() && e.has_failed(id, &constraints.tried);
        suiting.peek().is_some() && suiting.all(|(id, e)| has_failed(id, e))
    }

    /// Takes a slot.
    pub fn claim(&mut self, id: EndpointId) {
        self.claims += 1;
        if let Some(endpoint) = self.endpoints.get_mut(&id) {
            endpoint.leases += 1;
            endpoint.last_claim = self.claims;
        }
        self.reindex(id);
    }

    /// Frees a slot and records the outcome. Returns false if the link is gone, and the slot with
    /// it.
    pub fn release(&mut self, id: EndpointId, outcome: AttemptOutcome, now: Duration) -> bool {
        let Some(endpoint) = self.endpoints.get_mut(&id) else { return false };
        debug_assert!(endpoint.leases > 0, "a lease is released once");
        endpoint.leases = endpoint.leases.saturating_sub(1);
        self.record_outcome(id, outcome, now);
        self.reindex(id);
        true
    }

    /// Records how a request ended at an endpoint.
    fn record_outcome(&mut self, id: EndpointId, outcome: AttemptOutcome, now: Duration) {
        let Some(endpoint) = self.endpoints.get_mut(&id) else { return };
        let fails = match outcome {
            AttemptOutcome::Answered | AttemptOutcome::Alive => {
                endpoint.health.record_success(now);
                false
            }
            AttemptOutcome::Failed => endpoint.health.record_failure(),
            AttemptOutcome::Unknown => {
                endpoint.health.cancel_probe(now);
                false
            }
        };
        if fails && self.eject(id, now) {
            self.ejections.failures += 1;
        }
    }

    /// Records the decoding speed of an endpoint in seconds per token. Returns true if the endpoint
    /// was ejected.
    pub(crate) fn record_pace(&mut self, id: EndpointId, seconds: f64, now: Duration) -> bool {
        let Some(endpoint) = self.endpoints.get_mut(&id) else { return false };
        let busy = endpoint.busy();
        let ejected = endpoint.health.record_pace(busy, seconds) && self.eject(id, now);
        self.ejections.slow += u64::from(ejected);
        self.reindex(id);
        ejected
    }

    /// Ejects an endpoint for a while, unless more than half of the endpoints of one of its models
    /// would be ejected.
    fn eject(&mut self, id: EndpointId, now: Duration) -> bool {
        let Some(endpoint) = self.endpoints.get(&id) else { return false };
        let is_out = endpoint.health.is_ejected();
        let spared = endpoint.models.iter().any(|model| {
            let out = self.endpoints_of(&model.id).filter(|(_, e)| e.health.is_ejected()).count();
            let all = self.endpoints_of(&model.id).count();
            (out + 1) * 2 > all
        });
        if spared && !is_out {
            return false;
        }
        if let Some(endpoint) = self.endpoints.get_mut(&id) {
            endpoint.health.eject(now);
        }
        true
    }

    /// Starts health checks: of ejected endpoints whose time is over, and of idle nodes that have
    /// answered nothing for `interval`. Takes a slot on each and returns their ids.
    pub(crate) fn claim_probes(
        &mut self,
        now: Duration,
        interval: Option<Duration>,
    ) -> Vec<EndpointId> {
        let wants = |e: &Endpoint<L>| {
            let is_up = e.is_ready() && e.status.slots > 0;
            // An ejected node is checked even if other gateways keep it busy; otherwise it might
            // stay out forever. A request that finds no free slot waits in the node's own queue.
            let may_be_asked = is_up && (e.busy() == 0 || e.health.is_ejected());
            // External endpoints have their own health check, and a request may cost money.
            let interval = interval.filter(|_| e.external.is_none());
            may_be_asked && e.any_model().is_some() && e.health.is_probe_due(now, interval)
        };
        let due = self.endpoints.iter().filter(|(_, e)| wants(e)).map(|(id, _)| *id);
        let due: Vec<_> = due.take(PROBES_MAX).collect();
        for id in &due {
            if let Some(endpoint) = self.endpoints.get_mut(id) {
                endpoint.health.start_probe(now);
            }
            self.claim(*id);
        }
        due
    }

    /// True if any other model is served, by a ready node or not.
    pub(crate) fn has_other_models(&self, model: &str) -> bool {
        self.index.has_others(model) || self.externals.has_others(model)
    }

    /// True if any node has a free slot for the model.
    pub(crate) fn is_open(&self, model: &str) -> bool {
        self.index.is_open(model)
    }

    /// True if any node has a free slot. Under load, usually none has.
    pub(crate) fn is_any_open(&self) -> bool {
        self.index.is_any_open()
    }

    /// Records that a node reported more tokens than it can have used. Returns true the first time.
    pub(crate) fn record_misreport(&mut self, id: EndpointId) -> bool {
        let Some(endpoint) = self.endpoints.get_mut(&id) else { return false };
        endpoint.misreports = endpoint.misreports.saturating_add(1);
        endpoint.misreports == 1
    }

    /// Records the measurements of a complete response.
    pub fn learn(&mut self, id: EndpointId, model: &Arc<ModelStatus>, observation: &Observation) {
        if let Some(endpoint) = self.endpoints.get_mut(&id) {
            endpoint.learn(model, observation);
        }
    }

    /// Slots and measured speed of the ready nodes that serve `model`, or of its external endpoints
    /// if no node does.
    pub(crate) fn paces(&self, model: &str) -> impl Iterator<Item = (u32, Option<&RequestPace>)> {
        self.ready_for(model).map(move |e| (e.status.slots, e.pace(model)))
    }

    /// The model as each of these endpoints serves it.
    pub(crate) fn served_as(&self, model: &str) -> impl Iterator<Item = &Arc<ModelStatus>> {
        self.ready_for(model).filter_map(move |e| e.model(model))
    }

    fn ready_for(&self, model: &str) -> impl Iterator<Item = &Endpoint<L>> {
        let index = if self.is_external_only(model) { &self.externals } else { &self.index };
        let ids = index.of(model).into_iter().flat_map(ModelEndpoints::all);
        ids.filter_map(|id| self.endpoints.get(&id)).filter(|e| e.is_ready())
    }

    /// An endpoint by id.
    pub fn endpoint(&self, id: EndpointId) -> Option<&Endpoint<L>> {
        self.endpoints.get(&id)
    }

    /// All endpoints.
    pub fn endpoints(&self) -> impl Iterator<Item = &Endpoint<L>> {
        self.endpoints.values()
    }

    /// Models of the ready endpoints, by name.
    pub fn models(&self) -> impl Iterator<Item = (&str, ServedModel)> {
        self.running_totals.models()
    }

    /// True if a ready endpoint serves the model.
    pub(crate) fn serves(&self, model: &str) -> bool {
        self.running_totals.serves(model)
    }

    /// Changes whenever [`Fleet::models`] does.
    pub(crate) fn models_version(&self) -> u64 {
        self.running_totals.version()
    }

    /// Totals over all endpoints.
    pub fn totals(&self) -> Totals {
        self.running_totals.totals()
    }
}

#[cfg(test)]
mod tests;
