//! Requests to the engine, and its responses. Plain data that crosses a process boundary.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::types::constraint::Constraint;
use crate::types::tool_choice::ToolChoice;

mod event;
mod sampling;
mod slots;
mod work;

pub use event::{
    EngineStats, Event, Failure, FinishReason, LikelyToken, ResponseTimes, TextChunk, TokenLogprob,
};
pub use sampling::{
    ALLOWED_MAX, BIASES_MAX, BREAKERS, BREAKERS_MAX, Dry, LIST_MAX, RECENT_TOKENS_MAX, Sampling,
    SamplingDefaults, WORD_BYTES_MAX, Xtc,
};
pub use slots::{
    FILE_NAME_BYTES_MAX, SlotAction, SlotFailure, SlotName, SlotRequest, SlotResult,
    is_slot_file_name,
};
pub use work::Work;

/// Id that the caller chooses; unique among the requests in flight.
pub type RequestId = u64;
/// Token id in the model's vocabulary.
pub type Token = u32;

/// Tenant of a request: requests of one tenant share cached prefixes, and tenants take turns. The
/// caller derives the number from the tenant's name. A group of tenants that share cached prefixes
/// has a number as well.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tenant(pub u64);

/// Maximum stop strings per request.
pub const STOPS_MAX: usize = 16;
/// Maximum length of a stop string in bytes: it limits how much text may be held back.
pub const STOP_BYTES_MAX: usize = 256;

/// Maximum number of most likely tokens reported for each token of a response.
pub const LOGPROBS_MAX: u32 = 20;

/// A request to generate a response, or several.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GenerateRequest {
    /// Tenant that sent the request.
    pub tenant: Tenant,
    /// The prompt to continue.
    pub prompt: Prompt,
    /// Sampling and stop options.
    pub options: Options,
    /// Constraint on the response.
    pub constraint: Option<Constraint>,
    /// The tools that the response may or must call.
    pub calls: Option<CallRules>,
    /// True if the delimiters of reasoning and tool calls are part of the text, whether they are
    /// control tokens or not.
    pub show_delimiters: bool,
    /// Tokens of a response that started on another node; it resumes after these.
    pub resume_tokens: Vec<Token>,
    /// Unix time in seconds, for templates that print a date.
    pub now: i64,
    /// Further choices for the same prompt, which is prepared once for all.
    pub siblings: Vec<Sibling>,
}

/// Another choice for the prompt of a [`GenerateRequest`]: the fields that differ.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sibling {
    /// Seed of its random number generator.
    pub seed: u64,
    /// Tokens of this choice that were generated on another node.
    pub resume_tokens: Vec<Token>,
}

/// Rules for tool calls in a response.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallRules {
    /// Which tools may or must be called.
    pub choice: ToolChoice,
    /// Maximum number of calls.
    pub calls_max: u32,
}

/// Inputs for an embedding model, which computes one embedding of each.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EmbedRequest {
    /// Tenant that sent the request.
    pub tenant: Tenant,
    /// The inputs; each results in an [`Event::Embedded`].
    pub inputs: Vec<EmbedInput>,
    /// Maximum tokens of all inputs together.
    pub usage_max: Option<u64>,
}

/// An input of an [`EmbedRequest`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum EmbedInput {
    /// Text to tokenize.
    Text(String),
    /// Token ids, used as they are.
    Tokens(Vec<Token>),
    /// For a reranking model: scores how well a document answers a query.
    Pair {
        /// Search query.
        query: String,
        /// Document to score.
        document: String,
    },
}

/// How a response is generated, and when it ends.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Options {
    /// Sampling parameters.
    pub sampling: Sampling,
    /// Maximum tokens to generate, also 0; `None` is as many as the context holds.
    pub max_tokens: Option<u32>,
    /// Maximum tokens of the prompt and all choices together; shortens the choices.
    pub usage_max: Option<u64>,
    /// Strings that end the response and are not part of it.
    pub stop: Vec<String>,
    /// Tokens that end the response and are not part of its text.
    pub stop_tokens: Vec<Token>,
    /// When a line ends the response.
    pub lines: LineRules,
    /// Report the logprob of each token, and this many of the most likely alternatives.
    pub logprobs: Option<u32>,
    /// Report the logprobs of the prompt's tokens as well, and compute it without the cache.
    pub prompt_logprobs: bool,
    /// Maximum tokens of reasoning; `None` is no limit.
    pub reasoning_max: Option<u32>,
    /// Text that the response is likely to repeat.
    pub prediction: Option<String>,
    /// True if the prompt may start with a cached prefix.
    pub uses_cache: bool,
    /// The group of tenants whose cached prefixes it shares, as a tenant; `None` is its own tenant.
    pub prefix_group: Option<Tenant>,
    /// Emit an [`Event::Prefilled`] now and then while the prompt is computed.
    pub reports_prefill: bool,
    /// The slot that it is remembered for; `None` for a response that is not.
    pub slot: Option<SlotName>,
}

