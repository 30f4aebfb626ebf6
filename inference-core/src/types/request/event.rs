//! Events that the engine emits for a request, and its own statistics.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{QueryResult, SlotFailure, SlotResult, Token};

/// Why a response ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FinishReason {
    /// The model ended it.
    Stop,
    /// A stop string matched: its index in the request.
    StopString(u32),
    /// `max_tokens` or the context limit was reached.
    Length,
}

/// Why a request failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Failure {
    /// The prompt leaves no room for a response.
    ContextExceeded {
        /// Tokens of the prompt, or fewer: tokenizing stops once they are too many.
        prompt_tokens: u32,
        /// Maximum tokens of prompt and response together.
        context_tokens: u32,
        /// True for a chat request.
        chat: bool,
    },
    /// The prompt leaves none of the tokens that the tenant may still use this month.
    BudgetExceeded {
        /// Tokens of the prompt, or of all inputs.
        tokens: u64,
        /// Tokens that the request may use.
        usage_max: u64,
    },
    /// The prompt has no tokens.
    EmptyPrompt,
    /// The model's tokenizer cannot turn the text into tokens.
    Untokenizable,
    /// A token id outside the vocabulary.
    UnknownToken(Token),
    /// The model file has no chat template.
    NoChatTemplate,
    /// The model file has a chat template that cannot be used.
    BrokenTemplate(String),
    /// The model computes embeddings and generates no text.
    NotGenerative,
    /// The model generates text and computes no embeddings.
    NoEmbeddings,
    /// The model is not a reranking model.
    NoRanking,
    /// An input of an embeddings request is too long.
    InputTooLong {
        /// Index of the input.
        index: u32,
        /// Its tokens, or fewer: see [`Failure::ContextExceeded`].
        tokens: u32,
        /// Maximum tokens of an input.
        tokens_max: u32,
    },
    /// The JSON schema cannot be enforced.
    Schema(String),
    /// The grammar cannot be enforced.
    Grammar(String),
    /// The tools cannot be offered.
    Tools(String),
    /// A value of a field does not suit this model.
    Field {
        /// Name of the field.
        param: String,
        /// What is wrong.
        message: String,
    },
    /// The model was not trained for fill-in-the-middle.
    NoInfill,
    /// The chat template refused the messages.
    Template(String),
    /// The chat template could not be rendered.
    TemplateFailed {
        /// The renderer's message.
        why: String,
        /// True if the request brought the template.
        is_own: bool,
    },
    /// The queue is full.
    QueueFull,
    /// The model could not be run; other requests continue.
    Decode(String),
    /// The request or its response is larger than the limit between agent and engine.
    TooLarge,
    /// The tokens of the resumed response do not match what this model generates.
    ResumeMismatch,
    /// What a slot holds cannot be saved, restored or erased.
    Slot(SlotFailure),
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            // Client packages (litellm, langchain) recognize this error by this wording of
            // OpenAI's.
            Self::ContextExceeded { prompt_tokens, context_tokens, .. } => write!(
                f,
                "Input tokens exceed the configured limit: this model's maximum context length is \
                 {context_tokens} tokens, the answer included, and the prompt has at least \
                 {prompt_tokens}; shorten it"
            ),
            Self::BudgetExceeded { tokens, usage_max } => write!(
                f,
                "the prompt has {tokens} tokens, and {usage_max} are left of the monthly budget \
                 (UTC); shorten it"
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
            Self::BrokenTemplate(why) => write!(
                f,
                "the chat template of this model file is invalid: {why}; use /v1/completions or \
                 another model file"
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
            Self::Field { message, .. } => f.write_str(message),
            Self::NoInfill => write!(
                f,
                "this model has no tokens for filling a gap; leave suffix out or use a model for code"
            ),
            Self::Template(why) => write!(f, "the chat template refused the messages: {why}"),
            Self::TemplateFailed { why, is_own: true } => {
                write!(f, "the chat template of the request failed: {why}")
            }
            Self::TemplateFailed { why, is_own: false } => write!(
                f,
                "the chat template of this model failed: {why}; start the agent with another one \
                 (--chat-template-file) or use /v1/completions"
            ),
            Self::QueueFull => write!(f, "too many requests wait for this engine"),
            Self::Decode(why) => write!(f, "the model could not be run: {why}"),
            Self::TooLarge => {
                write!(f, "the request or its answer is too large for this node; send less at once")
            }
            Self::ResumeMismatch => {
                write!(f, "another version of this node began this answer; it cannot go on here")
            }
            Self::Slot(failure) => write!(f, "{failure}"),
        }
    }
}

impl std::error::Error for Failure {}

/// A piece of a response. Its text, and the split into pieces, depend only on the response tokens:
/// a response that resumes on another node is emitted in the same pieces there.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TextChunk {
    /// Whole UTF-8, never part of a stop string.
    pub text: String,
    /// Its tokens with their logprobs, if requested.
    pub logprobs: Vec<TokenLogprob>,
    /// The response tokens up to here that were not reported yet. A token is reported when its text
    /// or that of a later one is emitted, and, if logprobs are, not before its own.
    pub tokens: Vec<Token>,
    /// How long it took up to here.
    pub times: ResponseTimes,
}

/// How long the engine worked on a response, and its draft tokens. The engine's thread measures it,
/// because readers get the events of a step together, and late.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResponseTimes {
    /// From the slot to the first text, or to the end if there is none.
    pub prefill: Duration,
    /// From there to the end.
    pub decode: Duration,
    /// Draft tokens that were computed.
    pub drafted: u32,
    /// Draft tokens that were accepted.
    pub accepted: u32,
}

