//! What the engine is asked and what it answers. Plain data that crosses a process border.

use serde::{Deserialize, Serialize};

/// An id that the caller chooses; unique among the requests in flight.
pub type RequestId = u64;
/// A token of the model's vocabulary.
pub type Token = u32;

/// Whose a request is: requests of one tenant share cached prefixes, and tenants take
/// turns. A number that the caller derives from the tenant's name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tenant(pub u64);

/// Most stop strings of one request.
pub const STOPS_MAX: usize = 16;
/// Longest stop string, in bytes: it bounds how much text may be held back.
pub const STOP_BYTES_MAX: usize = 256;

/// One generation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GenerateRequest {
    /// Whose it is.
    pub tenant: Tenant,
    /// What to go on from.
    pub prompt: Prompt,
    /// How to choose tokens.
    pub sampling: Sampling,
    /// Most tokens to generate; absent is as many as the context holds.
    pub max_tokens: Option<u32>,
    /// Strings that end the answer and are not part of it.
    pub stop: Vec<String>,
}

/// What to go on from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Prompt {
    /// Messages (and tools) for the model's chat template, as JSON text: templates read
    /// fields that we do not know, so they travel as the client wrote them.
    Chat {
        /// A JSON array of messages.
        messages: String,
        /// A JSON array of tools.
        tools: Option<String>,
    },
    /// Text, with special tokens recognised: the caller speaks to the model directly.
    Text(String),
    /// Tokens, as they are.
    Tokens(Vec<Token>),
}

/// How to choose tokens. See [`crate::sampler`] for the order of the steps.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Sampling {
    /// 0 is greedy.
    pub temperature: f32,
    /// The k likeliest tokens only; 0 is off.
    pub top_k: u32,
    /// The smallest set with this probability; 1 is off.
    pub top_p: f32,
    /// Tokens at least this likely relative to the likeliest; 0 is off.
    pub min_p: f32,
    /// Seed of the request's own random numbers.
    pub seed: u64,
}

impl Sampling {
    /// Always the likeliest token.
    pub const GREEDY: Self = Self { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 0 };
}

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FinishReason {
    /// The model ended it, or a stop string did.
    Stop,
    /// `max_tokens` or the context is used up.
    Length,
}

/// Why a request did not get an answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Failure {
    /// The prompt leaves no room for an answer.
    ContextExceeded {
        /// Tokens of the prompt.
        prompt_tokens: u32,
        /// Tokens that prompt and answer may have together.
        context_tokens: u32,
    },
    /// The prompt has no tokens.
    EmptyPrompt,
    /// A token id outside of the vocabulary.
    UnknownToken(Token),
    /// The model file has no chat template.
    NoChatTemplate,
    /// The chat template refused the messages, or could not be rendered.
    Template(String),
    /// Too many requests wait already.
    QueueFull,
    /// The model could not be run; other requests go on.
    Decode(String),
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::ContextExceeded { prompt_tokens, context_tokens } => write!(
                f,
                "the prompt has {prompt_tokens} tokens, but this model's context holds \
                 {context_tokens}, the answer included; shorten the prompt"
            ),
            Self::EmptyPrompt => write!(f, "the prompt is empty"),
            Self::UnknownToken(token) => {
                write!(f, "token {token} is not in this model's vocabulary")
            }
            Self::NoChatTemplate => write!(
                f,
                "this model file has no chat template; use /v1/completions or another model file"
            ),
            Self::Template(why) => write!(f, "the chat template refused the messages: {why}"),
            Self::QueueFull => write!(f, "too many requests wait for this engine"),
            Self::Decode(why) => write!(f, "the model could not be run: {why}"),
        }
    }
}

impl std::error::Error for Failure {}

/// What happens to a request, in order: at most one [`Event::Started`], any number of
/// [`Event::Text`], and exactly one of the other three at the end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// A slot was taken and prefill begins.
    Started {
        /// Tokens of the prompt.
        prompt_tokens: u32,
    },
    /// More text: whole UTF-8, never part of a stop string.
    Text {
        /// The text.
        text: String,
    },
    /// The answer is complete.
    Finished {
        /// Why.
        reason: FinishReason,
        /// Tokens generated, an ending token included.
        completion_tokens: u32,
        /// Tokens of the prompt that did not have to be computed.
        cached_tokens: u32,
    },
    /// There is no answer, or no more of it.
    Failed(Failure),
    /// The caller cancelled; its slot is free.
    Cancelled,
}

impl Event {
    /// Whether nothing follows this event.
    pub fn is_last(&self) -> bool {
        !matches!(self, Self::Started { .. } | Self::Text { .. })
    }
}

/// How the engine is doing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct EngineStats {
    /// Sequences that can decode side by side.
    pub slots: u32,
    /// Of those, taken.
    pub slots_busy: u32,
    /// Requests that wait for a slot.
    pub queued: u32,
    /// Requests that gave up their cells and wait for some.
    pub parked: u32,
    /// Cells of the KV pool: one holds one token.
    pub cells: u32,
    /// Of those, needed by requests in slots.
    pub cells_in_use: u32,
    /// Of those, kept for prompts that begin alike.
    pub cells_cached: u32,
    /// Steps since the start.
    pub steps: u64,
    /// Prompt tokens prefilled since the start.
    pub prompt_tokens: u64,
    /// Prompt tokens that were found in the cache since the start.
    pub cached_tokens: u64,
    /// Kept prefixes that were evicted since the start.
    pub evictions: u64,
    /// Times that a request gave up its cells since the start.
    pub parkings: u64,
    /// Tokens generated since the start.
    pub generated_tokens: u64,
    /// Prompt tokens per second while prefilling, smoothed; 0 until measured.
    pub prefill_tokens_per_second: f32,
    /// Generated tokens per second over all slots, smoothed; 0 until measured.
    pub decode_tokens_per_second: f32,
}
