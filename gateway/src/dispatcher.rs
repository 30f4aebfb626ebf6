//! Binds queued requests to free slots. This is the shell around the pure [`Scheduler`]: one mutex,
//! held for microseconds, and a channel that wakes each request.
//!
//! A [`Lease`] is a claimed slot. Dropping it frees the slot and binds the next request.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use inference_protocol::fleet::{NodeState, NodeStatus};
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::access::spend::Prices;
use crate::dispatcher::saved_state::SavedState;
use crate::dispatcher::views::NodeView;
use crate::scheduler::charge::ActualWork;
use crate::scheduler::fleet::{AttemptOutcome, Endpoint, EndpointId, NodeOrigin, Terms, Totals};
use crate::scheduler::queue::TicketId;
use crate::scheduler::routing::Policy;
use crate::scheduler::{Acquired, Binding, Scheduler, SlotRefusal, SlotRequest};
use crate::types::error::Error;
use crate::types::limits::QueueBounds;
use crate::types::usage::Date;
use crate::upstream::Upstream;

mod allotments;
mod body_reservation;
mod budget_reservation;
mod charge_guard;
mod cordons;
mod fleet_view;
mod heirs;
mod lease;
mod ledger;
mod models;
mod preemption;
pub(crate) mod saved_state;
mod snapshot;
pub mod views;

pub(crate) use body_reservation::BodyReservation;
pub(crate) use budget_reservation::BudgetReservation;
pub(crate) use charge_guard::ChargeGuard;
pub(crate) use heirs::Heir;
pub(crate) use lease::Lease;
use preemption::Preemptible;
pub(crate) use snapshot::{EndpointSnapshot, FleetSnapshot, QueueSnapshot};

/// The fleet and its queue. Clones share them.
#[derive(Debug, Clone)]
pub struct Dispatcher(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    core: Mutex<Core>,
    epoch: Instant,
    /// The latest overview, shared by all readers.
    snapshot: Mutex<Option<snapshot::CachedSnapshot>>,
}

#[derive(Debug)]
struct Core {
    scheduler: Scheduler<Upstream>,
    waiting: HashMap<TicketId, oneshot::Sender<Lease>>,
    preemptible: Preemptible,
}

impl Dispatcher {
    /// Creates a dispatcher with an empty fleet.
    pub fn new(bounds: QueueBounds, policy: Policy) -> Self {
        let core = Core {
            scheduler: Scheduler::new(bounds, policy),
            waiting: HashMap::new(),
            preemptible: Preemptible::default(),
        };
        let (core, snapshot) = (Mutex::new(core), Mutex::default());
        Self(Arc::new(Shared { core, epoch: Instant::now(), snapshot }))
    }

    /// Acquires a slot at once, or a place in the queue until a deadline on the clock of
    /// [`Dispatcher::now`].
    ///
    /// # Errors
    /// The request cannot be queued.
    pub fn acquire(
        &self,
        request: &SlotRequest<'_>,
        deadline: Duration,
    ) -> Result<Acquisition, Error> {
        let now = self.now();
        self.update(|core| {
            let acquired = core.scheduler.acquire(request, deadline, now);
            match core.preempt_for(request, acquired, deadline, now) {
                Acquired::Slot(binding) => self.lease(core, binding).map(Acquisition::Leased),
                Acquired::Refused(refused) => Err(core.refusal(refused, request, now)),
                Acquired::Waiting { ticket: id, check_at } => {
                    let (sender, receiver) = oneshot::channel();
                    core.waiting.insert(id, sender);
                    let place = QueuePlace { dispatcher: self.clone(), id };
                    Ok(Acquisition::Queued(Queued { place, granted: receiver, check_at }))
                }
            }
        })
    }

    /// Waits for the slot of a queued request. Dropping the future gives up the place in the queue.
    pub async fn wait(
        &self,
        queued: Queued,
        request: SlotRequest<'_>,
        deadline: Duration,
    ) -> Result<Lease, Error> {
        let Queued { place, mut granted, mut check_at } = queued;
        loop {
            match timeout(check_at.saturating_sub(self.now()), &mut granted).await {
                Ok(lease) => return lease.map_err(|_| Error::internal(UNBOUND)),
                Err(_) => match self.check(&place, &request, deadline)? {
                    WaitCheck::Leased(lease) => return Ok(lease),
                    WaitCheck::Waiting(next) => check_at = next,
                },
            }
        }
    }

