//! PURE. What is known of the nodes, and how many slots we hold on each.
//!
//! An [`Endpoint`] is one link to one node: a node that comes back is a new endpoint whose
//! counters start at zero, and nothing is ever reset. Load is what the node says about
//! requests that are not ours, plus the leases that we hold.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use inference_protocol::fleet::{ModelStatus, NodeState, NodeStatus, STATUS_DEADLINE_MS};

use crate::routing::{Candidate, Policy, choose};

pub mod join;
pub mod link;
pub mod static_nodes;

/// A link's number; never used twice.
pub type EndpointId = u64;

/// An endpoint that failed a request, with the engine that it had then: one that has started
/// its engine again may be asked again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attempt {
    /// Which endpoint.
    pub endpoint: EndpointId,
    /// Its engine's restarts at the time.
    pub engine_restarts: u64,
}

/// A node that says nothing for this long is out: no status is older.
pub const STATUS_DEADLINE: Duration = Duration::from_millis(STATUS_DEADLINE_MS);

/// A model is still expected back for this long after its last node was lost: requests
/// wait for it rather than hear that it does not exist.
const MODEL_REMEMBERED: Duration = Duration::from_secs(30);
/// Models that are remembered; names come from nodes that have shown a key.
const MODELS_MAX: usize = 1024;

/// One link to one node. `L` is how to send to it.
#[derive(Debug)]
pub struct Endpoint<L> {
    /// How to send to it.
    pub link: L,
    /// Its last status.
    pub status: NodeStatus,
    /// The models it serves, or served before its engine went away.
    models: Vec<ModelStatus>,
    /// Slots that we hold.
    leases: u32,
    /// When the link was made.
    since: Duration,
    /// The number of the claim that took a slot here last.
    last_claim: u64,
}

/// What an endpoint is chosen by, beside what is known of the endpoints.
#[derive(Debug, Clone, Copy)]
pub struct Choice<'a> {
    /// How.
    pub policy: Policy,
    /// Endpoints that hold some of the prompt, and how much of it.
    pub held: &'a [(EndpointId, f64)],
    /// When.
    pub now: Duration,
    /// Draws among equals.
    pub seed: u64,
}

impl<L> Endpoint<L> {
    fn is_ready(&self) -> bool {
        self.status.state == NodeState::Ready
    }

    fn serves(&self, model: &str) -> bool {
        self.models.iter().any(|m| m.id == model)
    }

    /// Busy slots as far as we know.
    pub fn busy(&self) -> u32 {
        self.status.slots_busy_elsewhere.saturating_add(self.leases)
    }

    fn has_failed(&self, id: EndpointId, tried: &[Attempt]) -> bool {
        tried.contains(&Attempt { endpoint: id, engine_restarts: self.status.engine_restarts })
    }

    fn has_free_slot(&self) -> bool {
        self.is_ready() && self.busy() < self.status.slots
    }

    fn candidate(&self, id: EndpointId, choice: &Choice<'_>) -> Candidate<EndpointId> {
        let held = choice.held.iter().find(|(holder, _)| *holder == id);
        Candidate {
            id,
            busy: self.busy(),
            capacity: self.status.slots,
            held: held.map_or(0.0, |(_, part)| *part),
            age: choice.now.saturating_sub(self.since),
            prefill_rate: self.status.prefill_tokens_per_second,
            last_chosen: self.last_claim,
        }
    }
}

/// All nodes.
#[derive(Debug)]
pub struct Fleet<L> {
    endpoints: BTreeMap<EndpointId, Endpoint<L>>,
    next_id: EndpointId,
    claims: u64,
    /// Models and when a node last served them.
    remembered: BTreeMap<String, Duration>,
}

/// Whether a request for a model can hope for an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outlook {
    /// Some node serves it, served it a moment ago, or will again.
    Served,
    /// There are nodes, and none knows it.
    UnknownModel,
    /// There is no node.
    NoNode,
}

