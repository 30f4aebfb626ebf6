//! The common end of both generation endpoints: submits the choices and builds the response.

use std::sync::Arc;
use std::time::SystemTime;

use hyper::Response;
use inference_core::text::output::CallIds;
use inference_core::types::request::{Failure, GenerateRequest, Prompt, Sibling, SlotName};
use inference_protocol::ids;
use inference_protocol::resume::{RESUME_HEADER, Resume};
use inference_protocol::time::unix_seconds;

use super::Caller;
use super::constraint::FieldConstraint;
use super::sampling::{Parameters, invalid};
use super::slots;
use super::tools::OfferedTools;
use crate::engine::client::EngineState;
use crate::serve::node::Node;
use crate::serve::stream::{
    self, Batch, Choice, Envelope, PROMPT_LOGPROBS_MAX, Reading, Shape, TimingsMode,
};
use crate::types::error::Error;
use crate::types::response::Body;

/// A parsed and checked request body.
pub(super) struct CheckedRequest {
    /// Chat or text completion.
    pub(super) shape: Shape,
    /// Each gets `n` choices.
    pub(super) prompts: Vec<InputPrompt>,
    pub(super) parameters: Parameters,
    pub(super) constraint: Option<FieldConstraint>,
    /// For a chat, the tools that may be called.
    pub(super) tools: OfferedTools,
    /// True if reasoning and calls are separated from the text.
    pub(super) is_output_split: bool,
    pub(super) is_streamed: bool,
    /// True if the stream ends with the usage.
    pub(super) include_usage: bool,
}

/// One prompt.
pub(super) struct InputPrompt {
    pub(super) prompt: Prompt,
    /// Text that its choices start with.
    pub(super) echo: Option<String>,
}

/// Where a response starts: here, or at a gateway that can resume it on another node.
pub(super) struct Origin {
    /// The gateway's resume state; for a response that starts here, only the fields it needs.
    resume: Resume,
    /// True if a gateway sent it.
    is_resumable: bool,
}

impl Origin {
    /// Uses the gateway's resume state, if there is one.
    pub(super) fn new(resume: Option<Resume>) -> Self {
        let is_resumable = resume.is_some();
        let resume = resume.unwrap_or_else(|| {
            Resume::new(crate::types::random::random(), unix_seconds(SystemTime::now()))
        });
        Self { resume, is_resumable }
    }