impl Options {
    /// Always the most likely token, as many as the context holds.
    pub const GREEDY: Self = Self {
        sampling: Sampling::GREEDY,
        max_tokens: None,
        usage_max: None,
        stop: Vec::new(),
        stop_tokens: Vec::new(),
        lines: LineRules::NONE,
        logprobs: None,
        prompt_logprobs: false,
        reasoning_max: None,
        prediction: None,
        uses_cache: true,
        prefix_group: None,
        reports_prefill: false,
        slot: None,
    };
}

/// When a line ends a response: for code completion.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LineRules {
    /// Spaces and tabs that every line but the first begins with; a line with fewer ends the
    /// response and is not part of it. 0 is any.
    pub indent_min: u32,
    /// A line that ends later than this after the first token ends the response.
    pub time_max: Option<Duration>,
}

impl LineRules {
    /// No line ends a response.
    pub const NONE: Self = Self { indent_min: 0, time_max: None };
}

/// The prompt to continue.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Prompt {
    /// Messages for the model's chat template. Templates read fields unknown to us, so messages and
    /// tools stay as the client wrote them.
    Chat(Chat),
    /// Text with special tokens recognized: the caller addresses the model directly.
    Text(String),
    /// Token ids, used as they are.
    Tokens(Vec<Token>),
    /// Fill-in-the-middle: generates the text between two others.
    Infill {
        /// Text before the gap.
        prefix: String,
        /// Text after the gap.
        suffix: String,
        /// Other files, which come before the text.
        files: Vec<InfillFile>,
    },
}

/// A file that is shown to a model that fills a gap in another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InfillFile {
    /// Its name.
    pub name: String,
    /// Its text.
    pub text: String,
}

/// A conversation, as JSON texts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Chat {
    /// JSON array of messages.
    pub messages: String,
    /// JSON array of tools.
    pub tools: Option<String>,
    /// JSON array of documents.
    pub documents: Option<String>,
    /// JSON object of extra template variables.
    pub variables: Option<String>,
    /// Template instead of the model's, in Jinja.
    pub template: Option<String>,
    /// How the prompt ends.
    pub generation_prompt: GenerationPrompt,
}

impl Chat {
    /// A conversation that the assistant responds to.
    pub fn new(messages: String) -> Self {
        let generation_prompt = GenerationPrompt::Add;
        let (tools, documents, variables, template) = (None, None, None, None);
        Self { messages, tools, documents, variables, template, generation_prompt }
    }
}

/// How the prompt of a chat ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum GenerationPrompt {
    /// With the start of the assistant's response.
    Add,
    /// Inside the last message, which the assistant continues.
    ContinueFinalMessage,
    /// With the last message.
    Omit,
}

/// A query about text and tokens, which needs no model weights.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum TextQuery {
    /// Tokenize a prompt.
    Tokenize {
        /// Prompt to tokenize.
        prompt: Prompt,
        /// Return the text of each token as well.
        with_pieces: bool,
    },
    /// Tokenize a text without adding anything before it.
    TokenizeText {
        /// Text to tokenize.
        text: String,
        /// Start with the model's beginning token (BOS).
        beginning: bool,
        /// Turn the texts of control tokens into those tokens.
        control: bool,
        /// Return the text of each token as well.
        with_pieces: bool,
    },
    /// Convert tokens to text.
    Detokenize(Vec<Token>),
    /// Render the prompt of a chat.
    Render(Chat),
    /// Return the texts that prompts are made of.
    Texts,
}

/// The result of a [`TextQuery`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum QueryResult {
    /// Tokens, and their texts if requested.
    Tokens(Vec<Token>, Vec<Vec<u8>>),
    /// Detokenized text or a rendered prompt.
    Text(String),
    /// Texts that prompts are made of.
    Texts(ModelTexts),
}

/// Texts that a model's prompts are made of.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelTexts {
    /// The chat template, if it has a valid one.
    pub template: Option<String>,
    /// The text of the token that begins a prompt (BOS).
    pub beginning: String,
    /// The text of the token that ends a response (EOS).
    pub end: String,
}
