//! PURE. Assigns slots to requests. Owns the fleet, the queue, and the statistics learned from
//! both. [`crate::dispatcher`] is its shell; the storm simulation runs it unchanged.

use std::collections::HashMap;
use std::time::Duration;

use crate::access::spend::{Bill, Ledger, Prices};
use crate::scheduler::cost::request_pace::Observation;
use crate::scheduler::cost::{Costs, Size};
use crate::scheduler::fleet::{
    AttemptOutcome, Availability, EndpointId, Fleet, RouteConstraints, RoutingInputs,
};
use crate::scheduler::prefix_index::{Prefix, PrefixIndex};
use crate::scheduler::queue::{Queue, QueueSpace, SpaceClaim, Ticket, TicketId};
use crate::scheduler::retry_budget::RetryBudget;
use crate::scheduler::routing::Policy;
use crate::scheduler::routing_stats::{Decision, Lookup, Reason, RoutingStats};
use crate::types::class::Class;
use crate::types::external::ExternalPolicy;
use crate::types::limits::{QueueBounds, QueueLimit, QueueShare};

mod acquire;
pub mod attempts;
pub mod charge;
pub mod cost;
pub mod fleet;
mod heirs;
pub mod prefix_index;
pub mod progress;
pub mod queue;
pub(crate) mod retry_budget;
pub mod routing;
pub mod routing_stats;
mod slot;
mod spare;
mod unallotted;
pub mod usage;

pub use acquire::Acquired;
use charge::Charge;
pub use slot::{Binding, ResponseUsage, SlotRefusal, SlotRequest};

/// Share of a cached prefix that we expect to be reused. A request that had to queue goes wherever
/// a slot frees up, and about half of the time that node has the prefix.
const CACHED_PREFIX_REUSE: f64 = 0.5;

/// What to pick an endpoint for.
#[derive(Debug, Clone, Copy)]
struct PickRequest<'a> {
    model: &'a str,
    constraints: &'a RouteConstraints,
    prefix: &'a Prefix,
    /// No open endpoint met the request's constraints as of this change of the fleet.
    skipped: Option<u64>,
}

/// A request and the endpoint picked for it.
type Picked = (TicketId, (EndpointId, Decision));

/// Assigns slots to requests. `L` is the handle that sends to an endpoint.
#[derive(Debug)]
pub struct Scheduler<L> {
    /// The endpoints and their slots.
    pub fleet: Fleet<L>,
    queue: Queue<RouteConstraints>,
    costs: Costs,
    prefixes: PrefixIndex<EndpointId>,
    /// Spend at external endpoints.
    pub ledger: Ledger,
    /// Retry budget.
    pub retries: RetryBudget,
    /// Routing statistics.
    pub stats: RoutingStats,
    policy: Policy,
    /// Retried requests that found no endpoint, with the last fleet change that was considered.
    skipped: HashMap<TicketId, u64>,
    /// Set if all retried requests were skipped as of this fleet change.
    all_skipped: Option<u64>,
    next_ticket: TicketId,
    /// Seed for breaking ties; incremented per pick.
    seed: u64,
    /// When the last request came that is not of class batch.
    others_at: Option<Duration>,
}

impl<L> Scheduler<L> {
    /// Creates a scheduler without endpoints and requests.
    pub fn new(bounds: QueueBounds, policy: Policy) -> Self {
        Self {
            fleet: Fleet::default(),
            queue: Queue::new(bounds),
            costs: Costs::default(),
            prefixes: PrefixIndex::default(),
            ledger: Ledger::default(),
            retries: RetryBudget::default(),
            stats: RoutingStats::default(),
            policy,
            skipped: HashMap::new(),
            all_skipped: None,
            next_ticket: 0,
            seed: 0,
            others_at: None,
        }
    }

