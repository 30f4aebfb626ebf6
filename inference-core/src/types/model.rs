//! The narrow view of a model that the engine steps: two implementations, llama.cpp
//! ([`crate::llama`]) and a deterministic fake ([`crate::scheduler::fake`]) for tests and
//! simulation.

use crate::types::request::{Failure, Token};

/// A place for one live sequence.
pub type Slot = u32;

/// A sequence of the context.
pub type TrackId = u32;

/// Sizes that never change while a model is loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Live sequences side by side.
    pub slots: u32,
    /// Sequences of the context, live or kept: at least `slots`.
    pub tracks: u32,
    /// Cells for the tokens of all tracks; at least `context_tokens`.
    pub cells: u32,
    /// Whether tracks can share the cells of a common beginning.
    pub shares_prefixes: bool,
    /// Tokens that one sequence may hold, prompt and answer together.
    pub context_tokens: u32,
    /// Most rows of one batch.
    pub batch_rows: u32,
    /// Tokens of the vocabulary.
    pub vocabulary: u32,
}

/// One row of a batch: a token of a sequence at its position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// The sequence.
    pub track: TrackId,
    /// Place of the token in the sequence; rows of a track are consecutive.
    pub position: u32,
    /// The token.
    pub token: Token,
    /// Whether the logits after this token are wanted.
    pub logits: bool,
}

/// Why a batch was not decoded. Nothing of it counts; the sequences in it are lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecodeError(pub String);

/// Asked while a batch is computed, from whatever thread: whether nobody wants it any more.
pub type Stop<'a> = &'a (dyn Fn() -> bool + Sync);

/// How a batch ended that did not fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decoded {
    /// All of it was computed.
    Whole,
    /// It was stopped. Its sequences are as they were before, or empty where the model cannot
    /// take back what it computed (recurrent state).
    Stopped,
}

/// Runs batches. Not shared: one thread owns it.
pub trait Model {
    /// Its sizes.
    fn shape(&self) -> Shape;
    /// Runs one batch, unless `stop` says in the middle that it is not wanted any more;
    /// afterwards [`Model::logits`] is valid for its rows that want them.
    fn decode(&mut self, rows: &[Row], stop: Stop<'_>) -> Result<Decoded, DecodeError>;
    /// The logits of row `row` of the last batch, one for each token of the vocabulary.
    fn logits(&self, row: usize) -> &[f32];
    /// Lets `to`, which is empty, begin with the first `tokens` tokens of `from`, in the same
    /// cells: nothing is computed or copied.
    fn share(&mut self, from: TrackId, to: TrackId, tokens: u32);
    /// Forgets what a track has after its first `tokens` tokens; only where tracks can share.
    fn truncate(&mut self, track: TrackId, tokens: u32);
    /// Forgets everything of a track; cells that no other track shares are free.
    fn clear(&mut self, track: TrackId);
    /// Appends the bytes of a token's text; that of control tokens only if `control`.
    fn piece(&self, token: Token, control: bool, out: &mut Vec<u8>);
    /// The tokens that end an answer.
    fn ends(&self) -> &[Token];
}

/// Text -> tokens. Shared: any thread may tokenize while the model runs.
pub trait Tokenizer: Send + Sync {
    /// Tokens of `text`. `special`: texts of control tokens become those tokens.
    fn tokenize(&self, text: &str, special: bool) -> Result<Vec<Token>, Failure>;
    /// Tokens of `text` with those that a model for embeddings wants around it.
    fn tokenize_framed(&self, text: &str) -> Result<Vec<Token>, Failure>;
    /// What a model that ranks wants between a query and a document, and after that.
    fn separator(&self) -> Vec<Token>;
    /// The token that begins every prompt, where the model wants one, and its text.
    fn beginning(&self) -> Option<(Token, String)>;
    /// Tokens of the vocabulary.
    fn vocabulary(&self) -> u32;
    /// Appends the bytes of a token's text; that of control tokens only if `control`.
    fn piece(&self, token: Token, control: bool, out: &mut Vec<u8>);
    /// Whether a token has no text in ordinary answers.
    fn is_control(&self, token: Token) -> bool;
    /// The tokens that end an answer.
    fn ends(&self) -> &[Token];
    /// The tokens for filling a gap, where the model was trained for that.
    fn infill(&self) -> Option<Infill>;
    /// What it promises of every text.
    fn text_rules(&self) -> TextRules;
}

/// What a tokenizer promises of every text. The default promises nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TextRules {
    /// Every byte that is not whitespace becomes part of a token that stands for no others, if
    /// the vocabulary has a token for each single byte.
    pub keeps_bytes: bool,
    /// A text may be cut behind a line feed between two letters, unless a token of the
    /// vocabulary holds a line feed before a letter.
    pub cuts_at_lines: bool,
    /// The most bytes of a text that a token stands for whose piece does not show them.
    pub hidden_bytes: usize,
}

/// Tokens that mark a gap in a text: `prefix` before, `suffix` after, `middle` to fill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Infill {
    /// Before the text that comes before the gap.
    pub prefix: Token,
    /// Before the text that comes after it.
    pub suffix: Token,
    /// Where the model is to write.
    pub middle: Token,
}
