//! Reads a request into a conversation.

use inference_protocol::openai::to_json;
use serde_json::{Map, Value};

use super::FIELDS;
use crate::conversation::{
    AssistantMessage, Call, Conversation, Format, Message, Reasoning, Sampling, Tool, ToolChoice,
};
use crate::fault::{Fault, Fields, expected, list, text};
use crate::fields::{refuse_rejected, refuse_unsupported};

/// Reads the body of a request.
pub(crate) fn read(mut body: Fields) -> Result<Conversation, Fault> {
    let tokens_max = body.count("max_tokens")?.ok_or_else(|| Fault::missing("max_tokens"))?;
    if tokens_max == 0 {
        return Err(Fault::of("max_tokens", "it must be at least 1"));
    }
    Ok(Conversation { tokens_max: Some(tokens_max), ..read_prompt(body)? })
}

/// Reads everything but the length of the response.
pub(crate) fn read_prompt(mut body: Fields) -> Result<Conversation, Fault> {
    refuse_rejected(&body, FIELDS)?;
    refuse_unsupported(&body, &[FIELDS])?;
    let system = body.read("system", system)?.filter(|text| !text.is_empty());
    let mut messages = Vec::from_iter(system.map(Message::System));
    for turn in body.list("messages", turn)?.ok_or_else(|| Fault::missing("messages"))? {
        turn.into_iter().for_each(|message| push(&mut messages, message));
    }
    if !messages.iter().any(|message| !matches!(message, Message::System(_))) {
        return Err(Fault::of("messages", "there must be at least one message with content"));
    }
    let (tool_choice, parallel_tool_calls) =
        body.read("tool_choice", tool_choice)?.unwrap_or_default();
    let (mut format, effort) = body.read("output_config", output_config)?.unwrap_or_default();
    if format.is_none() {
        format = body.read("output_format", output_format)?;
    }
    let user = body.read("metadata", |value| Fields::of(value)?.text("user_id"))?.flatten();
    let tools: Vec<_> = body.list("tools", tool)?.unwrap_or_default();
    Ok(Conversation {
        model: body.text("model")?,
        messages,
        tools: tools.into_iter().flatten().collect(),
        tool_choice,
        parallel_tool_calls,
        format,
        reasoning: Reasoning {
            effort,
            is_enabled: body.read("thinking", thinking)?.unwrap_or(Some(false)),
        },
        sampling: Sampling {
            temperature: body.number("temperature")?,
            top_p: body.number("top_p")?,
            top_k: body.count("top_k")?.and_then(|k| i64::try_from(k).ok()),
            stop: body.list("stop_sequences", text)?.unwrap_or_default(),
        },
        tokens_max: None,
        top_logprobs: None,
        is_streamed: body.flag("stream")?.unwrap_or(false),
        service_tier: None,
        user,
        extra: Map::new(),
    })
}

/// Claude Code puts this line before its instructions. It differs in each request, so the prefix
/// cache would be of no use, and means nothing to a model.
const BILLING: &str = "x-anthropic-billing-header:";

fn system(value: Value) -> Result<String, Fault> {
    let texts = texts(value)?;
    let lasting = texts.iter().map(|text| match text.starts_with(BILLING) {
        true => text.split_once('\n').map_or("", |(_, rest)| rest.trim_start_matches('\n')),
        false => text,
    });
    Ok(join(lasting.filter(|text| !text.is_empty())))
}

fn join<'a>(texts: impl Iterator<Item = &'a str>) -> String {
    texts.collect::<Vec<_>>().join("\n")
}

/// A string, or a list of blocks of text.
fn texts(value: Value) -> Result<Vec<String>, Fault> {
    match value {
        Value::String(text) => Ok(vec![text]),
        blocks => list(blocks, |block| {
            let mut block = Fields::of(block)?;
            match block.required_text("type")?.as_str() {
                "text" => block.required_text("text"),
                "search_result" => Ok(join(texts_of(&mut block)?.iter().map(String::as_str))),
                "document" => document(&mut block),
                // A result that names tools for later turns.
                "tool_reference" => block.required_text("tool_name"),
                other => Err(unsupported(other)),
            }
        }),
    }
}

fn texts_of(block: &mut Fields) -> Result<Vec<String>, Fault> {
    Ok(block.read("content", texts)?.unwrap_or_default())
}

fn unsupported(kind: &str) -> Fault {
    let kind: String = kind.chars().take(64).collect();
    Fault::of("type", format!("blocks of type {kind:?} are not supported here; models read text"))
}

fn document(block: &mut Fields) -> Result<String, Fault> {
    block.require("source", |source| {
        let mut source = Fields::of(source)?;
        match source.required_text("type")?.as_str() {
            "text" => source.required_text("data"),
            "content" => Ok(join(texts_of(&mut source)?.iter().map(String::as_str))),
            other => Err(unsupported(other)),
        }
    })
}

/// Adds a message. The API treats successive messages of one side as one, and many templates
/// require that sides alternate, and that instructions come first. Claude Code adds instructions
/// after its first message; it puts those of the user's turn between the same delimiters.
fn push(messages: &mut Vec<Message>, message: Message) {
    let message = match message {
        Message::System(text) if !messages.iter().all(|m| matches!(m, Message::System(_))) => {
            Message::User(format!("<system-reminder>\n{text}\n</system-reminder>"))
        }
        message => message,
    };
    match (messages.last_mut(), message) {
        (Some(Message::System(before)), Message::System(text)) => {
            before.push('\n');
            before.push_str(&text);
        }
        (Some(Message::User(before)), Message::User(text)) => {
            before.push('\n');
            before.push_str(&text);
        }
        (_, message) => messages.push(message),
    }
}

