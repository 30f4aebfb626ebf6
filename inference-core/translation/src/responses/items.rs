//! Items: what was said, called and returned, as messages.

use inference_protocol::openai::to_json;
use serde_json::{Value, json};

use super::SEALED;
use super::tools::{LOCAL_SHELL, TOOL_SEARCH, Toolbox, chat_name};
use crate::conversation::{AssistantMessage, Call, Message};
use crate::fault::{Fault, Fields, list};

/// Items of tools that ran on OpenAI's servers. Their results are in the text that followed.
const HOSTED: [&str; 10] = [
    "web_search_call",
    "file_search_call",
    "code_interpreter_call",
    "image_generation_call",
    "mcp_list_tools",
    "mcp_call",
    "mcp_approval_request",
    "mcp_approval_response",
    "program",
    "program_output",
];

/// Collects messages from items.
#[derive(Debug, Default)]
pub(crate) struct History {
    messages: Vec<Message>,
    /// The assistant's message that the next items may belong to.
    open: Option<AssistantMessage>,
    /// Ids of shell calls as items and as calls: outputs may name either.
    shells: Vec<(String, String)>,
}

impl History {
    /// Adds instructions.
    pub(crate) fn instruct(&mut self, text: String) {
        if !text.is_empty() {
            self.push(Message::System(text));
        }
    }

    /// Adds an item. Items may bring tools.
    pub(crate) fn add(&mut self, item: Value, tools: &mut Toolbox) -> Result<(), Fault> {
        let mut item = Fields::of(item)?;
        let kind = item.text("type")?.unwrap_or_else(|| "message".into());
        match kind.as_str() {
            "message" => self.message(&mut item)?,
            "reasoning" => self.reason(&mut item)?,
            "function_call" | "custom_tool_call" | "local_shell_call" | "tool_search_call" => {
                self.call(&kind, &mut item)?;
            }
            "function_call_output" | "custom_tool_call_output" | "local_shell_call_output" => {
                self.output(&kind, &mut item)?;
            }
            "tool_search_output" => self.found(&mut item, tools)?,
            "additional_tools" => {
                item.list("tools", |tool| tools.add(tool))?;
            }
            hosted if HOSTED.contains(&hosted) => {}
            other => {
                let kind: String = other.chars().take(64).collect();
                return Err(Fault::of("type", format!("items of type {kind:?} are not supported")));
            }
        }
        Ok(())
    }

    /// The messages.
    pub(crate) fn into_messages(mut self) -> Vec<Message> {
        self.close();
        self.messages
    }

    fn message(&mut self, item: &mut Fields) -> Result<(), Fault> {
        let role = item.required_text("role")?;
        let content = |item: &mut Fields, between| {
            item.require("content", |content| Ok(texts(content)?.join(between)))
        };
        match role.as_str() {
            "assistant" => {
                let text = content(item, "")?;
                append(&mut self.open.get_or_insert_default().text, &text);
            }
            "user" => self.push(Message::User(content(item, "\n")?)),
            "system" | "developer" => self.push(Message::System(content(item, "\n")?)),
            _ => return Err(Fault::of("role", "expected user, assistant, system or developer")),
        }
        Ok(())
    }

    /// Reasoning that we sealed, or that is readable. Other providers' sealed reasoning is lost.
    fn reason(&mut self, item: &mut Fields) -> Result<(), Fault> {
        let sealed = item.text("encrypted_content")?;
        let sealed = sealed.as_deref().and_then(|text| text.strip_prefix(SEALED));
        let reasoning = match sealed {
            Some(text) => text.into(),
            None => match item.read("content", texts)?.unwrap_or_default().concat() {
                empty if empty.is_empty() => {
                    item.read("summary", texts)?.unwrap_or_default().join("\n")
                }
                text => text,
            },
        };
        append(&mut self.open.get_or_insert_default().reasoning, &reasoning);
        Ok(())
    }

