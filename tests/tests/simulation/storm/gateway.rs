//! The gateway of a storm: the production scheduler and attempts, driven without sockets.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use flotilla_gateway::access::quarantine::Quarantine;
use flotilla_gateway::access::spend::Prices;
use flotilla_gateway::scheduler::attempts::{self, AttemptId, GrantedSlot, Purpose};
use flotilla_gateway::scheduler::fleet::{AttemptOutcome, EndpointId, EngineId, Terms};
use flotilla_gateway::scheduler::prefix_index::Prefix;
use flotilla_gateway::scheduler::queue::TicketId;
use flotilla_gateway::scheduler::routing::Policy;
use flotilla_gateway::scheduler::{Acquired, Binding, Scheduler, SlotRefusal, SlotRequest};
use flotilla_gateway::types::class::Class;
use flotilla_gateway::types::error::Error;
use flotilla_gateway::types::limits::{QueueBounds, QueueShare};
use inference_protocol::fleet::{NodeState, NodeStatus};
use inference_protocol::resume::Resume;

use super::bugs::Bug;
use super::fairness::Fairness;
use super::requests::{Ended, Leg, Request, Waiting};

/// What an external endpoint costs.
pub const PRICES: Prices = Prices { prompt: 1.0, completion: 2.0, hour: 0.0, day_max: Some(0.05) };

/// A request that an endpoint is to work on.
pub struct Sent {
    pub request: usize,
    pub attempt: AttemptId,
    pub link: usize,
    pub job: u64,
    pub resume: Resume,
}

/// Something that a request waits for.
#[derive(Debug, Clone, Copy)]
pub enum Timer {
    /// A look at its place in the queue.
    Check,
    /// The first token of an attempt is late.
    Late(AttemptId),
}

/// See the module.
pub struct Gateway {
    pub scheduler: Scheduler<usize>,
    pub requests: Vec<Request>,
    pub settings: attempts::AttemptSettings,
    pub(super) tickets: HashMap<TicketId, usize>,
    /// What those cost that wait for their first slot.
    works: HashMap<TicketId, f64>,
    pub(super) fairness: Fairness,
    pub(super) quarantine: Quarantine,
    /// Requests whose like may not be sent again.
    pub(super) dangerous: HashSet<(String, String)>,
    jobs: u64,
    pub bug: Bug,
    /// What each node last reported, by its endpoint.
    told: HashMap<EndpointId, NodeState>,
    /// Nodes that operators want nothing new on.
    cordoned: HashSet<usize>,
    /// Jobs at external endpoints that were paid.
    pub(super) paid: HashSet<u64>,
    /// What they cost together.
    pub(super) spent: f64,
    /// Retries that the budget gave, and those that were made.
    pub(super) budget: [u64; 2],
    /// Whether the last retry was refused.
    pub(super) is_refused: bool,
    /// What does not hold.
    pub violations: Vec<String>,
    pub counts: Counts,
    /// What found a slot at once.
    pub(super) ready: Vec<Sent>,
    /// Jobs at endpoints that are to be told to stop.
    pub cancelled: Vec<(usize, u64)>,
    /// When to call [`Gateway::timer`].
    pub timers: Vec<(f64, usize, Timer)>,
    /// Requests that were quarantined: their clients send them again.
    pub quarantined: Vec<usize>,
}

/// What happened to requests.
#[derive(Debug, Default, Clone, Copy)]
pub struct Counts {
    pub resumes: u64,
    pub retries: u64,
    pub moved: u64,
    pub preempted: u64,
    pub hedged: u64,
    pub refused_retries: u64,
    pub outside: u64,
    pub paid: u64,
}

pub fn at(now: f64) -> Duration {
    Duration::from_secs_f64(now)
}

