//! What happens in a storm, and when.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, VecDeque};
use std::time::Duration;

use flotilla_gateway::scheduler::attempts::AttemptSettings;
use flotilla_gateway::scheduler::fleet::EndpointId;
use flotilla_gateway::scheduler::routing::Policy;
use flotilla_gateway::types::class::Class;
use flotilla_gateway::types::error::Error;
use flotilla_gateway::types::external::ExternalPolicy;
use inference_protocol::fleet::NodeState;
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64;

use super::Report;
use super::bugs::Bug;
use super::faults::Fault;
use super::gateway::{Gateway, Sent, Timer};
use super::node::Node;
use super::outside::{self, Outside};
use super::requests::{Ended, Leg, POISON, Request};

/// A node that says nothing for this long is out, and how often it says something.
const SILENCE: f64 = 3.0;
const HEARTBEAT: f64 = 1.0;
/// From a node to the gateway.
const DELAY: f64 = 0.03;
/// A stream that says nothing for this long has failed.
const IDLE: f64 = 20.0;
/// How long a response waits for another node.
const RESUME: f64 = 30.0;
/// Faults and arrivals end here; soon after that all must be over.
const STORM: f64 = 60.0;
const AFTERMATH: f64 = 600.0;

/// Something that happens.
#[derive(Debug, Clone, Copy)]
pub(super) enum Happening {
    Arrives(usize),
    Leaves(usize),
    /// What a request waited for has come.
    Timer(usize, Timer),
    /// An external endpoint goes on with a job.
    Outside(u64),
    /// A node's step, in one of its lives.
    Steps(usize, u64),
    /// What it wrote arrives, over that link.
    Hears(usize, EndpointId),
    /// A node says how it is.
    Says(usize, u64),
    /// Is a link still heard of?
    Listens(usize, EndpointId),
    Fault(usize, Fault),
    /// A node joins, if it can.
    Joins(usize),
    /// Its engine is there again.
    Recovers(usize, u64),
    /// It goes on where it stood still.
    Thaws(usize, u64),
    /// An operator lets it get requests again.
    Uncordons(usize),
    /// Streams that stand still are looked for.
    Looks,
}

/// See the module.
pub(super) struct World {
    pub(super) now: f64,
    /// When all must be over.
    pub(super) end: f64,
    random: Pcg64,
    agenda: BinaryHeap<Reverse<(u64, u64)>>,
    happenings: HashMap<u64, Happening>,
    next: u64,
    pub(super) nodes: Vec<Node>,
    /// Each node's link, and when it was last heard of.
    pub(super) links: Vec<Option<(EndpointId, f64)>>,
    /// Whether a node's next step is on the agenda, for its life.
    steps: Vec<Option<u64>>,
    /// What is on its way from each node, in order: a job's text, or that its engine is gone.
    wires: Vec<VecDeque<(u64, Option<String>)>>,
    /// Requests by their numbers at nodes.
    jobs: HashMap<u64, usize>,
    pub(super) gateway: Gateway,
    /// What external endpoints work on.
    pub(super) outside: HashMap<u64, Outside>,
    /// Until when each node turns requests away.
    pub(super) crowded: Vec<f64>,
}

/// Plays a storm.
pub fn storm(seed: u64, bug: Bug) -> Report {
    let mut world = World::new(seed, bug);
    world.prepare();
    world.run();
    world.report()
}

impl World {
    fn new(seed: u64, bug: Bug) -> Self {
        let mut random = Pcg64::seed_from_u64(seed);
        let mut pick = |n: u32| random.next_u32() % n;
        // Most are small; some are large.
        let count = if pick(50) == 0 { 1 + pick(200) } else { 1 + pick(8) };
        let nodes: Vec<Node> = (0..count)
            .map(|i| Node::new(format!("n{i}"), 1 + pick(4), [0.02, 0.05, 0.2][pick(3) as usize]))
            .collect();
        let policy = Policy::ALL[pick(4) as usize];
        let hedge = [None, Some(0.5), Some(2.0)][pick(3) as usize].map(Duration::from_secs_f64);
        let first_token = Duration::from_secs_f64(IDLE);
        let resume = Duration::from_secs_f64(RESUME);
        let settings = AttemptSettings { retries_max: 3, hedge, first_token, resume };
        let mut gateway = Gateway::new(policy, settings, bug);
        for number in 0..pick(3) as usize {
            gateway.join_outside(nodes.len() + number, outside::status(number));
        }
        Self {
            now: 0.0,
            end: STORM + AFTERMATH,
            random,
            agenda: BinaryHeap::new(),
            happenings: HashMap::new(),
            next: 0,
            links: vec![None; nodes.len()],
            steps: vec![None; nodes.len()],
            wires: vec![VecDeque::new(); nodes.len()],
            crowded: vec![0.0; nodes.len()],
            nodes,
            jobs: HashMap::new(),
            gateway,
            outside: HashMap::new(),
        }
    }