    /// Replaces the queue's bounds and the policy. Requests in the queue stay.
    pub fn configure(&mut self, bounds: QueueBounds, policy: Policy) {
        self.queue.set_bounds(bounds);
        self.policy = policy;
    }

    /// Adds a request to the queue, where it can wait for `patience`. Call [`Scheduler::bind`]
    /// afterwards.
    ///
    /// # Errors
    /// Nothing serves the model, the queue is full, or the predicted wait exceeds `patience`.
    pub fn enqueue(
        &mut self,
        request: &SlotRequest<'_>,
        patience: Duration,
        now: Duration,
    ) -> Result<TicketId, SlotRefusal> {
        match self.fleet.availability(request.model, request.constraints.external, now) {
            Availability::Served => {}
            Availability::UnknownModel => return Err(SlotRefusal::UnknownModel),
            Availability::NoNode => return Err(SlotRefusal::NoNode),
        }
        let (work, is_retried) = (self.estimate_work(request), request.is_retried());
        self.all_skipped = self.all_skipped.filter(|_| !is_retried);
        // A retried request goes ahead of all others, so the predicted wait does not apply.
        let predicted = if is_retried { None } else { self.predict_wait(request, work, now) };
        if predicted.is_some_and(|wait| wait > patience) {
            return Err(SlotRefusal::DeadlineUnmet);
        }
        if !is_retried {
            self.check_space(request)?;
        }
        self.next_ticket += 1;
        let id = self.next_ticket;
        let ticket = Ticket {
            id,
            model: request.model.to_string(),
            tenant: request.tenant.to_string(),
            user: request.user,
            class: request.class,
            work,
            bytes: request.bytes,
            prefix: request.prefix.clone(),
            since: now,
            predicted,
            constraints: request.constraints.clone(),
            is_retried,
        };
        self.queue.push(ticket);
        Ok(id)
    }

    fn check_space(&self, request: &SlotRequest<'_>) -> Result<(), SlotRefusal> {
        let space = self.queue.check_space(&SpaceClaim {
            class: request.class,
            tenant: (request.tenant, request.share),
            user: request.user,
            model: Some(request.model),
            has_models: self.fleet.has_other_models(request.model),
            depth: 1,
            bytes: request.bytes,
        });
        space.map_err(SlotRefusal::QueueFull)
    }

    /// Reserves queue space for `bytes` more bytes of a body that is being read.
    ///
    /// # Errors
    /// The limit of the queue that leaves no space.
    pub(crate) fn reserve_body(
        &mut self,
        tenant: &str,
        share: QueueShare,
        class: Class,
        bytes: usize,
    ) -> Result<(), QueueLimit> {
        let (tenant, user, model) = ((tenant, share), None, None);
        let claim = SpaceClaim { class, tenant, user, model, has_models: false, depth: 0, bytes };
        self.queue.check_space(&claim)?;
        self.queue.space_mut().add_body(tenant.0, bytes);
        Ok(())
    }

    /// Frees queue space of a body that was being read.
    pub(crate) fn release_body(&mut self, tenant: &str, bytes: usize) {
        self.queue.space_mut().remove_body(tenant, bytes);
    }

    /// Binds a request right away if a slot is free and no other request waits for its model.
    pub fn bind_at_once(&mut self, request: &SlotRequest<'_>, now: Duration) -> Option<Binding> {
        if !request.is_retried() {
            self.retries.record_request();
        }
        let prefers_external = request.constraints.external == ExternalPolicy::Prefer
            && request.class == Class::Interactive;
        if prefers_external
            && let Some(binding) = self.bind_external(request, Reason::ExternalPreferred, now)
        {
            return Some(binding);
        }
        if self.queue.space().has_waiting(request.model) {
            return None;
        }
        self.seed = self.seed.wrapping_add(1);
        let SlotRequest { model, constraints, prefix, .. } = *request;
        let pick = PickRequest { model, constraints, prefix, skipped: None };
        let (endpoint, decision) = self.pick(pick, now)?;
        self.stats.record_decision(self.policy, decision);
        let charge = (!request.is_retried()).then(|| {
            let work = self.costs.units(request.model, request.size, 0.0);
            self.queue.charge_unqueued(request.payer(), work);
            let SlotRequest { class, user, .. } = *request;
            Charge { class, tenant: request.tenant.to_string(), user, work }
        });
        let bill = &constraints.bill;
        let binding = self.claim(endpoint, (request.model, bill), request.prefix, now)?;
        Some(Binding { charge, ..binding })
    }

