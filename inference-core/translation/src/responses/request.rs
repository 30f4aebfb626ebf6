//! Reads a request into a conversation.

use std::sync::Arc;

use inference_protocol::openai::{ParseError, RawObject};
use serde_json::{Map, Value, json};

use super::echo::Echo;
use super::items::History;
use super::tools::{Offered, Toolbox};
use super::{FIELDS, references};
use crate::conversation::{Conversation, Format, Reasoning, Sampling};
use crate::fault::{Fault, Fields, expected, list, text};
use crate::fields::{refuse_rejected, refuse_unsupported};
use crate::json;
use crate::store::{Stored, Turn};
use crate::writer::{Background, Lookup};

/// What the response needs to know of the request.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) model: String,
    pub(crate) service_tier: Option<String>,
    pub(crate) echo: Echo,
    pub(crate) tools: Vec<Offered>,
    pub(crate) has_logprobs: bool,
    pub(crate) has_summary: bool,
    pub(crate) has_sealed_reasoning: bool,
    /// How the response is made, if that is in the background.
    pub(crate) background: Option<Background>,
    /// What to store with the response; `None` if it is not stored.
    pub(crate) turns: Option<Turns>,
}

/// The conversation up to the response.
#[derive(Debug, Clone)]
pub(crate) struct Turns {
    pub(crate) earlier: Vec<Arc<Turn>>,
    /// The input, as JSON.
    pub(crate) input: Box<[u8]>,
}

/// Fields that chat completions have and OpenAI's Responses API has not, in order.
const EXTRA: [&str; 41] = [
    "allowed_token_ids",
    "bad_words",
    "cache_prompt",
    "chat_template_kwargs",
    "documents",
    "dry_allowed_length",
    "dry_base",
    "dry_multiplier",
    "dry_penalty_last_n",
    "dry_sequence_breakers",
    "ebnf",
    "frequency_penalty",
    "grammar",
    "guided_choice",
    "guided_grammar",
    "guided_json",
    "guided_json_object",
    "guided_regex",
    "id_slot",
    "ignore_eos",
    "json_schema",
    "logit_bias",
    "min_p",
    "min_tokens",
    "presence_penalty",
    "reasoning_budget",
    "reasoning_budget_tokens",
    "regex",
    "repeat_last_n",
    "repeat_penalty",
    "repetition_penalty",
    "seed",
    "stop_token_ids",
    "structured_outputs",
    "thinking_budget_tokens",
    "thinking_token_budget",
    "top_n_sigma",
    "typ_p",
    "typical_p",
    "xtc_probability",
    "xtc_threshold",
];