    fn call(&mut self, kind: &str, item: &mut Fields) -> Result<(), Fault> {
        // Cut off by the token limit: its arguments are no JSON, and it has no result.
        let is_cut = item.text("status")?.is_some_and(|status| status == "incomplete");
        let on_server = item.text("execution")?.is_some_and(|place| place == "server");
        if is_cut || on_server {
            return Ok(());
        }
        let id = item.required_text("call_id")?;
        let (name, arguments) = match kind {
            "function_call" => (name(item)?, item.required_text("arguments")?),
            "custom_tool_call" => {
                let input = item.required_text("input")?;
                (name(item)?, to_json(&json!({"input": input})))
            }
            "local_shell_call" => {
                if let Some(item_id) = item.text("id")? {
                    self.shells.push((item_id, id.clone()));
                }
                (LOCAL_SHELL.into(), item.require("action", shell_arguments)?)
            }
            _ => (TOOL_SEARCH.into(), item.require("arguments", |search| Ok(to_json(&search)))?),
        };
        self.open.get_or_insert_default().calls.push(Call { id, name, arguments });
        Ok(())
    }

    fn output(&mut self, kind: &str, item: &mut Fields) -> Result<(), Fault> {
        let id = match item.text("call_id")? {
            None if kind == "local_shell_call_output" => item.required_text("id")?,
            None => return Err(Fault::missing("call_id")),
            Some(call_id) => call_id,
        };
        let shell = self.shells.iter().find(|(item_id, _)| *item_id == id);
        let call_id = shell.map_or(id.clone(), |(_, call_id)| call_id.clone());
        let content = item.require("output", texts)?.join("\n");
        self.push(Message::Tool { call_id, content });
        Ok(())
    }

    /// Tools that the client found become callable.
    fn found(&mut self, item: &mut Fields, tools: &mut Toolbox) -> Result<(), Fault> {
        let mut names = Vec::new();
        item.list("tools", |tool| {
            names.push(tool["name"].clone());
            tools.add(tool)
        })?;
        if let Some(call_id) = item.text("call_id")? {
            let content = to_json(&json!({"tools": names}));
            self.push(Message::Tool { call_id, content });
        }
        Ok(())
    }

    /// Adds a message. Many templates require that sides alternate, and that instructions are one.
    fn push(&mut self, message: Message) {
        self.close();
        match (self.messages.last_mut(), message) {
            (Some(Message::User(before)), Message::User(text))
            | (Some(Message::System(before)), Message::System(text)) => append(before, &text),
            (_, message) => self.messages.push(message),
        }
    }

    /// Reasoning without anything that it led to is left out.
    fn close(&mut self) {
        if let Some(said) = self.open.take()
            && !(said.text.is_empty() && said.calls.is_empty())
        {
            self.messages.push(Message::Assistant(said));
        }
    }
}

fn append(before: &mut String, text: &str) {
    if !before.is_empty() && !text.is_empty() {
        before.push('\n');
    }
    before.push_str(text);
}

fn name(item: &mut Fields) -> Result<String, Fault> {
    let namespace = item.text("namespace")?;
    Ok(chat_name(namespace.as_deref(), &item.required_text("name")?))
}

/// The action of a shell call as the arguments that the model wrote.
fn shell_arguments(action: Value) -> Result<String, Fault> {
    let mut action = Fields::of(action)?.0;
    action.retain(|name, value| {
        let is_empty = value.is_null() || value.as_object().is_some_and(|map| map.is_empty());
        name != "type" && !is_empty
    });
    Ok(to_json(&action))
}

/// A string, or a list of parts of text.
fn texts(value: Value) -> Result<Vec<String>, Fault> {
    match value {
        Value::String(text) => Ok(vec![text]),
        parts => list(parts, |part| {
            let mut part = Fields::of(part)?;
            match part.required_text("type")?.as_str() {
                "input_text" | "output_text" | "text" | "reasoning_text" | "summary_text" => {
                    part.required_text("text")
                }
                "refusal" => part.required_text("refusal"),
                other => {
                    let kind: String = other.chars().take(64).collect();
                    let message =
                        format!("parts of type {kind:?} are not supported; models read text");
                    Err(Fault::of("type", message))
                }
            }
        }),
    }
}