    /// Binds an overflowing request to an external endpoint, if it may go to one.
    fn bind_overflow(&mut self, request: &SlotRequest<'_>, now: Duration) -> Option<Binding> {
        self.bind_external(request, Reason::ExternalOverflow, now)
    }

    fn bind_external(
        &mut self,
        request: &SlotRequest<'_>,
        reason: Reason,
        now: Duration,
    ) -> Option<Binding> {
        let endpoint = self.pick_external(request.model, request.constraints)?;
        self.stats.record_decision(self.policy, Decision::external(reason));
        let bill = &request.constraints.bill;
        self.claim(endpoint, (request.model, bill), &Prefix::default(), now)
    }

    fn pick_external(&self, model: &str, constraints: &RouteConstraints) -> Option<EndpointId> {
        let may_pay = |name: &str, prices: &Prices| {
            self.ledger.check_payment(name, prices, &constraints.bill).is_ok()
        };
        self.fleet.pick_external(model, constraints, may_pay)
    }

    fn pick(&self, request: PickRequest<'_>, now: Duration) -> Option<(EndpointId, Decision)> {
        let PickRequest { model, constraints, prefix, skipped } = request;
        if self.fleet.is_external_only(model) {
            let endpoint = self.pick_external(model, constraints)?;
            return Some((endpoint, Decision::external(Reason::ExternalOnly)));
        }
        let cached = self.prefixes.lookup(prefix);
        let inputs = RoutingInputs { policy: self.policy, cached: &cached, now, seed: self.seed };
        let endpoint = match skipped {
            None => self.fleet.pick(model, constraints, inputs)?,
            Some(change) => self.fleet.pick_since(model, constraints, inputs, change)?,
        };
        let lookup = match cached.iter().any(|(holder, _)| *holder == endpoint) {
            true => Lookup::Hit,
            false if cached.is_empty() => Lookup::Miss,
            false => Lookup::Elsewhere,
        };
        let counts = self.policy.counts_prefixes() && lookup == Lookup::Hit;
        let reason = if counts { Reason::Prefix } else { Reason::Policy };
        let lookup = (!prefix.is_empty()).then_some(lookup);
        Some((endpoint, Decision { reason, lookup }))
    }

    /// Takes a slot of the picked endpoint.
    fn claim(
        &mut self,
        endpoint: EndpointId,
        (model, bill): (&str, &Bill),
        prefix: &Prefix,
        now: Duration,
    ) -> Option<Binding> {
        let picked = self.fleet.endpoint(endpoint)?;
        let (model, busy) = (picked.model(model)?.clone(), picked.busy() + 1);
        let name = &picked.status.node;
        let paid = picked.external.as_ref();
        let payment = paid.and_then(|terms| self.ledger.reserve_payment(name, &terms.prices, bill));
        self.fleet.claim(endpoint);
        self.prefixes.insert(prefix, endpoint, now);
        Some(Binding { payment, takes_slot: true, ..Binding::new(endpoint, model, busy, now) })
    }

    /// Binds a text query to a node without taking a slot; `None` if it has to wait for one.
    pub fn bind_query(&mut self, request: &SlotRequest<'_>, now: Duration) -> Option<Binding> {
        let endpoint = self.fleet.pick_query(request.model, request.constraints)?;
        let node = self.fleet.endpoint(endpoint)?;
        let (model, busy) = (node.model(request.model)?.clone(), node.busy());
        self.fleet.claim_query(endpoint);
        Some(Binding::new(endpoint, model, busy, now))
    }

