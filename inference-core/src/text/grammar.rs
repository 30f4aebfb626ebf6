//! PURE. Structured output: decides which tokens may come next, so that a response satisfies the
//! constraint of its request.
//!
//! [`Grammars`] holds a model's vocabulary, once. It compiles a
//! [`Constraint`](crate::types::constraint::Constraint) into a [`Grammar`], the state of one
//! response. The crate `llguidance` does the work (Earley parser over lexemes, lexemes by
//! derivatives of regular expressions, tokens in a trie). It supports JSON schemas, Lark and
//! regular expressions itself; GBNF is translated ([`gbnf`]).
//!
//! Constraints come from clients, so each step has a limit; exceeding one is
//! [`GrammarError::TooComplex`]. The state is a pure function of the accepted tokens: replaying
//! them on another machine gives the same state.

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
pub(crate) use limits::{CHOICES_MAX, CONSTRAINT_BYTES_MAX};
pub use state::Grammar;
pub use vocabulary::{Grammars, Piece};
