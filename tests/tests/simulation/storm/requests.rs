//! Requests of a storm, and what a client sees of them.

use std::sync::Arc;

use flotilla_gateway::scheduler::Binding;
use flotilla_gateway::scheduler::attempt::{At, Pursuit};
use flotilla_gateway::scheduler::charge::{ActualWork, Charge};
use flotilla_gateway::scheduler::cost::Size;
use flotilla_gateway::scheduler::fleet::EngineId;
use flotilla_gateway::scheduler::progress::Progress;
use flotilla_gateway::scheduler::queue::TicketId;
use flotilla_gateway::scheduler::usage::{Task, UsageLimits};
use flotilla_gateway::types::class::Class;
use flotilla_gateway::types::error::Error;
use flotilla_gateway::types::external::External;
use inference_protocol::fleet::ModelStatus;
use inference_protocol::resume::Resume;

/// A prompt with this in it kills every engine that works on it.
pub const POISON: char = '!';

/// Where a request is.
#[derive(Debug)]
pub enum State {
    /// Not here yet.
    New,
    /// In the queue.
    Waiting(TicketId),
    /// It has a slot.
    Running(Running),
    /// Over.
    Done(Ended),
}

/// A request that has a slot.
#[derive(Debug)]
pub struct Running {
    pub binding: Binding,
    pub node: usize,
    /// Its number at the node.
    pub job: u64,
    pub at: At,
    /// When it first said something, if it gives the answer from its beginning.
    pub first: Option<f64>,
    pub is_first: bool,
    /// When it last said something.
    pub heard: f64,
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
    pub patience: f64,
    /// When it must have a slot.
    pub deadline: f64,
    pub state: State,
    pub progress: Progress,
    pub pursuit: Pursuit,
    /// What the client has.
    pub text: String,
    /// Its place in the line for another node, while its own is about to leave, and until when.
    pub moving: Option<(TicketId, f64)>,
    /// Attempts that failed.
    pub failed: Vec<EngineId>,
    /// Engines that died while they worked on it.
    pub killed: usize,
    /// What it was charged for its turn, and where.
    pub charge: Option<(Charge, Arc<ModelStatus>)>,
}

impl Request {
    pub fn new(number: usize, prompt: String, tenant: u32, class: Class, patience: f64) -> Self {
        Self {
            size: Size::new(prompt.len(), None, 1),
            prompt,
            tenant: format!("t{tenant}"),
            class,
            patience,
            deadline: f64::INFINITY,
            state: State::New,
            progress: Progress::new(Resume::new(number as u128, 0)),
            pursuit: Pursuit::new(3, External::Never),
            text: String::new(),
            moving: None,
            failed: Vec::new(),
            killed: 0,
            charge: None,
        }
    }

    pub fn is_done(&self) -> bool {
        matches!(self.state, State::Done(_))
    }

    pub fn is_poison(&self) -> bool {
        self.prompt.contains(POISON)
    }

    /// What was done for it, about; nothing where that is not known.
    pub fn done(&self) -> Option<ActualWork> {
        let completion = self.progress.tokens();
        let task = Task::Generate { tokens_max: None, choices: 1, has_logprobs: false };
        let limits = UsageLimits::new(self.prompt.len(), task);
        let about = (completion > 0).then(|| limits.estimate(completion));
        self.progress.used().or(about).map(ActualWork::Tokens)
    }

    pub fn running(&mut self) -> Option<&mut Running> {
        match &mut self.state {
            State::Running(running) => Some(running),
            _ => None,
        }
    }

    /// The answer of a node that lives.
    fn expected(&self) -> &str {
        self.prompt.trim_end_matches('\0')
    }

    /// What is wrong with what the client has.
    pub fn complaint(&self) -> Option<String> {
        let (text, expected) = (&self.text, self.expected());
        let is_right = match self.state {
            State::Done(Ended::Complete) => text == expected,
            _ => expected.starts_with(text.as_str()),
        };
        (!is_right).then(|| format!("{text:?} for {expected:?}, {:?}", self.state))
    }
}
