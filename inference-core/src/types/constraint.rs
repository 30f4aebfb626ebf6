//! The constraint on a response, as a request states it.

use serde::{Deserialize, Serialize};

/// A constraint on the response.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Constraint {
    /// Any JSON object.
    JsonObject,
    /// A JSON value that a JSON schema allows. Keywords that cannot be enforced are refused.
    JsonSchema(String),
    /// Like [`Self::JsonSchema`], but ignores keywords that cannot be enforced, and treats `oneOf`
    /// as `anyOf`.
    LenientJsonSchema(String),
    /// A grammar in llama.cpp's GBNF format.
    Gbnf(String),
    /// A grammar in llguidance's variant of Lark.
    Lark(String),
    /// A regular expression (syntax of the Rust crate `regex`) for the whole response.
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
}
