//! What the engine is asked and what it answers. Plain data that crosses a process border.

use serde::{Deserialize, Serialize};

use crate::types::constraint::Constraint;
use crate::types::tool_choice::Choice;

mod event;
mod sampling;
mod work;

pub use event::{EngineStats, Event, Failure, FinishReason, LikelyToken, Shown, TokenLogprob};
pub use sampling::{BIASES_MAX, RECENT_TOKENS_MAX, Sampling};
pub use work::Work;

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

/// Most likely tokens that are told for each token of an answer.
pub const LOGPROBS_MAX: u32 = 20;

/// One generation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GenerateRequest {
    /// Whose it is.
    pub tenant: Tenant,
    /// What to go on from.
    pub prompt: Prompt,
    /// How, and until when.
    pub options: Options,
    /// What the answer must look like.
    pub constraint: Option<Constraint>,
    /// The tools that the answer may or must call.
    pub calls: Option<CallRules>,
    /// Whether the marks of thoughts and calls are part of the text, control tokens or not.
    pub shows_marks: bool,
    /// What the answer began with elsewhere: it goes on after these tokens.
    pub said: Vec<Token>,
    /// For templates that write a date: Unix seconds.
    pub now: i64,
    /// More answers to the same prompt, which is prepared once for all.
    pub more: Vec<Sibling>,
}

/// Another answer to the prompt of a [`GenerateRequest`]: what it has of its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sibling {
    /// Seed of its random numbers.
    pub seed: u64,
    /// What it began with elsewhere.
    pub said: Vec<Token>,
}

/// Calls of tools in an answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallRules {
    /// Which may or must be called.
    pub choice: Choice,
    /// Most calls.
    pub calls_max: u32,
}

/// Inputs for a model that makes one vector of each.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EmbedRequest {
    /// Whose it is.
    pub tenant: Tenant,
    /// The inputs; each becomes an [`Event::Embedded`].
    pub inputs: Vec<EmbedInput>,
}

/// An input of an [`EmbedRequest`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum EmbedInput {
    /// A text.
    Text(String),
    /// Tokens, as they are.
    Tokens(Vec<Token>),
    /// For a model that ranks: how well a document answers a query.
    Pair {
        /// The query.
        query: String,
        /// The document.
        document: String,
    },
}

/// How an answer is generated, and when it ends.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Options {
    /// How to choose tokens.
    pub sampling: Sampling,
    /// Most tokens to generate; absent is as many as the context holds.
    pub max_tokens: Option<u32>,
    /// Strings that end the answer and are not part of it.
    pub stop: Vec<String>,
    /// Tell how likely each token was, and so many of the likeliest beside it.
    pub logprobs: Option<u32>,
}

impl Options {
    /// Always the likeliest token, as many as the context holds.
    pub const GREEDY: Self =
        Self { sampling: Sampling::GREEDY, max_tokens: None, stop: Vec::new(), logprobs: None };
}

/// What to go on from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Prompt {
    /// For the model's chat template. Templates read fields that we do not know, so
    /// messages and tools travel as the client wrote them.
    Chat(Chat),
    /// Text, with special tokens recognised: the caller speaks to the model directly.
    Text(String),
    /// Tokens, as they are.
    Tokens(Vec<Token>),
    /// The text that is missing between two others.
    Infill {
        /// Before the gap.
        prefix: String,
        /// After it.
        suffix: String,
    },
}

/// A conversation, as JSON texts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Chat {
    /// An array of messages.
    pub messages: String,
    /// An array of tools.
    pub tools: Option<String>,
    /// An array of documents.
    pub documents: Option<String>,
    /// An object of more variables for the template.
    pub variables: Option<String>,
    /// How the prompt ends.
    pub ending: Ending,
}

impl Chat {
    /// A conversation that the assistant is to answer.
    pub fn new(messages: String) -> Self {
        let ending = Ending::Answer;
        Self { messages, tools: None, documents: None, variables: None, ending }
    }
}

/// How the prompt of a chat ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ending {
    /// With the beginning of the assistant's answer.
    Answer,
    /// Inside the last message, which the assistant continues.
    Prefill,
    /// With the last message.
    Closed,
}

/// A question about text and tokens, answered without the model's weights.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Question {
    /// The tokens of a prompt.
    Tokenize {
        /// The prompt.
        prompt: Prompt,
        /// Whether each token's text is wanted, too.
        with_pieces: bool,
    },
    /// The tokens of a text, with nothing put before it.
    TokenizeText {
        /// The text.
        text: String,
        /// Whether the model's beginning token comes first.
        beginning: bool,
        /// Whether texts of control tokens become those tokens.
        control: bool,
        /// Whether each token's text is wanted, too.
        with_pieces: bool,
    },
    /// The text of tokens.
    Detokenize(Vec<Token>),
    /// The prompt of a chat.
    Render(Chat),
}

/// The answer to a [`Question`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Told {
    /// Tokens; with their texts, if those were wanted.
    Tokens(Vec<Token>, Vec<Vec<u8>>),
    /// A text.
    Text(String),
}
