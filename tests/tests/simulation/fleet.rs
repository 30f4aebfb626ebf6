//! A fleet in simulated time: the gateway's own queue, fleet and routing against nodes that are
//! formulas, and beside them what a plain proxy does, which sends every request to some node at
//! once and lets it wait there.
//!
//! A node computes the tokens of a prompt that it does not hold, at its own speed, slower
//! while others read beside it; then it generates. It keeps the conversations that it has room
//! for, the last used ones. All of it is a function of the seed.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::time::Duration;

use flotilla_gateway::scheduler::cost::Size;
use flotilla_gateway::scheduler::fleet::{AttemptOutcome, RouteConstraints};
use flotilla_gateway::scheduler::prefix_index::Prefix;
use flotilla_gateway::scheduler::queue::TicketId;
use flotilla_gateway::scheduler::routing::Policy;
use flotilla_gateway::scheduler::routing_stats::RoutingStats;
use flotilla_gateway::scheduler::{Binding, ResponseUsage, Scheduler, SlotRequest};
use flotilla_gateway::types::class::Class;
use flotilla_gateway::types::limits::{QueueBounds, QueueShare};
use inference_protocol::fleet::{ModelStatus, NodeState, NodeStatus};
use inference_protocol::resume::Usage;
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64;

/// Characters of a token, about.
const TOKEN_BYTES: usize = 4;
/// Tokens of a tenant's system prompt, a question and an answer.
const SYSTEM_TOKENS: u32 = 400;
const QUESTION_TOKENS: u32 = 60;
/// Turns of a conversation at most, and the seconds between them.
const TURNS_MAX: u32 = 6;
const PAUSE: f64 = 40.0;
/// Tokens that a node keeps for each slot.
const KEPT_TOKENS_PER_SLOT: u32 = 1024;

/// Who decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Router {
    /// Ours, with a policy.
    Flotilla(Policy),
    /// In turns, each node with a queue of its own.
    PlainRoundRobin,
    /// The node with the fewest requests, running and waiting, each with a queue of its own.
    PlainLeastConnections,
}

/// A question.
#[derive(Debug, Clone)]
struct Turn {
    at: f64,
    tenant: u32,
    conversation: u32,
    prompt: u32,
    answer: u32,
}

/// A node as a formula.
#[derive(Debug, Clone)]
struct Node {
    prefill: f64,
    decode: f64,
    slots: u32,
    running: u32,
    waiting: VecDeque<usize>,
    /// Conversations and tenants' system prompts that it holds, the last used one first.
    kept: Vec<(u32, u32, u32)>,
}

impl Node {
    fn new(random: &mut Pcg64) -> Self {
        let speed = [0.5, 1.0, 1.0, 2.0, 4.0][(random.next_u32() % 5) as usize];
        let slots = [2, 4, 4, 8][(random.next_u32() % 4) as usize];
        let (waiting, kept) = (VecDeque::new(), Vec::new());
        Self { prefill: 150.0 * speed, decode: 12.0 * speed, slots, running: 0, waiting, kept }
    }

    /// Tokens of a prompt that it holds.
    fn held(&self, turn: &Turn) -> u32 {
        let of = |(tenant, conversation, tokens): &(u32, u32, u32)| match (
            *tenant == turn.tenant,
            *conversation == turn.conversation,
        ) {
            (true, true) => (*tokens).min(turn.prompt - 1),
            (true, false) => SYSTEM_TOKENS,
            (false, _) => 0,
        };
        self.kept.iter().map(of).max().unwrap_or(0)
    }

    fn keep(&mut self, turn: &Turn) {
        self.kept.retain(|(_, conversation, _)| *conversation != turn.conversation);
        self.kept.insert(0, (turn.tenant, turn.conversation, turn.prompt + turn.answer));
        let mut room = KEPT_TOKENS_PER_SLOT * self.slots;
        self.kept.retain(|(.., tokens)| {
            let fits = *tokens <= room;
            room -= if fits { *tokens } else { room };
            fits
        });
    }

    /// Serves a turn from when a slot is taken.
    fn serve(&mut self, turn: &Turn) -> Served {
        let beside = f64::from(self.running);
        let cached = self.held(turn);
        let todo = f64::from(turn.prompt - cached);
        self.running += 1;
        self.keep(turn);
        let first = todo / self.prefill * if beside > 0.0 { 2.0 } else { 1.0 };
        // Memory is read once for all that decode: a second reader costs a fraction.
        let token = (1.0 + 0.2 * beside) / self.decode;
        Served { first, last: first + f64::from(turn.answer) * token, cached }
    }
}

/// How a node serves a turn.
struct Served {
    /// Seconds to the first token, and to the last.
    first: f64,
    last: f64,
    /// Tokens of the prompt that it held.
    cached: u32,
}

/// How long clients waited for their first token, in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Waits {
    /// Mean.
    pub mean: f64,
    /// 95th percentile.
    pub p95: f64,
}

/// A fleet and what it is asked.
#[derive(Debug)]
pub struct Scene {
    nodes: Vec<Node>,
    turns: Vec<Turn>,
    /// Whether requests say how long their answers are.
    pub limits_are_told: bool,
}

