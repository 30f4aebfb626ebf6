//! The common end of both generation endpoints: submits the choices and builds the response.

use std::sync::Arc;
use std::time::SystemTime;

use hyper::Response;
use inference_core::types::constraint::Constraint;
use inference_core::types::request::{GenerateRequest, Prompt, Sibling};
use inference_protocol::ids;
use inference_protocol::resume::{RESUME_HEADER, Resume};
use inference_protocol::time::unix_seconds;

use super::Caller;
use super::sampling::{Checked, invalid};
use super::tools::Offer;
use crate::engine::client::EngineState;
use crate::serve::node::Node;
use crate::serve::stream::{self, Choice, Envelope, Reading, Shape};
use crate::types::error::Error;
use crate::types::response::Body;

/// A parsed and checked request body.
pub(crate) struct Wanted {
    /// Chat or text completion.
    pub shape: Shape,
    /// Prompts; each gets `n` choices.
    pub asks: Vec<Ask>,
    /// Checked parameters.
    pub checked: Checked,
    /// Constraint on the response.
    pub constraint: Option<Constraint>,
    /// For a chat, the tools that may be called.
    pub offer: Offer,
    /// True if reasoning and calls are separated from the text.
    pub parts: bool,
    /// True if the response is streamed.
    pub stream: bool,
    /// True if the stream ends with the usage.
    pub include_usage: bool,
}

/// One prompt.
pub(crate) struct Ask {
    /// Prompt for the engine.
    pub prompt: Prompt,
    /// Text that its choices start with.
    pub echo: Option<String>,
}

/// Where a response starts: here, or at a gateway that can resume it on another node.
pub(crate) struct Origin {
    /// The gateway's resume state; for a response that starts here, only the fields it needs.
    resume: Resume,
    /// True if a gateway sent it.
    is_resumable: bool,
}

impl Origin {
    /// Uses the gateway's resume state, if there is one.
    pub(crate) fn new(told: Option<Resume>) -> Self {
        let is_resumable = told.is_some();
        let resume = told.unwrap_or_else(|| {
            Resume::new(crate::types::random::random(), unix_seconds(SystemTime::now()))
        });
        Self { resume, is_resumable }
    }

    /// Seed for a request without one.
    pub(crate) fn seed(&self) -> u64 {
        self.resume.seed
    }

    /// Checks that the resume state has no more choices than the request.
    fn check(&self, choices: usize) -> Result<(), Error> {
        if !ids::is_plain_id(&self.resume.id) {
            return Err(invalid(RESUME_HEADER, "the id of the answer is not a plain one"));
        }
        match self.resume.choices.len() <= choices {
            true => Ok(()),
            false => Err(invalid(RESUME_HEADER, "the answer that is to go on has more choices")),
        }
    }
}

/// A constrained response must be able to end.
pub(crate) fn check_end(has_form: bool, ignore_eos: bool) -> Result<(), Error> {
    match has_form && ignore_eos {
        true => Err(invalid("ignore_eos", "ignore_eos cannot be used together with a grammar")),
        false => Ok(()),
    }
}

/// Handles a request.
pub(crate) async fn answer(
    node: &Arc<Node>,
    caller: Caller,
    mut wanted: Wanted,
    origin: Origin,
) -> Result<Response<Body>, Error> {
    let asked = &mut wanted.checked.options.max_tokens;
    *asked = origin.resume.tokens_max.into_iter().chain(*asked).min();
    origin.check(wanted.asks.len() * wanted.checked.n as usize)?;
    let resume = &origin.resume;
    let (api, id) = match wanted.shape {
        Shape::Chat => ("chat_completions", ids::chat_completion_id(&resume.id)),
        Shape::Text => ("completions", ids::completion_id(&resume.id)),
    };
    let envelope = Envelope {
        shape: wanted.shape,
        id,
        created: resume.created,
        model: node.model.clone(),
        service_tier: resume.service_tier.clone(),
        include_usage: wanted.include_usage,
    };
    let mut record = node.metrics.record(api);
    let choices = record.check(submit(node, caller, &wanted, resume))?;
    match (origin.is_resumable, wanted.stream) {
        (true, streamed) => stream::resumable(envelope, choices, record, resume, streamed).await,
        (false, true) => stream::stream(envelope, choices, record).await,
        (false, false) => stream::whole(&envelope, choices, record).await,
    }
}

fn submit(
    node: &Node,
    caller: Caller,
    wanted: &Wanted,
    resume: &Resume,
) -> Result<Vec<Choice>, Error> {
    let reading = reading(node, wanted);
    let mut choices: Vec<Choice> = Vec::new();
    for ask in &wanted.asks {
        let request = request(caller, wanted, resume, ask, choices.len());
        let generations = node.engine.submit(request, caller.via)?;
        for (number, generation) in generations.into_iter().enumerate() {
            let index = choices.len() as u32;
            let mut choice =
                Choice::new(index, generation, reading.clone()).echoing(ask.echo.clone());
            choice.is_first_of_prompt = number == 0;
            choice.wants_logprobs = wanted.checked.options.logprobs.is_some();
            choices.push(choice);
        }
    }
    Ok(choices)
}

/// All choices for one prompt, which is prepared once; `first` is the index of the first.
fn request(
    caller: Caller,
    wanted: &Wanted,
    resume: &Resume,
    ask: &Ask,
    first: usize,
) -> GenerateRequest {
    let options = wanted.checked.options.clone();
    let said = |number: u32| {
        let told = resume.choices.get(first + number as usize);
        told.map_or(Vec::new(), |choice| choice.tokens.clone())
    };
    // Each choice has its own random numbers; the first has those of a single choice.
    let seed = |number: u32| options.sampling.seed.wrapping_add(u64::from(number));
    let sibling = |number: u32| Sibling { seed: seed(number), resume_tokens: said(number) };
    GenerateRequest {
        tenant: caller.tenant,
        prompt: ask.prompt.clone(),
        constraint: wanted.constraint.clone(),
        calls: wanted.offer.rules.clone(),
        show_delimiters: wanted.parts,
        resume_tokens: said(0),
        now: resume.created as i64,
        siblings: (1..wanted.checked.n).map(sibling).collect(),
        options,
    }
}

/// How to parse the response text.
fn reading(node: &Node, wanted: &Wanted) -> Reading {
    match node.engine.state() {
        EngineState::Ready(facts) if wanted.parts => Reading::Parted {
            format: facts.format,
            tools: wanted.offer.tools.clone(),
            calls_max: wanted.offer.rules.as_ref().map_or(0, |rules| rules.calls_max as usize),
        },
        _ => Reading::Plain,
    }
}