impl Gateway {
    pub fn new(policy: Policy, settings: attempts::AttemptSettings, bug: Bug) -> Self {
        let bounds = QueueBounds { has_tenants: true, ..QueueBounds::new(64, 1 << 20) };
        Self {
            scheduler: Scheduler::new(bounds, policy),
            requests: Vec::new(),
            settings,
            tickets: HashMap::new(),
            works: HashMap::new(),
            fairness: Fairness::default(),
            quarantine: Quarantine::default(),
            dangerous: HashSet::new(),
            jobs: 0,
            bug,
            told: HashMap::new(),
            cordoned: HashSet::new(),
            paid: HashSet::new(),
            spent: 0.0,
            budget: [0; 2],
            is_refused: false,
            violations: Vec::new(),
            counts: Counts::default(),
            ready: Vec::new(),
            cancelled: Vec::new(),
            timers: Vec::new(),
            quarantined: Vec::new(),
        }
    }

    pub fn violated(&mut self, what: String) {
        self.violations.push(what);
    }

    pub fn join(&mut self, node: usize, status: NodeStatus, now: f64) -> EndpointId {
        let (state, name) = (status.state, status.node.clone());
        let (id, _) = self.scheduler.fleet.add(node, status, at(now));
        self.told.insert(id, state);
        if self.bug == Bug::ForgetCordon {
            self.scheduler.fleet.uncordon(&name, |_| {});
        }
        id
    }

    /// An external endpoint is configured.
    pub fn join_outside(&mut self, link: usize, status: NodeStatus) {
        let terms = Terms { weight: 1, prices: PRICES };
        let state = status.state;
        let (id, _) = self.scheduler.fleet.add_external(link, status, terms, Duration::ZERO);
        self.told.insert(id, state);
    }

    /// An operator lets a node get nothing new; if it is drained, its responses move.
    pub fn cordon(&mut self, node: usize, name: &str, is_drained: bool, now: f64) {
        let Some(id) = self.scheduler.fleet.cordon(name) else { return };
        self.cordoned.insert(node);
        if is_drained {
            self.leaves(id, now);
        }
    }

    /// An operator lets a node get requests again.
    pub fn uncordon(&mut self, node: usize, name: &str) {
        self.cordoned.remove(&node);
        self.scheduler.fleet.uncordon(name, |_| {});
    }

    pub fn observe(&mut self, id: EndpointId, mut status: NodeStatus, now: f64) {
        self.told.insert(id, status.state);
        if self.bug == Bug::RouteToDraining && status.state == NodeState::Draining {
            let was = self.scheduler.fleet.endpoint(id).map(|e| e.status.clone());
            status = was.unwrap_or(status);
        }
        if self.bug == Bug::FreeSlotsOverstated {
            status.slots += 1;
        }
        if self.bug == Bug::HeartbeatResetsCounters {
            let leases = self.scheduler.fleet.endpoint(id).map_or(0, |e| e.leases());
            let binding = self.legs_at(id).next().map(|(_, leg)| leg.binding.clone());
            for _ in 0..leases {
                if let Some(binding) = &binding {
                    self.scheduler.release(binding, AttemptOutcome::Unknown, at(now));
                }
            }
        }
        let leaves = status.state == NodeState::Draining;
        self.scheduler.fleet.update_status(id, status, at(now));
        if leaves {
            self.leaves(id, now);
        }
    }

    /// A node is about to leave: responses whose events have begun look for another one.
    fn leaves(&mut self, id: EndpointId, now: f64) {
        let here = self.legs_at(id).filter(|(_, leg)| leg.first.is_some());
        let here: Vec<_> = here.map(|(number, leg)| (number, leg.attempt)).collect();
        for (number, attempt) in here {
            if let Some(attempts) = &mut self.requests[number].attempts {
                attempts.on_node_leaving(attempt, at(now));
            }
            self.perform(number, now);
        }
    }

    pub(super) fn legs_at(&self, id: EndpointId) -> impl Iterator<Item = (usize, &Leg)> {
        let all = self.requests.iter().enumerate();
        let legs = all.flat_map(|(number, request)| request.legs.iter().map(move |l| (number, l)));
        legs.filter(move |(_, leg)| leg.binding.endpoint == id && !leg.is_released)
    }