/// The messages that one turn of the API stands for.
fn turn(value: Value) -> Result<Vec<Message>, Fault> {
    let mut turn = Fields::of(value)?;
    let role = turn.required_text("role")?;
    let content = turn.take("content").ok_or_else(|| Fault::missing("content"))?;
    let read = match role.as_str() {
        "user" => user(content),
        "assistant" => assistant(content),
        "system" => system(content).map(|text| vec![Message::System(text)]),
        _ => return Err(Fault::of("role", "expected user, assistant or system")),
    };
    read.map_err(|fault| fault.within("content"))
}

fn user(content: Value) -> Result<Vec<Message>, Fault> {
    let mut messages = Vec::new();
    let Value::Array(blocks) = content else {
        return text(content).map(|text| vec![Message::User(text)]);
    };
    for (index, block) in blocks.into_iter().enumerate() {
        let message = user_block(block).map_err(|fault| fault.at(index))?;
        push(&mut messages, message);
    }
    Ok(messages)
}

fn user_block(block: Value) -> Result<Message, Fault> {
    let is_result = block.get("type").is_some_and(|kind| kind == "tool_result");
    if !is_result {
        return texts(Value::Array(vec![block]))
            .map(|texts| Message::User(texts.concat()))
            .map_err(Fault::of_first);
    }
    let mut block = Fields::of(block)?;
    let call_id = block.required_text("tool_use_id")?;
    let content = texts_of(&mut block)?;
    Ok(Message::Tool { call_id, content: join(content.iter().map(String::as_str)) })
}

fn assistant(content: Value) -> Result<Vec<Message>, Fault> {
    let mut said = AssistantMessage::default();
    match content {
        Value::Array(blocks) => {
            for (index, block) in blocks.into_iter().enumerate() {
                assistant_block(block, &mut said).map_err(|fault| fault.at(index))?;
            }
        }
        content => said.text = text(content)?,
    }
    Ok(if said.is_empty() { Vec::new() } else { vec![Message::Assistant(said)] })
}

fn assistant_block(block: Value, said: &mut AssistantMessage) -> Result<(), Fault> {
    let mut block = Fields::of(block)?;
    match block.required_text("type")?.as_str() {
        "text" => said.text.push_str(&block.required_text("text")?),
        "thinking" => said.reasoning.push_str(&block.required_text("thinking")?),
        "tool_use" => said.calls.push(Call {
            id: block.required_text("id")?,
            name: block.required_text("name")?,
            arguments: block
                .read("input", |input| match input {
                    Value::Object(_) => Ok(to_json(&input)),
                    other => Err(expected("an object", &other)),
                })?
                .unwrap_or_else(|| "{}".into()),
        }),
        // Another provider's encrypted reasoning, and what its servers did: not for a model here.
        "redacted_thinking" | "server_tool_use" => {}
        result if result.ends_with("_tool_result") => {}
        other => return Err(unsupported(other)),
    }
    Ok(())
}

/// Types of tools that Anthropic's servers run, without the date at their end.
const SERVER_TOOLS: [&str; 4] = ["web_search", "web_fetch", "code_execution", "tool_search_tool"];

/// A tool; `None` for one that only Anthropic's servers could run.
fn tool(value: Value) -> Result<Option<Tool>, Fault> {
    let mut tool = Fields::of(value)?;
    let kind = tool.text("type")?.unwrap_or_else(|| "custom".into());
    if SERVER_TOOLS.iter().any(|server| kind.starts_with(server)) {
        return Ok(None);
    }
    let parameters = tool.take("input_schema");
    if parameters.is_none() {
        let message = format!("tools of type {kind:?} without an input_schema are not supported");
        return Err(Fault::of("input_schema", message));
    }
    let (name, description) = (tool.required_text("name")?, tool.text("description")?);
    Ok(Some(Tool { name, description, parameters, strict: tool.flag("strict")? }))
}

fn tool_choice(value: Value) -> Result<(Option<ToolChoice>, Option<bool>), Fault> {
    let mut choice = Fields::of(value)?;
    let is_single = choice.flag("disable_parallel_tool_use")?;
    let choice = match choice.required_text("type")?.as_str() {
        "auto" => ToolChoice::Auto,
        "any" => ToolChoice::Required,
        "none" => ToolChoice::None,
        "tool" => ToolChoice::Named(choice.required_text("name")?),
        _ => return Err(Fault::of("type", "expected auto, any, tool or none")),
    };
    Ok((Some(choice), is_single.map(|is_single| !is_single)))
}

/// Whether the template's switch is on; `None` leaves it as it is.
fn thinking(value: Value) -> Result<Option<bool>, Fault> {
    match Fields::of(value)?.required_text("type")?.as_str() {
        "enabled" => Ok(Some(true)),
        "disabled" => Ok(Some(false)),
        "adaptive" => Ok(None),
        _ => Err(Fault::of("type", "expected enabled, disabled or adaptive")),
    }
}

fn output_config(value: Value) -> Result<(Option<Format>, Option<String>), Fault> {
    let mut config = Fields::of(value)?;
    Ok((config.read("format", output_format)?, config.text("effort")?))
}

fn output_format(value: Value) -> Result<Format, Fault> {
    let mut format = Fields::of(value)?;
    match format.required_text("type")?.as_str() {
        "json_schema" => {
            let schema = format.take("schema").ok_or_else(|| Fault::missing("schema"))?;
            Ok(Format::Schema { name: "response".into(), schema, strict: None })
        }
        _ => Err(Fault::of("type", "expected json_schema")),
    }
}

#[cfg(test)]
mod tests;