/// The events of a request, in order: at most one [`Event::Started`], after that at most one
/// [`Event::Replayed`], any number of [`Event::Prefilled`] and [`Event::PromptLogprobs`] if
/// requested, any number of [`Event::Text`], and exactly one of the others at the end.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Event {
    /// The request got a slot and prefill starts.
    Started {
        /// Number of prompt tokens.
        prompt_tokens: u32,
        /// True if the prompt ends inside the assistant's reasoning.
        in_reasoning: bool,
    },
    /// What a resumed response already emitted on another node; its logprobs are not known here.
    Replayed(Vec<TextChunk>),
    /// More of the prompt is computed.
    Prefilled {
        /// Prompt tokens computed or found in the cache.
        tokens: u32,
        /// Prompt tokens served from the cache.
        cached_tokens: u32,
        /// Time since the prefill started.
        elapsed: Duration,
    },
    /// Logprobs of the prompt's next tokens. Nothing precedes the first token: its value means
    /// nothing.
    PromptLogprobs(Vec<TokenLogprob>),
    /// More text.
    Text(TextChunk),
    /// The response is complete.
    Finished {
        /// Why it ended.
        reason: FinishReason,
        /// Tokens generated, including an end token.
        completion_tokens: u32,
        /// Prompt tokens served from the cache.
        cached_tokens: u32,
        /// Response tokens that were not reported before.
        tokens: Vec<Token>,
        /// How long it took.
        times: ResponseTimes,
    },
    /// The embedding of an input, of length 1; or the score of a pair.
    Embedded {
        /// Index of the input.
        index: u32,
        /// The embedding, or one score.
        values: Vec<f32>,
    },
    /// The result of a question; no other event precedes it.
    QueryResult(QueryResult),
    /// A request about a slot is done; no other event precedes it.
    SlotDone(SlotResult),
    /// The request failed: there is no response, or no more of it.
    Failed(Failure),
    /// The caller canceled the request; its slot is free.
    Cancelled,
}

impl Event {
    /// True if no event follows this one.
    pub fn is_last(&self) -> bool {
        !matches!(
            self,
            Self::Started { .. }
                | Self::Replayed(_)
                | Self::Prefilled { .. }
                | Self::PromptLogprobs(_)
                | Self::Text(_)
                | Self::Embedded { .. }
        )
    }
}

/// A token of a response, and its logprob before any sampling parameter was applied.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TokenLogprob {
    /// The sampled token.
    pub chosen: LikelyToken,
    /// The most likely tokens at its position, in descending order.
    pub likeliest: Vec<LikelyToken>,
}

/// A token and its logprob.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LikelyToken {
    /// Token id.
    pub token: Token,
    /// Its text, which may be part of a character.
    pub bytes: Vec<u8>,
    /// Natural logarithm of its probability.
    pub logprob: f32,
}

/// Statistics of the engine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct EngineStats {
    /// Number of slots: sequences that can decode in parallel.
    pub slots: u32,
    /// Slots in use.
    pub slots_busy: u32,
    /// Requests waiting for a slot.
    pub queued: u32,
    /// Preempted requests, which wait for KV cells.
    pub preempted: u32,
    /// KV cells of the pool; each holds one token.
    pub kv_cells: u32,
    /// Cells needed by requests in slots.
    pub kv_cells_in_use: u32,
    /// Cells kept for prompts with the same prefix.
    pub kv_cells_cached: u32,
    /// Memory of prefixes saved outside the pool, in bytes.
    pub saved_prefix_bytes: u64,
    /// Steps since the start.
    pub steps: u64,
    /// Prompt tokens prefilled since the start.
    pub prompt_tokens: u64,
    /// Prompt tokens served from the cache since the start.
    pub cached_tokens: u64,
    /// Sequences that began with a saved prefix since the start.
    pub restored_prefixes: u64,
    /// Prompt tokens of these prefixes.
    pub restored_tokens: u64,
    /// Size of the files of saved prefixes, in bytes.
    pub disk_prefix_bytes: u64,
    /// Sequences that began with a prefix read from a file since the start.
    pub disk_prefixes: u64,
    /// Prompt tokens of these prefixes.
    pub disk_tokens: u64,
    /// Saved prefixes that came from other nodes.
    pub received_prefixes: u64,
    /// True if all prefixes worth that are in files, and nothing has been computed since.
    pub is_written: bool,
    /// Kept prefixes that were evicted since the start.
    pub evictions: u64,
    /// Preemptions since the start.
    pub preemptions: u64,
    /// Tokens generated since the start.
    pub generated_tokens: u64,
    /// Draft tokens computed since the start.
    pub drafted_tokens: u64,
    /// Draft tokens accepted since the start.
    pub accepted_tokens: u64,
    /// Prompt tokens per second while prefilling, moving average; 0 until measured.
    pub prefill_tokens_per_second: f32,
    /// Generated tokens per second over all slots, moving average; 0 until measured.
    pub decode_tokens_per_second: f32,
    /// Seconds that steps have spent on prefill since the start.
    pub prefill_seconds: f64,
    /// Seconds that steps have spent on decoding since the start.
    pub decode_seconds: f64,
    /// Busy slots of all steps since the start, added up.
    pub slot_steps: u64,
}