/// Reads the body of a request, whose fields are those of `written`.
pub(crate) fn read(
    mut body: Fields,
    written: &[u8],
    lookup: Lookup<'_>,
) -> Result<(Conversation, Asked), ParseError> {
    refuse_rejected(&body, FIELDS)?;
    refuse_unsupported(&body, &[FIELDS])?;
    let echo = Echo::of(&body.0);
    let mut tools = Toolbox::default();
    body.list("tools", |tool| tools.add(tool))?;
    let (history, turns) = conversation(&mut body, written, &mut tools, lookup)?;
    let tool_choice = body.read("tool_choice", |choice| tools.choose(choice))?.flatten();
    let (tools, offered) = tools.into_parts();
    let include = body.list("include", text)?.unwrap_or_default();
    let includes = |name: &str| include.iter().any(|included| included == name);
    let has_logprobs = includes("message.output_text.logprobs");
    let top_logprobs = body.count("top_logprobs")?.unwrap_or(0);
    let (mut reasoning, has_summary) = body.read("reasoning", reasoning)?.unwrap_or_default();
    let extra = extra(&mut body, &mut reasoning)?;
    let tokens_max = body.count("max_output_tokens")?;
    if tokens_max == Some(0) {
        return Err(Fault::of("max_output_tokens", "it must be at least 1").into());
    }
    let has_tools = !tools.is_empty();
    let is_streamed = body.flag("stream")?.unwrap_or(false);
    let background =
        background(&mut body, turns.is_some())?.then_some(Background { is_streamed, has_logprobs });
    let conversation = Conversation {
        model: body.text("model")?,
        messages: history.into_messages(),
        tools,
        tool_choice,
        parallel_tool_calls: body.flag("parallel_tool_calls")?.filter(|_| has_tools),
        format: body.read("text", text_format)?.flatten(),
        reasoning,
        sampling: sampling(&mut body)?,
        tokens_max,
        top_logprobs: has_logprobs.then_some(top_logprobs),
        // In the background, events tell how far it is.
        is_streamed: is_streamed || background.is_some(),
        service_tier: body.text("service_tier")?,
        user: user(&mut body)?,
        extra,
    };
    if conversation.messages.is_empty() {
        return Err(Fault::of("input", "there must be at least one message").into());
    }
    let asked = Asked {
        model: conversation.model.clone().unwrap_or_default(),
        service_tier: conversation.service_tier.clone(),
        echo,
        tools: offered,
        has_logprobs,
        has_summary,
        has_sealed_reasoning: includes("reasoning.encrypted_content"),
        background,
        turns,
    };
    Ok((conversation, asked))
}

/// True if the response is to be made in the background.
fn background(body: &mut Fields, is_stored: bool) -> Result<bool, Fault> {
    match body.flag("background")?.unwrap_or(false) {
        true if !is_stored => {
            Err(Fault::of("store", "it cannot be false for a response in the background"))
        }
        background => Ok(background),
    }
}

/// The messages of this turn and those before it, and what to store.
fn conversation(
    body: &mut Fields,
    written: &[u8],
    tools: &mut Toolbox,
    lookup: Lookup<'_>,
) -> Result<(History, Option<Turns>), ParseError> {
    let mut history = History::default();
    history.instruct(body.text("instructions")?.unwrap_or_default());
    let previous = previous(body, lookup)?;
    let earlier = previous.map(|previous| previous.turns().cloned().collect());
    let earlier: Vec<Arc<Turn>> = earlier.unwrap_or_default();
    for item in earlier.iter().flat_map(|turn| turn.items()) {
        history.add(item, tools).map_err(|fault| fault.within("previous_response_id"))?;
    }
    let mut items = match body.take("input") {
        None => return Err(Fault::missing("input").into()),
        Some(Value::Array(items)) => items,
        Some(Value::String(text)) => vec![json!({"role": "user", "content": text})],
        Some(other) => return Err(expected("a string or a list", &other).within("input").into()),
    };
    let has_references = references::resolve(&mut items, lookup)?;
    let is_stored = body.flag("store")?.unwrap_or(true);
    let input = is_stored.then(|| match has_references {
        true => json::bytes(&items).into(),
        false => input_of(written),
    });
    for (index, item) in items.into_iter().enumerate() {
        let added = history.add(item, tools);
        added.map_err(|fault| fault.at(index).within("input"))?;
    }
    Ok((history, input.map(|input| Turns { earlier, input })))
}

/// The `input` as the client wrote it.
fn input_of(written: &[u8]) -> Box<[u8]> {
    let object = RawObject::parse(written).ok();
    let input = object.and_then(|object| {
        let last = object.fields().rfind(|field| field.name == "input")?;
        Some(last.value.as_bytes())
    });
    input.unwrap_or_default().into()
}

fn previous(body: &mut Fields, lookup: Lookup<'_>) -> Result<Option<Arc<Stored>>, ParseError> {
    let Some(id) = body.text("previous_response_id")? else { return Ok(None) };
    match lookup(&id) {
        Some(stored) => Ok(Some(stored)),
        None => Err(ParseError {
            message: format!("Previous response with id '{id}' not found."),
            param: Some("previous_response_id".into()),
        }),
    }
}

