//! PURE. Tools for Phi-4-mini, whose template prints the field `tools` of the system message, and
//! no calls. From its model card: <https://huggingface.co/microsoft/Phi-4-mini-instruct>

use serde_json::{Value as Json, json};

use super::super::{Message, ParsedChat, calls};
use super::{append, first_system, json_text};
use crate::text::chat_template::control::own;

/// Puts the tools into the system message, and calls into the content of their messages. The
/// template prints the results of calls.
pub(super) fn describe_tools(chat: &mut ParsedChat) {
    chat.messages.iter_mut().for_each(write_calls);
    let Some(tools) = chat.tools.take().filter(|tools| !tools.is_empty()) else { return };
    let functions = tools.iter().map(|tool| tool.get("function").unwrap_or(tool).clone());
    let text = json_text(&functions.collect());
    if let Some(system) = first_system(&mut chat.messages) {
        system.insert("tools".into(), text.into());
    }
}

fn write_calls(message: &mut Message) {
    let Some(made) = calls(message).map(std::mem::take) else { return };
    message.remove("tool_calls");
    let one = |call: &Json| {
        let function = call.get("function").unwrap_or(call);
        let arguments = match function.get("arguments") {
            Some(Json::String(text)) => serde_json::from_str(text).unwrap_or_else(|_| json!({})),
            Some(object) => object.clone(),
            None => json!({}),
        };
        json!({"type": "function",
            "function": {"name": function.get("name"), "arguments": arguments}})
    };
    let all = json_text(&made.iter().map(one).collect());
    append(message, &format!("{}{all}{}", own("<|tool_call|>"), own("<|/tool_call|>")));
}
