//! PURE. Prompts that end inside the last message, which the assistant continues: Hugging Face's
//! `continue_final_message`. A tag after the message's text shows where the template put it, and
//! the prompt is cut there.

use serde_json::Value as Json;

use super::Message;
use super::error::TemplateError::{self, NotContinuable};

/// The tag: noncharacters, which no template inspects. A space follows it: if the template trims
/// that, it trims the text as well.
const TAG: &str = "\u{fdd1}\u{fdd2}";

/// Appends the tag to the last message; returns its text.
pub(crate) fn add_tag(messages: &mut [Message], source: &str) -> Result<String, TemplateError> {
    let message =
        messages.last_mut().ok_or(NotContinuable("there is no last message to continue"))?;
    if !source.contains("content") {
        return Err(NotContinuable(
            "it does not read the content of messages, so none can be continued",
        ));
    }
    let is_text = |part: &&mut Json| part.get("text").is_some_and(Json::is_string);
    let text = match message.get_mut("content") {
        Some(Json::String(text)) => Some(text),
        Some(Json::Array(parts)) => match parts.iter_mut().rev().find(is_text) {
            Some(Json::Object(part)) => match part.get_mut("text") {
                Some(Json::String(text)) => Some(text),
                _ => None,
            },
            _ => None,
        },
        _ => None,
    };
    let text = text.ok_or(NotContinuable("the last message has no text to continue"))?;
    let written = text.clone();
    text.push_str(TAG);
    text.push(' ');
    Ok(written)
}

/// Cuts the prompt at the end of the last message's text.
pub(crate) fn cut(mut rendered: String, text: &str) -> Result<String, TemplateError> {
    let found = rendered.rfind(TAG).filter(|_| rendered.contains(text.trim()));
    let at = found.ok_or(NotContinuable(
        "it changes or drops the text of the last message, which therefore cannot be continued",
    ))?;
    let keeps_space = rendered[at + TAG.len()..].starts_with(' ');
    rendered.truncate(at);
    if !keeps_space {
        rendered.truncate(rendered.trim_end().len());
    }
    Ok(rendered)
}
