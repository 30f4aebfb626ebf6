//! Text on its way into and out of a model: [`chat_template`] renders messages, [`grammar`]
//! constrains the tokens of a response, [`utf8`], [`stop`] and [`lines`] turn tokens into text, and
//! [`output`] finds reasoning and tool calls in it.

pub mod chat_template;
pub mod grammar;
pub(crate) mod lines;
pub mod output;
pub(crate) mod stop;
pub(crate) mod utf8;