/// Sums over all nodes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Nodes with a link.
    pub nodes: usize,
    /// Of those, ready.
    pub ready: usize,
    /// Slots of the ready ones.
    pub slots: u32,
    /// Busy ones of those.
    pub busy: u32,
    /// Slots that we hold, anywhere.
    pub leases: u32,
}

impl<L> Default for Fleet<L> {
    fn default() -> Self {
        Self { endpoints: BTreeMap::new(), next_id: 0, claims: 0, remembered: BTreeMap::new() }
    }
}

impl<L> Fleet<L> {
    /// A node's first status over a new link. Another link of the same node is over: the
    /// newest wins, and the old one is returned.
    pub fn add(&mut self, link: L, status: NodeStatus, now: Duration) -> (EndpointId, Vec<L>) {
        let same = |e: &Endpoint<L>| e.status.node == status.node;
        let old: Vec<EndpointId> =
            self.endpoints.iter().filter(|(_, e)| same(e)).map(|(id, _)| *id).collect();
        let old = old.into_iter().filter_map(|id| self.remove(id, now)).collect();
        self.next_id += 1;
        let id = self.next_id;
        let models = Vec::new();
        let endpoint =
            Endpoint { link, status, models, leases: 0, since: now, last_claim: self.claims };
        self.endpoints.insert(id, endpoint);
        self.settle(id, now);
        (id, old)
    }

    /// A node's next status. False: that link is over. Returns whether its state flipped.
    pub fn observe(&mut self, id: EndpointId, status: NodeStatus, now: Duration) -> Option<bool> {
        let endpoint = self.endpoints.get_mut(&id)?;
        let flipped = endpoint.status.state != status.state;
        endpoint.status = status;
        self.settle(id, now);
        Some(flipped)
    }

    /// A link is over; its leases die with it.
    pub fn remove(&mut self, id: EndpointId, now: Duration) -> Option<L> {
        let endpoint = self.endpoints.remove(&id)?;
        self.remember(&endpoint.models, now);
        Some(endpoint.link)
    }

    fn settle(&mut self, id: EndpointId, now: Duration) {
        let Some(endpoint) = self.endpoints.get_mut(&id) else { return };
        if !endpoint.status.models.is_empty() {
            endpoint.models.clone_from(&endpoint.status.models);
        }
        let models = endpoint.models.clone();
        self.remember(&models, now);
    }

    fn remember(&mut self, models: &[ModelStatus], now: Duration) {
        self.remembered.retain(|_, seen| now.saturating_sub(*seen) < MODEL_REMEMBERED);
        for model in models {
            if self.remembered.len() < MODELS_MAX {
                self.remembered.insert(model.id.clone(), now);
            }
        }
    }

    /// Whether somebody who asks for `model` should wait.
    pub fn outlook(&self, model: &str, now: Duration) -> Outlook {
        let remembered = self.remembered.get(model);
        if self.endpoints.values().any(|e| e.serves(model))
            || remembered.is_some_and(|seen| now.saturating_sub(*seen) < MODEL_REMEMBERED)
        {
            return Outlook::Served;
        }
        match self.endpoints.values().any(Endpoint::is_ready) {
            true => Outlook::UnknownModel,
            false => Outlook::NoNode,
        }
    }

    /// Whether all nodes that serve `model` are ready and have failed the request: none is
    /// left to hope for.
    pub fn all_have_failed(&self, model: &str, tried: &[Attempt]) -> bool {
        let mut serving = self.endpoints.iter().filter(|(_, e)| e.serves(model)).peekable();
        serving.peek().is_some() && serving.all(|(id, e)| e.is_ready() && e.has_failed(*id, tried))
    }

    /// The node for a request for `model`, of those that have a free slot and have not failed it.
    pub fn pick(&self, model: &str, tried: &[Attempt], choice: Choice<'_>) -> Option<EndpointId> {
        let candidates: Vec<_> = self
            .endpoints
            .iter()
            .filter(|(id, e)| e.has_free_slot() && e.serves(model) && !e.has_failed(**id, tried))
            .map(|(id, e)| e.candidate(*id, &choice))
            .collect();
        choose(choice.policy, &candidates, choice.seed)
    }

