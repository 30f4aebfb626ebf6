//! What the engine says of a request, and of itself.

use serde::{Deserialize, Serialize};

use super::{Token, Told};

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
        /// Tokens of the prompt, or fewer: reading ends where they are too many.
        prompt_tokens: u32,
        /// Tokens that prompt and answer may have together.
        context_tokens: u32,
        /// Whether it is a chat.
        chat: bool,
    },
    /// The prompt has no tokens.
    EmptyPrompt,
    /// The model's tokenizer cannot turn the text into tokens.
    Untokenizable,
    /// A token id outside of the vocabulary.
    UnknownToken(Token),
    /// The model file has no chat template.
    NoChatTemplate,
    /// The model makes vectors and no text.
    NotGenerative,
    /// The model makes text and no vectors.
    NoEmbeddings,
    /// The model does not rank.
    NoRanking,
    /// An input of a request for vectors is too long.
    InputTooLong {
        /// Which.
        index: u32,
        /// Its tokens, or fewer: see [`Failure::ContextExceeded`].
        tokens: u32,
        /// Most tokens of one.
        tokens_max: u32,
    },
    /// The JSON schema cannot be enforced.
    Schema(String),
    /// The grammar cannot be enforced.
    Grammar(String),
    /// The tools cannot be offered.
    Tools(String),
    /// The model was not trained to fill gaps.
    NoInfill,
    /// The chat template refused the messages, or could not be rendered.
    Template(String),
    /// Too many requests wait already.
    QueueFull,
    /// The model could not be run; other requests go on.
    Decode(String),
    /// The request, or its answer, is larger than agent and engine pass on.
    TooLarge,
    /// What the answer began with elsewhere is not what it begins with here.
    ResumeMismatch,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            // Client packages (litellm, langchain) know this error by these words of OpenAI's.
            Self::ContextExceeded { prompt_tokens, context_tokens, .. } => write!(
                f,
                "Input tokens exceed the configured limit: this model's maximum context length is \
                 {context_tokens} tokens, the answer included, and the prompt has at least \
                 {prompt_tokens}; shorten it"
            ),
            Self::EmptyPrompt => write!(f, "the prompt is empty"),
            Self::Untokenizable => write!(
                f,
                "this model's tokenizer cannot read the text; the model file may lack tokens: use \
                 another text or another model file"
            ),
            Self::UnknownToken(token) => {
                write!(f, "token {token} is not in this model's vocabulary")
            }
            Self::NoChatTemplate => write!(
                f,
                "this model file has no chat template; use /v1/completions or another model file"
            ),
            Self::NotGenerative => write!(
                f,
                "this model makes embeddings and no text; use /v1/embeddings or /v1/rerank"
            ),
            Self::NoEmbeddings => write!(
                f,
                "this model makes no embeddings; serve one that does, or start the agent \
                 with --pooling"
            ),
            Self::NoRanking => write!(f, "this model does not rank documents; serve a reranker"),
            Self::InputTooLong { index, tokens, tokens_max } => write!(
                f,
                "input {index} has at least {tokens} tokens, and this model reads at most \
                 {tokens_max} at once; shorten it"
            ),
            Self::Schema(why) => write!(f, "the response format cannot be enforced: {why}"),
            Self::Grammar(why) => write!(f, "the grammar cannot be enforced: {why}"),
            Self::Tools(why) => write!(f, "the tools cannot be enforced: {why}"),
            Self::NoInfill => write!(
                f,
                "this model has no tokens for filling a gap; leave suffix out or use a model for code"
            ),
            Self::Template(why) => write!(f, "the chat template refused the messages: {why}"),
            Self::QueueFull => write!(f, "too many requests wait for this engine"),
            Self::Decode(why) => write!(f, "the model could not be run: {why}"),
            Self::TooLarge => {
                write!(f, "the request or its answer is too large for this node; send less at once")
            }
            Self::ResumeMismatch => {
                write!(f, "another version of this node began this answer; it cannot go on here")
            }
        }
    }
}

impl std::error::Error for Failure {}

/// More of an answer. What is shown, and in which pieces, depends on the answer's tokens only: an
/// answer that goes on elsewhere is shown in the same pieces there.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Shown {
    /// Whole UTF-8, never part of a stop string.
    pub text: String,
    /// Its tokens with their logprobs, where those were asked for.
    pub logprobs: Vec<TokenLogprob>,
    /// The answer's tokens up to here that were not told yet. A token is told when its text or
    /// that of a later one is shown, and, where logprobs are, not before its own.
    pub tokens: Vec<Token>,
}

/// What happens to a request, in order: at most one [`Event::Started`], after that at most one
/// [`Event::Replayed`], any number of [`Event::Text`], and exactly one of the others at the end.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Event {
    /// A slot was taken and prefill begins.
    Started {
        /// Tokens of the prompt.
        prompt_tokens: u32,
        /// Whether the prompt ends inside of the assistant's thoughts.
        thinking: bool,
    },
    /// What an answer that goes on has shown elsewhere; its logprobs are not known here.
    Replayed(Vec<Shown>),
    /// More text.
    Text(Shown),
    /// The answer is complete.
    Finished {
        /// Why.
        reason: FinishReason,
        /// Tokens generated, an ending token included.
        completion_tokens: u32,
        /// Tokens of the prompt that did not have to be computed.
        cached_tokens: u32,
        /// Those of the answer that were not told before.
        tokens: Vec<Token>,
    },
    /// The vector of an input, of length 1; or the score of a pair.
    Embedded {
        /// Which input.
        index: u32,
        /// The vector, or one number.
        values: Vec<f32>,
    },
    /// The answer to a question; nothing else precedes it.
    Told(Told),
    /// There is no answer, or no more of it.
    Failed(Failure),
    /// The caller cancelled; its slot is free.
    Cancelled,
}

impl Event {
    /// Whether nothing follows this event.
    pub fn is_last(&self) -> bool {
        !matches!(
            self,
            Self::Started { .. } | Self::Replayed(_) | Self::Text(_) | Self::Embedded { .. }
        )
    }
}

/// A token of an answer, and how likely it was before any sampling parameter was applied.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TokenLogprob {
    /// The token itself.
    pub chosen: LikelyToken,
    /// The likeliest ones at its place, the likeliest first.
    pub likeliest: Vec<LikelyToken>,
}

/// A token and the logarithm of its probability.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LikelyToken {
    /// The token.
    pub token: Token,
    /// Its text, which may be part of a character.
    pub bytes: Vec<u8>,
    /// Natural logarithm of its probability.
    pub logprob: f32,
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
    /// Time that steps have spent on prompts since the start.
    pub prefill_seconds: f64,
    /// Time that they have spent on readers.
    pub decode_seconds: f64,
    /// Slots that steps worked on since the start, counted once for each step.
    pub slot_steps: u64,
}