    /// Expected cost of a queued request, in units of [`crate::scheduler::cost`].
    fn estimate_work(&self, request: &SlotRequest<'_>) -> f64 {
        let cached = self.prefixes.lookup(request.prefix).into_iter().map(|(_, part)| part);
        self.costs.units(
            request.model,
            request.size,
            CACHED_PREFIX_REUSE * cached.fold(0.0, f64::max),
        )
    }

    /// Takes the next queued request that can get a slot, and the slot.
    pub fn bind(&mut self, now: Duration) -> Option<Binding> {
        if self.queue.depth() == 0 || !(self.fleet.is_any_open() || self.fleet.has_externals()) {
            return None;
        }
        self.seed = self.seed.wrapping_add(1);
        let picked = self.pick_retried(now).or_else(|| self.pick_waiting(now));
        let (id, (endpoint, decision)) = picked?;
        self.skipped.remove(&id);
        self.stats.record_decision(self.policy, decision);
        let ticket = self.queue.take(id)?;
        self.stats.record_wait(ticket.predicted, now.saturating_sub(ticket.since));
        let wanted = (&*ticket.model, &ticket.constraints.bill);
        let binding = self.claim(endpoint, wanted, &ticket.prefix, now)?;
        let Ticket { class, tenant, user, work, is_retried, .. } = ticket;
        let charge = (!is_retried).then_some(Charge { class, tenant, user, work });
        Some(Binding { id, charge, ..binding })
    }

    /// Picks the first retried request that an endpoint can serve. A request skipped before is
    /// compared only with endpoints that have changed since.
    fn pick_retried(&mut self, now: Duration) -> Option<Picked> {
        let last_change = self.fleet.last_change();
        if self.all_skipped == Some(last_change) {
            return None;
        }
        let (mut picked, mut all_skipped) = (None, Some(last_change));
        let mut skipped: Vec<TicketId> = Vec::new();
        for ticket in self.queue.retried().filter(|ticket| self.is_open(&ticket.model)) {
            let known = self.skipped.get(&ticket.id).copied();
            if known == Some(last_change) {
                continue;
            }
            picked = self.pick_for_ticket(ticket, known, now);
            if picked.is_some() {
                break;
            }
            // External endpoints also depend on the budget, not on the fleet alone.
            match self.fleet.is_external_only(&ticket.model) {
                true => all_skipped = None,
                false => skipped.push(ticket.id),
            }
        }
        self.skipped.extend(skipped.into_iter().map(|id| (id, last_change)));
        self.all_skipped = all_skipped.filter(|_| picked.is_none());
        picked
    }

    /// Picks the request whose turn it is among the models that have a suitable endpoint.
    fn pick_waiting(&self, now: Duration) -> Option<Picked> {
        // Models whose next request no open endpoint can serve.
        let mut passed: Vec<&str> = Vec::new();
        loop {
            let may = |model: &str| self.is_open(model) && !passed.contains(&model);
            let ticket = self.queue.next(may)?;
            let picked = self.pick_for_ticket(ticket, None, now);
            if picked.is_some() {
                return picked;
            }
            passed.push(&ticket.model);
        }
    }

    fn pick_for_ticket(
        &self,
        ticket: &Ticket<RouteConstraints>,
        skipped: Option<u64>,
        now: Duration,
    ) -> Option<Picked> {
        let Ticket { id, model, constraints, prefix, .. } = ticket;
        Some((*id, self.pick(PickRequest { model, constraints, prefix, skipped }, now)?))
    }

    /// True if a request for the model may find a slot.
    fn is_open(&self, model: &str) -> bool {
        self.fleet.is_open(model) || self.fleet.is_external_only(model)
    }