    /// Decides about a request that is still queued at its check time.
    fn check(
        &self,
        place: &QueuePlace,
        request: &SlotRequest<'_>,
        deadline: Duration,
    ) -> Result<WaitCheck, Error> {
        let now = self.now();
        let mut core = self.lock();
        if !core.waiting.contains_key(&place.id) {
            // The slot was granted at this very moment.
            return Ok(WaitCheck::Waiting(now + GRANT_TIMEOUT));
        }
        match core.scheduler.check_waiting(place.id, request, deadline, now) {
            Acquired::Slot(binding) => self.lease(&core, binding).map(WaitCheck::Leased),
            Acquired::Refused(refused) => Err(core.refusal(refused, request, now)),
            Acquired::Waiting { check_at, .. } => Ok(WaitCheck::Waiting(check_at)),
        }
    }

    fn lease(&self, core: &Core, binding: Binding) -> Result<Lease, Error> {
        let lease = self.new_lease(core, binding);
        lease.ok_or_else(|| Error::internal("a slot of an endpoint that does not exist"))
    }

    /// Acquires a slot if one is free and no other request waits for it.
    pub(crate) fn try_acquire(&self, request: &SlotRequest<'_>) -> Option<Lease> {
        let now = self.now();
        let mut core = self.lock();
        let binding = core.scheduler.bind_at_once(request, now)?;
        self.new_lease(&core, binding)
    }

    /// Finds a node for a text query, which takes no slot.
    pub(crate) fn acquire_query(&self, request: &SlotRequest<'_>) -> Option<Lease> {
        let now = self.now();
        let mut core = self.lock();
        let binding = core.scheduler.bind_query(request, now)?;
        self.new_lease(&core, binding)
    }

    /// Changes the core, then binds whatever can be bound. Leases whose requests are gone are
    /// dropped after the lock is released, because their Drop takes it again.
    fn update<R>(&self, change: impl FnOnce(&mut Core) -> R) -> R {
        let mut core = self.lock();
        let result = change(&mut core);
        let undelivered = self.dispatch(&mut core);
        drop(core);
        drop(undelivered);
        result
    }

    /// Binds queued requests in order while there are slots for them. Returns the leases whose
    /// requests are gone.
    fn dispatch(&self, core: &mut Core) -> Vec<Lease> {
        let mut undelivered = Vec::new();
        let now = self.now();
        while let Some(binding) = core.scheduler.bind(now) {
            let sender = core.waiting.remove(&binding.id);
            let lease = self.new_lease(core, binding);
            match (sender, lease) {
                (Some(sender), Some(lease)) => undelivered.extend(sender.send(lease).err()),
                (_, lease) => undelivered.extend(lease),
            }
        }
        undelivered
    }

    fn new_lease(&self, core: &Core, mut binding: Binding) -> Option<Lease> {
        let endpoint = core.scheduler.fleet.endpoint(binding.endpoint)?;
        let charge = binding.charge.take().map(|charge| ChargeGuard {
            dispatcher: self.clone(),
            charge,
            model: binding.model.clone(),
            done: Some(ActualWork::Nothing),
        });
        Some(Lease {
            dispatcher: self.clone(),
            charge,
            binding,
            engine_restarts: endpoint.status.engine_restarts,
            node: endpoint.name.clone(),
            upstream: endpoint.link.clone(),
            terms: endpoint.external,
            outcome: AttemptOutcome::Unknown,
            first_token: None,
            usage: None,
            preemptible: None,
            marks: Vec::new(),
        })
    }

    /// Takes a retry from the budget; see [`crate::scheduler::retry_budget`].
    pub fn take_retry(&self) -> bool {
        let now = self.now();
        self.lock().scheduler.retries.take_retry(now)
    }

    /// Adds a node by the first status of its new link, and closes its old link. `None` if another
    /// node has its name.
    pub fn add(&self, upstream: Upstream, status: NodeStatus) -> Option<EndpointId> {
        let now = self.now();
        let (id, replaced) = self.update(|core| {
            let fleet = &mut core.scheduler.fleet;
            let is_taken = fleet.is_name_taken(&status.node, status.epoch, upstream.origin());
            (!is_taken).then(|| fleet.add(upstream, status, now))
        })?;
        replaced.iter().for_each(Upstream::close);
        Some(id)
    }

    /// True if a joining node may not use this name, because another node has it.
    pub(crate) fn is_name_taken(&self, name: &str, epoch: u64) -> bool {
        self.lock().scheduler.fleet.is_name_taken(name, epoch, NodeOrigin::Joined)
    }

