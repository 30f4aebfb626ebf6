//! Binds waiting requests to free slots. The shell around the pure [`Queue`] and
//! [`Fleet`]: one mutex, held for microseconds, and a channel to wake each request.
//!
//! A [`Lease`] is a claimed slot; its Drop gives the slot back and binds the next request.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use inference_protocol::fleet::NodeStatus;
use tokio::sync::oneshot;
use tokio::time::timeout_at;

use crate::admission::cost::Costs;
use crate::admission::{Bounds, Class, Queue, Ticket, TicketId};
use crate::error::Error;
use crate::fleet::{Attempt, Choice, EndpointId, Fleet, Outlook, STATUS_DEADLINE, Totals};
use crate::prefix::{Prefix, PrefixIndex};
use crate::routing::Policy;
use crate::upstream::Upstream;

/// The fleet and its queue, shared by all requests.
#[derive(Debug, Clone)]
pub struct Dispatcher(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    core: Mutex<Core>,
    epoch: Instant,
}

#[derive(Debug)]
struct Core {
    fleet: Fleet<Upstream>,
    queue: Queue<Attempt>,
    costs: Costs,
    prefixes: PrefixIndex<EndpointId>,
    policy: Policy,
    waiting: HashMap<TicketId, oneshot::Sender<Lease>>,
    next_ticket: TicketId,
    /// Draws among equals; counted up, so that idle nodes take turns.
    seed: u64,
}

/// What a request asks for.
#[derive(Debug, Clone, Copy)]
pub struct Want<'a> {
    /// The model.
    pub model: &'a str,
    /// Whose it is.
    pub tenant: &'a str,
    /// How urgent it is.
    pub class: Class,
    /// What it will cost, in units of [`crate::admission::cost`].
    pub work: f64,
    /// Bytes that the request holds.
    pub bytes: usize,
    /// When it must have a slot.
    pub deadline: tokio::time::Instant,
    /// How it begins.
    pub prefix: &'a Prefix,
    /// Endpoints that failed it.
    pub tried: &'a [Attempt],
}

/// What is known about the nodes and the queue at one moment.
#[derive(Debug)]
pub struct Overview {
    /// Sums.
    pub totals: Totals,
    /// Requests that wait.
    pub queue_depth: usize,
    /// Of those, by class, without those that failed on a node.
    pub queue_depths: [(Class, usize); 3],
    /// Name, slots, busy slots and status of each node.
    pub nodes: Vec<(NodeStatus, u32)>,
}

impl Dispatcher {
    /// An empty fleet.
    pub fn new(bounds: Bounds, policy: Policy) -> Self {
        let core = Core {
            fleet: Fleet::default(),
            queue: Queue::new(bounds),
            costs: Costs::default(),
            prefixes: PrefixIndex::default(),
            policy,
            waiting: HashMap::new(),
            next_ticket: 0,
            seed: 0,
        };
        Self(Arc::new(Shared { core: Mutex::new(core), epoch: Instant::now() }))
    }

    /// Waits for a slot. Dropping the future gives up the place in the line.
    pub async fn acquire(&self, want: Want<'_>) -> Result<Lease, Error> {
        let (_place, mut granted) = self.enqueue(&want)?;
        if !want.tried.is_empty() {
            // What is wrong with the node that failed shows in its status by then.
            let shown = tokio::time::Instant::now() + STATUS_DEADLINE;
            match timeout_at(shown.min(want.deadline), &mut granted).await {
                Ok(Ok(lease)) => return Ok(lease),
                Err(_) if !self.lock().fleet.all_have_failed(want.model, want.tried) => {}
                _ => return Err(self.queue_timeout(&want)),
            }
        }
        match timeout_at(want.deadline, granted).await {
            Ok(Ok(lease)) => Ok(lease),
            _ => Err(self.queue_timeout(&want)),
        }
    }

    fn queue_timeout(&self, want: &Want<'_>) -> Error {
        let core = self.lock();
        Error::QueueTimeout { retry_after_seconds: core.retry_after_seconds(want) }
    }

