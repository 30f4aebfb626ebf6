//! The narrow view of a model that the engine steps, with two implementations: llama.cpp
//! ([`crate::llama`]) and a deterministic fake ([`crate::scheduler::fake`]) for tests and
//! simulation.

use serde::{Deserialize, Serialize};

use crate::types::request::{Failure, Token};

/// Index of a slot, which holds one live sequence.
pub type Slot = u32;

/// Sequence id in the context (llama.cpp's `llama_seq_id`).
pub type SeqId = u32;

/// Sizes that are fixed while a model is loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Maximum number of live sequences.
    pub slots: u32,
    /// Sequence ids of the context, live or kept: at least `slots`.
    pub(crate) seq_ids: u32,
    /// Maximum rows of a batch that have logits; at least `seq_ids`.
    pub(crate) logits_rows: u32,
    /// KV cells of all sequences together; at least `context_tokens`.
    pub kv_cells: u32,
    /// True if sequences can share the cells of a common prefix.
    pub(crate) shares_prefixes: bool,
    /// What a sequence can lose of its last batch.
    pub(crate) undo: Undo,
    /// Memory for saved prefixes in bytes; 0 saves none.
    pub(crate) saved_bytes_max: usize,
    /// Maximum tokens of one sequence, prompt and response together.
    pub context_tokens: u32,
    /// Maximum rows of one batch.
    pub batch_rows: u32,
    /// Number of tokens in the vocabulary.
    pub vocabulary: u32,
    /// Elements of a hidden state, if batches output one for each row, for an MTP head; 0 if they
    /// do not.
    pub(crate) hidden_width: u32,
}

/// What a sequence can lose of its last batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Undo {
    /// Nothing.
    Nothing,
    /// All of it, if there is a checkpoint of the state before it.
    WholeBatch,
    /// Any number of tokens at the end.
    LastTokens,
}

/// Sizes of a loaded model file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelSizes {
    /// Tokens of the vocabulary.
    pub vocabulary: u32,
    /// Context that it was trained with.
    pub context_trained: u32,
    /// Dimensions of its embeddings.
    pub embedding_width: u32,
    /// Number of parameters.
    pub parameters: u64,
    /// Size of the weights in bytes.
    pub bytes: u64,
}

/// One row of a batch: a token of a sequence at its position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// Sequence id.
    pub(crate) seq: SeqId,
    /// Position of the token in the sequence; positions of one sequence are consecutive.
    pub position: u32,
    /// Token id.
    pub token: Token,
    /// True if the engine needs the logits after this token.
    pub logits: bool,
}

/// Why a batch could not be decoded. None of it counts; its sequences are lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecodeError(pub String);

/// Polled while a batch is computed, from any thread: true if no one wants the batch any more.
pub type Stop<'a> = &'a (dyn Fn() -> bool + Sync);

/// Result of a batch that did not fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decoded {
    /// The whole batch was computed.
    Whole,
    /// The batch was stopped. Its sequences are as they were before. With a recurrent state they
    /// are empty, but for one with a checkpoint, and what other sequences have is unknown.
    Stopped,
}

