//! Reads a request into a conversation.

use std::sync::Arc;

use inference_protocol::openai::ParseError;
use serde_json::value::to_raw_value;
use serde_json::{Map, Value, json};

use super::echo::Echo;
use super::items::History;
use super::tools::{Offered, Toolbox};
use super::{BACKGROUND, FIELDS, ids, resource};
use crate::conversation::{Conversation, Format, Reasoning, Sampling};
use crate::fault::{Fault, Fields, expected, list, text};
use crate::fields::refuse_rejected;
use crate::store::{Item, Stored, Turn};
use crate::writer::{Lookup, Origin};

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
    /// What to store with the response; `None` if it is not stored.
    pub(crate) turns: Option<Turns>,
}

/// The conversation up to the response.
#[derive(Debug)]
pub(crate) struct Turns {
    pub(crate) earlier: Vec<Arc<Turn>>,
    pub(crate) input: Vec<Item>,
}

/// Fields that chat completions have and OpenAI's Responses API has not.
const EXTRA: [&str; 36] = [
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
    "guided_regex",
    "ignore_eos",
    "json_schema",
    "logit_bias",
    "min_p",
    "min_tokens",
    "presence_penalty",
    "reasoning_budget",
    "regex",
    "repeat_last_n",
    "repeat_penalty",
    "repetition_penalty",
    "seed",
    "stop_token_ids",
    "structured_outputs",
    "top_n_sigma",
    "typ_p",
    "typical_p",
    "xtc_probability",
    "xtc_threshold",
];

/// Reads the body of a request.
pub(crate) fn read(
    mut body: Fields,
    origin: Origin,
    lookup: Lookup<'_>,
) -> Result<(Conversation, Asked), ParseError> {
    refuse_rejected(&body, FIELDS)?;
    refuse_rejected(&body, BACKGROUND)?;
    let echo = Echo::of(&body.0);
    let mut tools = Toolbox::default();
    body.list("tools", |tool| tools.add(tool))?;
    let (history, turns) = conversation(&mut body, &mut tools, origin, lookup)?;
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
        is_streamed: body.flag("stream")?.unwrap_or(false),
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
        turns,
    };
    Ok((conversation, asked))
}

/// The messages of this turn and those before it, and what to store.
fn conversation(
    body: &mut Fields,
    tools: &mut Toolbox,
    origin: Origin,
    lookup: Lookup<'_>,
) -> Result<(History, Option<Turns>), ParseError> {
    let mut history = History::default();
    history.instruct(body.text("instructions")?.unwrap_or_default());
    let previous = previous(body, lookup)?;
    let earlier = previous.map(|previous| previous.turns.clone()).unwrap_or_default();
    for item in earlier.iter().flat_map(|turn| turn.items()) {
        let item = serde_json::from_str(item.json.get()).unwrap_or_default();
        history.add(item, tools).map_err(|fault| fault.within("previous_response_id"))?;
    }
    let is_stored = body.flag("store")?.unwrap_or(true);
    let mut input = Vec::new();
    let mut add = |(index, mut item): (usize, Value)| {
        resolve(&mut item, lookup)?;
        if is_stored && let Value::Object(fields) = &mut item {
            let id = resource::complete(fields, origin.random, index);
            input.push(Item { id, json: to_raw_value(&item).unwrap_or_default() });
        }
        let added = history.add(item, tools);
        added.map_err(|fault| ParseError::from(fault.at(index).within("input")))
    };
    match body.take("input") {
        None => return Err(Fault::missing("input").into()),
        Some(Value::Array(items)) => items.into_iter().enumerate().try_for_each(add)?,
        Some(Value::String(text)) => add((0, json!({"role": "user", "content": text})))?,
        Some(other) => return Err(expected("a string or a list", &other).within("input").into()),
    }
    Ok((history, is_stored.then_some(Turns { earlier, input })))
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

/// Replaces a reference by the item of a stored response that it names. An object with only an id
/// is one.
fn resolve(item: &mut Value, lookup: Lookup<'_>) -> Result<(), ParseError> {
    let kind = item.get("type").and_then(Value::as_str);
    let is_bare = kind.is_none() && item.get("role").is_none();
    if kind != Some("item_reference") && !is_bare {
        return Ok(());
    }
    let Some(id) = item.get("id").and_then(Value::as_str) else { return Ok(()) };
    let stored = ids::response_of(id).and_then(|response| lookup(&response));
    let turn = stored.as_ref().and_then(|stored| stored.turns.last());
    let found = turn.and_then(|turn| turn.items().find(|item| item.id == id));
    let Some(found) = found else {
        let message = format!("Item with id '{id}' not found.");
        return Err(ParseError { message, param: Some("input".into()) });
    };
    *item = serde_json::from_str(found.json.get()).unwrap_or_default();
    Ok(())
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

/// Fields for the chat completion. Variables of the template and the effort's go together.
fn extra(body: &mut Fields, reasoning: &mut Reasoning) -> Result<Map<String, Value>, Fault> {
    let given = EXTRA.into_iter().filter_map(|name| Some((name.to_string(), body.take(name)?)));
    let mut extra: Map<_, _> = given.collect();
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