    /// A link is over: its requests fail over.
    pub fn lose(&mut self, id: EndpointId, now: f64) {
        self.told.remove(&id);
        if self.bug != Bug::RouteToLost {
            self.scheduler.fleet.remove(id, at(now));
        }
        let lost: Vec<_> = self.legs_at(id).map(|(number, leg)| (number, leg.attempt)).collect();
        if self.bug != Bug::ForgetTheLost {
            for (number, attempt) in lost {
                self.fails(number, attempt, Error::NodeLost, now);
            }
        }
    }

    /// A request arrives.
    pub fn arrive(&mut self, number: usize, now: f64) {
        let (settings, request) = (self.settings, &mut self.requests[number]);
        if self.quarantine.contains(&request.tenant, request.prompt.as_bytes()) {
            return self.end(number, Ended::Refused);
        }
        request.start(settings, now);
        self.perform(number, now);
    }

    /// What a request waited for has come.
    pub fn timer(&mut self, number: usize, timer: Timer, now: f64) {
        match timer {
            Timer::Check => self.check_waiting(number, now),
            Timer::Late(attempt) => {
                if let Some(attempts) = &mut self.requests[number].attempts {
                    attempts.on_hedge_timer(attempt, at(now));
                }
            }
        }
        self.perform(number, now);
    }

    fn check_waiting(&mut self, number: usize, now: f64) {
        let Some(waiting) = &self.requests[number].waiting else { return };
        if now + 1e-6 < waiting.check_at || self.bug == Bug::WaitForever {
            return;
        }
        let request = &self.requests[number];
        let prefix = Prefix::new(&request.tenant, request.prompt.as_bytes());
        let (ticket, deadline) = (waiting.ticket, waiting.deadline);
        let wanted = slot_request(request, &prefix, waiting, self.bug);
        let now_at = at(now).max(at(waiting.check_at));
        let acquired = self.scheduler.check_waiting(ticket, &wanted, at(deadline), now_at);
        match acquired {
            Acquired::Waiting { check_at, .. } => self.wait(number, check_at.as_secs_f64()),
            acquired => {
                self.leaves_queue(number, ticket);
                let waiting = self.requests[number].waiting.take();
                let Some(Waiting { purpose, .. }) = waiting else { return };
                match acquired {
                    Acquired::Slot(binding) => self.grant(number, purpose, binding, now),
                    Acquired::Refused(refused) => self.refuse(number, purpose, refused),
                    Acquired::Waiting { .. } => {}
                }
            }
        }
    }

    fn wait(&mut self, number: usize, check_at: f64) {
        if let Some(waiting) = &mut self.requests[number].waiting {
            waiting.check_at = check_at;
            self.timers.push((check_at, number, Timer::Check));
        }
    }

    fn refuse(&mut self, number: usize, purpose: Purpose, refused: SlotRefusal) {
        let error = match refused {
            SlotRefusal::UnknownModel => Error::UnknownModel("m".into()),
            SlotRefusal::NoNode => Error::NoNode,
            SlotRefusal::DeadlineUnmet => Error::DeadlineUnmet { retry_after_seconds: 1 },
            SlotRefusal::QueueFull(full) => Error::QueueFull { full, retry_after_seconds: 1 },
            SlotRefusal::Timeout => Error::QueueTimeout { retry_after_seconds: 1 },
        };
        if let Some(attempts) = &mut self.requests[number].attempts {
            attempts.on_not_granted(purpose, error);
        }
    }

    pub(super) fn acquire(&mut self, number: usize, waiting: Waiting, now: f64) {
        let request = &self.requests[number];
        let prefix = Prefix::new(&request.tenant, request.prompt.as_bytes());
        let wanted = slot_request(request, &prefix, &waiting, self.bug);
        let (purpose, deadline) = (waiting.purpose, at(waiting.deadline));
        if purpose == Purpose::Hedge {
            let binding = self.scheduler.bind_at_once(&wanted, at(now));
            return binding.into_iter().for_each(|b| self.grant(number, purpose, b, now));
        }
        match self.scheduler.acquire(&wanted, deadline, at(now)) {
            Acquired::Slot(binding) => {
                self.check_overflow(number, &waiting, &binding, now);
                self.grant(number, purpose, binding, now);
            }
            Acquired::Refused(refused) => self.refuse(number, purpose, refused),
            Acquired::Waiting { ticket, check_at } => {
                self.requests[number].waiting = Some(Waiting { ticket, ..waiting });
                self.enters_queue(number, ticket);
                self.wait(number, check_at.as_secs_f64());
                self.preempts_for(number, now);
            }
        }
    }