    /// Adds an external endpoint. An existing one with the same name gets no new requests, but
    /// finishes its current ones.
    pub fn add_external(&self, upstream: Upstream, status: NodeStatus, terms: Terms) -> EndpointId {
        let now = self.now();
        let added =
            |core: &mut Core| core.scheduler.fleet.add_external(upstream, status, terms, now);
        self.update(added).0
    }

    /// Updates the date of the ledger.
    pub(crate) fn set_date(&self, date: Date) {
        self.update(|core| core.scheduler.ledger.set_date(date));
    }

    /// The state to save across restarts.
    pub(crate) fn saved_state(&self) -> SavedState {
        let core = self.lock();
        SavedState {
            ledger: core.scheduler.ledger.clone(),
            cordoned: core.scheduler.fleet.cordoned().clone(),
        }
    }

    /// Restores the state saved by an earlier run, and sets the date.
    pub(crate) fn restore(&self, kept: SavedState, date: Date) {
        let mut core = self.lock();
        core.scheduler.ledger = kept.ledger;
        core.scheduler.ledger.set_date(date);
        core.scheduler.fleet.restore_cordoned(kept.cordoned);
    }

    /// External prices of a model, if known.
    pub(crate) fn external_prices(&self, model: &str) -> Option<Prices> {
        self.lock().scheduler.fleet.external_prices(model)
    }

    /// Records a status of a link. Returns whether the node's state changed; `None` if the link was
    /// replaced.
    pub fn update_status(&self, id: EndpointId, status: NodeStatus) -> Option<bool> {
        let (now, leaves) = (self.now(), status.state == NodeState::Draining);
        self.update(|core| {
            let flipped = core.scheduler.fleet.update_status(id, status, now);
            if let Some(endpoint) = core.scheduler.fleet.endpoint(id).filter(|_| leaves) {
                endpoint.link.start_leaving();
            }
            flipped
        })
    }

    /// Removes a link. Its requests fail over.
    pub fn remove(&self, id: EndpointId) {
        let now = self.now();
        if let Some(upstream) = self.update(|core| core.scheduler.fleet.remove(id, now)) {
            upstream.close();
        }
    }

    /// Takes slots for health checks: on ejected endpoints whose time is over, and on nodes that
    /// have answered nothing for `interval`.
    pub(crate) fn claim_probes(&self, interval: Option<Duration>) -> Vec<Lease> {
        let now = self.now();
        let mut core = self.lock();
        let due = core.scheduler.fleet.claim_probes(now, interval);
        let lease = |endpoint| {
            let model = core.scheduler.fleet.endpoint(endpoint)?.any_model()?.clone();
            let binding = Binding { takes_slot: true, ..Binding::new(endpoint, model, 0, now) };
            self.new_lease(&core, binding)
        };
        due.into_iter().filter_map(lease).collect()
    }

    /// Replaces the queue's bounds and the policy.
    pub fn configure(&self, bounds: QueueBounds, policy: Policy) {
        self.update(|core| core.scheduler.configure(bounds, policy));
    }

    /// Retires a link: no new requests, and its current ones move elsewhere.
    pub(crate) fn retire(&self, id: EndpointId) {
        self.update(|core| {
            core.scheduler.fleet.retire(id);
            if let Some(endpoint) = core.scheduler.fleet.endpoint(id) {
                endpoint.link.start_leaving();
            }
        });
    }

    /// True if an endpoint works on nothing of ours.
    pub fn is_idle(&self, id: EndpointId) -> bool {
        self.lock().scheduler.fleet.endpoint(id).is_none_or(Endpoint::is_idle)
    }

    /// True if nobody works on an endpoint, and no request will be sent to it.
    pub(crate) fn is_drained(&self, id: EndpointId) -> bool {
        self.lock().scheduler.fleet.endpoint(id).is_some_and(Endpoint::is_drained)
    }

    /// True if an endpoint gets no new requests until somebody says otherwise.
    pub(crate) fn is_cordoned(&self, id: EndpointId) -> bool {
        self.lock().scheduler.fleet.endpoint(id).is_some_and(|endpoint| endpoint.is_cordoned)
    }

    /// All endpoints, for the admin API.
    pub fn nodes(&self) -> Vec<NodeView> {
        let now = self.now();
        let core = self.lock();
        core.scheduler.fleet.endpoints().map(|endpoint| node_view(endpoint, now)).collect()
    }

    /// Fleet totals and queue depth.
    pub fn summary(&self) -> (Totals, usize) {
        let core = self.lock();
        (core.scheduler.fleet.totals(), core.scheduler.depth())
    }