    /// Removes a request from the queue without a slot.
    pub fn withdraw(&mut self, id: TicketId, now: Duration) {
        self.skipped.remove(&id);
        if let Some(ticket) = self.queue.remove(id) {
            self.stats.record_abandoned_wait(ticket.predicted, now.saturating_sub(ticket.since));
        }
    }

    /// Frees a slot and records the outcome.
    pub fn release(&mut self, binding: &Binding, outcome: AttemptOutcome, now: Duration) {
        if let Some(payment) = &binding.payment {
            self.ledger.release_payment(payment);
        }
        match binding.takes_slot {
            true => drop(self.fleet.release(binding.endpoint, outcome, now)),
            false => self.fleet.release_query(binding.endpoint, outcome, now),
        }
    }

    /// Learns from a complete response of one endpoint. Call it while the request still holds its
    /// slot.
    pub fn learn(
        &mut self,
        binding: &Binding,
        size: &Size,
        response: &ResponseUsage,
        now: Duration,
    ) {
        let since = |at: Duration| at.saturating_sub(binding.since);
        let Some(endpoint) = self.fleet.endpoint(binding.endpoint) else { return };
        if endpoint.external.is_some() && !self.fleet.is_external_only(&binding.model.id) {
            return;
        }
        let observation = Observation {
            usage: response.usage,
            choices: response.choices,
            first_token: response.first_token.map(since),
            slot_time: since(now),
            busy: f64::from(binding.busy + endpoint.busy()) / 2.0,
        };
        self.costs.observe(&binding.model.id, size, &observation);
        self.fleet.learn(binding.endpoint, &binding.model, &observation);
    }

    /// Predicted prefill time of a request at its endpoint. `None` until enough was measured.
    pub(crate) fn predicted_prefill(&self, binding: &Binding, size: &Size) -> Option<Duration> {
        let model = &binding.model.id;
        let pace = self.fleet.endpoint(binding.endpoint).and_then(|e| e.pace(model));
        self.costs.prefill(model, size, pace)
    }

    /// Predicted queue wait of a request. `None` while slots are free or until enough was measured.
    pub fn predicted_wait(&mut self, request: &SlotRequest<'_>, now: Duration) -> Option<Duration> {
        self.predict_wait(request, self.estimate_work(request), now)
    }

    fn predict_wait(
        &mut self,
        request: &SlotRequest<'_>,
        work: f64,
        now: Duration,
    ) -> Option<Duration> {
        if self.fleet.is_open(request.model) {
            return None;
        }
        let ahead = self.queue.work_ahead(request.payer(), request.model, work);
        let nodes = || self.fleet.paces(request.model);
        self.costs.predict(request.model, ahead, now, nodes)
    }

    /// The routing policy.
    pub fn policy(&self) -> Policy {
        self.policy
    }

    /// The bounds of the queue.
    pub fn bounds(&self) -> QueueBounds {
        self.queue.bounds()
    }

    /// Queue occupancy by model and tenant.
    pub(crate) fn queue_space(&self) -> &QueueSpace {
        self.queue.space()
    }

    /// A queued request.
    pub fn ticket(&self, id: TicketId) -> Option<&Ticket<RouteConstraints>> {
        self.queue.get(id)
    }

    /// Number of queued requests.
    pub fn depth(&self) -> usize {
        self.queue.depth()
    }

    /// Longest current wait of each class.
    pub(crate) fn longest_waits(&self, now: Duration) -> [(Class, Option<Duration>); 3] {
        let wait = |class| self.queue.oldest_of(class).map(|since| now.saturating_sub(since));
        Class::ALL.map(|class| (class, wait(class)))
    }

    /// Queued requests by class, without retried ones.
    pub(crate) fn depths(&self) -> [(Class, usize); 3] {
        Class::ALL.map(|class| (class, self.queue.depth_of(class)))
    }
}

#[cfg(test)]
mod tests;
