//! Who gets how much compute, by what requests turn out to use: tenants with long answers beside
//! tenants with short ones, and no request says how long. The gateway's own queue and fleet, and
//! nodes that are formulas.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::time::Duration;

use fleet_tests::mock_node::healthy;
use flotilla_gateway::scheduler::charge::{ActualWork, Charge};
use flotilla_gateway::scheduler::cost::Size;
use flotilla_gateway::scheduler::fleet::{AttemptOutcome, EngineId, RouteConstraints};
use flotilla_gateway::scheduler::prefix_index::Prefix;
use flotilla_gateway::scheduler::queue::TicketId;
use flotilla_gateway::scheduler::routing::Policy;
use flotilla_gateway::scheduler::{Binding, ResponseUsage, Scheduler, SlotRequest};
use flotilla_gateway::types::class::Class;
use flotilla_gateway::types::limits::{QueueBounds, QueueShare};
use inference_protocol::fleet::{ModelStatus, NodeStatus};
use inference_protocol::resume::Usage;

const NODES: usize = 4;
const SLOTS: u32 = 4;
/// Tokens of every prompt, and seconds for one of them and for one of an answer.
const PROMPT: u64 = 100;
const PREFILL: f64 = 0.002;
const DECODE: f64 = 0.02;
/// Requests of each tenant that wait at any time.
const BACKLOG: usize = 40;

/// How requests of a tenant end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ends {
    /// They are answered.
    Answered,
    /// Every other client leaves in the middle of its answer.
    HalfLeave,
    /// Every other one loses its node in the middle, and another node begins anew.
    HalfRetried,
}

/// A tenant and the length of its answers.
#[derive(Debug, Clone, Copy)]
pub struct Tenant {
    pub name: &'static str,
    pub answer: u64,
    pub ends: Ends,
}

/// A request that waits or runs.
#[derive(Debug, Clone)]
struct Request {
    tenant: usize,
    number: usize,
    constraints: RouteConstraints,
    charge: Option<Charge>,
}

/// One that runs, until this moment.
struct Running {
    request: Request,
    binding: Binding,
    since: f64,
    /// Whether it is broken off then.
    is_half: bool,
}

struct Run<'a> {
    tenants: &'a [Tenant],
    corrects: bool,
    scheduler: Scheduler<usize>,
    waiting: HashMap<TicketId, Request>,
    running: HashMap<u64, Running>,
    ends: BinaryHeap<Reverse<(u64, u64)>>,
    made: usize,
    jobs: u64,
    /// Seconds of slots, by tenant.
    seconds: Vec<f64>,
}

/// Seconds of slots that each tenant gets, with or without corrections of the estimates.
pub fn play(tenants: &[Tenant], corrects: bool, until: f64) -> Vec<f64> {
    let bounds = QueueBounds::new(usize::MAX, usize::MAX);
    let mut scheduler = Scheduler::new(bounds, Policy::default());
    for node in 0..NODES {
        scheduler.fleet.add(node, status(node), Duration::ZERO);
    }
    let (waiting, running, ends) = (HashMap::new(), HashMap::new(), BinaryHeap::new());
    let seconds = vec![0.0; tenants.len()];
    let mut run =
        Run { tenants, corrects, scheduler, waiting, running, ends, made: 0, jobs: 0, seconds };
    for tenant in (0..tenants.len()).flat_map(|tenant| [tenant; BACKLOG]) {
        run.ask(tenant, 0.0);
    }
    run.bind(0.0);
    while let Some(Reverse((nanos, job))) = run.ends.pop() {
        let now = nanos as f64 / 1e9;
        if now > until {
            break;
        }
        run.end(job, now);
        run.bind(now);
    }
    run.seconds
}

impl Run<'_> {
    fn ask(&mut self, tenant: usize, now: f64) {
        self.made += 1;
        let request = Request {
            tenant,
            number: self.made,
            constraints: RouteConstraints::default(),
            charge: None,
        };
        self.line_up(request, now);
    }

    fn line_up(&mut self, request: Request, now: f64) {
        let want = SlotRequest {
            model: "m",
            tenant: self.tenants[request.tenant].name,
            user: None,
            share: QueueShare::default(),
            class: Class::Standard,
            size: &Size::new(500, None, 1),
            bytes: 500,
            prefix: &Prefix::default(),
            constraints: &request.constraints,
        };
        let id = self.scheduler.enqueue(&want, Duration::MAX, Duration::from_secs_f64(now));
        self.waiting.insert(id.expect("the queue has no bounds here"), request);
    }

    fn bind(&mut self, now: f64) {
        while let Some(mut binding) = self.scheduler.bind(Duration::from_secs_f64(now)) {
            let mut request = self.waiting.remove(&binding.id).unwrap();
            let is_first = request.constraints.tried.is_empty();
            assert_eq!(binding.charge.is_some(), is_first, "a request is charged once");
            request.charge = request.charge.or(binding.charge.take());
            let Tenant { answer, ends, .. } = self.tenants[request.tenant];
            let is_half = is_first && ends != Ends::Answered && request.number % 2 == 1;
            let answer = if is_half { answer / 2 } else { answer };
            let took = PROMPT as f64 * PREFILL + answer as f64 * DECODE;
            self.jobs += 1;
            self.ends.push(Reverse((((now + took) * 1e9) as u64, self.jobs)));
            if is_first {
                self.ask(request.tenant, now);
            }
            self.running.insert(self.jobs, Running { request, binding, since: now, is_half });
        }
    }

    fn end(&mut self, job: u64, ended: f64) {
        let Running { mut request, binding, since, is_half } = self.running.remove(&job).unwrap();
        let Tenant { answer, ends, .. } = self.tenants[request.tenant];
        let now = Duration::from_secs_f64(ended);
        let completion = if is_half { answer / 2 } else { answer };
        let usage = Usage { prompt: PROMPT, completion, cached: 0 };
        if is_half && ends == Ends::HalfRetried {
            self.scheduler.release(&binding, AttemptOutcome::Unknown, now);
            request
                .constraints
                .tried
                .push(EngineId { endpoint: binding.endpoint, engine_restarts: 0 });
            return self.line_up(request, ended);
        }
        // What nodes lose is nobody's.
        self.seconds[request.tenant] += ended - since;
        if !is_half {
            let first = Duration::from_secs_f64(since + PROMPT as f64 * PREFILL);
            let used = ResponseUsage { usage, choices: 1, first_token: Some(first) };
            self.scheduler.learn(&binding, &Size::new(500, None, 1), &used, now);
        }
        let outcome = if is_half { AttemptOutcome::Unknown } else { AttemptOutcome::Answered };
        self.scheduler.release(&binding, outcome, now);
        if let Some(charge) = request.charge.filter(|_| self.corrects) {
            self.scheduler.correct_charge(&charge, &binding.model, ActualWork::Tokens(usage));
        }
    }
}

fn status(number: usize) -> NodeStatus {
    let model = ModelStatus {
        id: "m".into(),
        digest: "d".into(),
        context_tokens: 8192,
        ..ModelStatus::default()
    };
    NodeStatus { models: vec![model], ..healthy(&format!("node-{number}"), SLOTS) }
}