    /// Fleet totals.
    pub fn totals(&self) -> Totals {
        self.lock().scheduler.fleet.totals()
    }

    /// Time since the dispatcher was created: the clock of the scheduler and of deadlines.
    pub fn now(&self) -> Duration {
        self.0.epoch.elapsed()
    }

    /// Converts a time to that clock.
    pub(crate) fn clock_of(&self, time: tokio::time::Instant) -> Duration {
        self.now() + time.saturating_duration_since(tokio::time::Instant::now())
    }

    fn lock(&self) -> MutexGuard<'_, Core> {
        self.0.core.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn node_view(endpoint: &Endpoint<Upstream>, now: Duration) -> NodeView {
    let status = &endpoint.status;
    NodeView {
        name: status.node.clone(),
        state: status.state.name().into(),
        cordoned: endpoint.is_cordoned,
        ejected: endpoint.health.is_ejected(),
        slots: status.slots,
        busy: endpoint.busy(),
        leased: endpoint.leases(),
        models: status.models.iter().map(|model| model.id.clone()).collect(),
        engine_restarts: status.engine_restarts,
        prefill_tokens_per_second: status.prefill_tokens_per_second,
        decode_tokens_per_second: status.decode_tokens_per_second,
        linked_seconds: now.saturating_sub(endpoint.since()).as_secs(),
        address: endpoint.link.address().into(),
        vitals: status.vitals,
    }
}

impl Core {
    fn refusal(&mut self, refused: SlotRefusal, request: &SlotRequest<'_>, now: Duration) -> Error {
        let retry_after_seconds = self.retry_after_seconds(request, now);
        match refused {
            SlotRefusal::UnknownModel => Error::UnknownModel(request.model.into()),
            SlotRefusal::NoNode => Error::NoNode,
            SlotRefusal::DeadlineUnmet => Error::DeadlineUnmet { retry_after_seconds },
            SlotRefusal::QueueFull(full) => Error::QueueFull { full, retry_after_seconds },
            SlotRefusal::Timeout => Error::QueueTimeout { retry_after_seconds },
        }
    }

    /// When to retry, in seconds: the predicted wait with some jitter, so that requests refused
    /// together do not come back together. Between 1 and 120, because clients do not wait longer.
    fn retry_after_seconds(&mut self, request: &SlotRequest<'_>, now: Duration) -> u32 {
        let expected = self.scheduler.predicted_wait(request, now);
        jittered_seconds(expected.unwrap_or(RETRY_UNKNOWN))
    }
}

/// Rounds `wait` up to whole seconds, with up to 25% jitter.
fn jittered_seconds(wait: Duration) -> u32 {
    let spread = 1.0 + (crate::types::random::random() as u32 % 256) as f64 / 1024.0;
    (wait.as_secs_f64() * spread).ceil().clamp(1.0, 120.0) as u32
}

/// A place in the queue. Dropping it leaves the queue. If a slot was granted at the same moment,
/// its lease is in the channel and dropped with it.
struct QueuePlace {
    dispatcher: Dispatcher,
    id: TicketId,
}

impl Drop for QueuePlace {
    fn drop(&mut self) {
        let now = self.dispatcher.now();
        let mut core = self.dispatcher.lock();
        core.scheduler.withdraw(self.id, now);
        let sender = core.waiting.remove(&self.id);
        drop(core);
        drop(sender);
    }
}

/// What became of a request for a slot.
#[expect(clippy::large_enum_variant, reason = "it is moved once, and most requests get a slot")]
pub enum Acquisition {
    /// It has a slot.
    Leased(Lease),
    /// It has a place in the queue.
    Queued(Queued),
}

/// A place in the queue. Dropping it gives it up.
pub struct Queued {
    place: QueuePlace,
    granted: oneshot::Receiver<Lease>,
    /// When to look at it again.
    check_at: Duration,
}

/// What became of a queued request.
#[expect(clippy::large_enum_variant, reason = "it is moved once")]
enum WaitCheck {
    Leased(Lease),
    Waiting(Duration),
}

/// A granted slot reaches the request's channel within this time.
const GRANT_TIMEOUT: Duration = Duration::from_secs(1);

/// Internal error: the request is not queued and nothing would wake it.
const UNBOUND: &str = "a request left the queue without a slot";

/// Retry delay while the wait cannot be predicted.
const RETRY_UNKNOWN: Duration = Duration::from_secs(5);
