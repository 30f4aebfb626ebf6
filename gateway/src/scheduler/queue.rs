//! PURE. The central queue: requests wait here, not at nodes, and are bound to an endpoint
//! only when a slot is free.
//!
//! Whose turn it is: classes share the slots by weight ([`class`]), the tenants of a class
//! equally, both by work and not by count ([`turns`]); a tenant's own requests go in order of
//! arrival. A request whose node was lost before it answered goes before all of them: it has
//! waited already. Requests for models without a free slot hold up nobody else.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

mod room;
mod turns;

pub use crate::types::class::Class;
use crate::types::limits::{Bounds, Full};
pub use room::{Claim, Occupancy, Room};
use turns::Turns;

use crate::scheduler::prefix_index::Prefix;

/// Who waits asks for as much again meanwhile: without this, waits of an overload were foretold a
/// third too short in simulations, and with more, those of a peak would be too long.
const ASK_ON: f64 = 2.0;

/// A waiting request's number; they grow.
pub type TicketId = u64;

/// A waiting request.
#[derive(Debug, Clone, PartialEq)]
pub struct Ticket<S> {
    /// Its number.
    pub id: TicketId,
    /// The model it wants.
    pub model: String,
    /// Whose it is.
    pub tenant: String,
    /// How urgent it is.
    pub class: Class,
    /// What it will cost, in units of [`cost`].
    pub work: f64,
    /// Bytes that it holds in memory.
    pub bytes: usize,
    /// How it begins.
    pub prefix: Prefix,
    /// Since when it waits.
    pub since: Duration,
    /// How long it would wait, as far as that was known then.
    pub foretold: Option<Duration>,
    /// What an endpoint must be for it.
    pub constraints: S,
    /// Whether an endpoint failed it already.
    pub is_retried: bool,
}

/// A tenant's waiting requests in one class.
#[derive(Debug, Default)]
struct Line {
    models: BTreeMap<String, Waiting>,
}

/// Those of them that want one model.
#[derive(Debug, Default)]
struct Waiting {
    /// In order of arrival.
    ids: BTreeSet<TicketId>,
    work: f64,
}

impl Line {
    fn work(&self, model: &str) -> f64 {
        self.models.get(model).map_or(0.0, |waiting| waiting.work)
    }
}

/// A class's waiting requests.
#[derive(Debug, Default)]
struct Lines {
    tenants: BTreeMap<String, Line>,
    turns: Turns<String>,
    depth: usize,
}

/// Waiting requests.
#[derive(Debug)]
pub struct Queue<S> {
    bounds: Bounds,
    tickets: BTreeMap<TicketId, Ticket<S>>,
    retried: VecDeque<TicketId>,
    classes: BTreeMap<Class, Lines>,
    turns: Turns<Class>,
    /// What they take, and bodies that are being read.
    room: Room,
}

impl<S> Queue<S> {
    /// An empty queue.
    pub fn new(bounds: Bounds) -> Self {
        let classes = Class::ALL.into_iter().map(|class| (class, Lines::default())).collect();
        Self {
            bounds,
            tickets: BTreeMap::new(),
            retried: VecDeque::new(),
            classes,
            turns: Turns::default(),
            room: Room::default(),
        }
    }

    /// Its bounds.
    pub fn bounds(&self) -> Bounds {
        self.bounds
    }

    /// Other bounds, from now on.
    pub fn bound(&mut self, bounds: Bounds) {
        self.bounds = bounds;
    }

    /// Whether there is room for a request. The less urgent a class, the less of the queue it may
    /// fill; what models and tenants may fill is in [`room`].
    ///
    /// # Errors
    /// Which limit leaves none.
    pub fn has_room(&self, claim: &Claim<'_>) -> Result<(), Full> {
        self.room.fits(&self.bounds, claim)
    }

    /// What is taken of the queue, and by whom.
    pub fn room(&self) -> &Room {
        &self.room
    }

    /// The same, for bodies that are being read.
    pub fn room_mut(&mut self) -> &mut Room {
        &mut self.room
    }

    /// Takes a request that [`Queue::has_room`] for. A retried one was admitted before: no limit
    /// rejects it.
    pub fn offer(&mut self, ticket: Ticket<S>) {
        self.room.wait(&ticket.model, &ticket.tenant, ticket.bytes);
        match ticket.is_retried {
            true => self.retried.push_front(ticket.id),
            false => self.line_up(&ticket),
        }
        self.tickets.insert(ticket.id, ticket);
    }

