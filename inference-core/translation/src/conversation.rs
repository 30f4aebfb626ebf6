//! What a request asks for, independent of the API that it came by.
//!
//! Each API reads its requests into a [`Conversation`]; [`crate::chat`] writes it as the chat
//! completion request that nodes and external endpoints serve.

use serde_json::{Map, Value};

/// A request to continue a conversation.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Conversation {
    /// The model's name; a standalone agent can do without.
    pub model: Option<String>,
    /// The messages, oldest first.
    pub messages: Vec<Message>,
    /// Functions that the model may call.
    pub tools: Vec<Tool>,
    /// Which of them it must or may not call.
    pub tool_choice: Option<ToolChoice>,
    /// Allow several calls in one response.
    pub parallel_tool_calls: Option<bool>,
    /// Format of the text.
    pub format: Option<Format>,
    /// How much to reason.
    pub reasoning: Reasoning,
    /// Sampling.
    pub sampling: Sampling,
    /// Maximum tokens of the response.
    pub tokens_max: Option<u64>,
    /// Return this many of the most likely tokens at each place; `Some(0)`: only the chosen.
    pub top_logprobs: Option<u64>,
    /// Stream the response.
    pub is_streamed: bool,
    /// OpenAI's name for the priority.
    pub service_tier: Option<String>,
    /// The end user, as the client names them.
    pub user: Option<String>,
    /// More fields for the chat completion request, passed on as they are.
    pub extra: Map<String, Value>,
}

/// A message of a [`Conversation`].
#[derive(Debug, Clone, PartialEq)]
pub enum Message {
    /// Instructions of the operator or the developer.
    System(String),
    /// What a user said.
    User(String),
    /// What the model said, reasoned and called.
    Assistant(AssistantMessage),
    /// The result of a tool call.
    Tool {
        /// Id of the call.
        call_id: String,
        /// The result.
        content: String,
    },
}

impl Message {
    /// Bytes of its texts, without calls.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::System(text) | Self::User(text) => text.len(),
            Self::Assistant(said) => said.reasoning.len() + said.text.len(),
            Self::Tool { content, .. } => content.len(),
        }
    }
}

/// A message of the model.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AssistantMessage {
    /// Its reasoning, if known.
    pub reasoning: String,
    /// Its text.
    pub text: String,
    /// Its calls.
    pub calls: Vec<Call>,
}

impl AssistantMessage {
    /// True if it says nothing.
    pub fn is_empty(&self) -> bool {
        self.reasoning.is_empty() && self.text.is_empty() && self.calls.is_empty()
    }
}

/// A call of a tool.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Call {
    /// Its id.
    pub id: String,
    /// The tool's name.
    pub name: String,
    /// Its arguments, JSON text.
    pub arguments: String,
}

/// A function that the model may call.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Tool {
    /// Its name.
    pub name: String,
    /// What it does.
    pub description: Option<String>,
    /// JSON schema of its arguments.
    pub parameters: Option<Value>,
    /// Refuse a schema with keywords that cannot be enforced.
    pub strict: Option<bool>,
}

/// Which tools the model must or may not call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToolChoice {
    /// As it likes.
    Auto,
    /// None.
    None,
    /// At least one.
    Required,
    /// This one.
    Named(String),
}

/// Format of the text.
#[derive(Debug, Clone, PartialEq)]
pub enum Format {
    /// Any JSON object.
    JsonObject,
    /// JSON of a schema.
    Schema {
        /// Name of the schema.
        name: String,
        /// The schema.
        schema: Value,
        /// Refuse a schema with keywords that cannot be enforced.
        strict: Option<bool>,
    },
}

/// How much to reason before the text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reasoning {
    /// A variable of some chat templates: `low`, `medium`, `high`...
    pub effort: Option<String>,
    /// On or off, for templates that have a switch.
    pub is_enabled: Option<bool>,
}

/// Sampling parameters; what is absent is the model's default.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Sampling {
    /// Temperature; 0 is greedy.
    pub temperature: Option<f64>,
    /// Nucleus.
    pub top_p: Option<f64>,
    /// The k most likely tokens.
    pub top_k: Option<i64>,
    /// Strings that end the response.
    pub stop: Vec<String>,
}