/// Runs batches. Not shared: one thread owns it.
pub trait Model {
    /// The sizes of this model.
    fn shape(&self) -> Shape;
    /// Runs one batch, unless `stop` reports in the middle that it is not wanted any more;
    /// afterwards [`Model::logits`] is valid for the rows that asked for logits.
    fn decode(&mut self, rows: &[Row], stop: Stop<'_>) -> Result<Decoded, DecodeError>;
    /// The logits of row `row` of the last batch, one per token of the vocabulary.
    fn logits(&self, row: usize) -> &[f32];
    /// The hidden state after row `row` of the last batch. Empty if batches output none.
    fn hidden_state(&self, row: usize) -> &[f32];
    /// Sets the hidden states that are input of the rows of the next batch, one for each: that of
    /// the row before it. Only for an MTP head.
    fn set_hidden_states(&mut self, states: &[f32]);
    /// Computes the logits of the first tokens of the vocabulary alone from the next batch on.
    /// Those of others are undefined.
    fn compute_first_logits(&mut self, tokens: u32);
    /// Calls `work` on each compute thread, with the thread's number. Calls it only on the current
    /// thread, with 0, if `pieces` rows of logits are too little work to share.
    fn run_on_threads(&self, pieces: usize, work: &(dyn Fn(usize) + Sync));
    /// Makes `to`, which is empty, start with the first `tokens` tokens of `from`, in the same KV
    /// cells: nothing is computed or copied.
    fn share(&mut self, from: SeqId, to: SeqId, tokens: u32);
    /// Removes everything after the first `tokens` tokens of a sequence; only for models that can
    /// undo last tokens. Without shared prefixes, all of that was computed in its last batch.
    fn truncate(&mut self, seq: SeqId, tokens: u32);
    /// Keeps the state of a sequence, at no cost, until it is rolled back or the checkpoint is
    /// dropped. `spare` holds it: an id that no sequence has, or `seq_ids`, which none ever has.
    /// Only for models that can undo a whole batch.
    fn checkpoint(&mut self, seq: SeqId, spare: SeqId);
    /// Returns a sequence to its checkpoint in `spare`, which is dropped.
    fn roll_back(&mut self, seq: SeqId, spare: SeqId);
    /// Drops the checkpoint in `spare`.
    fn drop_checkpoint(&mut self, spare: SeqId);
    /// Removes a sequence; KV cells that no other sequence shares become free.
    fn clear(&mut self, seq: SeqId);
    /// A copy of the state of a sequence of `tokens` tokens, if it has at most `bytes_max` bytes.
    /// None as well if the sequence holds another number of tokens.
    fn save(&mut self, seq: SeqId, tokens: u32, bytes_max: usize) -> Option<Box<[u8]>>;
    /// Fills an empty sequence with a saved state. False if that fails; the sequence stays empty.
    fn restore(&mut self, seq: SeqId, state: &[u8]) -> bool;
    /// Appends the bytes of a token's text; that of a control token only if `control`.
    fn piece(&self, token: Token, control: bool, out: &mut Vec<u8>);
    /// The tokens that end a response (end of generation).
    fn end_tokens(&self) -> &[Token];
}

/// Text -> tokens. Shared: any thread may tokenize while the model runs.
pub trait Tokenizer: Send + Sync {
    /// Tokenizes `text`. With `special`, the texts of control tokens become those tokens.
    fn tokenize(&self, text: &str, special: bool) -> Result<Vec<Token>, Failure>;
    /// Tokenizes `text` and adds the tokens that an embedding model expects around it.
    fn tokenize_framed(&self, text: &str) -> Result<Vec<Token>, Failure>;
    /// The tokens that a reranking model expects between a query and a document, and after that.
    fn separator(&self) -> Vec<Token>;
    /// The token (BOS) that starts every prompt, if the model wants one, and its text.
    fn bos_token(&self) -> Option<(Token, String)>;
    /// Number of tokens in the vocabulary.
    fn vocabulary(&self) -> u32;
    /// Appends the bytes of a token's text; that of a control token only if `control`.
    fn piece(&self, token: Token, control: bool, out: &mut Vec<u8>);
    /// True if a token has no text in ordinary responses.
    fn is_control(&self, token: Token) -> bool;
    /// The tokens that end a response (end of generation).
    fn end_tokens(&self) -> &[Token];
    /// The fill-in-the-middle tokens, if the model has them.
    fn infill(&self) -> Option<Infill>;
    /// What this tokenizer guarantees for every text.
    fn text_rules(&self) -> TextRules;
}

/// What a tokenizer guarantees for every text. The default guarantees nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TextRules {
    /// Every byte that is not whitespace becomes part of a token that represents no others, if the
    /// vocabulary has a token for each single byte.
    pub(crate) keeps_bytes: bool,
    /// A text may be split after a line feed between two letters, unless a token of the vocabulary
    /// contains a line feed before a letter.
    pub(crate) cuts_at_lines: bool,
    /// Maximum bytes of text that a token represents but its piece does not show.
    pub(crate) hidden_bytes: usize,
}

/// Fill-in-the-middle tokens that mark a gap in a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Infill {
    /// Precedes the text before the gap.
    pub prefix: Token,
    /// Precedes the text after the gap.
    pub suffix: Token,
    /// Marks where the model fills in.
    pub middle: Token,
    /// Precedes the name of a repository, in models that were trained on whole ones.
    pub repository: Option<Token>,
    /// Precedes the name of a file, in models that were trained on several.
    pub file: Option<Token>,
}