    fn line_up(&mut self, ticket: &Ticket<S>) {
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

    /// Takes a request out: it is too late, or its client is gone.
    pub fn remove(&mut self, id: TicketId) -> Option<Ticket<S>> {
        let ticket = self.tickets.remove(&id)?;
        self.room.leave(&ticket.model, &ticket.tenant, ticket.bytes);
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

    /// Takes a request out to bind it: its class and its tenant have had that much.
    pub fn take(&mut self, id: TicketId) -> Option<Ticket<S>> {
        let ticket = self.tickets.get(&id)?;
        if !ticket.is_retried {
            self.turns.charge(&ticket.class, ticket.work / ticket.class.weight());
            let lines = self.classes.entry(ticket.class).or_default();
            lines.turns.charge(&ticket.tenant, ticket.work);
        }
        self.remove(id)
    }

    /// A request that finds a slot that nobody waits for: its class and its tenant have had that
    /// much, as if it had waited for a moment.
    pub fn pass(&mut self, class: Class, tenant: &str, work: f64) {
        self.turns.pass(&class, work / class.weight());
        self.classes.entry(class).or_default().turns.pass(tenant, work);
    }

    /// Corrects what a tenant was charged in a class by so much more, or less. Returns by how much
    /// the times of class and tenant have moved.
    pub fn correct(&mut self, class: Class, tenant: &str, more: f64) -> [f64; 2] {
        let of_class = self.turns.correct(&class, more / class.weight());
        let lines = self.classes.entry(class).or_default();
        [of_class, lines.turns.correct(tenant, more)]
    }

    /// The request whose turn it is, of those whose model may be bound.
    pub fn next(&self, may: impl Fn(&str) -> bool) -> Option<&Ticket<S>> {
        let heads = self.classes.iter().filter_map(|(class, lines)| {
            let head = lines.head(&self.tickets, &may)?;
            Some((self.turns.finish(class, head.work / class.weight()), *class, head))
        });
        let first = heads.min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        first.map(|(.., head)| head)
    }

    /// A request that waits.
    pub fn get(&self, id: TicketId) -> Option<&Ticket<S>> {
        self.tickets.get(&id)
    }

    /// Requests that failed on a node and wait for another, the newest first.
    pub fn retried(&self) -> impl Iterator<Item = &Ticket<S>> {
        self.retried.iter().filter_map(|id| self.tickets.get(id))
    }

    /// Requests that wait.
    pub fn depth(&self) -> usize {
        self.tickets.len()
    }

    /// Requests of a class that wait, without those that failed on a node.
    pub fn depth_of(&self, class: Class) -> usize {
        self.classes.get(&class).map_or(0, |lines| lines.depth)
    }

    /// Since when the first of a class waits, without those that failed on a node.
    pub fn oldest_of(&self, class: Class) -> Option<Duration> {
        // In order of arrival.
        let mut lined_up = self.tickets.values().filter(|t| t.class == class && !t.is_retried);
        lined_up.next().map(|ticket| ticket.since)
    }

    /// The work for its model that is done before a new request of a tenant, about: all that failed
    /// elsewhere, of the more urgent classes, and its own, and of the others of its class as much
    /// as its own, as far as they have it or will ask for it meanwhile.
    pub fn work_ahead(&self, class: Class, tenant: &str, model: &str, work: f64) -> f64 {
        let retried = self.retried().filter(|ticket| ticket.model == model);
        let retried: f64 = retried.map(|ticket| ticket.work).sum();
        let urgent = self.classes.iter().filter(|(other, _)| **other < class);
        let urgent = urgent.flat_map(|(_, lines)| lines.tenants.values());
        let urgent = retried + urgent.map(|line| line.work(model)).sum::<f64>();
        let Some(lines) = self.classes.get(&class) else { return urgent };
        let own = lines.tenants.get(tenant).map_or(0.0, |line| line.work(model));
        let others = lines.tenants.iter().filter(|(name, _)| *name != tenant);
        let share = |line: &Line| (line.work(model) * ASK_ON).min(own + work);
        let others: f64 = others.map(|(_, line)| share(line)).sum();
        urgent + own + others
    }
}

impl Lines {
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
            Some((self.turns.finish(tenant, first.work), first))
        });
        let first = heads.min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.id.cmp(&b.1.id)));
        first.map(|(_, ticket)| ticket)
    }
}

#[cfg(test)]
mod tests;