    pub(super) fn pick(&mut self, n: u32) -> u32 {
        self.random.next_u32() % n
    }

    /// 0 to 1.
    pub(super) fn part(&mut self) -> f64 {
        f64::from(self.random.next_u32()) / f64::from(u32::MAX)
    }

    pub(super) fn at(&mut self, when: f64, what: Happening) {
        self.next += 1;
        self.agenda.push(Reverse(((when * 1e9) as u64, self.next)));
        self.happenings.insert(self.next, what);
    }

    /// Writes down who comes when, and what goes wrong.
    fn prepare(&mut self) {
        for node in 0..self.nodes.len() {
            let when = if self.pick(4) == 0 { self.part() * STORM / 2.0 } else { 0.0 };
            self.at(when, Happening::Joins(node));
        }
        let requests = 20 + self.pick(40) as usize;
        let mut when = 0.5;
        for number in 0..requests {
            // In bursts.
            when += if self.pick(4) == 0 { self.part() * 6.0 } else { 0.0 };
            let request = self.request(number);
            self.gateway.requests.push(request);
            self.at(when.min(STORM), Happening::Arrives(number));
            if self.pick(6) == 0 {
                let after = self.part() * 8.0;
                self.at(when.min(STORM) + after, Happening::Leaves(number));
            }
        }
        for _ in 0..self.pick(3 + self.nodes.len() as u32 * 3) {
            let (when, node) = (self.part() * STORM, self.pick(self.nodes.len() as u32) as usize);
            let fault = match self.pick(20) {
                0..=2 => Fault::Crash,
                3..=5 => Fault::EngineDeath,
                6 | 7 => Fault::Freeze,
                8 | 9 => Fault::LinkCut,
                10 | 11 => Fault::Drain,
                12 => Fault::Lie,
                13..=16 => Fault::Operate,
                17 | 18 => Fault::Crowd,
                _ => Fault::Jump,
            };
            self.at(when, Happening::Fault(node, fault));
        }
        self.at(IDLE, Happening::Looks);
    }

    fn request(&mut self, number: usize) -> Request {
        let words = ["one ", "déjà vu ", "🐱 ", "count to ten ", "a longer sentence, for once "];
        let mut prompt = format!("{number}: ");
        for _ in 0..=self.pick(2) {
            prompt.push_str(words[self.pick(words.len() as u32) as usize]);
        }
        if self.pick(40) == 0 {
            prompt.push(POISON);
        }
        prompt.push('\0');
        let class = Class::ALL[self.pick(3) as usize];
        let patience = [0.5, 5.0, 60.0, 300.0][self.pick(4) as usize];
        let external = match self.pick(6) {
            0 => ExternalPolicy::Prefer,
            1 | 2 => ExternalPolicy::Overflow,
            _ => ExternalPolicy::Never,
        };
        let request = Request::new(number, prompt, self.pick(3), class, patience);
        Request { external, ..request }
    }

    fn run(&mut self) {
        while let Some(Reverse((nanos, number))) = self.agenda.pop() {
            self.now = self.now.max(nanos as f64 / 1e9);
            if self.now > self.end {
                break;
            }
            let Some(what) = self.happenings.remove(&number) else { continue };
            self.happens(what);
            self.plan();
            // After a jump of the clock, what is due comes first.
            let due = |Reverse((nanos, _)): &Reverse<(u64, u64)>| *nanos as f64 / 1e9 <= self.now;
            if self.agenda.peek().is_some_and(due) {
                continue;
            }
            self.settle();
            let is_over = self.gateway.requests.iter().all(Request::is_done);
            let is_broken = !self.gateway.violations.is_empty();
            if is_broken || (self.now > STORM && is_over && self.nodes_are_idle()) {
                return;
            }
        }
    }

    fn nodes_are_idle(&self) -> bool {
        self.nodes.iter().all(|node| node.is_frozen || node.is_idle())
    }

