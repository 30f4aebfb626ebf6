//! The gateway of a storm: what dispatcher and answers do, around the same pure cores.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use bytes::Bytes;
use flotilla_gateway::scheduler::attempt::{At, Pursuit, outcome_of};
use flotilla_gateway::scheduler::fleet::{EndpointId, EngineId, Outcome, RouteConstraints};
use flotilla_gateway::scheduler::prefix_index::Prefix;
use flotilla_gateway::scheduler::progress::Progress;
use flotilla_gateway::scheduler::queue::TicketId;
use flotilla_gateway::scheduler::routing::Policy;
use flotilla_gateway::scheduler::{Binding, Refused, Scheduler, SlotRequest, Used};
use flotilla_gateway::types::class::Class;
use flotilla_gateway::types::error::Error;
use flotilla_gateway::types::external::External;
use flotilla_gateway::types::limits::{Bounds, Share};
use inference_protocol::fleet::{NodeState, NodeStatus};
use inference_protocol::resume::Resume;
use inference_protocol::sse::payloads;

use super::bugs::Bug;
use super::fairness::Fairness;
use super::requests::{Ended, Request, Running, State};

/// How long an answer waits for another node, in seconds.
const RESUME: f64 = 30.0;

/// A request that a node is to work on.
pub struct Sent {
    pub request: usize,
    pub node: usize,
    pub job: u64,
    pub resume: Resume,
}

/// See the module.
pub struct Gateway {
    pub scheduler: Scheduler<usize>,
    pub requests: Vec<Request>,
    pub(super) tickets: HashMap<TicketId, usize>,
    /// What those cost that wait for their first slot.
    works: HashMap<TicketId, f64>,
    pub(super) fairness: Fairness,
    jobs: u64,
    pub bug: Bug,
    /// What each node last said, by its endpoint.
    told: HashMap<EndpointId, NodeState>,
    /// Nodes that operators want nothing new on.
    cordoned: HashSet<usize>,
    /// What does not hold.
    pub violations: Vec<String>,
    pub resumes: u64,
    pub retries: u64,
    pub moved: u64,
    /// What found a slot at once.
    ready: Vec<Sent>,
    /// Jobs at nodes that are to be told to stop.
    pub cancelled: Vec<(usize, u64)>,
}

fn at(now: f64) -> Duration {
    Duration::from_secs_f64(now)
}

