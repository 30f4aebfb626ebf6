//! Requests of a storm, and what a client sees of them.

use std::sync::Arc;
use std::time::Duration;

use flotilla_gateway::scheduler::Binding;
use flotilla_gateway::scheduler::attempts::{
    AttemptId, AttemptSettings, Attempts, Purpose, RequestProperties,
};
use flotilla_gateway::scheduler::charge::Charge;
use flotilla_gateway::scheduler::cost::Size;
use flotilla_gateway::scheduler::fleet::{EngineId, RouteConstraints};
use flotilla_gateway::scheduler::queue::TicketId;
use flotilla_gateway::scheduler::usage::{Task, UsageLimits};
use flotilla_gateway::types::class::Class;
use flotilla_gateway::types::error::Error;
use flotilla_gateway::types::external::ExternalPolicy;
use inference_protocol::fleet::ModelStatus;
use inference_protocol::resume::Resume;

/// A prompt with this in it kills every engine that works on it.
pub const POISON: char = '!';

/// An attempt that has a slot.
#[derive(Debug)]
pub struct Leg {
    pub attempt: AttemptId,
    pub binding: Binding,
    pub engine: EngineId,
    /// The node, or the external endpoint behind all nodes.
    pub link: usize,
    pub is_external: bool,
    /// Its number at the endpoint, once it is sent.
    pub job: Option<u64>,
    /// Whether an external endpoint took it and did not refuse it.
    pub is_taken: bool,
    /// When it first sent something.
    pub first: Option<f64>,
    /// When it last sent something, or was sent.
    pub heard: f64,
    /// Tokens that came over it.
    pub tokens: u64,
    /// Whether its slot was given back although it goes on: a bug.
    pub is_released: bool,
}

/// A request that waits for a slot.
#[derive(Debug)]
pub struct Waiting {
    pub purpose: Purpose,
    pub ticket: TicketId,
    pub constraints: RouteConstraints,
    pub deadline: f64,
    pub check_at: f64,
}

/// How a request ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    Complete,
    Refused,
    Failed(Error),
    ClientLeft,
}

/// A request. See the module.
#[derive(Debug)]
pub struct Request {
    pub prompt: String,
    pub size: Size,
    pub tenant: String,
    pub class: Class,
    pub external: ExternalPolicy,
    pub patience: f64,
    /// Once it has arrived.
    pub attempts: Option<Attempts>,
    pub legs: Vec<Leg>,
    pub waiting: Option<Waiting>,
    pub ended: Option<Ended>,
    /// What the client has.
    pub text: String,
    /// Engines that failed it.
    pub failed: Vec<EngineId>,
    /// Engines that died while they worked on it.
    pub killed: usize,
    /// What it was charged for its turn, and where.
    pub charge: Option<(Charge, Arc<ModelStatus>)>,
    /// Whether its next attempt costs a retry of the budget.
    pub owes_retry: bool,
    /// The seed of its response.
    pub number: usize,
}

impl Request {
    pub fn new(number: usize, prompt: String, tenant: u32, class: Class, patience: f64) -> Self {
        Self {
            size: Size::new(prompt.len(), None, 1),
            prompt,
            tenant: format!("t{tenant}"),
            class,
            external: ExternalPolicy::Never,
            patience,
            attempts: None,
            legs: Vec::new(),
            waiting: None,
            ended: None,
            text: String::new(),
            failed: Vec::new(),
            killed: 0,
            charge: None,
            owes_retry: false,
            number,
        }
    }

    /// The same request, sent again by its client.
    pub fn again(&self, number: usize) -> Self {
        let again = Self::new(number, self.prompt.clone(), 0, self.class, self.patience);
        Self { tenant: self.tenant.clone(), ..again }
    }

    /// It arrives.
    pub fn start(&mut self, settings: AttemptSettings, now: f64) {
        let facts = RequestProperties {
            usage: self.limits(),
            external: self.external,
            is_streamed: true,
            deadline: Duration::from_secs_f64(now + self.patience),
        };
        let resume = Resume::new(self.number as u128, 0);
        self.attempts.insert(Attempts::new(settings, facts, resume)).start();
    }

    pub fn limits(&self) -> UsageLimits {
        let (tokens_max, choices, has_logprobs, echoes) = (None, 1, false, false);
        let task = Task::Generate { tokens_max, choices, has_logprobs, echoes };
        UsageLimits::new(self.prompt.len(), task)
    }

    pub fn is_done(&self) -> bool {
        self.ended.is_some()
    }

    pub fn is_poison(&self) -> bool {
        self.prompt.contains(POISON)
    }

    /// Tokens of its response so far.
    pub fn tokens(&self) -> u64 {
        self.attempts.as_ref().map_or(0, Attempts::tokens)
    }

    pub fn leg(&mut self, attempt: AttemptId) -> Option<&mut Leg> {
        self.legs.iter_mut().find(|leg| leg.attempt == attempt)
    }

    pub fn leg_of(&self, job: u64) -> Option<AttemptId> {
        self.legs.iter().find(|leg| leg.job == Some(job)).map(|leg| leg.attempt)
    }

    /// The whole response.
    pub fn expected(&self) -> &str {
        self.prompt.trim_end_matches('\0')
    }

    /// What is wrong with what the client has.
    pub fn complaint(&self) -> Option<String> {
        let (text, expected) = (&self.text, self.expected());
        let is_right = match self.ended {
            Some(Ended::Complete) => text == expected,
            _ => expected.starts_with(text.as_str()),
        };
        (!is_right).then(|| format!("{text:?} for {expected:?}, {:?}", self.ended))
    }
}