    fn enqueue(&self, want: &Want<'_>) -> Result<(Place, oneshot::Receiver<Lease>), Error> {
        let now = self.now();
        let left = want.deadline.saturating_duration_since(tokio::time::Instant::now());
        let (id, receiver) = self.update(|core| {
            match core.fleet.outlook(want.model, now) {
                Outlook::Served => {}
                Outlook::UnknownModel => return Err(Error::UnknownModel(want.model.into())),
                Outlook::NoNode => return Err(Error::NoNode),
            }
            if want.tried.is_empty() && core.expected_wait(want).is_some_and(|wait| wait > left) {
                let retry_after_seconds = core.retry_after_seconds(want);
                return Err(Error::DeadlineUnmet { retry_after_seconds });
            }
            core.next_ticket += 1;
            let id = core.next_ticket;
            let ticket = Ticket {
                id,
                model: want.model.to_string(),
                tenant: want.tenant.to_string(),
                class: want.class,
                work: want.work,
                bytes: want.bytes,
                prefix: want.prefix.clone(),
                tried: want.tried.to_vec(),
            };
            if core.queue.offer(ticket).is_err() {
                let retry_after_seconds = core.retry_after_seconds(want);
                return Err(Error::QueueFull { retry_after_seconds });
            }
            let (sender, receiver) = oneshot::channel();
            core.waiting.insert(id, sender);
            Ok((id, receiver))
        })?;
        Ok((Place { dispatcher: self.clone(), id }, receiver))
    }

    /// Changes the core, then binds whatever can be bound. Leases that nobody was there to
    /// take are dropped after the lock: their Drop takes it again.
    fn update<R>(&self, change: impl FnOnce(&mut Core) -> R) -> R {
        let mut core = self.lock();
        let result = change(&mut core);
        let undelivered = self.dispatch(&mut core);
        drop(core);
        drop(undelivered);
        result
    }

    /// Binds as many waiting requests as there are slots for them, in order.
    fn dispatch(&self, core: &mut Core) -> Vec<Lease> {
        let mut undelivered = Vec::new();
        let now = self.now();
        while let Some((ticket, endpoint)) = core.bind_next(now) {
            let (Some(sender), Some(known)) =
                (core.waiting.remove(&ticket.id), core.fleet.endpoint(endpoint))
            else {
                core.fleet.release(endpoint);
                continue;
            };
            let lease = Lease {
                dispatcher: self.clone(),
                endpoint,
                engine_restarts: known.status.engine_restarts,
                node: known.status.node.clone(),
                upstream: known.link.clone(),
                model: ticket.model,
                work: ticket.work,
                since: now,
            };
            undelivered.extend(sender.send(lease).err());
        }
        undelivered
    }

    /// A new link's first status. The node's older links are closed.
    pub fn add(&self, upstream: Upstream, status: NodeStatus) -> EndpointId {
        let now = self.now();
        let (id, replaced) = self.update(|core| core.fleet.add(upstream, status, now));
        replaced.iter().for_each(Upstream::close);
        id
    }

    /// A link's next status; `None` when the link was replaced. Says whether it flipped.
    pub fn observe(&self, id: EndpointId, status: NodeStatus) -> Option<bool> {
        let now = self.now();
        self.update(|core| core.fleet.observe(id, status, now))
    }

    /// A link is over: what runs on it fails over.
    pub fn remove(&self, id: EndpointId) {
        let now = self.now();
        if let Some(upstream) = self.update(|core| core.fleet.remove(id, now)) {
            upstream.close();
        }
    }

    /// Names of the models that are served, and when they were loaded.
    pub fn models(&self) -> Vec<(String, u64)> {
        self.lock().fleet.models().into_iter().map(|(id, t)| (id.to_string(), t)).collect()
    }

    /// Everything that metrics and health tell.
    pub fn overview(&self) -> Overview {
        let core = self.lock();
        Overview {
            totals: core.fleet.totals(),
            queue_depth: core.queue.depth(),
            queue_depths: Class::ALL.map(|class| (class, core.queue.depth_of(class))),
            nodes: core.fleet.endpoints().map(|e| (e.status.clone(), e.busy())).collect(),
        }
    }