    /// What follows at once from what happened.
    fn settle(&mut self) {
        let now = self.now;
        for (link, job) in std::mem::take(&mut self.gateway.cancelled) {
            match self.nodes.get_mut(link) {
                Some(node) => node.cancel(job),
                None => drop(self.outside.remove(&job)),
            }
        }
        for sent in self.gateway.bind(now) {
            self.sends(sent);
        }
        self.plan();
        let gone = self.gateway.requests.iter().filter(|r| !r.is_done());
        let is_gone = |leg: &&Leg| !self.gateway.is_linked(leg);
        let gone = gone.flat_map(|r| r.legs.iter()).filter(is_gone).count();
        if gone > 0 {
            self.gateway.violated(format!("{gone} requests wait for a node that is gone"));
        }
        let is_late = |r: &Request| r.waiting.as_ref().is_some_and(|w| now > w.deadline + 1.0);
        if let Some(number) = self.gateway.requests.iter().position(is_late) {
            let waiting = &self.gateway.requests[number].waiting;
            let what =
                format!("request {number} waits at {now:.3} beyond its deadline: {waiting:?}");
            self.gateway.violated(what);
        }
    }

    /// A request is sent to an endpoint.
    fn sends(&mut self, sent: Sent) {
        let Sent { request, attempt, link, job, resume } = sent;
        self.jobs.insert(job, request);
        if link >= self.nodes.len() {
            return self.asks_outside(request, attempt, job);
        }
        if self.crowded[link] > self.now && self.links[link].is_some() {
            let error = Error::NodeRefused(503);
            return self.gateway.fails(request, attempt, error, self.now);
        }
        // What is sent to a node that is gone is lost.
        if self.links[link].is_some() && !self.nodes[link].is_frozen {
            let prompt = self.gateway.requests[request].prompt.clone();
            self.nodes[link].submit(job, &prompt, &resume);
            self.step_soon(link);
        }
    }

    /// Puts what the gateway waits for on the agenda.
    fn plan(&mut self) {
        for (when, number, timer) in std::mem::take(&mut self.gateway.timers) {
            self.at(when, Happening::Timer(number, timer));
        }
        for number in std::mem::take(&mut self.gateway.quarantined) {
            // Most clients send again what has failed.
            let again = self.gateway.requests.len();
            let request = self.gateway.requests[number].again(again);
            self.gateway.requests.push(request);
            self.at(self.now + 1.0, Happening::Arrives(again));
        }
    }

    pub(super) fn step_soon(&mut self, node: usize) {
        let life = self.nodes[node].life;
        if self.steps[node] != Some(life) && !self.nodes[node].is_frozen {
            self.steps[node] = Some(life);
            self.at(self.now + self.nodes[node].pace, Happening::Steps(node, life));
        }
    }

    fn happens(&mut self, what: Happening) {
        let now = self.now;
        match what {
            Happening::Arrives(number) => self.gateway.arrive(number, now),
            Happening::Leaves(number) => self.gateway.leave(number, now),
            Happening::Timer(number, timer) => self.gateway.timer(number, timer, now),
            Happening::Outside(job) => self.goes_on_outside(job),
            Happening::Steps(node, life) => self.steps(node, life),
            Happening::Hears(node, link) => self.hears(node, link),
            Happening::Says(node, life) => self.says(node, life),
            Happening::Listens(node, link) => self.listens(node, link),
            Happening::Fault(node, fault) => self.fault(node, fault),
            Happening::Joins(node) => self.joins(node),
            Happening::Recovers(node, life) => {
                if self.nodes[node].life == life && self.nodes[node].state == NodeState::Restarting
                {
                    self.nodes[node].state = NodeState::Ready;
                    self.tell(node);
                }
            }
            Happening::Thaws(node, life) => self.thaws(node, life),
            Happening::Uncordons(node) => self.uncordons(node),
            Happening::Looks => {
                for (number, attempt) in self.gateway.idle_since(now - IDLE) {
                    self.gateway.fails(number, attempt, Error::NodeTimeout, now);
                }
                self.at(now + 1.0, Happening::Looks);
            }
        }
    }

    fn joins(&mut self, node: usize) {
        if self.links[node].is_some() || self.nodes[node].is_frozen {
            return;
        }
        let status = self.nodes[node].status();
        let link = self.gateway.join(node, status, self.now);
        self.links[node] = Some((link, self.now));
        self.at(self.now + SILENCE, Happening::Listens(node, link));
        let life = self.nodes[node].life;
        self.at(self.now + HEARTBEAT, Happening::Says(node, life));
        self.step_soon(node);
    }

