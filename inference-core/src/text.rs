//! Text on its way into a model and out of it: [`chat_template`] renders messages, [`grammar`]
//! constrains the tokens of an answer, [`utf8`] and [`stop`] make text of tokens, and [`output`]
//! finds reasoning and tool calls in it.

pub mod chat_template;
pub mod grammar;
pub mod output;
pub mod stop;
pub mod utf8;
