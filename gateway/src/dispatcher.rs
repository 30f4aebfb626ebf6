//! Binds waiting requests to free slots. The shell around the pure [`Queue`] and
//! [`Fleet`]: one mutex, held for microseconds, and a channel to wake each request.
//!
//! A [`Lease`] is a claimed slot; its Drop gives the slot back and binds the next request.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use inference_protocol::fleet::NodeStatus;
use tokio::sync::oneshot;
use tokio::time::{timeout, timeout_at};

use crate::admission::{Bounds, Queue, Ticket, TicketId};
use crate::error::Error;
use crate::fleet::{Attempt, EndpointId, Fleet, Outlook, STATUS_DEADLINE, Totals};
use crate::upstream::Upstream;

/// The fleet and its queue, shared by all requests.
#[derive(Debug, Clone)]
pub struct Dispatcher(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    core: Mutex<Core>,
    epoch: Instant,
    queue_timeout: Duration,
}

#[derive(Debug)]
struct Core {
    fleet: Fleet<Upstream>,
    queue: Queue<Attempt>,
    waiting: HashMap<TicketId, oneshot::Sender<Lease>>,
    next_ticket: TicketId,
    /// Draws among equals; counted up, so that idle nodes take turns.
    seed: u64,
}

/// What a request asks for.
#[derive(Debug)]
pub struct Want<'a> {
    /// The model.
    pub model: &'a str,
    /// Bytes that the request holds.
    pub bytes: usize,
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
    /// Name, slots, busy slots and status of each node.
    pub nodes: Vec<(NodeStatus, u32)>,
}

impl Dispatcher {
    /// An empty fleet.
    pub fn new(bounds: Bounds, queue_timeout: Duration) -> Self {
        let core = Core {
            fleet: Fleet::default(),
            queue: Queue::new(bounds),
            waiting: HashMap::new(),
            next_ticket: 0,
            seed: 0,
        };
        Self(Arc::new(Shared { core: Mutex::new(core), epoch: Instant::now(), queue_timeout }))
    }

    /// Waits for a slot. Dropping the future gives up the place in the line.
    pub async fn acquire(&self, want: Want<'_>) -> Result<Lease, Error> {
        let (_place, mut granted) = self.enqueue(&want)?;
        let deadline = tokio::time::Instant::now() + self.0.queue_timeout;
        if !want.tried.is_empty() {
            // What is wrong with the node that failed shows in its status by then.
            match timeout(STATUS_DEADLINE.min(self.0.queue_timeout), &mut granted).await {
                Ok(Ok(lease)) => return Ok(lease),
                Err(_) if !self.lock().fleet.all_have_failed(want.model, want.tried) => {}
                _ => return Err(self.queue_timeout()),
            }
        }
        match timeout_at(deadline, granted).await {
            Ok(Ok(lease)) => Ok(lease),
            _ => Err(self.queue_timeout()),
        }
    }

    fn queue_timeout(&self) -> Error {
        let retry_after_seconds = self.lock().queue.retry_after_seconds(self.now());
        Error::QueueTimeout { retry_after_seconds }
    }

    fn enqueue(&self, want: &Want<'_>) -> Result<(Place, oneshot::Receiver<Lease>), Error> {
        let now = self.now();
        let (id, receiver) = self.update(|core| {
            match core.fleet.outlook(want.model, now) {
                Outlook::Served => {}
                Outlook::UnknownModel => return Err(Error::UnknownModel(want.model.into())),
                Outlook::NoNode => return Err(Error::NoNode),
            }
            core.next_ticket += 1;
            let id = core.next_ticket;
            let ticket = Ticket {
                id,
                model: want.model.to_string(),
                bytes: want.bytes,
                tried: want.tried.to_vec(),
            };
            core.queue.offer(ticket).map_err(|_| Error::QueueFull {
                retry_after_seconds: core.queue.retry_after_seconds(now),
            })?;
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
        let mut bound = Vec::new();
        for ticket in core.queue.iter() {
            if !core.fleet.has_free_slot() {
                break;
            }
            core.seed = core.seed.wrapping_add(1);
            if let Some(endpoint) = core.fleet.claim(&ticket.model, &ticket.tried, core.seed) {
                bound.push((ticket.id, endpoint));
            }
        }
        let mut undelivered = Vec::new();
        for (ticket, endpoint) in bound {
            core.queue.remove(ticket);
            let (Some(sender), Some(known)) =
                (core.waiting.remove(&ticket), core.fleet.endpoint(endpoint))
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

/// A claimed slot of a node. Dropping it gives the slot back.
#[derive(Debug)]
pub struct Lease {
    dispatcher: Dispatcher,
    endpoint: EndpointId,
    engine_restarts: u64,
    node: String,
    upstream: Upstream,
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
                core.queue.note_drained(now);
            }
        });
    }
}
