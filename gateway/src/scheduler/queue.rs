//! PURE. The central queue. Requests wait here, not on nodes, and are bound to an endpoint only
//! when it has a free slot.
//!
//! Order: classes share the slots by weight ([`Class`]), the tenants of a class share equally, and
//! so do the users of a tenant, all by work, not by count ([`class_queue`], [`virtual_times`]). The
//! requests of one user, or of a tenant without users, are served first in, first out. A request
//! whose node failed before it finished goes ahead of all: it has waited already. Requests for
//! a model without a free slot hold up no other model.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

mod class_queue;
mod space;
mod virtual_times;

pub use crate::types::class::Class;
use crate::types::limits::{QueueBounds, QueueLimit};
use crate::types::user::UserId;
use class_queue::ClassQueue;
pub(crate) use space::{Occupancy, QueueSpace, SpaceClaim};
use virtual_times::VirtualTimes;

use crate::scheduler::prefix_index::Prefix;

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
    /// The user of the tenant, if its requests name users.
    pub user: Option<UserId>,
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

/// Who is charged for a request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Payer<'a> {
    /// The class.
    pub class: Class,
    /// The tenant.
    pub tenant: &'a str,
    /// The user of the tenant, if its requests name users.
    pub user: Option<UserId>,
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
    /// it may fill; [`space`] limits models, tenants and
    /// users.
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
        self.room.add_request(&ticket.model, (&ticket.tenant, ticket.user), ticket.bytes);
        match ticket.is_retried {
            true => self.retried.push_front(ticket.id),
            false => self.add_to_class(&ticket),
        }
        self.tickets.insert(ticket.id, ticket);
    }

    fn add_to_class(&mut self, ticket: &Ticket<S>) {
        let queue = self.classes.entry(ticket.class).or_default();
        if queue.is_empty() {
            self.turns.arrive(&ticket.class);
        }
        queue.add(ticket);
    }

    /// Removes a request without binding it: it timed out, or its client left.
    pub(crate) fn remove(&mut self, id: TicketId) -> Option<Ticket<S>> {
        let ticket = self.tickets.remove(&id)?;
        self.room.remove_request(&ticket.model, (&ticket.tenant, ticket.user), ticket.bytes);
        if ticket.is_retried {
            self.retried.retain(|waiting| *waiting != id);
            return Some(ticket);
        }
        let queue = self.classes.get_mut(&ticket.class)?;
        queue.remove(&ticket);
        if queue.is_empty() {
            self.turns.leave(&ticket.class);
        }
        Some(ticket)
    }

    /// Removes a request to bind it, and charges its class, tenant and user.
    pub(crate) fn take(&mut self, id: TicketId) -> Option<Ticket<S>> {
        let ticket = self.tickets.get(&id)?;
        if !ticket.is_retried {
            self.turns.charge(&ticket.class, ticket.work / ticket.class.weight());
            let queue = self.classes.entry(ticket.class).or_default();
            queue.charge(&ticket.tenant, ticket.user, ticket.work);
        }
        self.remove(id)
    }

    /// Charges class, tenant and user for a request that found a free slot without waiting, as if
    /// it had waited for a moment.
    pub(crate) fn charge_unqueued(&mut self, payer: Payer<'_>, work: f64) {
        let Payer { class, tenant, user } = payer;
        self.turns.charge_unqueued(&class, work / class.weight());
        self.classes.entry(class).or_default().charge_unqueued(tenant, user, work);
    }

    /// Corrects the charge of a class, tenant and user by `more`, which may be negative. Returns by
    /// how much the virtual times of class and tenant moved.
    pub(crate) fn correct(&mut self, payer: Payer<'_>, more: f64) -> [f64; 2] {
        let Payer { class, tenant, user } = payer;
        let of_class = self.turns.correct(&class, more / class.weight());
        [of_class, self.classes.entry(class).or_default().correct(tenant, user, more)]
    }

    /// The request whose turn it is, among the models that `may` be bound.
    pub(crate) fn next(&self, may: impl Fn(&str) -> bool) -> Option<&Ticket<S>> {
        let heads = self.classes.iter().filter_map(|(class, queue)| {
            let head = queue.head(&self.tickets, &may)?;
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
        self.classes.get(&class).map_or(0, ClassQueue::depth)
    }

    /// When the longest-waiting request of a class was queued, without retried ones.
    pub(crate) fn oldest_of(&self, class: Class) -> Option<Duration> {
        // In order of arrival.
        let mut lined_up = self.tickets.values().filter(|t| t.class == class && !t.is_retried);
        lined_up.next().map(|ticket| ticket.since)
    }

    /// Estimates the work for `model` ahead of a new request: all retried requests, all more urgent
    /// classes, and what fair turns put before it in its own class.
    pub(crate) fn work_ahead(&self, payer: Payer<'_>, model: &str, work: f64) -> f64 {
        let Payer { class, tenant, user } = payer;
        let retried = self.retried().filter(|ticket| ticket.model == model);
        let retried: f64 = retried.map(|ticket| ticket.work).sum();
        let urgent = self.classes.iter().filter(|(other, _)| **other < class);
        let urgent = urgent.map(|(_, queue)| queue.work(model)).sum::<f64>();
        let queue = self.classes.get(&class);
        let own = queue.map_or(0.0, |queue| queue.work_ahead((tenant, user), model, work));
        retried + urgent + own
    }
}

#[cfg(test)]
mod tests;
