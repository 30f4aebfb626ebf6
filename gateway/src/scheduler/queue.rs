//! PURE. The central queue. Requests wait here, not on nodes, and are bound to an endpoint only
//! when it has a free slot.
//!
//! Order: classes share the slots by weight ([`Class`]), and the tenants of a class share equally,
//! both by work, not by count ([`virtual_times`]). The requests of one tenant are served first in,
//! first out. A request whose node failed before it finished goes ahead of all: it has waited
//! already. Requests for a model without a free slot hold up no other model.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

mod space;
mod virtual_times;

pub use crate::types::class::Class;
use crate::types::limits::{QueueBounds, QueueLimit};
pub(crate) use space::{Occupancy, QueueSpace, SpaceClaim};
use virtual_times::VirtualTimes;

use crate::scheduler::prefix_index::Prefix;

/// While a request waits, other tenants keep sending: their queued work counts this many times.
/// Without this factor, simulations predicted waits in an overload a third too short; a larger
/// factor makes predictions in a peak too long.
const ASK_ON: f64 = 2.0;

/// Id of a queued request; ids grow.
pub type TicketId = u64;

/// A queued request.
#[derive(Debug, Clone, PartialEq)]
pub struct Ticket<S> {
    /// Its id.
    pub id: TicketId,
    /// The requested model.
    pub model: String,
    /// The tenant.
    pub tenant: String,
    /// The scheduling class.
    pub class: Class,
    /// Expected cost, in units of [`crate::scheduler::cost`].
    pub work: f64,
    /// Bytes that it holds in memory.
    pub bytes: usize,
    /// Prefix hashes of the body.
    pub prefix: Prefix,
    /// When it was queued.
    pub since: Duration,
    /// Predicted wait when it was queued, if known.
    pub predicted: Option<Duration>,
    /// Route constraints.
    pub constraints: S,
    /// True if an endpoint has failed it before.
    pub is_retried: bool,
}

/// A tenant's queued requests in one class.
#[derive(Debug, Default)]
struct TenantQueue {
    models: BTreeMap<String, ModelQueue>,
}

/// Those of them for one model.
#[derive(Debug, Default)]
struct ModelQueue {
    /// In order of arrival.
    ids: BTreeSet<TicketId>,
    work: f64,
}

impl TenantQueue {
    fn work(&self, model: &str) -> f64 {
        self.models.get(model).map_or(0.0, |waiting| waiting.work)
    }
}

/// The queued requests of a class.
#[derive(Debug, Default)]
struct ClassQueue {
    tenants: BTreeMap<String, TenantQueue>,
    turns: VirtualTimes<String>,
    depth: usize,
}

/// All queued requests.
#[derive(Debug)]
pub(crate) struct Queue<S> {
    bounds: QueueBounds,
    tickets: BTreeMap<TicketId, Ticket<S>>,
    retried: VecDeque<TicketId>,
    classes: BTreeMap<Class, ClassQueue>,
    turns: VirtualTimes<Class>,
    /// Occupancy by queued requests and by bodies being read.
    room: QueueSpace,
}

impl<S> Queue<S> {
    /// Creates an empty queue.
    pub(crate) fn new(bounds: QueueBounds) -> Self {
        let classes = Class::ALL.into_iter().map(|class| (class, ClassQueue::default())).collect();
        Self {
            bounds,
            tickets: BTreeMap::new(),
            retried: VecDeque::new(),
            classes,
            turns: VirtualTimes::default(),
            room: QueueSpace::default(),
        }
    }

    /// The bounds.
    pub(crate) fn bounds(&self) -> QueueBounds {
        self.bounds
    }

    /// Replaces the bounds.
    pub(crate) fn set_bounds(&mut self, bounds: QueueBounds) {
        self.bounds = bounds;
    }

    /// Checks whether there is space for a request. The less urgent a class, the less of the queue
    /// it may fill; [`space`] limits models and tenants.
    ///
    /// # Errors
    /// The limit that leaves no space.
    pub(crate) fn check_space(&self, claim: &SpaceClaim<'_>) -> Result<(), QueueLimit> {
        self.room.check(&self.bounds, claim)
    }

    /// Occupancy by model and tenant.
    pub(crate) fn space(&self) -> &QueueSpace {
        &self.room
    }

    /// The same, to account for bodies being read.
    pub(crate) fn space_mut(&mut self) -> &mut QueueSpace {
        &mut self.room
    }

    /// Adds a request that passed [`Queue::check_space`]. A retried request was admitted before, so
    /// no limit rejects it.
    pub(crate) fn push(&mut self, ticket: Ticket<S>) {
        self.room.add_request(&ticket.model, &ticket.tenant, ticket.bytes);
        match ticket.is_retried {
            true => self.retried.push_front(ticket.id),
            false => self.add_to_class(&ticket),
        }
        self.tickets.insert(ticket.id, ticket);
    }

    fn add_to_class(&mut self, ticket: &Ticket<S>) {
        let lines = self.classes.entry(ticket.class).or_default();
        if lines.depth == 0 {
            self.turns.arrive(&ticket.class);
        }
        if !lines.tenants.contains_key(&ticket.tenant) {
            lines.turns.arrive(&ticket.tenant);
        }
        let line = lines.tenants.entry(ticket.tenant.clone()).or_default();
        let waiting = line.models.entry(ticket.model.clone()).or_default();
        waiting.ids.insert(ticket.id);
        waiting.work += ticket.work;
        lines.depth += 1;
    }

