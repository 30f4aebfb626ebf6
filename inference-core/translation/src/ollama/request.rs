//! Reads requests into conversations.

use inference_protocol::openai::to_json;
use serde_json::Value;

use super::calls::Calls;
use super::{CHAT_FIELDS, GENERATE_FIELDS, MESSAGE_FIELDS, options};
use crate::conversation::{AssistantMessage, Call, Conversation, Format, Message, Reasoning, Tool};
use crate::fault::{Fault, Fields, expected, list};
use crate::fields::refuse_rejected;

/// Reads the body of `POST /api/chat`.
pub(crate) fn chat(mut body: Fields) -> Result<Conversation, Fault> {
    refuse_rejected(&body, CHAT_FIELDS)?;
    let mut conversation = common(&mut body)?;
    let mut calls = Calls::default();
    let messages = body.list("messages", |value| message(value, &mut calls))?;
    for message in messages.unwrap_or_default() {
        push(&mut conversation.messages, message);
    }
    if conversation.messages.is_empty() {
        return Err(Fault::of("messages", "there must be at least one message with content"));
    }
    conversation.tools = body.list("tools", tool)?.unwrap_or_default();
    Ok(conversation)
}

/// Reads the body of `POST /api/generate`.
pub(crate) fn generate(mut body: Fields) -> Result<Conversation, Fault> {
    refuse_rejected(&body, GENERATE_FIELDS)?;
    let mut conversation = common(&mut body)?;
    let system = body.text("system")?.filter(|text| !text.is_empty());
    conversation.messages.extend(system.map(Message::System));
    let prompt = body.text("prompt")?.filter(|text| !text.is_empty());
    let prompt = prompt.ok_or_else(|| Fault::missing("prompt"))?;
    conversation.messages.push(Message::User(prompt));
    Ok(conversation)
}

/// The fields that both have.
fn common(body: &mut Fields) -> Result<Conversation, Fault> {
    let mut conversation = Conversation {
        model: body.text("model")?,
        format: body.read("format", format)?.flatten(),
        reasoning: body.read("think", think)?.unwrap_or_default(),
        is_streamed: body.flag("stream")?.unwrap_or(true),
        ..Conversation::default()
    };
    if body.flag("logprobs")? == Some(true) {
        conversation.top_logprobs = Some(body.count("top_logprobs")?.unwrap_or(0));
    }
    body.read("options", |value| options::read(value, &mut conversation))?;
    // Clients compute the speed from the durations of a response.
    conversation.extra.insert("timings".into(), true.into());
    Ok(conversation)
}

/// Adds a message. Merges it with the one before as Ollama does, because some templates refuse
/// successive messages of the same role.
fn push(messages: &mut Vec<Message>, message: Message) {
    match (messages.last_mut(), message) {
        (Some(Message::User(before)), Message::User(text))
        | (Some(Message::System(before)), Message::System(text)) => {
            before.push_str("\n\n");
            before.push_str(&text);
        }
        // Some clients send the place of the response that they expect.
        (_, Message::Assistant(said)) if said.is_empty() => {}
        (_, message) => messages.push(message),
    }
}

fn message(value: Value, calls: &mut Calls) -> Result<Message, Fault> {
    let mut message = Fields::of(value)?;
    refuse_rejected(&message, MESSAGE_FIELDS)?;
    let text = message.text("content")?.unwrap_or_default();
    match message.required_text("role")?.as_str() {
        "system" => Ok(Message::System(text)),
        "user" => Ok(Message::User(text)),
        "assistant" => assistant(message, text, calls),
        "tool" => {
            let id = message.text("tool_call_id")?;
            let name = message.text("tool_name")?;
            Ok(Message::Tool { call_id: calls.close(id, name.as_deref()), content: text })
        }
        _ => Err(Fault::of("role", "expected system, user, assistant or tool")),
    }
}

fn assistant(mut message: Fields, text: String, calls: &mut Calls) -> Result<Message, Fault> {
    let reasoning = message.text("thinking")?.unwrap_or_default();
    let calls = message.read("tool_calls", |value| match value {
        Value::Array(none) if none.is_empty() => Ok(Vec::new()),
        some => {
            calls.begin();
            list(some, |value| call(value, calls))
        }
    })?;
    let calls = calls.unwrap_or_default();
    Ok(Message::Assistant(AssistantMessage { reasoning, text, calls }))
}

fn call(value: Value, calls: &mut Calls) -> Result<Call, Fault> {
    let mut call = Fields::of(value)?;
    let id = call.text("id")?;
    let (name, arguments) = call.require("function", |value| {
        let mut function = Fields::of(value)?;
        let arguments = function.read("arguments", |value| match value {
            Value::Object(_) => Ok(to_json(&value)),
            other => Err(expected("an object", &other)),
        })?;
        Ok((function.required_text("name")?, arguments.unwrap_or_else(|| "{}".into())))
    })?;
    Ok(Call { id: calls.add(id, &name), name, arguments })
}

fn tool(value: Value) -> Result<Tool, Fault> {
    let mut tool = Fields::of(value)?;
    if tool.text("type")?.is_some_and(|kind| kind != "function") {
        return Err(Fault::of("type", "expected function"));
    }
    tool.require("function", |value| {
        let mut function = Fields::of(value)?;
        Ok(Tool {
            name: function.required_text("name")?,
            description: function.text("description")?,
            parameters: function.take("parameters"),
            strict: None,
        })
    })
}

fn format(value: Value) -> Result<Option<Format>, Fault> {
    match value {
        Value::String(name) if name.is_empty() => Ok(None),
        Value::String(name) if name == "json" => Ok(Some(Format::JsonObject)),
        schema @ Value::Object(_) => {
            Ok(Some(Format::Schema { name: "response".into(), schema, strict: None }))
        }
        other => Err(expected("\"json\" or a JSON schema", &other)),
    }
}

fn think(value: Value) -> Result<Reasoning, Fault> {
    match value {
        Value::Bool(is_enabled) => Ok(Reasoning { effort: None, is_enabled: Some(is_enabled) }),
        Value::String(level) if ["low", "medium", "high", "max"].contains(&level.as_str()) => {
            Ok(Reasoning { effort: Some(level), is_enabled: Some(true) })
        }
        other => Err(expected("true, false, low, medium, high or max", &other)),
    }
}

#[cfg(test)]
mod tests;
