//! PURE. A model's streamed text -> the parts of a chat answer: content, thoughts, calls of
//! tools, whole or as deltas.
//!
//! Every model family has its own notation; [`Format::detect`] finds it from the chat template.
//! What holds for all of them:
//!
//! - The parts joined are a function of the whole text: chunks do not matter.
//! - Content is passed on as soon as it cannot be the beginning of a mark. Whitespace around
//!   thoughts and calls is dropped; prose of one kind in several pieces is joined by line breaks.
//! - A call begins ([`Part::CallStart`]) when its name is complete and known and its arguments
//!   have begun. Until then everything is held, and is content if it turns out to be no
//!   call: broken JSON, an unknown name, too many calls.
//! - Arguments are passed on as they come. Joined, they are the JSON that the model wrote
//!   (control characters in strings escaped), or, for notations in tags, JSON made from them by the
//!   tool's schema. If they break off, the call stays incomplete, and the rest is content.
//! - Inside of thoughts nothing is a call: the closing mark comes first (except for harmony,
//!   where every message says what it is).
//!
//! The crates tool-parser and reasoning-parser do this too, but with an async runtime, a Python
//! parser and OpenAI's types (some 190 crates), and their results depend on the chunks.

pub mod choice;
pub mod format;
pub mod tools;

mod function;
mod header;
mod json;
mod list;
mod literal;
mod machine;
mod marks;
mod named;
mod object;
mod out;
mod parser;
mod xml;

pub use format::{Beginning, CallFormat, Format, Thinking};
pub use parser::{CALL_BYTES_MAX, Parser};
pub use tools::{Tool, ToolSet};

/// Something new in an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// More of the thoughts.
    Reasoning(String),
    /// More of what the reader sees.
    Content(String),
    /// A call begins.
    CallStart {
        /// Its number in this answer, from 0.
        index: usize,
        /// The function.
        name: String,
    },
    /// More of a call's arguments.
    CallArguments {
        /// Its number.
        index: usize,
        /// JSON text.
        fragment: String,
    },
}

/// A whole answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Message {
    /// What the reader sees.
    pub content: Option<String>,
    /// The thoughts.
    pub reasoning: Option<String>,
    /// The calls; the last may be incomplete if the answer was cut.
    pub calls: Vec<Call>,
}

/// A whole call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// The function.
    pub name: String,
    /// JSON text.
    pub arguments: String,
}

/// Joins the parts of an answer.
pub fn whole(parts: impl IntoIterator<Item = Part>) -> Message {
    let mut message = Message::default();
    for part in parts {
        match part {
            Part::Content(text) => message.content.get_or_insert_default().push_str(&text),
            Part::Reasoning(text) => message.reasoning.get_or_insert_default().push_str(&text),
            Part::CallStart { name, .. } => {
                message.calls.push(Call { name, arguments: String::new() });
            }
            Part::CallArguments { index, fragment } => {
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
