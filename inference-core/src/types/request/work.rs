//! PURE. Work for an engine, and an estimate of its preparation cost.

use serde::{Deserialize, Serialize};

use super::{Chat, EmbedInput, EmbedRequest, GenerateRequest, Prompt, Tenant, TextQuery};
use crate::types::constraint::Constraint;

/// A byte of a grammar or a tool costs about as much to prepare as this many bytes of text.
const GRAMMAR_WEIGHT: usize = 16;

/// Work for an engine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Work {
    /// Generate a response. Further choices have the ids that follow.
    Generate(Box<GenerateRequest>),
    /// Run a query about text and tokens.
    Query(Tenant, TextQuery),
    /// Compute embeddings of texts, or score query-document pairs.
    Embed(EmbedRequest),
}

impl Work {
    /// Tenant that sent the request.
    pub fn tenant(&self) -> Tenant {
        match self {
            Self::Generate(request) => request.tenant,
            Self::Query(tenant, _) => *tenant,
            Self::Embed(request) => request.tenant,
        }
    }

    /// Number of requests it consists of, each with its own id.
    pub fn requests(&self) -> usize {
        match self {
            Self::Generate(request) => 1 + request.siblings.len(),
            Self::Query(..) | Self::Embed(_) => 1,
        }
    }

    /// Preparation cost in bytes of text.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Generate(request) => {
                let constraint = request.constraint.as_ref().map_or(0, constraint_bytes);
                prompt_bytes(&request.prompt) + GRAMMAR_WEIGHT * constraint
            }
            Self::Query(_, query) => match query {
                TextQuery::Tokenize { prompt, .. } => prompt_bytes(prompt),
                TextQuery::TokenizeText { text, .. } => text.len(),
                TextQuery::Detokenize(tokens) => size_of_val(&tokens[..]),
                TextQuery::Render(chat) => chat_bytes(chat),
                TextQuery::Texts => 0,
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
        Prompt::Infill { prefix, suffix, files } => {
            let files = files.iter().map(|file| file.name.len() + file.text.len());
            prefix.len() + suffix.len() + files.sum::<usize>()
        }
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
