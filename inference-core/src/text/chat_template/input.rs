//! PURE. Parses the JSON of a conversation, and neutralizes control tokens in it.

use chrono::NaiveDateTime;
use serde_json::{Map, Value as Json};

use super::control::{Control, OWN};
use super::environment::GLOBALS;
use super::error::TemplateError;
use super::{Conversation, GenerationPrompt, Message};

/// Maximum size of a client's variables in bytes.
const VARIABLES_BYTES_MAX: usize = 64 << 10;
/// Maximum number of a client's variables.
const VARIABLES_MAX: usize = 64;
/// Variable names reserved for us.
const RESERVED: [&str; 7] = [
    "messages",
    "tools",
    "documents",
    "add_generation_prompt",
    "bos_token",
    "eos_token",
    "strftime_now",
];
/// Names of an assistant message's reasoning, the one that most templates read first.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// A parsed conversation.
#[derive(Debug, Clone)]
pub(crate) struct ParsedChat {
    pub(crate) messages: Vec<Message>,
    pub(crate) tools: Option<Vec<Json>>,
    pub(crate) documents: Option<Vec<Json>>,
    pub(crate) variables: Map<String, Json>,
    pub(crate) now: NaiveDateTime,
    pub(crate) generation_prompt: GenerationPrompt,
}

impl ParsedChat {
    /// Parses the JSON. The error names the invalid part.
    pub(crate) fn read(conversation: &Conversation<'_>) -> Result<Self, TemplateError> {
        let objects = |(i, message)| match message {
            Json::Object(map) => Ok(map),
            _ => Err(TemplateError::Conversation(format!("messages[{i}] must be an object"))),
        };
        let messages = read_list("messages", conversation.messages)?;
        let mut chat = Self {
            messages: messages.into_iter().enumerate().map(objects).collect::<Result<_, _>>()?,
            tools: conversation.tools.map(|json| read_list("tools", json)).transpose()?,
            documents: conversation
                .documents
                .map(|json| read_list("documents", json))
                .transpose()?,
            variables: conversation.variables.map_or(Ok(Map::new()), read_variables)?,
            now: conversation.now,
            generation_prompt: conversation.generation_prompt,
        };
        chat.remove_own(conversation);
        Ok(chat)
    }

    /// Removes our own noncharacter from what the client wrote: it would keep a control token in a
    /// user's text whole.
    fn remove_own(&mut self, conversation: &Conversation<'_>) {
        let Conversation { messages, tools, documents, variables, .. } = conversation;
        let written = |json: &&str| {
            let escape = |bytes: &[u8]| bytes.eq_ignore_ascii_case(b"\\ufdd3");
            json.contains(OWN) || json.as_bytes().windows(6).any(escape)
        };
        let texts = [Some(*messages), *tools, *documents, *variables];
        if !texts.iter().flatten().any(written) {
            return;
        }
        let mut edit = |text: &mut String| text.retain(|c| c != OWN);
        self.messages.iter_mut().for_each(|message| edit_map(message, &mut edit));
        let lists = [&mut self.tools, &mut self.documents];
        lists.into_iter().flatten().flatten().for_each(|value| edit_text(value, &mut edit));
        edit_map(&mut self.variables, &mut edit);
    }

    /// Breaks up control tokens in everything that the client wrote.
    pub(crate) fn neutralise(&mut self, control: &Control) {
        for message in &mut self.messages {
            if let Some(Json::String(role)) = message.get_mut("role") {
                control.neutralise_role(role);
            }
            edit_map(message, &mut |text| control.neutralise(text));
        }
        let mut edit = |text: &mut String| control.neutralise(text);
        let lists = [&mut self.tools, &mut self.documents];
        lists.into_iter().flatten().flatten().for_each(|value| edit_text(value, &mut edit));
        edit_map(&mut self.variables, &mut edit);
    }

    /// Stores an assistant message's reasoning under the names that templates read, as transformers
    /// does since version 5.
    pub(crate) fn alias_reasoning(&mut self) {
        for message in &mut self.messages {
            let mut reasoning = REASONING.iter().filter_map(|name| message.get(*name));
            let Some(reasoning) = reasoning.find(|t| !t.is_null()).cloned() else {
                continue;
            };
            if !message.contains_key("thinking") {
                message.shift_insert(0, "thinking".into(), reasoning.clone());
            }
            message.insert("reasoning_content".into(), reasoning);
        }
    }
}

fn read_list(name: &str, json: &str) -> Result<Vec<Json>, TemplateError> {
    match serde_json::from_str(json) {
        Ok(Json::Array(list)) => Ok(list),
        Ok(_) => Err(TemplateError::Conversation(format!("{name} must be an array"))),
        Err(error) => Err(TemplateError::Conversation(format!("{name}: {error}"))),
    }
}

fn read_variables(json: &str) -> Result<Map<String, Json>, TemplateError> {
    if json.len() > VARIABLES_BYTES_MAX {
        let bytes = json.len();
        return Err(TemplateError::Conversation(format!(
            "chat_template_kwargs has {bytes} bytes; {VARIABLES_BYTES_MAX} are allowed"
        )));
    }
    let map: Map<String, Json> = serde_json::from_str(json)
        .map_err(|e| TemplateError::Conversation(format!("chat_template_kwargs: {e}")))?;
    if map.len() > VARIABLES_MAX {
        let names = map.len();
        return Err(TemplateError::Conversation(format!(
            "chat_template_kwargs has {names} names; {VARIABLES_MAX} are allowed"
        )));
    }
    let taken =
        |name: &&String| RESERVED.contains(&name.as_str()) || GLOBALS.contains(&name.as_str());
    match map.keys().find(taken) {
        Some(name) => Err(TemplateError::Conversation(format!(
            "chat_template_kwargs.{name}: this name is taken; leave it out"
        ))),
        None => Ok(map),
    }
}

fn edit_text(value: &mut Json, edit: &mut dyn FnMut(&mut String)) {
    match value {
        Json::String(text) => edit(text),
        Json::Array(all) => all.iter_mut().for_each(|v| edit_text(v, edit)),
        Json::Object(map) => edit_map(map, edit),
        _ => {}
    }
}

/// Keys are client text as well: templates print those of arguments and schemas.
fn edit_map(map: &mut Map<String, Json>, edit: &mut dyn FnMut(&mut String)) {
    let mut edited = |key: &String| {
        let mut edited = key.clone();
        edit(&mut edited);
        edited
    };
    if map.keys().any(|key| edited(key) != *key) {
        *map = std::mem::take(map).into_iter().map(|(key, v)| (edited(&key), v)).collect();
    }
    map.values_mut().for_each(|v| edit_text(v, edit));
}