fn uniform(random: &mut Pcg64) -> f64 {
    f64::from(random.next_u32()) / f64::from(u32::MAX)
}

impl Scene {
    /// `nodes` nodes of mixed speed, asked for `seconds` as much as `load` of what they could do
    /// if every prompt were computed in full.
    pub fn new(nodes: usize, load: f64, seconds: f64, seed: u64) -> Self {
        let mut random = Pcg64::seed_from_u64(seed);
        let nodes: Vec<Node> = (0..nodes).map(|_| Node::new(&mut random)).collect();
        // Turns a second that all slots together can do.
        let capacity: f64 = nodes
            .iter()
            .map(|node| {
                let mut full = Node { running: node.slots - 1, ..node.clone() };
                let turn = Turn { at: 0.0, tenant: 0, conversation: 0, prompt: 850, answer: 110 };
                f64::from(node.slots) / full.serve(&turn).last
            })
            .sum();
        let per_conversation = f64::from(1 + TURNS_MAX) / 2.0;
        let rate = load * capacity / per_conversation;
        let mut turns = Vec::new();
        let (mut at, mut conversation) = (0.0, 0);
        while at < seconds {
            at += -(1.0 - uniform(&mut random)).max(1e-9).ln() / rate;
            conversation += 1;
            let tenant = random.next_u32() % 20;
            let (mut prompt, mut when) = (SYSTEM_TOKENS, at);
            for _ in 0..=random.next_u32() % TURNS_MAX {
                prompt += QUESTION_TOKENS;
                let answer = 20 + random.next_u32() % 180;
                turns.push(Turn { at: when, tenant, conversation, prompt, answer });
                prompt += answer;
                when += PAUSE * (0.5 + uniform(&mut random));
            }
        }
        turns.sort_by(|a, b| a.at.total_cmp(&b.at));
        Self { nodes, turns, limits_are_told: true }
    }

    /// Plays it with one router.
    pub fn play(&self, router: Router) -> Waits {
        self.run(router).waits()
    }

    /// How long turns waited for a slot, and should have waited by what the gateway predicted; and
    /// what it says of that.
    pub fn predicted(&self, policy: Policy) -> (Vec<(f64, f64)>, RoutingStats) {
        let run = self.run(Router::Flotilla(policy));
        (run.predicted, run.scheduler.stats)
    }

    fn run(&self, router: Router) -> Run<'_> {
        let mut run = Run::new(self, router);
        let mut next = 0;
        loop {
            let arrival = self.turns.get(next).map_or(f64::INFINITY, |turn| turn.at);
            let ended = run.ends.peek().map_or(f64::INFINITY, |Reverse(end)| end.at());
            if arrival.min(ended).is_infinite() {
                break;
            }
            if arrival <= ended {
                run.arrive(next);
                next += 1;
            } else if let Some(Reverse(end)) = run.ends.pop() {
                run.end(&end);
            }
        }
        run
    }
}

/// A request is over.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct End {
    nanos: u64,
    turn: usize,
    node: usize,
}

impl End {
    fn at(&self) -> f64 {
        self.nanos as f64 / 1e9
    }
}

/// A scene being played.
struct Run<'a> {
    scene: &'a Scene,
    router: Router,
    nodes: Vec<Node>,
    ends: BinaryHeap<Reverse<End>>,
    waits: Vec<f64>,
    turn_of_node: usize,
    scheduler: Scheduler<usize>,
    /// Turns that wait, and how long they should.
    waiting: HashMap<TicketId, (usize, Option<f64>)>,
    /// Turns that have a slot, and what the gateway learns of them in the end.
    bound: HashMap<usize, (Binding, ResponseUsage)>,
    /// How long turns waited that should have waited so long.
    predicted: Vec<(f64, f64)>,
}

impl<'a> Run<'a> {
    fn new(scene: &'a Scene, router: Router) -> Self {
        let policy = match router {
            Router::Flotilla(policy) => policy,
            Router::PlainRoundRobin | Router::PlainLeastConnections => Policy::default(),
        };
        let bounds = QueueBounds::new(usize::MAX, usize::MAX);
        let mut scheduler = Scheduler::new(bounds, policy);
        for (number, node) in scene.nodes.iter().enumerate() {
            scheduler.fleet.add(number, status(number, node), Duration::ZERO);
        }
        Self {
            scene,
            router,
            nodes: scene.nodes.clone(),
            ends: BinaryHeap::new(),
            waits: Vec::new(),
            turn_of_node: 0,
            scheduler,
            waiting: HashMap::new(),
            bound: HashMap::new(),
            predicted: Vec::new(),
        }
    }

