//! PURE. What an engine is asked to do, and how much work it is to prepare.

use serde::{Deserialize, Serialize};

use super::{Chat, EmbedInput, EmbedRequest, GenerateRequest, Prompt, Question, Tenant};
use crate::types::constraint::Constraint;

/// A byte of a grammar or of a tool costs about as much as so many of a text.
const GRAMMAR_WEIGHT: usize = 16;

/// What an engine is asked to do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Work {
    /// Continue from a prompt. Further answers to it have the ids that follow.
    Generate(Box<GenerateRequest>),
    /// Answer a question about text and tokens.
    Ask(Tenant, Question),
    /// Embed texts, or judge how well texts belong together.
    Embed(EmbedRequest),
}

impl Work {
    /// Whose it is.
    pub fn tenant(&self) -> Tenant {
        match self {
            Self::Generate(request) => request.tenant,
            Self::Ask(tenant, _) => *tenant,
            Self::Embed(request) => request.tenant,
        }
    }

    /// Requests that it stands for, each with an id of its own.
    pub fn requests(&self) -> usize {
        match self {
            Self::Generate(request) => 1 + request.more.len(),
            Self::Ask(..) | Self::Embed(_) => 1,
        }
    }

    /// What it costs to prepare, in bytes of text.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Generate(request) => {
                let constraint = request.constraint.as_ref().map_or(0, constraint_bytes);
                prompt_bytes(&request.prompt) + GRAMMAR_WEIGHT * constraint
            }
            Self::Ask(_, question) => match question {
                Question::Tokenize { prompt, .. } => prompt_bytes(prompt),
                Question::TokenizeText { text, .. } => text.len(),
                Question::Detokenize(tokens) => size_of_val(&tokens[..]),
                Question::Render(chat) => chat_bytes(chat),
            },
            Self::Embed(request) => request.inputs.iter().map(input_bytes).sum(),
        }
    }
}

fn prompt_bytes(prompt: &Prompt) -> usize {
    match prompt {
        Prompt::Chat(chat) => chat_bytes(chat),
        Prompt::Text(text) => text.len(),
        Prompt::Tokens(tokens) => size_of_val(&tokens[..]),
        Prompt::Infill { prefix, suffix } => prefix.len() + suffix.len(),
    }
}

fn chat_bytes(chat: &Chat) -> usize {
    let length = |text: &Option<String>| text.as_ref().map_or(0, String::len);
    let tools = GRAMMAR_WEIGHT * length(&chat.tools);
    chat.messages.len() + tools + length(&chat.documents) + length(&chat.variables)
}

fn constraint_bytes(constraint: &Constraint) -> usize {
    match constraint {
        Constraint::JsonObject => 0,
        Constraint::JsonSchema(text)
        | Constraint::LenientJsonSchema(text)
        | Constraint::Gbnf(text)
        | Constraint::Lark(text)
        | Constraint::Regex(text) => text.len(),
        Constraint::Choice(texts) => texts.iter().map(String::len).sum(),
    }
}

fn input_bytes(input: &EmbedInput) -> usize {
    match input {
        EmbedInput::Text(text) => text.len(),
        EmbedInput::Tokens(tokens) => size_of_val(&tokens[..]),
        EmbedInput::Pair { query, document } => query.len() + document.len(),
    }
}