/// How much to reason, and whether to return a summary.
fn reasoning(value: Value) -> Result<(Reasoning, bool), Fault> {
    let mut value = Fields::of(value)?;
    let effort = value.text("effort")?;
    let is_enabled = effort.as_ref().map(|effort| effort != "none");
    let effort = effort.filter(|effort| effort != "none");
    let summaries = [value.text("summary")?, value.text("generate_summary")?];
    let has_summary = summaries.into_iter().flatten().any(|summary| summary != "none");
    Ok((Reasoning { effort, is_enabled }, has_summary))
}

fn text_format(value: Value) -> Result<Option<Format>, Fault> {
    let mut value = Fields::of(value)?;
    let format = value.read("format", |format| {
        let mut format = Fields::of(format)?;
        match format.required_text("type")?.as_str() {
            "text" => Ok(None),
            "json_object" => Ok(Some(Format::JsonObject)),
            "json_schema" => {
                let name = format.text("name")?.unwrap_or_else(|| "response".into());
                let schema = format.require("schema", Ok)?;
                Ok(Some(Format::Schema { name, schema, strict: format.flag("strict")? }))
            }
            _ => Err(Fault::of("type", "expected text, json_object or json_schema")),
        }
    })?;
    Ok(format.flatten())
}

fn sampling(body: &mut Fields) -> Result<Sampling, Fault> {
    let stop = body.read("stop", |stop| match stop {
        Value::String(stop) => Ok(vec![stop]),
        stops => list(stops, text),
    })?;
    let top_k = |k: Value| k.as_i64().ok_or_else(|| expected("a whole number", &k));
    Ok(Sampling {
        temperature: body.number("temperature")?,
        top_p: body.number("top_p")?,
        top_k: body.read("top_k", top_k)?,
        stop: stop.unwrap_or_default(),
    })
}

/// True for a name in [`EXTRA`].
fn is_extra(name: &str) -> bool {
    EXTRA.binary_search(&name).is_ok()
}

/// Fields for the chat completion. Variables of the template and the effort's go together.
fn extra(body: &mut Fields, reasoning: &mut Reasoning) -> Result<Map<String, Value>, Fault> {
    let given = body.0.iter_mut().filter(|(name, value)| !value.is_null() && is_extra(name));
    let mut extra: Map<_, _> = given.map(|(name, value)| (name.clone(), value.take())).collect();
    if let Some(variables) = extra.get_mut("chat_template_kwargs") {
        let Value::Object(variables) = variables else {
            return Err(expected("an object", variables).within("chat_template_kwargs"));
        };
        if let Some(is_enabled) = reasoning.is_enabled.take() {
            for name in ["enable_thinking", "thinking"] {
                variables.entry(name).or_insert(is_enabled.into());
            }
        }
    }
    Ok(extra)
}

/// Most pairs of `metadata`, as at OpenAI.
const METADATA_PAIRS_MAX: usize = 16;

/// The end user, by the fields of chat completions in their order.
fn user(body: &mut Fields) -> Result<Option<String>, Fault> {
    let in_metadata = body.read("metadata", |metadata| {
        let mut metadata = Fields::of(metadata)?;
        if metadata.0.len() > METADATA_PAIRS_MAX {
            return Err(Fault::new(format!("it has more than {METADATA_PAIRS_MAX} pairs")));
        }
        let user = metadata.text("user_id")?;
        let names: Vec<_> = metadata.0.keys().cloned().collect();
        names.iter().try_for_each(|name| metadata.text(name).map(|_| ()))?;
        Ok(user)
    })?;
    let (user, safety) = (body.text("user")?, body.text("safety_identifier")?);
    body.text("prompt_cache_key")?;
    let mut named = [safety, user, in_metadata.flatten()].into_iter().flatten();
    Ok(named.find(|id| !id.is_empty()))
}

#[cfg(test)]
mod tests;
