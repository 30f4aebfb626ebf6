//! PURE. Tools for templates that do not support them. The notation is that of Hermes and Qwen,
//! which most models have seen: function definitions in `<tools>`, a call as `<tool_call>{"name":
//! .., "arguments": {..}}</tool_call>`, and its result as a user message in `<tool_response>`.

use serde_json::{Value as Json, json};

use super::{Capabilities, Message, ParsedChat, calls, joined, prepend, role};
use crate::text::chat_template::data::from_json;
use crate::text::chat_template::json::{Style, dumps};

/// Text before the definitions, which take one line each.
const BEFORE: &str = "# Tools\n\nYou may call functions to help the user. They are described \
    here, one JSON object in each line:\n<tools>\n";
/// Text after the definitions.
const BEHIND: &str = "</tools>\n\nTo call a function, answer with its name and its arguments as \
    a JSON object between these tags, and with nothing after it; for several calls, write \
    several blocks:\n<tool_call>\n{\"name\": <name>, \"arguments\": <object>}\n</tool_call>\nThe \
    result of each call is given to you in <tool_response> tags.";

/// Python's `json.dumps` of a value.
pub(crate) fn json_text(value: &Json) -> String {
    dumps(&from_json(value.clone()), &Style::plain()).unwrap_or_else(|_| value.to_string())
}

/// Describes tools, and writes calls and their results as text, if the template does not.
pub(crate) fn describe_tools(chat: &mut ParsedChat, can: &Capabilities) {
    let unknown = chat.tools.take_if(|tools| !can.tools && !tools.is_empty());
    if unknown.is_some() || !can.tool_calls {
        chat.messages = as_text(std::mem::take(&mut chat.messages));
    }
    if let Some(tools) = unknown {
        let lines: String = tools.iter().map(|tool| json_text(tool) + "\n").collect();
        let text = format!("{BEFORE}{lines}{BEHIND}");
        add_to_system(&mut chat.messages, text);
    }
}

/// Appends to the system message, or inserts one.
fn add_to_system(messages: &mut Vec<Message>, text: String) {
    let system = messages.first_mut().filter(|m| role(m) == "system");
    match system.and_then(|m| m.get_mut("content")) {
        Some(Json::String(old)) if !old.is_empty() => *old = format!("{old}\n\n{text}"),
        Some(Json::Array(parts)) => {
            parts.push(json!({"type": "text", "text": format!("\n\n{text}")}));
        }
        Some(content) => *content = text.into(),
        None => {
            let mut system = Message::new();
            system.insert("role".into(), "system".into());
            system.insert("content".into(), text.into());
            messages.insert(0, system);
        }
    }
}

/// Turns calls into assistant text and results into user text. Merges the next user message into
/// the results: many templates require alternating roles.
fn as_text(messages: Vec<Message>) -> Vec<Message> {
    let mut out: Vec<Message> = vec![];
    let mut after_result = false;
    for mut message in messages {
        let was_result = std::mem::replace(&mut after_result, role(&message) == "tool");
        match role(&message) {
            "tool" => {
                let text = result_text(&message);
                match out.last_mut().filter(|_| was_result) {
                    Some(user) => append(user, &format!("\n{text}")),
                    None => out.push(user(text)),
                }
            }
            "user" if was_result => {
                let results = out.pop().and_then(|mut m| m.remove("content"));
                prepend(&mut message, results.as_ref().and_then(Json::as_str).unwrap_or_default());
                out.push(message);
            }
            _ => {
                if let Some(made) = calls(&mut message).map(std::mem::take) {
                    message.remove("tool_calls");
                    append(&mut message, &calls_text(&made));
                }
                out.push(message);
            }
        }
    }
    out
}

fn user(text: String) -> Message {
    let mut message = Message::new();
    message.insert("role".into(), "user".into());
    message.insert("content".into(), text.into());
    message
}

fn append(message: &mut Message, text: &str) {
    match message.get_mut("content") {
        Some(Json::String(old)) if old.is_empty() => *old = text.trim_start().into(),
        Some(Json::String(old)) if old.ends_with('\n') || text.starts_with('\n') => {
            old.push_str(text);
        }
        Some(Json::String(old)) => *old = format!("{old}\n{text}"),
        Some(Json::Array(parts)) => parts.push(json!({"type": "text", "text": text})),
        _ => {
            message.insert("content".into(), text.trim_start().into());
        }
    }
}

fn result_text(message: &Message) -> String {
    let content = message.get("content").unwrap_or(&Json::Null);
    let text = content.as_str().map(String::from).or_else(|| joined(content));
    let text = text.unwrap_or_else(|| json_text(content));
    format!("<tool_response>\n{text}\n</tool_response>")
}

fn calls_text(calls: &[Json]) -> String {
    let one = |call: &Json| {
        let function = call.get("function").unwrap_or(call);
        let arguments = match function.get("arguments") {
            Some(Json::String(text)) => text.clone(),
            Some(other) => json_text(other),
            None => "{}".into(),
        };
        let name = json_text(function.get("name").unwrap_or(&Json::Null));
        format!("<tool_call>\n{{\"name\": {name}, \"arguments\": {arguments}}}\n</tool_call>")
    };
    calls.iter().map(one).collect::<Vec<_>>().join("\n")
}