impl Gateway {
    pub fn new(policy: Policy, bug: Bug) -> Self {
        let bounds = Bounds { has_tenants: true, ..Bounds::new(64, 1 << 20) };
        Self {
            scheduler: Scheduler::new(bounds, policy),
            requests: Vec::new(),
            tickets: HashMap::new(),
            works: HashMap::new(),
            fairness: Fairness::default(),
            jobs: 0,
            bug,
            told: HashMap::new(),
            cordoned: HashSet::new(),
            violations: Vec::new(),
            resumes: 0,
            retries: 0,
            moved: 0,
            ready: Vec::new(),
            cancelled: Vec::new(),
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

    /// An operator lets a node get nothing new; if it is drained, what it has goes elsewhere.
    pub fn cordon(&mut self, node: usize, name: &str, is_drained: bool, now: f64) {
        let Some(id) = self.scheduler.fleet.cordon(name) else { return };
        self.cordoned.insert(node);
        let here: Vec<usize> = self.running_at(id).map(|(number, _)| number).collect();
        here.into_iter().filter(|_| is_drained).for_each(|number| self.look_elsewhere(number, now));
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
            let binding = self.running_at(id).next().map(|(_, r)| r.binding.clone());
            for _ in 0..leases {
                if let Some(binding) = &binding {
                    self.scheduler.release(binding, Outcome::Unknown, at(now));
                }
            }
        }
        let leaves = status.state == NodeState::Draining;
        self.scheduler.fleet.observe(id, status, at(now));
        let here: Vec<usize> = self.running_at(id).map(|(number, _)| number).collect();
        here.into_iter().filter(|_| leaves).for_each(|number| self.look_elsewhere(number, now));
    }

    /// A request's node is about to leave: it lines up for another one meanwhile.
    fn look_elsewhere(&mut self, number: usize, now: f64) {
        let request = &mut self.requests[number];
        if request.moving.is_some() || !request.progress.is_resumable() {
            return;
        }
        let Some(here) = request.running().map(|running| running.at.clone()) else { return };
        let constraints = request.pursuit.seek_beyond(&here);
        if let Ok(id) = self.line_up(number, &constraints, now + RESUME, now) {
            self.requests[number].moving = Some((id, now + RESUME));
        }
    }

    fn running_at(&self, id: EndpointId) -> impl Iterator<Item = (usize, &Running)> {
        self.requests.iter().enumerate().filter_map(move |(number, request)| match &request.state {
            State::Running(running) if running.binding.endpoint == id => Some((number, running)),
            _ => None,
        })
    }

    /// A link is over: its requests fail over.
    pub fn lose(&mut self, id: EndpointId, now: f64) {
        self.told.remove(&id);
        if self.bug != Bug::RouteToLost {
            self.scheduler.fleet.remove(id, at(now));
        }
        let lost: Vec<usize> = self.running_at(id).map(|(number, _)| number).collect();
        if self.bug != Bug::ForgetTheLost {
            lost.into_iter().for_each(|number| self.fails(number, Error::NodeLost, now));
        }
    }

    /// A request arrives.
    pub fn arrive(&mut self, number: usize, now: f64) {
        self.requests[number].deadline = now + self.requests[number].patience;
        self.ask(number, now);
    }

    fn ask(&mut self, number: usize, now: f64) {
        let request = &self.requests[number];
        let (constraints, deadline) = (request.pursuit.constraints().clone(), request.deadline);
        let prefix = Prefix::new(&request.tenant, request.prompt.as_bytes());
        if let Some(binding) =
            self.scheduler.bind_at_once(&want(request, &prefix, &constraints, self.bug), at(now))
        {
            self.check(number, &binding, now);
            let sent = self.send(number, binding, now);
            return self.ready.extend(sent);
        }
        match self.line_up(number, &constraints, deadline, now) {
            Ok(id) => self.requests[number].state = State::Waiting(id),
            Err(_) => self.end(number, Ended::Refused, now),
        }
    }

    fn line_up(
        &mut self,
        number: usize,
        constraints: &RouteConstraints,
        deadline: f64,
        now: f64,
    ) -> Result<TicketId, Refused> {
        let request = &self.requests[number];
        let prefix = Prefix::new(&request.tenant, request.prompt.as_bytes());
        let want = want(request, &prefix, constraints, self.bug);
        let id = self.scheduler.ask(&want, at((deadline - now).max(0.0)), at(now))?;
        self.tickets.insert(id, number);
        let ticket = self.scheduler.waiting(id).filter(|ticket| !ticket.is_retried);
        if let Some(work) = ticket.map(|ticket| ticket.work) {
            self.works.insert(id, work);
            self.fairness.waits(request.class, &request.tenant, work);
        }
        Ok(id)
    }

    /// It waits no more.
    fn withdraw(&mut self, number: usize, id: TicketId, now: f64) {
        self.scheduler.withdraw(id, at(now));
        if self.works.remove(&id).is_some() {
            let request = &self.requests[number];
            self.fairness.leaves(request.class, &request.tenant);
        }
    }

    /// It has its slot: was it its turn?
    fn is_served(&mut self, number: usize, id: TicketId) {
        let Some(work) = self.works.remove(&id) else { return };
        let request = &self.requests[number];
        let wrong = self.fairness.is_served(request.class, &request.tenant, work);
        self.violations.extend(wrong);
    }

    fn end(&mut self, number: usize, how: Ended, now: f64) {
        if self.requests[number].is_done() {
            self.violated(format!("request {number} ends twice: {how:?}"));
        }
        self.requests[number].state = State::Done(how);
        self.stay(number, now);
        self.correct(number);
        if let Some(what) = self.requests[number].complaint() {
            self.violated(format!("request {number} has {what}"));
        }
    }

    /// It lines up for no other node any more.
    fn stay(&mut self, number: usize, now: f64) {
        if let Some((id, _)) = self.requests[number].moving.take() {
            self.tickets.remove(&id);
            self.withdraw(number, id, now);
        }
    }

    /// Its time is up, if it still waits.
    pub fn expire(&mut self, number: usize, now: f64) {
        let request = &self.requests[number];
        if request.moving.is_some_and(|(_, deadline)| now + 1e-6 >= deadline) {
            self.stay(number, now);
        }
        let request = &self.requests[number];
        let State::Waiting(id) = request.state else { return };
        if now + 1e-6 < request.deadline || self.bug == Bug::WaitForever {
            return;
        }
        self.tickets.remove(&id);
        self.withdraw(number, id, now);
        let error = Error::QueueTimeout { retry_after_seconds: 1 };
        let error = self.requests[number].pursuit.gives_up(error);
        self.end(number, Ended::Failed(error), now);
    }

    /// Its client is gone.
    pub fn leave(&mut self, number: usize, now: f64) {
        match &self.requests[number].state {
            State::New | State::Done(_) => return,
            State::Waiting(id) => {
                let id = *id;
                self.tickets.remove(&id);
                if self.bug != Bug::LeakWhenGrantIsLate {
                    self.withdraw(number, id, now);
                }
            }
            State::Running(Running { binding, node, job, .. }) => {
                self.cancelled.push((*node, *job));
                if self.bug != Bug::LeakWhenClientLeaves {
                    let binding = binding.clone();
                    self.release(&binding, Outcome::Unknown, now);
                }
            }
        }
        self.end(number, Ended::ClientLeft, now);
    }

    fn release(&mut self, binding: &Binding, outcome: Outcome, now: f64) {
        let there = self.scheduler.fleet.endpoint(binding.endpoint);
        if there.is_some_and(|endpoint| endpoint.leases() == 0) {
            return self.violated("a slot is given back that was free".into());
        }
        self.scheduler.release(binding, outcome, at(now));
    }

    /// Binds what can be bound; what is to be sent.
    pub fn bind(&mut self, now: f64) -> Vec<Sent> {
        let mut sent = std::mem::take(&mut self.ready);
        while let Some(binding) = self.scheduler.bind(at(now)) {
            let Some(number) = self.tickets.remove(&binding.id) else {
                // Nobody is there to take it.
                if self.bug != Bug::LeakWhenGrantIsLate {
                    self.release(&binding, Outcome::Unknown, now);
                }
                continue;
            };
            self.is_served(number, binding.id);
            self.check(number, &binding, now);
            self.moves(number, now);
            sent.extend(self.send(number, binding, now));
        }
        self.check_retried(now);
        sent
    }

    /// If it runs already, it leaves that for its new slot.
    fn moves(&mut self, number: usize, now: f64) {
        let request = &mut self.requests[number];
        let State::Running(Running { binding, node, job, at, .. }) = &request.state else { return };
        let (binding, node, job) = (binding.clone(), *node, *job);
        request.pursuit.moves(at);
        request.moving = None;
        self.cancelled.push((node, job));
        self.release(&binding, Outcome::Unknown, now);
        self.moved += 1;
    }

    fn check(&mut self, number: usize, binding: &Binding, now: f64) {
        let id = binding.endpoint;
        let Some(endpoint) = self.scheduler.fleet.endpoint(id) else {
            return self.violated(format!("request {number} is bound to nothing"));
        };
        let attempt = EngineId { endpoint: id, engine_restarts: endpoint.status.engine_restarts };
        let held = self.running_at(id).count() as u32 + 1;
        let request = &self.requests[number];
        let deadline = request.moving.map_or(request.deadline, |(_, deadline)| deadline);
        let slots = endpoint.status.slots - u32::from(self.bug == Bug::FreeSlotsOverstated);
        let wrong = [
            (held > slots, "more permits than slots"),
            (
                self.told.get(&id) != Some(&NodeState::Ready),
                "a node that is not there or not ready",
            ),
            (endpoint.health.is_out(), "an ejected node"),
            (self.cordoned.contains(&endpoint.link), "a cordoned node"),
            (request.failed.contains(&attempt), "the engine that failed it"),
            (now > deadline + 1e-6, "a slot after its deadline"),
        ];
        for (_, what) in wrong.iter().filter(|(is_wrong, _)| *is_wrong) {
            self.violated(format!("request {number} gets {what} at {now:.3}"));
        }
    }

    fn send(&mut self, number: usize, binding: Binding, now: f64) -> Option<Sent> {
        let endpoint = self.scheduler.fleet.endpoint(binding.endpoint)?;
        let engine_restarts = endpoint.status.engine_restarts;
        let (node, attempt) =
            (endpoint.link, EngineId { endpoint: binding.endpoint, engine_restarts });
        self.jobs += 1;
        let request = &mut self.requests[number];
        let charge = binding.charge.clone().map(|charge| (charge, binding.model.clone()));
        request.charge = charge.or(request.charge.take());
        request.progress.moves(false);
        let mut resume = request.progress.resume().clone();
        match self.bug {
            Bug::ForgetTokens => resume.choices.clear(),
            Bug::RepeatEvents => resume.choices.iter_mut().for_each(|said| said.events = 0),
            _ => {}
        }
        let at = At { attempt, model: binding.model.clone(), has_spoken: false };
        let (job, is_first) = (self.jobs, request.progress.tokens() == 0);
        let running = Running { binding, node, job, at, first: None, is_first, heard: now };
        request.state = State::Running(running);
        Some(Sent { request: number, node, job, resume })
    }

    /// A node writes into a stream.
    pub fn hear(&mut self, number: usize, job: u64, written: &str, now: f64) {
        let bug = self.bug;
        let request = &mut self.requests[number];
        if request.is_done() {
            return;
        }
        let Some(running) = request.running() else {
            return self.hear_the_dead(number, written);
        };
        if running.job != job {
            return self.hear_the_dead(number, written);
        }
        running.heard = now;
        let begins = !running.at.has_spoken;
        running.at.has_spoken = true;
        running.first.get_or_insert(now);
        let first = running.first.filter(|_| running.is_first).map(at);
        let binding = running.binding.clone();
        request.pursuit.gets_on();
        let bytes = Bytes::copy_from_slice(written.as_bytes());
        let read = request.progress.read(&bytes, true).expect("it is little");
        assert_eq!(read.error, None);
        request.text.push_str(&texts(&read.events));
        if bug == Bug::ReleaseAtFirstToken && begins {
            return self.release(&binding, Outcome::Answered, now);
        }
        if request.progress.is_complete() {
            if let Some((usage, first)) = request.progress.used().zip(first) {
                let used = Used { usage, answers: 1, first: Some(first) };
                self.scheduler.learn(&binding, &request.size, &used, at(now));
            }
            self.release(&binding, Outcome::Answered, now);
            if bug == Bug::ReleaseTwice {
                self.release(&binding, Outcome::Answered, now);
            }
            self.end(number, Ended::Complete, now);
        }
    }

    fn hear_the_dead(&mut self, number: usize, written: &str) {
        if self.bug == Bug::HearTheDead {
            let mut progress = Progress::default();
            let read = progress
                .read(&Bytes::copy_from_slice(written.as_bytes()), true)
                .expect("it is little");
            self.requests[number].text.push_str(&texts(&read.events));
        }
    }

    /// What worked on a request has failed.
    pub fn fails(&mut self, number: usize, error: Error, now: f64) {
        let bug = self.bug;
        let request = &mut self.requests[number];
        let is_resumable = request.progress.is_resumable();
        let State::Running(Running { binding, at, node, job, .. }) = &request.state else { return };
        let (binding, at, node, job) = (binding.clone(), at.clone(), *node, *job);
        self.cancelled.push((node, job));
        if bug != Bug::LeakWhenAttemptFails {
            self.release(&binding, outcome_of(&error), now);
        }
        self.stay(number, now);
        let request = &mut self.requests[number];
        request.killed += usize::from(error == Error::EngineLost);
        request.failed.push(at.attempt);
        let was_begun = request.progress.tokens() > 0;
        if bug == Bug::EndSilently && was_begun {
            return self.end(number, Ended::Complete, now);
        }
        let mut failed = request.pursuit.failed(&at, is_resumable, error.clone());
        if error.costs_a_retry() && !self.scheduler.retries.take(Duration::from_secs_f64(now)) {
            failed = failed.and(Err(error));
        }
        match bug {
            Bug::SpreadPoison if failed.is_err() => {
                (request.pursuit, failed) = (Pursuit::new(9, External::Never), Ok(()));
            }
            Bug::RetrySameEngine => request.pursuit = Pursuit::new(3, External::Never),
            _ => {}
        }
        match failed {
            Err(error) => self.end(number, Ended::Failed(error), now),
            Ok(()) => {
                request.deadline = request.deadline.max(now + RESUME);
                request.state = State::New;
                *(if was_begun { &mut self.resumes } else { &mut self.retries }) += 1;
                self.ask(number, now);
            }
        }
        if self.requests[number].killed > 2 {
            self.violated(format!("request {number} has killed a third engine"));
        }
    }

    /// Whether the node that a request runs on is there.
    pub fn is_linked(&self, running: &Running) -> bool {
        self.told.contains_key(&running.binding.endpoint)
    }

    /// Requests that have heard nothing for too long.
    pub fn idle_since(&self, before: f64) -> Vec<usize> {
        let idle = |(_, request): &(usize, &Request)| matches!(&request.state, State::Running(running) if running.heard < before);
        self.requests.iter().enumerate().filter(idle).map(|(number, _)| number).collect()
    }
}

fn want<'a>(
    request: &'a Request,
    prefix: &'a Prefix,
    constraints: &'a RouteConstraints,
    bug: Bug,
) -> SlotRequest<'a> {
    let Request { tenant, class, prompt, size, .. } = request;
    let tenant = if bug == Bug::ForgetTenants { "everybody" } else { tenant };
    let class = if bug == Bug::ForgetClasses { Class::Standard } else { *class };
    let share = Share::default();
    SlotRequest { model: "m", tenant, share, class, size, bytes: prompt.len(), prefix, constraints }
}

fn texts(events: &[u8]) -> String {
    let read = |payload: &[u8]| serde_json::from_slice::<String>(payload).ok();
    payloads(events).filter_map(read).collect()
}