    /// Seed for a request without one.
    pub(super) fn seed(&self) -> u64 {
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
pub(super) fn check_can_end(is_constrained: bool, ignore_eos: bool) -> Result<(), Error> {
    match is_constrained && ignore_eos {
        true => Err(invalid("ignore_eos", "ignore_eos cannot be used together with a grammar")),
        false => Ok(()),
    }
}

/// Generates the response of a request.
pub(super) async fn generate(
    node: &Arc<Node>,
    caller: Caller,
    mut checked: CheckedRequest,
    origin: Origin,
) -> Result<Response<Body>, Error> {
    let max_tokens = &mut checked.parameters.options.max_tokens;
    *max_tokens = origin.resume.tokens_max.into_iter().chain(*max_tokens).min();
    let prompts = checked.prompts.len().max(1) as u64;
    checked.parameters.options.usage_max = origin.resume.usage_max.map(|max| max / prompts);
    origin.check(checked.prompts.len() * checked.parameters.n as usize)?;
    checked.parameters.shows_prefill &= checked.is_streamed;
    checked.parameters.options.reports_prefill =
        checked.parameters.shows_prefill || checked.parameters.timings == TimingsMode::EveryChunk;
    checked.parameters.options.slot =
        slot_name(node, checked.parameters.options.slot.filter(|_| !origin.is_resumable))?;
    let resume = &origin.resume;
    let (api, id) = match checked.shape {
        Shape::Chat => ("chat_completions", ids::chat_completion_id(&resume.id)),
        Shape::Text => ("completions", ids::completion_id(&resume.id)),
    };
    let envelope = Envelope {
        shape: checked.shape,
        id,
        created: resume.created,
        model: node.model.clone(),
        service_tier: resume.service_tier.clone(),
        fingerprint: node.fingerprint(),
        timings: checked.parameters.timings,
        include_usage: checked.include_usage,
        call_ids: call_ids(node),
    };
    let mut record = node.metrics.record(api);
    let batch = record.check(submit(node, caller, &checked, resume))?;
    let response = match (origin.is_resumable, checked.is_streamed) {
        (true, is_streamed) => {
            stream::resumable(envelope, batch, record, resume, is_streamed).await
        }
        (false, true) => stream::stream(envelope, batch, record).await,
        (false, false) => stream::whole(&envelope, batch, record).await,
    };
    response.map_err(|error| of_field(error, checked.constraint.as_ref()))
}

/// The slot that a response is remembered for, if slots are saved: no client of a gateway can save
/// one.
fn slot_name(node: &Node, wanted: Option<SlotName>) -> Result<Option<SlotName>, Error> {
    let wanted = wanted.filter(|_| node.saves_slots);
    if let (Some(SlotName::Number(number)), EngineState::Ready(facts)) =
        (wanted, node.engine.state())
    {
        slots::check(Some(number), facts.slots)?;
    }
    Ok(wanted)
}

/// An error about the constraint, with the field that has it.
fn of_field(error: Error, constraint: Option<&FieldConstraint>) -> Error {
    match (error, constraint) {
        (Error::Engine(failure @ (Failure::Schema(_) | Failure::Grammar(_))), Some((param, _))) => {
            Error::Constraint { param, failure }
        }
        (error, _) => error,
    }
}

fn submit(
    node: &Node,
    caller: Caller,
    checked: &CheckedRequest,
    resume: &Resume,
) -> Result<Batch, Error> {
    let (reading, parameters) = (reading(node, checked), &checked.parameters);
    let mut batch = Batch::new(node.engine.clone(), caller.via);
    let all = checked.prompts.len() * parameters.n as usize;
    for input in &checked.prompts {
        let first = batch.choices.len();
        let choice = |number: usize| {
            let index = first + number;
            let mut choice = Choice::new(index as u32, reading.clone()).echoing(input.echo.clone());
            choice.is_first_of_prompt = number == 0;
            // A client that has events of the response knows that its prompt is computed.
            let is_begun = resume.choices.get(index).is_some_and(|known| known.events > 0);
            choice.shows_prefill = parameters.shows_prefill && number == 0 && !is_begun;
            choice.wants_logprobs = parameters.options.logprobs.is_some();
            choice.prompt_logprobs_max = PROMPT_LOGPROBS_MAX / all;
            choice.stops = parameters.options.stop.clone();
            choice
        };
        let request = request(caller, checked, resume, &input.prompt, first);
        batch.push(request, (0..parameters.n as usize).map(choice));
    }
    batch.start()?;
    Ok(batch)
}

/// All choices for one prompt, which is prepared once; `first` is the index of the first.
fn request(
    caller: Caller,
    checked: &CheckedRequest,
    resume: &Resume,
    prompt: &Prompt,
    first: usize,
) -> GenerateRequest {
    let mut options = checked.parameters.options.clone();
    options.prefix_group = caller.prefix_group;
    let tokens = |number: u32| {
        let choice = resume.choices.get(first + number as usize);
        choice.map_or(Vec::new(), |choice| choice.tokens.clone())
    };
    // Each choice has its own random numbers; the first has those of a single choice.
    let seed = |number: u32| options.sampling.seed.wrapping_add(u64::from(number));
    let sibling = |number: u32| Sibling { seed: seed(number), resume_tokens: tokens(number) };
    GenerateRequest {
        tenant: caller.tenant,
        prompt: prompt.clone(),
        constraint: checked.constraint.as_ref().map(|(_, constraint)| constraint.clone()),
        calls: checked.tools.rules.clone(),
        show_delimiters: checked.is_output_split,
        resume_tokens: tokens(0),
        now: resume.created as i64,
        siblings: (1..checked.parameters.n).map(sibling).collect(),
        options,
    }
}

/// The format of call IDs that the model's chat template requires.
fn call_ids(node: &Node) -> CallIds {
    match node.engine.state() {
        EngineState::Ready(facts) => facts.format.ids,
        _ => CallIds::default(),
    }
}

/// How to parse the response text.
fn reading(node: &Node, checked: &CheckedRequest) -> Reading {
    match node.engine.state() {
        EngineState::Ready(facts) if checked.is_output_split => Reading::Parted {
            format: facts.format,
            tools: checked.tools.tools.clone(),
            calls_max: checked.tools.rules.as_ref().map_or(0, |rules| rules.calls_max as usize),
        },
        _ => Reading::Plain,
    }
}