    fn says(&mut self, node: usize, life: u64) {
        if self.nodes[node].life != life || self.nodes[node].is_frozen {
            return;
        }
        self.tell(node);
        // Sometimes late, but not too late.
        let late = if self.pick(10) == 0 { self.part() * 1.8 } else { 0.0 };
        self.at(self.now + HEARTBEAT + late, Happening::Says(node, life));
    }

    pub(super) fn tell(&mut self, node: usize) {
        if let Some((link, heard)) = &mut self.links[node] {
            *heard = self.now;
            self.gateway.observe(*link, self.nodes[node].status(), self.now);
        }
    }

    fn listens(&mut self, node: usize, link: EndpointId) {
        let Some((current, heard)) = self.links[node] else { return };
        if current != link {
            return;
        }
        match self.now - heard >= SILENCE {
            true => self.loses_link(node),
            // A little later than that: times are whole nanoseconds.
            false => self.at(heard + SILENCE + 1e-6, Happening::Listens(node, link)),
        }
    }

    /// The gateway gives a link up; a node that lives dials again.
    pub(super) fn loses_link(&mut self, node: usize) {
        let Some((link, _)) = self.links[node].take() else { return };
        self.nodes[node].lose_link();
        self.wires[node].clear();
        self.gateway.lose(link, self.now);
        let after = 0.2 + self.part();
        self.at(self.now + after, Happening::Joins(node));
    }

    fn steps(&mut self, node: usize, life: u64) {
        if self.steps[node] == Some(life) {
            self.steps[node] = None;
        }
        if self.nodes[node].life != life || self.nodes[node].is_frozen {
            return;
        }
        let is_here = |leg: &Leg| leg.link == node && leg.job.is_some();
        let is_poisoned = |r: &Request| r.is_poison() && !r.is_done() && r.legs.iter().any(is_here);
        if self.gateway.requests.iter().any(is_poisoned) {
            return self.engine_dies(node);
        }
        for (job, written) in self.nodes[node].step() {
            self.write(node, job, Some(written));
        }
        if !self.nodes[node].is_idle() {
            self.step_soon(node);
        }
    }

    /// A node writes; it is read a little later, unless the link is gone by then.
    pub(super) fn write(&mut self, node: usize, job: u64, text: Option<String>) {
        if let Some((link, _)) = self.links[node] {
            self.wires[node].push_back((job, text));
            self.at(self.now + DELAY, Happening::Hears(node, link));
        }
    }

    fn hears(&mut self, node: usize, link: EndpointId) {
        if self.links[node].is_none_or(|(current, _)| current != link) {
            return;
        }
        let Some((job, written)) = self.wires[node].pop_front() else { return };
        let number = self.jobs[&job];
        match written {
            Some(text) => self.gateway.hear(number, job, &text, self.now),
            None => {
                if let Some(attempt) = self.gateway.requests[number].leg_of(job) {
                    self.gateway.fails(number, attempt, Error::EngineLost, self.now);
                }
            }
        }
    }

    fn report(mut self) -> Report {
        let mut report = Report::default();
        for request in &self.gateway.requests {
            match &request.ended {
                Some(Ended::Complete) => report.complete += 1,
                Some(Ended::Failed(Error::Quarantined)) => report.quarantined += 1,
                Some(Ended::Failed(_)) => report.failed += 1,
                Some(Ended::Refused) => report.refused += 1,
                Some(Ended::ClientLeft) => report.left += 1,
                None => {}
            }
        }
        let broken = !self.gateway.violations.is_empty();
        let undone = self.gateway.requests.iter().filter(|r| !r.is_done()).count();
        let totals = self.gateway.scheduler.fleet.totals();
        let left = BTreeMap::from([
            ("requests without an outcome", undone),
            ("leases", totals.leases as usize),
            ("waiting tickets", self.gateway.scheduler.depth()),
            ("busy nodes", self.nodes.iter().filter(|n| !n.is_frozen && !n.is_idle()).count()),
        ]);
        for (what, count) in left.into_iter().filter(|(_, count)| *count > 0 && !broken) {
            self.gateway.violated(format!("{count} {what} are left"));
        }
        report.violations = self.gateway.violations;
        report.counts = self.gateway.counts;
        report
    }
}