    /// Removes a request without binding it: it timed out, or its client left.
    pub(crate) fn remove(&mut self, id: TicketId) -> Option<Ticket<S>> {
        let ticket = self.tickets.remove(&id)?;
        self.room.remove_request(&ticket.model, &ticket.tenant, ticket.bytes);
        if ticket.is_retried {
            self.retried.retain(|waiting| *waiting != id);
            return Some(ticket);
        }
        let lines = self.classes.get_mut(&ticket.class)?;
        let line = lines.tenants.get_mut(&ticket.tenant)?;
        lines.depth -= 1;
        if let Some(waiting) = line.models.get_mut(&ticket.model) {
            waiting.ids.remove(&id);
            waiting.work -= ticket.work;
            if waiting.ids.is_empty() {
                line.models.remove(&ticket.model);
            }
        }
        if line.models.is_empty() {
            lines.tenants.remove(&ticket.tenant);
            lines.turns.leave(&ticket.tenant);
        }
        if lines.depth == 0 {
            self.turns.leave(&ticket.class);
        }
        Some(ticket)
    }

    /// Removes a request to bind it, and charges its class and tenant.
    pub(crate) fn take(&mut self, id: TicketId) -> Option<Ticket<S>> {
        let ticket = self.tickets.get(&id)?;
        if !ticket.is_retried {
            self.turns.charge(&ticket.class, ticket.work / ticket.class.weight());
            let lines = self.classes.entry(ticket.class).or_default();
            lines.turns.charge(&ticket.tenant, ticket.work);
        }
        self.remove(id)
    }

    /// Charges class and tenant for a request that found a free slot without waiting, as if it had
    /// waited for a moment.
    pub(crate) fn charge_unqueued(&mut self, class: Class, tenant: &str, work: f64) {
        self.turns.charge_unqueued(&class, work / class.weight());
        self.classes.entry(class).or_default().turns.charge_unqueued(tenant, work);
    }

    /// Corrects the charge of a class and tenant by `more`, which may be negative. Returns by how
    /// much their virtual times moved.
    pub(crate) fn correct(&mut self, class: Class, tenant: &str, more: f64) -> [f64; 2] {
        let of_class = self.turns.correct(&class, more / class.weight());
        let lines = self.classes.entry(class).or_default();
        [of_class, lines.turns.correct(tenant, more)]
    }

    /// The request whose turn it is, among the models that `may` be bound.
    pub(crate) fn next(&self, may: impl Fn(&str) -> bool) -> Option<&Ticket<S>> {
        let heads = self.classes.iter().filter_map(|(class, lines)| {
            let head = lines.head(&self.tickets, &may)?;
            Some((self.turns.finish_time(class, head.work / class.weight()), *class, head))
        });
        let first = heads.min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        first.map(|(.., head)| head)
    }

    /// A queued request.
    pub(crate) fn get(&self, id: TicketId) -> Option<&Ticket<S>> {
        self.tickets.get(&id)
    }

    /// Retried requests, newest first.
    pub(crate) fn retried(&self) -> impl Iterator<Item = &Ticket<S>> {
        self.retried.iter().filter_map(|id| self.tickets.get(id))
    }

    /// Number of queued requests.
    pub(crate) fn depth(&self) -> usize {
        self.tickets.len()
    }

    /// Queued requests of a class, without retried ones.
    pub(crate) fn depth_of(&self, class: Class) -> usize {
        self.classes.get(&class).map_or(0, |lines| lines.depth)
    }

    /// When the longest-waiting request of a class was queued, without retried ones.
    pub(crate) fn oldest_of(&self, class: Class) -> Option<Duration> {
        // In order of arrival.
        let mut lined_up = self.tickets.values().filter(|t| t.class == class && !t.is_retried);
        lined_up.next().map(|ticket| ticket.since)
    }

    /// Estimates the work for `model` ahead of a new request: all retried requests, all more urgent
    /// classes, the tenant's own requests, and of each other tenant of the class as much as it has
    /// queued or will add meanwhile, up to the tenant's own work.
    pub(crate) fn work_ahead(&self, class: Class, tenant: &str, model: &str, work: f64) -> f64 {
        let retried = self.retried().filter(|ticket| ticket.model == model);
        let retried: f64 = retried.map(|ticket| ticket.work).sum();
        let urgent = self.classes.iter().filter(|(other, _)| **other < class);
        let urgent = urgent.flat_map(|(_, lines)| lines.tenants.values());
        let urgent = retried + urgent.map(|line| line.work(model)).sum::<f64>();
        let Some(lines) = self.classes.get(&class) else { return urgent };
        let own = lines.tenants.get(tenant).map_or(0.0, |line| line.work(model));
        let others = lines.tenants.iter().filter(|(name, _)| *name != tenant);
        let share = |line: &TenantQueue| (line.work(model) * ASK_ON).min(own + work);
        let others: f64 = others.map(|(_, line)| share(line)).sum();
        urgent + own + others
    }
}

impl ClassQueue {
    /// The first request of the tenant whose turn it is.
    fn head<'t, S>(
        &self,
        tickets: &'t BTreeMap<TicketId, Ticket<S>>,
        may: &impl Fn(&str) -> bool,
    ) -> Option<&'t Ticket<S>> {
        let heads = self.tenants.iter().filter_map(|(tenant, line)| {
            let models = line.models.iter().filter(|(model, _)| may(model));
            let first = models.filter_map(|(_, waiting)| waiting.ids.first()).min()?;
            let first = tickets.get(first)?;
            Some((self.turns.finish_time(tenant, first.work), first))
        });
        let first = heads.min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.id.cmp(&b.1.id)));
        first.map(|(_, ticket)| ticket)
    }
}

#[cfg(test)]
mod tests;
