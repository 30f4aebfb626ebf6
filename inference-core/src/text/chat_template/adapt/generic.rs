//! PURE. Tools for templates that do not support them. The notation is the family's own, if it is
//! known, and otherwise that of Hermes and Qwen, which most models have seen: function definitions
//! in `<tools>`, a call as `<tool_call>{"name": .., "arguments": {..}}</tool_call>`, and its result
//! as a user message in `<tool_response>`.

use serde_json::{Value as Json, json};

use super::{Capabilities, Message, ParsedChat, calls, joined, prepend, role};
use crate::text::chat_template::control::own;
use crate::text::chat_template::data::from_json;
use crate::text::chat_template::json::{Style, dumps};
use crate::text::output::CallFormat;

mod phi;

/// Text before the definitions, which take one line each.
const BEFORE: &str = "# Tools\n\nYou may call functions to help the user. They are described \
    here, one JSON object in each line:\n<tools>\n";
/// Text after the definitions.
const BEHIND: &str = "</tools>\n\nTo call a function, answer with its name and its arguments as \
    a JSON object between these tags, and with nothing after it; for several calls, write \
    several blocks:\n<tool_call>\n{\"name\": <name>, \"arguments\": <object>}\n</tool_call>\nThe \
    result of each call is given to you in <tool_response> tags.";
/// The same for families with their own notation.
const BEHIND_NATIVE: &str = "</tools>\n\nTo call functions, answer in exactly this format, and \
    with nothing after it. NAME is the name of a function, and ARGUMENTS are its arguments as a \
    JSON object. For several calls, repeat the part between the outer tags:\n";

/// How a family writes a call, if its own notation is described.
fn native_example(notation: CallFormat) -> Option<&'static str> {
    match notation {
        CallFormat::DeepSeek => Some(
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME\n```json\nARGUMENTS\n\
             ```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        ),
        CallFormat::DeepSeekPlain => Some(
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>NAME<｜tool▁sep｜>ARGUMENTS\
             <｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        ),
        CallFormat::Hunyuan => {
            Some("<tool_calls>[{\"name\": \"NAME\", \"arguments\": ARGUMENTS}]</tool_calls>")
        }
        CallFormat::Lfm => Some("<|tool_call_start|>[NAME(KEY=VALUE)]<|tool_call_end|>"),
        _ => None,
    }
}

/// Python's `json.dumps` of a value.
pub(crate) fn json_text(value: &Json) -> String {
    dumps(&from_json(value.clone()), &Style::plain()).unwrap_or_else(|_| value.to_string())
}

/// Describes tools, and writes calls and their results as text, if the template does not.
pub(crate) fn describe_tools(chat: &mut ParsedChat, can: &Capabilities) {
    if can.system_tools {
        return phi::describe_tools(chat);
    }
    let unknown = chat.tools.take_if(|tools| !can.tools && !tools.is_empty());
    let example = native_example(can.described);
    match can.described {
        CallFormat::Lfm if !can.tool_calls => chat.messages.iter_mut().for_each(write_lfm_calls),
        _ if can.tool_calls && (unknown.is_none() || example.is_some()) => {}
        _ => chat.messages = as_text(std::mem::take(&mut chat.messages)),
    }
    if let Some(tools) = unknown {
        let lines: String = tools.iter().map(|tool| json_text(tool) + "\n").collect();
        let behind = match example {
            Some(example) => format!("{BEHIND_NATIVE}{}", own(example)),
            None => BEHIND.to_string(),
        };
        let text = format!("{BEFORE}{lines}{behind}");
        if let Some(system) = first_system(&mut chat.messages) {
            append_paragraph(system, &text);
        }
    }
}

/// Writes the calls of a message as LFM2 does; its template writes their results.
fn write_lfm_calls(message: &mut Message) {
    let Some(made) = calls(message).map(std::mem::take) else { return };
    message.remove("tool_calls");
    let one = |call: &Json| {
        let function = call.get("function").unwrap_or(call);
        let arguments = match function.get("arguments") {
            Some(Json::String(text)) => serde_json::from_str(text).unwrap_or_default(),
            Some(Json::Object(map)) => map.clone(),
            _ => Message::new(),
        };
        let pair = |(key, value): (&String, &Json)| format!("{key}={}", python(value));
        let arguments: Vec<String> = arguments.iter().map(pair).collect();
        let name = function.get("name").and_then(Json::as_str).unwrap_or_default();
        format!("{name}({})", arguments.join(", "))
    };
    let all: Vec<String> = made.iter().map(one).collect();
    let (open, close) = (own("<|tool_call_start|>["), own("]<|tool_call_end|>"));
    append(message, &format!("{open}{}{close}", all.join(", ")));
}

/// A value as a literal of Python.
fn python(value: &Json) -> String {
    match value {
        Json::Null => "None".into(),
        Json::Bool(true) => "True".into(),
        Json::Bool(false) => "False".into(),
        Json::Array(all) => format!("[{}]", all.iter().map(python).collect::<Vec<_>>().join(", ")),
        Json::Object(map) => {
            let pair = |(key, value): (&String, &Json)| {
                format!("{}: {}", Json::from(key.as_str()), python(value))
            };
            format!("{{{}}}", map.iter().map(pair).collect::<Vec<_>>().join(", "))
        }
        other => other.to_string(),
    }
}

/// The first message, which is a system message: an empty one is inserted if there is none.
fn first_system(messages: &mut Vec<Message>) -> Option<&mut Message> {
    if messages.first().is_none_or(|message| role(message) != "system") {
        let mut system = Message::new();
        system.insert("role".into(), "system".into());
        system.insert("content".into(), "".into());
        messages.insert(0, system);
    }
    messages.first_mut()
}

/// Appends a paragraph to the content of a message.
pub(super) fn append_paragraph(message: &mut Message, text: &str) {
    match message.get_mut("content") {
        Some(Json::String(old)) if !old.is_empty() => *old = format!("{old}\n\n{text}"),
        Some(Json::Array(parts)) => {
            parts.push(json!({"type": "text", "text": format!("\n\n{text}")}));
        }
        _ => {
            message.insert("content".into(), text.into());
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