    fn now(&self) -> Duration {
        self.0.epoch.elapsed()
    }

    fn lock(&self) -> MutexGuard<'_, Core> {
        self.0.core.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Core {
    /// Takes the next request that a slot is free for, and the slot.
    fn bind_next(&mut self, now: Duration) -> Option<(Ticket<Attempt>, EndpointId)> {
        if self.queue.depth() == 0 {
            return None;
        }
        self.seed = self.seed.wrapping_add(1);
        let pick = |ticket: &Ticket<Attempt>| {
            let held = self.prefixes.held(&ticket.prefix);
            let choice = Choice { policy: self.policy, held: &held, now, seed: self.seed };
            let endpoint = self.fleet.pick(&ticket.model, &ticket.tried, choice)?;
            Some((ticket.id, endpoint))
        };
        let mut open = self.fleet.open_models();
        let mut retried = self.queue.retried().filter(|t| open.contains(t.model.as_str()));
        let mut bound = retried.find_map(pick);
        drop(retried);
        while bound.is_none()
            && let Some(ticket) = self.queue.next(|model| open.contains(model))
        {
            bound = pick(ticket);
            open.remove(ticket.model.as_str());
        }
        let (id, endpoint) = bound?;
        let ticket = self.queue.take(id)?;
        self.fleet.claim(endpoint);
        self.prefixes.insert(&ticket.prefix, endpoint);
        Some((ticket, endpoint))
    }

    /// How long a request would wait, once that is known at all; nothing while slots are free.
    fn expected_wait(&self, want: &Want<'_>) -> Option<Duration> {
        if self.fleet.open_models().contains(want.model) {
            return None;
        }
        let ahead = self.queue.work_ahead(want.class, want.tenant, want.model, want.work);
        self.costs.predict(want.model, ahead, self.fleet.slots_of(want.model))
    }

    /// When another try makes sense: after the expected wait, spread a little, so that those
    /// who were turned away together do not come back together; 1 to 120 seconds, since
    /// clients give up beyond that.
    fn retry_after_seconds(&self, want: &Want<'_>) -> u32 {
        let expected = self.expected_wait(want).unwrap_or(RETRY_UNKNOWN).as_secs_f64();
        let spread = 1.0 + (crate::random() as u32 % 256) as f64 / 1024.0;
        (expected * spread).ceil().clamp(1.0, 120.0) as u32
    }
}

/// A place in the line. Dropping it leaves the line; a slot that was granted in the same
/// moment is in the channel, and its lease is dropped with that.
struct Place {
    dispatcher: Dispatcher,
    id: TicketId,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut core = self.dispatcher.lock();
        core.queue.remove(self.id);
        let sender = core.waiting.remove(&self.id);
        drop(core);
        drop(sender);
    }
}

/// When to try again while nothing is known of what requests take.
const RETRY_UNKNOWN: Duration = Duration::from_secs(5);

/// A claimed slot of a node. Dropping it gives the slot back.
#[derive(Debug)]
pub struct Lease {
    dispatcher: Dispatcher,
    endpoint: EndpointId,
    engine_restarts: u64,
    node: String,
    upstream: Upstream,
    model: String,
    work: f64,
    since: Duration,
}

impl Lease {
    /// What to remember if it fails.
    pub fn attempt(&self) -> Attempt {
        Attempt { endpoint: self.endpoint, engine_restarts: self.engine_restarts }
    }

    /// The node's name.
    pub fn node(&self) -> &str {
        &self.node
    }

    /// How to send to it.
    pub fn upstream(&self) -> &Upstream {
        &self.upstream
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let now = self.dispatcher.now();
        self.dispatcher.update(|core| {
            if core.fleet.release(self.endpoint) {
                core.costs.observe(&self.model, self.work, now.saturating_sub(self.since));
            }
        });
    }
}