    /// Takes a slot.
    pub fn claim(&mut self, id: EndpointId) {
        self.claims += 1;
        if let Some(endpoint) = self.endpoints.get_mut(&id) {
            endpoint.leases += 1;
            endpoint.last_claim = self.claims;
        }
    }

    /// Gives a slot back. False: that link is over, and the slot with it.
    pub fn release(&mut self, id: EndpointId) -> bool {
        let Some(endpoint) = self.endpoints.get_mut(&id) else { return false };
        debug_assert!(endpoint.leases > 0, "a lease is released once");
        endpoint.leases = endpoint.leases.saturating_sub(1);
        true
    }

    /// Models with a free slot: most of the time under load, there are none.
    pub fn open_models(&self) -> BTreeSet<&str> {
        let free = self.endpoints.values().filter(|e| e.has_free_slot());
        free.flat_map(|e| &e.models).map(|model| model.id.as_str()).collect()
    }

    /// Slots of the ready nodes that serve `model`.
    pub fn slots_of(&self, model: &str) -> u32 {
        let serving = self.endpoints.values().filter(|e| e.is_ready() && e.serves(model));
        serving.map(|e| e.status.slots).sum()
    }

    /// One link's endpoint.
    pub fn endpoint(&self, id: EndpointId) -> Option<&Endpoint<L>> {
        self.endpoints.get(&id)
    }

    /// All endpoints.
    pub fn endpoints(&self) -> impl Iterator<Item = &Endpoint<L>> {
        self.endpoints.values()
    }

    /// Models of the ready nodes and when they were loaded first, by name.
    pub fn models(&self) -> BTreeMap<&str, u64> {
        let mut all = BTreeMap::new();
        for model in self.endpoints.values().filter(|e| e.is_ready()).flat_map(|e| &e.models) {
            let created = all.entry(model.id.as_str()).or_insert(model.created);
            *created = model.created.min(*created);
        }
        all
    }

