//! PURE. The parts of a response: content, reasoning and tool calls.

/// A new part of a response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OutputPart {
    /// More reasoning.
    Reasoning(String),
    /// More content, which the user sees.
    Content(String),
    /// Start of a tool call.
    CallStart {
        /// Index of the call in this response, from 0.
        index: usize,
        /// Function name.
        name: String,
        /// The ID that the model wrote.
        id: Option<String>,
    },
    /// More of a call's arguments.
    CallArguments {
        /// Index of the call.
        index: usize,
        /// Fragment of the JSON text.
        fragment: String,
    },
}

/// A whole response.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ParsedMessage {
    /// Content, which the user sees.
    pub content: Option<String>,
    /// Reasoning text.
    pub reasoning: Option<String>,
    /// Tool calls; the last may be incomplete if the response was cut off.
    pub calls: Vec<ParsedCall>,
}

/// A tool call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParsedCall {
    /// Function name.
    pub name: String,
    /// The ID that the model wrote.
    pub id: Option<String>,
    /// JSON text.
    pub arguments: String,
}

/// Joins the parts of a response.
pub fn join_parts(parts: impl IntoIterator<Item = OutputPart>) -> ParsedMessage {
    let mut message = ParsedMessage::default();
    for part in parts {
        match part {
            OutputPart::Content(text) => message.content.get_or_insert_default().push_str(&text),
            OutputPart::Reasoning(text) => {
                message.reasoning.get_or_insert_default().push_str(&text)
            }
            OutputPart::CallStart { name, id, .. } => {
                message.calls.push(ParsedCall { name, id, arguments: String::new() });
            }
            OutputPart::CallArguments { index, fragment } => {
                if let Some(call) = message.calls.get_mut(index) {
                    call.arguments.push_str(&fragment);
                }
            }
        }
    }
    message
}
