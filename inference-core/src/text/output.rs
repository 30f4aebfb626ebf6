//! PURE. Parses a model's streamed text into the parts of a chat response: content, reasoning and
//! tool calls, whole or as deltas.
//!
//! Every model family has its own notation; [`Format::detect`] finds it from the chat template.
//! These rules hold for all of them:
//!
//! - The joined parts are a function of the whole text: chunk boundaries do not matter.
//! - The parser emits content as soon as it cannot be the start of a delimiter. It drops whitespace
//!   around reasoning and calls, and joins several pieces of prose of one kind by line breaks.
//! - A call starts ([`OutputPart::CallStart`]) when its name is complete and known and its
//!   arguments have started. Until then the parser holds everything, and emits it as content if it
//!   turns out not to be a call: broken JSON, an unknown name, too many calls.
//! - It emits arguments as they arrive. Joined, they are the JSON that the model wrote (control
//!   characters in strings escaped), or, for notations with tags, JSON derived from them by the
//!   tool's schema. If they break off, the call stays incomplete, and the rest is content.
//! - Inside reasoning nothing is a call: the closing delimiter comes first (except for harmony,
//!   where every message names its type).
//!
//! The crates tool-parser and reasoning-parser do this too, but with an async runtime, a Python
//! parser and OpenAI's types (some 190 crates), and their results depend on the chunks.

pub mod call_grammar;
pub mod format;
pub mod tools;

mod delimiters;
mod function;
mod header;
mod json;
mod list;
mod literal;
mod machine;
mod named;
mod object;
mod out;
mod parser;
mod xml;

pub use format::{Format, ReasoningDelimiters, ResponseStart, CallFormat};
pub use parser::{CALL_BYTES_MAX, Parser};
pub use tools::{Tool, ToolSet};

/// A new part of a response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OutputPart {
    /// More reasoning.
    Reasoning(String),
    /// More content, which the user sees.
    Content(String),
    /// Start of a tool call.
    CallStart {
        /// Index of the call in this response, from 0.
        index: usize,
        /// Function name.
        name: String,
    },
    /// More of a call's arguments.
    CallArguments {
        /// Index of the call.
        index: usize,
        /// Fragment of the JSON text.
        fragment: String,
    },
}

/// A whole response.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ParsedMessage {
    /// Content, which the user sees.
    pub content: Option<String>,
    /// Reasoning text.
    pub reasoning: Option<String>,
    /// Tool calls; the last may be incomplete if the response was cut off.
    pub calls: Vec<ParsedCall>,
}

/// A tool call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParsedCall {
    /// Function name.
    pub name: String,
    /// JSON text.
    pub arguments: String,
}

/// Joins the parts of a response.
pub fn join_parts(parts: impl IntoIterator<Item = OutputPart>) -> ParsedMessage {
    let mut message = ParsedMessage::default();
    for part in parts {
        match part {
            OutputPart::Content(text) => message.content.get_or_insert_default().push_str(&text),
            OutputPart::Reasoning(text) => {
                message.reasoning.get_or_insert_default().push_str(&text)
            }
            OutputPart::CallStart { name, .. } => {
                message.calls.push(ParsedCall { name, arguments: String::new() });
            }
            OutputPart::CallArguments { index, fragment } => {
                if let Some(call) = message.calls.get_mut(index) {
                    call.arguments.push_str(&fragment);
                }
            }
        }
    }
    message
}

#[cfg(test)]
mod tests;
