//! PURE. Adapts a conversation to a template that does not support everything:
//!
//! - the role `developer` becomes `system` if it is not supported;
//! - content becomes a string or a list, whichever is supported; missing content becomes an empty
//!   string (next to calls: null if the template requires that);
//! - arguments of calls become objects or JSON strings;
//! - IDs of calls get the format that the template requires ([`ids`]), if it refuses others;
//! - several calls of one message become several messages, each before its result;
//! - the system message describes the tools ([`generic`]), if the template does not;
//! - system messages in a row become one, if the template drops or refuses the others;
//! - a system message that the template drops or refuses becomes the start of the next user
//!   message.
//!
//! It leaves alone what the template supports.

use serde_json::{Map, Value as Json, json};

use super::Message;
use super::capabilities::{Capabilities, Content};
use super::input::ParsedChat;

mod generic;
mod ids;

/// Adapts a conversation to the template's capabilities.
pub(crate) fn adapt(chat: &mut ParsedChat, can: &Capabilities) {
    for message in &mut chat.messages {
        plain(message, can);
    }
    if can.enforces_call_ids {
        ids::adapt_ids(&mut chat.messages, can.call_ids);
    }
    generic::describe_tools(chat, can);
    if can.tool_calls {
        chat.messages.iter_mut().for_each(|m| shape_calls(m, can));
        if !can.parallel_tool_calls {
            chat.messages = split_calls(std::mem::take(&mut chat.messages));
        }
    }
    place_system(&mut chat.messages, can);
    if can.content == Content::Parts {
        chat.messages.iter_mut().for_each(wrap_content);
    }
}

fn role(message: &Message) -> &str {
    message.get("role").and_then(Json::as_str).unwrap_or_default()
}

fn plain(message: &mut Message, can: &Capabilities) {
    if role(message) == "developer" && !can.developer_role {
        message.insert("role".into(), "system".into());
    }
    let content = message.entry("content").or_insert(Json::Null);
    if content.is_null() {
        *content = "".into();
    } else if can.content == Content::Text
        && let Some(text) = joined(content)
    {
        *content = text.into();
    }
}

/// The concatenated text of a list of text parts.
fn joined(content: &Json) -> Option<String> {
    let text = |part: &Json| match (part.get("type"), part.get("text")) {
        (Some(kind), Some(Json::String(text))) if kind == "text" => Some(text.clone()),
        _ => None,
    };
    content.as_array()?.iter().map(text).collect()
}

fn wrap_content(message: &mut Message) {
    if let Some(content @ Json::String(_)) = message.get_mut("content") {
        let text = content.take();
        *content = json!([{"type": "text", "text": text}]);
    }
}

/// Inserts a text before a message's content.
fn prepend(message: &mut Message, text: &str) {
    match message.get_mut("content") {
        Some(Json::String(old)) if old.is_empty() => *old = text.into(),
        Some(Json::String(old)) => *old = format!("{text}\n\n{old}"),
        Some(Json::Array(parts)) => {
            parts.insert(0, json!({"type": "text", "text": format!("{text}\n\n")}));
        }
        _ => {
            message.insert("content".into(), text.into());
        }
    }
}

fn calls(message: &mut Message) -> Option<&mut Vec<Json>> {
    message.get_mut("tool_calls")?.as_array_mut().filter(|calls| !calls.is_empty())
}

fn shape_calls(message: &mut Message, can: &Capabilities) {
    let as_objects = can.object_arguments;
    let Some(calls) = calls(message) else { return };
    for call in calls {
        let Some(arguments) = call.pointer_mut("/function/arguments") else { continue };
        match arguments {
            Json::String(text) if as_objects => *arguments = as_object(text),
            Json::Object(_) if !as_objects => *arguments = generic::json_text(arguments).into(),
            _ => {}
        }
    }
    // What is said beside the calls is lost, but the calls are not.
    if can.null_content {
        message.insert("content".into(), Json::Null);
    }
}

/// Arguments as an object. Clients send back what they got, also of a call that was cut off, and
/// some send nothing for a function without parameters.
fn as_object(text: &str) -> Json {
    match serde_json::from_str(text) {
        Ok(object @ Json::Object(_)) => object,
        _ if text.trim().is_empty() => json!({}),
        _ => json!({"arguments": text}),
    }
}

/// Splits calls into one message each, followed by its result: the one with its id, or the next.
fn split_calls(messages: Vec<Message>) -> Vec<Message> {
    let mut split = vec![];
    let mut rest = std::collections::VecDeque::from(messages);
    while let Some(mut message) = rest.pop_front() {
        let made = match calls(&mut message) {
            Some(calls) if calls.len() > 1 => std::mem::take(calls),
            _ => {
                split.push(message);
                continue;
            }
        };
        let results = rest.iter().take_while(|m| role(m) == "tool").count();
        let mut results: Vec<Message> = rest.drain(..results).collect();
        for call in made {
            let same =
                |m: &Message| call.get("id").is_some() && m.get("tool_call_id") == call.get("id");
            let place = results.iter().position(same).unwrap_or(0);
            message.insert("tool_calls".into(), json!([call]));
            split.push(message.clone());
            let empty = if message.get("content").is_some_and(Json::is_null) {
                Json::Null
            } else {
                "".into()
            };
            message.insert("content".into(), empty);
            if place < results.len() {
                split.push(results.remove(place));
            }
        }
        split.append(&mut results);
    }
    split
}

/// True for the roles of instructions. Templates that support both take them in the same places.
fn is_system(message: &Message) -> bool {
    matches!(role(message), "system" | "developer")
}

/// Puts the text of system messages where the template renders it.
fn place_system(messages: &mut Vec<Message>, can: &Capabilities) {
    if !can.system_role {
        return merge_system(messages);
    }
    let first = messages.iter().take_while(|message| is_system(message)).count();
    if !can.late_system {
        let mut turns = messages.split_off(first);
        merge_system(&mut turns);
        messages.append(&mut turns);
    }
    if !can.many_system && first > 1 {
        let texts: Vec<String> = messages.drain(1..first).filter_map(text).collect();
        if let Some(system) = messages.first_mut() {
            texts.iter().for_each(|text| generic::append_paragraph(system, text));
        }
    }
}

/// The text of a message.
fn text(message: Message) -> Option<String> {
    let content = message.get("content")?;
    content.as_str().map(String::from).or_else(|| joined(content))
}

/// Moves system messages to the start of the next user message, or to the end of the last one.
fn merge_system(messages: &mut Vec<Message>) {
    let mut merged: Vec<Message> = Vec::with_capacity(messages.len());
    let mut pending: Vec<String> = vec![];
    for mut message in messages.drain(..) {
        match role(&message) {
            "system" | "developer" => {
                pending.extend(text(message));
                continue;
            }
            "user" if !pending.is_empty() => {
                prepend(&mut message, &std::mem::take(&mut pending).join("\n\n"));
            }
            _ => {}
        }
        merged.push(message);
    }
    let last = merged.last_mut().filter(|message| role(message) == "user");
    if let Some(user) = last {
        pending.drain(..).for_each(|text| generic::append_paragraph(user, &text));
    }
    if !pending.is_empty() {
        let mut user = Map::new();
        user.insert("role".into(), "user".into());
        user.insert("content".into(), pending.join("\n\n").into());
        merged.push(user);
    }
    *messages = merged;
}