    fn enters_queue(&mut self, number: usize, id: TicketId) {
        self.tickets.insert(id, number);
        let ticket = self.scheduler.ticket(id).filter(|ticket| !ticket.is_retried);
        if let Some(work) = ticket.map(|ticket| ticket.work) {
            self.works.insert(id, work);
            let request = &self.requests[number];
            self.fairness.waits(request.class, &request.tenant, work);
        }
    }

    fn leaves_queue(&mut self, number: usize, id: TicketId) {
        self.tickets.remove(&id);
        if self.works.remove(&id).is_some() {
            let request = &self.requests[number];
            self.fairness.leaves(request.class, &request.tenant);
        }
    }

    /// It waits no more.
    pub(super) fn withdraw(&mut self, number: usize, now: f64) {
        let Some(Waiting { ticket, .. }) = self.requests[number].waiting.take() else { return };
        self.scheduler.withdraw(ticket, at(now));
        self.leaves_queue(number, ticket);
    }

    /// It has its slot: was it its turn?
    fn is_served(&mut self, number: usize, id: TicketId) {
        let Some(work) = self.works.remove(&id) else { return };
        let request = &self.requests[number];
        let wrong = self.fairness.is_served(request.class, &request.tenant, work);
        self.violations.extend(wrong);
    }

    /// Binds what can be bound; what is to be sent.
    pub fn bind(&mut self, now: f64) -> Vec<Sent> {
        while let Some(binding) = self.scheduler.bind(at(now)) {
            let number = self.tickets.remove(&binding.id);
            let waiting = number.and_then(|number| self.requests[number].waiting.take());
            let Some((number, waiting)) = number.zip(waiting) else {
                // Nobody is there to take it.
                if self.bug != Bug::LeakWhenGrantIsLate {
                    self.release(&binding, AttemptOutcome::Unknown, now);
                }
                continue;
            };
            if now > waiting.deadline + 1e-6 {
                self.violated(format!("request {number} gets a slot after its deadline"));
            }
            self.is_served(number, binding.id);
            self.grant(number, waiting.purpose, binding, now);
            self.perform(number, now);
        }
        self.check_retried(now);
        std::mem::take(&mut self.ready)
    }

    fn grant(&mut self, number: usize, purpose: Purpose, binding: Binding, now: f64) {
        self.check_slot(number, &binding, now);
        let Some(endpoint) = self.scheduler.fleet.endpoint(binding.endpoint) else { return };
        let engine_restarts = endpoint.status.engine_restarts;
        let engine = EngineId { endpoint: binding.endpoint, engine_restarts };
        let (link, is_external) = (endpoint.link, endpoint.external.is_some());
        let is_paid = is_external || self.bug == Bug::PayNodes;
        let slot = GrantedSlot { engine, model: binding.model.clone(), is_external: is_paid };
        let Self { requests, scheduler, budget, bug, .. } = self;
        let mut take_retry = || bug.is_free(Some(purpose)) || take(scheduler, budget, now);
        let Some(attempts) = &mut requests[number].attempts else { return };
        let attempt = attempts.on_granted(purpose, slot, at(now), &mut take_retry);
        requests[number].legs.push(Leg {
            attempt,
            binding,
            engine,
            link,
            is_external,
            job: None,
            is_taken: false,
            first: None,
            heard: now,
            tokens: 0,
            is_released: false,
        });
    }

