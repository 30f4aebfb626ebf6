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
//! - A call has the ID that the model wrote before its arguments, if it is likely to be unique.
//! - It emits arguments as they arrive. Joined, they are the JSON that the model wrote (control
//!   characters in strings escaped), or, for notations with tags, JSON derived from them by the
//!   tool's schema. If they break off, the call stays incomplete, and the rest is content.
//! - Inside reasoning nothing is a call: the closing delimiter comes first (except for harmony,
//!   where every message names its type).
//!
//! The crates tool-parser and reasoning-parser do this too, but with an async runtime, a Python
//! parser and OpenAI's types (some 190 crates), and their results depend on the chunks.

pub(crate) mod call_grammar;
pub(crate) mod format;
pub(crate) mod tools;

mod call_context;
mod call_format;
mod call_ids;
mod call_parser;
mod delimiters;
mod function;
mod header;
mod json;
mod keyed;
mod list;
mod literal;
mod named;
mod nested;
mod object;
mod parser;
mod part_collector;
mod parts;
mod recipient;
mod xml;

pub use call_format::CallFormat;
pub use call_ids::CallIds;
pub(crate) use format::ResponseStart;
pub use format::{Format, ReasoningDelimiters};
pub use parser::Parser;
pub use parts::{OutputPart, ParsedCall, ParsedMessage, join_parts};
pub use tools::{InvalidParameter, Tool, ToolSet};

#[cfg(test)]
mod tests;
