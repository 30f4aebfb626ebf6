//! What an answer must look like, as a request says it.

use serde::{Deserialize, Serialize};

/// What an answer must look like.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Constraint {
    /// Any JSON object.
    JsonObject,
    /// A JSON value that a JSON schema allows. Keywords that cannot be enforced are refused.
    JsonSchema(String),
    /// The same, but keywords that cannot be enforced are passed over, and `oneOf` is `anyOf`.
    LenientJsonSchema(String),
    /// llama.cpp's grammar format.
    Gbnf(String),
    /// llguidance's variant of Lark.
    Lark(String),
    /// A regular expression (syntax of Rust's crate `regex`) for the whole answer.
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
}