    pub(super) fn send(&mut self, number: usize, attempt: AttemptId, purpose: Purpose, now: f64) {
        self.jobs += 1;
        let (job, bug) = (self.jobs, self.bug);
        self.check_send(number, attempt, purpose);
        let request = &mut self.requests[number];
        let Some(mut resume) = request.attempts.as_ref().map(|a| a.resume().clone()) else {
            return;
        };
        match bug {
            Bug::ForgetTokens => resume.choices.clear(),
            Bug::RepeatEvents => resume.choices.iter_mut().for_each(|said| said.events = 0),
            _ => {}
        }
        let Some(leg) = request.leg(attempt) else { return };
        (leg.job, leg.heard) = (Some(job), now);
        let (link, is_external) = (leg.link, leg.is_external);
        let charge = leg.binding.charge.clone().map(|c| (c, leg.binding.model.clone()));
        self.charge(number, charge);
        self.counts.outside += u64::from(is_external);
        self.ready.push(Sent { request: number, attempt, link, job, resume });
    }

    pub(super) fn release(&mut self, binding: &Binding, outcome: AttemptOutcome, now: f64) {
        let there = self.scheduler.fleet.endpoint(binding.endpoint);
        if there.is_some_and(|endpoint| endpoint.leases() == 0) {
            return self.violated("a slot is given back that was free".into());
        }
        self.scheduler.release(binding, outcome, at(now));
    }

    pub(super) fn end(&mut self, number: usize, how: Ended) {
        if self.requests[number].is_done() {
            self.violated(format!("request {number} ends twice: {how:?}"));
        }
        self.requests[number].ended = Some(how);
        self.correct(number);
        if let Some(what) = self.requests[number].complaint() {
            self.violated(format!("request {number} has {what}"));
        }
    }

    /// Whether a node is linked, or an external endpoint configured.
    pub fn is_linked(&self, leg: &Leg) -> bool {
        self.told.contains_key(&leg.binding.endpoint)
    }

    /// Attempts that have heard nothing for too long.
    pub fn idle_since(&self, before: f64) -> Vec<(usize, AttemptId)> {
        let all = self.requests.iter().enumerate().filter(|(_, request)| !request.is_done());
        let legs = all.flat_map(|(number, request)| request.legs.iter().map(move |l| (number, l)));
        legs.filter(|(_, leg)| leg.heard < before).map(|(n, leg)| (n, leg.attempt)).collect()
    }

    fn check_slot(&mut self, number: usize, binding: &Binding, now: f64) {
        let id = binding.endpoint;
        let Some(endpoint) = self.scheduler.fleet.endpoint(id) else {
            return self.violated(format!("request {number} is bound to nothing"));
        };
        let engine = EngineId { endpoint: id, engine_restarts: endpoint.status.engine_restarts };
        let held = self.legs_at(id).count() as u32 + 1;
        let request = &self.requests[number];
        let is_node = endpoint.external.is_none();
        let slots =
            endpoint.status.slots - u32::from(is_node && self.bug == Bug::FreeSlotsOverstated);
        let wrong = [
            (held > slots, "more permits than slots"),
            (self.told.get(&id) != Some(&NodeState::Ready), "a node that is gone or not ready"),
            (endpoint.health.is_ejected(), "an ejected node"),
            (is_node && self.cordoned.contains(&endpoint.link), "a cordoned node"),
            (request.failed.contains(&engine), "the engine that failed it"),
        ];
        for (_, what) in wrong.iter().filter(|(is_wrong, _)| *is_wrong) {
            self.violated(format!("request {number} gets {what} at {now:.3}"));
        }
    }
}

/// Takes a retry from the budget.
pub(super) fn take(scheduler: &mut Scheduler<usize>, budget: &mut [u64; 2], now: f64) -> bool {
    let is_left = scheduler.retries.take_retry(at(now));
    budget[0] += u64::from(is_left);
    is_left
}

fn slot_request<'a>(
    request: &'a Request,
    prefix: &'a Prefix,
    waiting: &'a Waiting,
    bug: Bug,
) -> SlotRequest<'a> {
    let Request { tenant, class, prompt, size, .. } = request;
    let tenant = if bug == Bug::ForgetTenants { "everybody" } else { tenant };
    let class = if bug == Bug::ForgetClasses { Class::Standard } else { *class };
    let (share, bytes, constraints) = (QueueShare::default(), prompt.len(), &waiting.constraints);
    let (model, user) = ("m", None);
    SlotRequest { model, tenant, user, share, class, size, bytes, prefix, constraints }
}