    /// Sums over all nodes.
    pub fn totals(&self) -> Totals {
        let mut totals = Totals { nodes: self.endpoints.len(), ..Totals::default() };
        for endpoint in self.endpoints.values() {
            totals.leases += endpoint.leases;
            if endpoint.is_ready() {
                totals.ready += 1;
                totals.slots += endpoint.status.slots;
                totals.busy += endpoint.busy();
            }
        }
        totals
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(100);

    fn status(node: &str, state: NodeState, elsewhere: u32) -> NodeStatus {
        let model =
            ModelStatus { id: "m".into(), digest: "d".into(), context_tokens: 8, created: 5 };
        NodeStatus {
            node: node.into(),
            epoch: 1,
            state,
            models: if state == NodeState::Ready { vec![model] } else { Vec::new() },
            slots: if state == NodeState::Ready { 2 } else { 0 },
            slots_busy_elsewhere: elsewhere,
            queued: 0,
            engine_restarts: 0,
            prefill_tokens_per_second: None,
            decode_tokens_per_second: None,
        }
    }

    fn claim<L>(fleet: &mut Fleet<L>, tried: &[Attempt], seed: u64) -> Option<EndpointId> {
        let choice = Choice { policy: Policy::default(), held: &[], now: NOW, seed };
        let id = fleet.pick("m", tried, choice)?;
        fleet.claim(id);
        Some(id)
    }

    fn ready(node: &str) -> NodeStatus {
        status(node, NodeState::Ready, 0)
    }

    #[test]
    fn slots_are_claimed_up_to_the_capacity_and_spread() {
        let mut fleet = Fleet::default();
        let (a, _) = fleet.add("a", ready("a"), NOW);
        let (b, _) = fleet.add("b", ready("b"), NOW);
        let mut claims: Vec<_> = (0..4).map(|i| claim(&mut fleet, &[], i).unwrap()).collect();
        claims.sort_unstable();
        assert_eq!(claims, [a, a, b, b]);
        assert_eq!(claim(&mut fleet, &[], 0), None);
        assert!(fleet.open_models().is_empty());
        assert_eq!(fleet.slots_of("m"), 4);
        assert!(fleet.release(b));
        assert_eq!(fleet.open_models().into_iter().collect::<Vec<_>>(), ["m"]);
        assert_eq!(claim(&mut fleet, &[], 0), Some(b));
    }

    #[test]
    fn requests_of_others_count_as_load() {
        let mut fleet = Fleet::default();
        let (a, _) = fleet.add("a", status("a", NodeState::Ready, 1), NOW);
        assert_eq!(claim(&mut fleet, &[], 0), Some(a));
        assert_eq!(claim(&mut fleet, &[], 0), None);
    }

    #[test]
    fn a_tried_endpoint_is_never_chosen_again() {
        let mut fleet = Fleet::default();
        let (a, _) = fleet.add("a", ready("a"), NOW);
        let tried = [Attempt { endpoint: a, engine_restarts: 0 }];
        assert_eq!(claim(&mut fleet, &tried, 0), None);
        assert!(fleet.all_have_failed("m", &tried));
        let (b, _) = fleet.add("b", ready("b"), NOW);
        assert!(!fleet.all_have_failed("m", &tried));
        assert_eq!(claim(&mut fleet, &tried, 0), Some(b));
    }

    #[test]
    fn a_tried_endpoint_with_a_new_engine_may_be_chosen() {
        let mut fleet = Fleet::default();
        let (a, _) = fleet.add("a", ready("a"), NOW);
        let tried = [Attempt { endpoint: a, engine_restarts: 0 }];
        fleet.observe(a, status("a", NodeState::Restarting, 0), NOW);
        assert!(!fleet.all_have_failed("m", &tried), "it is on its way back");
        let restarted = NodeStatus { engine_restarts: 1, ..ready("a") };
        fleet.observe(a, restarted, NOW);
        assert_eq!(claim(&mut fleet, &tried, 0), Some(a));
        fleet.remove(a, NOW);
        assert!(!fleet.all_have_failed("m", &tried), "the model is waited for");
    }

    #[test]
    fn a_node_that_comes_back_starts_at_zero_and_old_leases_do_not_touch_it() {
        let mut fleet = Fleet::default();
        let (old, _) = fleet.add("old link", ready("a"), NOW);
        claim(&mut fleet, &[], 0);
        let (new, replaced) = fleet.add("new link", ready("a"), NOW);
        assert_eq!(replaced, ["old link"]);
        assert_eq!(fleet.totals().leases, 0);
        assert!(!fleet.release(old));
        assert_eq!(fleet.endpoint(new).unwrap().leases, 0);
    }

    #[test]
    fn only_ready_nodes_are_routable_and_their_models_are_remembered() {
        let mut fleet = Fleet::default();
        assert_eq!(fleet.outlook("m", NOW), Outlook::NoNode);
        let (a, _) = fleet.add("a", ready("a"), NOW);
        assert_eq!(fleet.outlook("m", NOW), Outlook::Served);
        assert_eq!(fleet.outlook("x", NOW), Outlook::UnknownModel);
        assert_eq!(fleet.observe(a, status("a", NodeState::Restarting, 0), NOW), Some(true));
        assert_eq!(claim(&mut fleet, &[], 0), None);
        assert_eq!(fleet.outlook("m", NOW), Outlook::Served, "its engine will be back");
        assert!(fleet.models().is_empty());
        fleet.remove(a, NOW);
        assert_eq!(fleet.outlook("m", NOW + Duration::from_secs(29)), Outlook::Served);
        assert_eq!(fleet.outlook("m", NOW + Duration::from_secs(31)), Outlook::NoNode);
    }
}
