//! PURE. Structured output: which tokens may come next, so that an answer has the form that
//! its request asks for.
//!
//! [`Grammars`] holds a model's vocabulary, once. It compiles a
//! [`Constraint`](crate::types::constraint::Constraint) into a [`Grammar`], the state of one
//! answer. The work is done by the crate `llguidance` (Earley parser over lexemes, lexemes by
//! derivatives of regular expressions, tokens in a trie); JSON schemas, Lark and regular
//! expressions are its own, GBNF is translated ([`gbnf`]).
//!
//! Constraints come from clients: each part of the way has a limit, and what is beyond one
//! is [`GrammarError::TooComplex`]. The state is a pure function of the accepted tokens, so
//! that replaying them on another machine gives the same state.

mod compile;
mod error;
mod gbnf;
mod limits;
mod pattern;
mod schema;
mod state;
mod vocabulary;

#[cfg(test)]
mod tests;

pub use error::GrammarError;
pub use limits::{CHOICES_MAX, CONSTRAINT_BYTES_MAX};
pub use state::Grammar;
pub use vocabulary::{Grammars, Piece};