    fn arrive(&mut self, number: usize) {
        let turn = &self.scene.turns[number];
        let count = self.nodes.len();
        let node = match self.router {
            Router::Flotilla(_) => {
                self.ask(number, turn);
                return self.bind(turn.at);
            }
            Router::PlainRoundRobin => {
                self.turn_of_node += 1;
                self.turn_of_node % count
            }
            Router::PlainLeastConnections => {
                // Among equals in turns, as nginx does.
                self.turn_of_node += 1;
                let from = self.turn_of_node;
                let all = (0..count).map(|i| (i + from) % count);
                let load =
                    |i: &usize| self.nodes[*i].running as usize + self.nodes[*i].waiting.len();
                all.min_by_key(load).unwrap_or(0)
            }
        };
        match self.nodes[node].running < self.nodes[node].slots {
            true => drop(self.start(number, node, turn.at)),
            false => self.nodes[node].waiting.push_back(number),
        }
    }

    fn start(&mut self, number: usize, node: usize, now: f64) -> ResponseUsage {
        let turn = &self.scene.turns[number];
        let Served { first, last, cached } = self.nodes[node].serve(turn);
        self.waits.push(now - turn.at + first);
        let nanos = |seconds: f64| (seconds * 1e9) as u64;
        let nanos = nanos(now + last);
        self.ends.push(Reverse(End { nanos, turn: number, node }));
        let [prompt, completion, cached] = [turn.prompt, turn.answer, cached].map(u64::from);
        let first = Some(Duration::from_secs_f64(now + first));
        ResponseUsage {
            usage: Usage { prompt, completion, cached },
            choices: 1,
            first_token: first,
        }
    }

    fn end(&mut self, end: &End) {
        self.nodes[end.node].running -= 1;
        if let Router::Flotilla(_) = self.router {
            let (binding, used) = self.bound.remove(&end.turn).unwrap();
            let (size, now) = (self.size(end.turn), Duration::from_secs_f64(end.at()));
            self.scheduler.learn(&binding, &size, &used, now);
            self.scheduler.release(&binding, AttemptOutcome::Answered, now);
            return self.bind(end.at());
        }
        if let Some(next) = self.nodes[end.node].waiting.pop_front() {
            self.start(next, end.node, end.at());
        }
    }

    /// What the gateway sees of a turn before it runs.
    fn size(&self, number: usize) -> Size {
        let Turn { prompt, answer, .. } = self.scene.turns[number];
        let limit = self.scene.limits_are_told.then_some(u64::from(answer));
        Size::new(prompt as usize * TOKEN_BYTES, limit, 1)
    }

    /// Its body is the tenant's system prompt and what was said since.
    fn ask(&mut self, number: usize, turn: &Turn) {
        let tenant = turn.tenant.to_string();
        let mut body = vec![b's'; SYSTEM_TOKENS as usize * TOKEN_BYTES];
        let said = (turn.prompt - SYSTEM_TOKENS) as usize * TOKEN_BYTES;
        body.extend(turn.conversation.to_le_bytes().into_iter().cycle().take(said));
        let want = SlotRequest {
            model: "m",
            tenant: &tenant,
            user: None,
            share: QueueShare::default(),
            class: Class::Standard,
            size: &self.size(number),
            bytes: body.len(),
            prefix: &Prefix::new(&tenant, &body),
            constraints: &RouteConstraints::default(),
        };
        let now = Duration::from_secs_f64(turn.at);
        let wait = self.scheduler.predicted_wait(&want, now).map(|wait| wait.as_secs_f64());
        let id = self
            .scheduler
            .enqueue(&want, Duration::MAX, now)
            .expect("the queue has no bounds here");
        self.waiting.insert(id, (number, wait));
    }

    /// What the gateway's dispatcher does.
    fn bind(&mut self, now: f64) {
        while let Some(binding) = self.scheduler.bind(Duration::from_secs_f64(now)) {
            let (number, wait) = self.waiting.remove(&binding.id).unwrap();
            let waited = now - self.scene.turns[number].at;
            self.predicted.extend(wait.map(|wait| (waited, wait)));
            let node = self.scheduler.fleet.endpoint(binding.endpoint).unwrap().link;
            let used = self.start(number, node, now);
            self.bound.insert(number, (binding, used));
        }
    }

    fn waits(mut self) -> Waits {
        assert_eq!(self.waits.len(), self.scene.turns.len(), "everybody is answered once");
        assert!(self.nodes.iter().all(|node| node.running == 0 && node.waiting.is_empty()));
        assert_eq!((self.scheduler.depth(), self.scheduler.fleet.totals().leases), (0, 0));
        self.waits.sort_by(f64::total_cmp);
        let mean = self.waits.iter().sum::<f64>() / self.waits.len() as f64;
        Waits { mean, p95: self.waits[self.waits.len() * 95 / 100] }
    }
}

fn status(number: usize, node: &Node) -> NodeStatus {
    let model = ModelStatus {
        id: "m".into(),
        digest: "d".into(),
        context_tokens: 8192,
        ..ModelStatus::default()
    };
    NodeStatus {
        version: 2,
        node: format!("node-{number}"),
        epoch: 1,
        state: NodeState::Ready,
        models: vec![model],
        slots: node.slots,
        slots_busy_elsewhere: 0,
        queued: 0,
        engine_restarts: 0,
        prefill_tokens_per_second: Some(node.prefill as f32),
        decode_tokens_per_second: Some((node.decode * f64::from(node.slots)) as f32),
        vitals: None,
        prefixes: None,
    }
}
