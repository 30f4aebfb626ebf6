//! Whether an answer may or must call tools, as a request says it.

use serde::{Deserialize, Serialize};

/// What `tool_choice` asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Choice {
    /// No calls: text is never read as one.
    None,
    /// The model decides.
    Auto,
    /// At least one call.
    Required,
    /// This function.
    Function(String),
}
