//! `tools` and `tool_choice` of a chat.

use inference_core::text::output::{InvalidParameter, ToolSet};
use inference_core::types::request::CallRules;
use inference_core::types::tool_choice::ToolChoice;
use inference_protocol::openai::{ChatRequest, ParseError};

use crate::types::error::Error;

/// Maximum number of calls in one response.
const CALLS_MAX: u32 = 128;

/// Tools that a response may call.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct OfferedTools {
    /// The tools; empty with `tool_choice: none`.
    pub(super) tools: ToolSet,
    /// Which may or must be called; `None` without tools.
    pub(super) rules: Option<CallRules>,
}

/// The tools that a chat request offers. Errors name the parameter.
pub(super) fn offered(chat: &ChatRequest) -> Result<OfferedTools, Error> {
    let listed = chat.tools.as_deref().unwrap_or_default();
    let tools = ToolSet::from_openai(listed).map_err(refused)?;
    let choice = ToolChoice::from_openai(chat.tool_choice.as_ref(), &tools).map_err(refused)?;
    if tools.is_empty() || choice == ToolChoice::None {
        return Ok(OfferedTools::default());
    }
    let calls_max = if chat.parallel_tool_calls == Some(false) { 1 } else { CALLS_MAX };
    Ok(OfferedTools { tools, rules: Some(CallRules { choice, calls_max }) })
}

fn refused(error: InvalidParameter) -> Error {
    let message = format!("invalid value: {error}");
    Error::Malformed(ParseError { message, param: Some(error.parameter) })
}
