//! Tool choice: whether a response may or must call tools.

use serde::{Deserialize, Serialize};

/// The `tool_choice` of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToolChoice {
    /// No calls: text is never parsed as one.
    None,
    /// The model decides.
    Auto,
    /// At least one call.
    Required,
    /// This function, by name.
    Function(String),
}
