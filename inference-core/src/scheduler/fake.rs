//! A deterministic model without weights, for tests and simulation.
//!
//! Its vocabulary is the 256 bytes and an end token. It responds to a prompt by repeating it
//! forever, or until a token that the prompt marks as last. Every response follows from its prompt,
//! so tests notice mixed-up sequences at once.

use std::collections::BTreeSet;

use crate::types::model::SeqId;
use crate::types::model::{
    DecodeError, Decoded, Infill, Model, Row, Shape, Stop, TextRules, Tokenizer, Undo,
};
use crate::types::request::{Failure, Token};

/// Tokenizer whose tokens are bytes; `<e>` is the end token.
#[derive(Debug, Clone, Copy)]
pub struct FakeTokenizer;

impl FakeTokenizer {
    /// The end token.
    pub(crate) const END: Token = 256;
}

impl Tokenizer for FakeTokenizer {
    fn tokenize(&self, text: &str, special: bool) -> Result<Vec<Token>, Failure> {
        let bytes = |s: &str| s.bytes().map(Token::from).collect::<Vec<_>>();
        if !special {
            return Ok(bytes(text));
        }
        let mut parts = text.split("<e>");
        let mut tokens = bytes(parts.next().unwrap_or_default());
        for part in parts {
            tokens.push(Self::END);
            tokens.extend(bytes(part));
        }
        Ok(tokens)
    }

    fn tokenize_framed(&self, text: &str) -> Result<Vec<Token>, Failure> {
        Ok([self.tokenize(text, false)?, vec![Self::END]].concat())
    }

    fn separator(&self) -> Vec<Token> {
        vec![Self::END]
    }

    fn bos_token(&self) -> Option<(Token, String)> {
        None
    }

    fn vocabulary(&self) -> u32 {
        Self::END + 1
    }

    fn piece(&self, token: Token, control: bool, out: &mut Vec<u8>) {
        out.extend(u8::try_from(token));
        if control && token == Self::END {
            out.extend(b"<e>");
        }
    }

    fn is_control(&self, token: Token) -> bool {
        token == Self::END
    }

    fn end_tokens(&self) -> &[Token] {
        &[Self::END]
    }

    fn infill(&self) -> Option<Infill> {
        None
    }

    fn text_rules(&self) -> TextRules {
        TextRules { keeps_bytes: true, cuts_at_lines: true, hidden_bytes: 0 }
    }
}

/// The fake model. See the module.
#[derive(Debug)]
pub struct FakeModel {
    shape: Shape,
    /// The KV cells of each sequence id, with their tokens.
    seqs: Vec<Vec<(u64, Token)>>,
    /// Position of the first of these cells. Not 0 in an MTP head alone.
    firsts: Vec<u32>,
    next_cell: u64,
    /// Ids that hold checkpoints.
    spares: BTreeSet<SeqId>,
    logits: Vec<Vec<f32>>,
    /// The text up to each row of the last batch, if batches output hidden states.
    hidden_states: Vec<Vec<f32>>,
    /// Tokens that have logits; all others are likelier than they are.
    first_logits: u32,
    /// The hidden states that the rows of the next batch follow, in an MTP head.
    followed: Option<Vec<f32>>,
    /// Batches until one fails.
    fails_in: Option<u32>,
    /// Every as many tokens it says something else; 0 is never.
    mistakes: u32,
    /// Makes the next saved state unusable.
    pub(crate) fail_next_restore: bool,
    /// Rows of every batch that was decoded.
    pub batches: Vec<Vec<Row>>,
}

impl FakeModel {
    /// Creates a model with `slots` sequences of `context_tokens` each, and KV cells for all of
    /// them.
    pub fn new(slots: u32, context_tokens: u32, batch_rows: u32) -> Self {
        Self::with_cells(slots, context_tokens, batch_rows, slots * context_tokens)
    }

    /// Like [`Self::new`], with `cells` KV cells.
    pub fn with_cells(slots: u32, context_tokens: u32, batch_rows: u32, cells: u32) -> Self {
        let vocabulary = FakeTokenizer::END + 1;
        let seqs = 2 * slots;
        Self {
            shape: Shape {
                slots,
                seq_ids: seqs,
                logits_rows: seqs,
                kv_cells: cells,
                shares_prefixes: true,
                undo: Undo::LastTokens,
                saved_bytes_max: 0,
                context_tokens,
                batch_rows,
                vocabulary,
                hidden_width: 0,
            },
            // One more id is for a checkpoint.
            seqs: vec![Vec::new(); seqs as usize + 1],
            firsts: vec![0; seqs as usize],
            next_cell: 0,
            spares: BTreeSet::new(),
            logits: Vec::new(),
            hidden_states: Vec::new(),
            first_logits: vocabulary,
            followed: None,
            fails_in: None,
            mistakes: 0,
            fail_next_restore: false,
            batches: Vec::new(),
        }
    }

    /// Lets it say something else after every `each` tokens; never if that is 0.
    pub fn with_mistakes(mut self, each: u32) -> Self {
        self.mistakes = each;
        self
    }

    /// Sets how many finished sequences it can keep in the cache.
    #[cfg(test)]
    pub(crate) fn with_kept(mut self, kept: u32) -> Self {
        self.shape.seq_ids = self.shape.slots + kept;
        self.shape.logits_rows = self.shape.seq_ids;
        self.seqs = vec![Vec::new(); self.shape.seq_ids as usize + 1];
        self.firsts = vec![0; self.shape.seq_ids as usize];
        self
    }

    /// Makes batches output hidden states, for an MTP head.
    #[cfg(test)]
    pub(crate) fn outputting_states(mut self) -> Self {
        self.shape.hidden_width = self.shape.context_tokens;
        self
    }

    /// Makes it an MTP head. It insists on hidden states that are those of the text before each
    /// row.
    #[cfg(test)]
    pub(crate) fn into_head(self) -> Self {
        let mut head = self.without_sharing().truncating().outputting_states();
        head.followed = Some(Vec::new());
        head
    }

    /// Disables prefix sharing, as in models with sliding windows or a recurrent state.
    #[cfg(test)]
    pub(crate) fn without_sharing(self) -> Self {
        let mut alone = self.with_kept(0);
        alone.shape.shares_prefixes = false;
        alone.shape.undo = Undo::Nothing;
        alone.shape.logits_rows = crate::model_file::memory_plan::LOGITS_ROWS_MIN;
        alone
    }

    /// Allows sequences to lose their last tokens, as in models with sliding windows.
    #[cfg(test)]
    pub(crate) fn truncating(mut self) -> Self {
        self.shape.undo = Undo::LastTokens;
        self
    }

    /// Allows sequences to return to a checkpoint, as in models with a recurrent state.
    #[cfg(test)]
    pub(crate) fn returning(mut self) -> Self {
        self.shape.undo = Undo::WholeBatch;
        self
    }

    /// Saves prefixes in up to `bytes` bytes, 4 for each token.
    #[cfg(test)]
    pub(crate) fn saving(mut self, bytes: usize) -> Self {
        self.shape.saved_bytes_max = bytes;
        self
    }

    /// Makes a batch fail after `batches` others.
    #[cfg(test)]
    pub(crate) fn fail_after(&mut self, batches: u32) {
        self.fails_in = Some(batches);
    }

    /// True if this batch is to fail.
    fn fails(&mut self) -> bool {
        let left = self.fails_in.take();
        self.fails_in = left.and_then(|batches| batches.checked_sub(1));
        left == Some(0)
    }

    /// KV cells in use by any sequence id.
    pub fn cells(&self) -> u32 {
        let held = self.seqs.iter().flatten();
        let all: BTreeSet<u64> = held.map(|(cell, _)| *cell).collect();
        all.len() as u32
    }

    /// The text up to a row, which its sequence holds already. An MTP head may hold the end of it,
    /// and learns the rest from a hidden state, unless that is missing.
    fn text_up_to(&self, i: usize, row: Row) -> Result<Vec<Token>, Vec<Token>> {
        let held: Vec<Token> =
            self.seqs[row.seq as usize].iter().map(|(_, token)| *token).collect();
        let Some(states) = &self.followed else { return Ok(held) };
        let width = self.shape.hidden_width as usize;
        let state = &states[i * width..][..width];
        if state.iter().all(|token| *token == 0.0) {
            return Err(held);
        }
        let state = state.iter().take_while(|token| **token >= 0.0);
        let before: Vec<Token> = state.map(|token| *token as Token).collect();
        assert_eq!(before.len(), row.position as usize, "a state of another place");
        let text = [before, vec![row.token]].concat();
        assert!(text.ends_with(&held), "a state of another text");
        Ok(text)
    }

    /// The token that follows `sequence`: the one after the last position that the response has
    /// reached, treating the prompt as a circle. The prompt ends with the first 0x00; without one,
    /// the first token is repeated.
    fn next_token(sequence: &[Token]) -> Token {
        let prompt = sequence.iter().position(|t| *t == 0).map_or(1, |i| i + 1);
        let generated = sequence.len() - prompt.min(sequence.len());
        match sequence.get(generated % prompt) {
            Some(0) | None => FakeTokenizer::END,
            Some(token) => *token,
        }
    }
}

impl Model for FakeModel {
    fn shape(&self) -> Shape {
        self.shape
    }

    fn decode(&mut self, rows: &[Row], stop: Stop<'_>) -> Result<Decoded, DecodeError> {
        assert!(!rows.is_empty() && rows.len() <= self.shape.batch_rows as usize);
        if stop() {
            // Of recurrent states, those of other sequences are lost as well.
            if self.shape.undo != Undo::LastTokens {
                let seqs = self.seqs.iter_mut().zip(0..);
                seqs.filter(|(_, seq)| !self.spares.contains(seq)).for_each(|(s, _)| s.clear());
            }
            return Ok(Decoded::Stopped);
        }
        self.batches.push(rows.to_vec());
        if self.fails() {
            return Err(DecodeError("told to fail".into()));
        }
        self.logits = vec![Vec::new(); rows.len()];
        self.hidden_states = vec![vec![-1.0; self.shape.hidden_width as usize]; rows.len()];
        for (i, row) in rows.iter().enumerate() {
            let seq = &mut self.seqs[row.seq as usize];
            if self.followed.is_some() && seq.is_empty() {
                self.firsts[row.seq as usize] = row.position;
            }
            let end = self.firsts[row.seq as usize] + seq.len() as u32;
            assert_eq!(end, row.position, "positions must be consecutive");
            assert!(end < self.shape.context_tokens, "context overrun");
            seq.push((self.next_cell, row.token));
            self.next_cell += 1;
            let text = self.text_up_to(i, *row);
            match &text {
                Ok(text) => {
                    let state = self.hidden_states[i].iter_mut().zip(text);
                    state.for_each(|(state, token)| *state = *token as f32);
                }
                // What follows an unknown state is unknown.
                Err(_) => self.hidden_states[i].fill(0.0),
            }
            let (Ok(tokens) | Err(tokens)) = text;
            if row.logits {
                let mut logits = vec![0.0; self.shape.vocabulary as usize];
                let is_wrong =
                    self.mistakes > 0 && tokens.len().is_multiple_of(self.mistakes as usize);
                logits[if is_wrong { 1 } else { Self::next_token(&tokens) as usize }] = 1.0;
                // Logits that are not computed are undefined.
                logits[self.first_logits as usize..].fill(9.0);
                self.logits[i] = logits;
            }
        }
        assert!(self.cells() <= self.shape.kv_cells, "the pool is overrun");
        Ok(Decoded::Whole)
    }

    fn logits(&self, row: usize) -> &[f32] {
        let logits = &self.logits[row];
        assert!(!logits.is_empty(), "logits of a row that did not want them");
        logits
    }

    fn hidden_state(&self, row: usize) -> &[f32] {
        self.hidden_states.get(row).map_or(&[], Vec::as_slice)
    }

    fn set_hidden_states(&mut self, states: &[f32]) {
        assert!(self.followed.is_some(), "it follows nothing");
        self.followed = Some(states.to_vec());
    }

    fn compute_first_logits(&mut self, tokens: u32) {
        self.first_logits = tokens.min(self.shape.vocabulary);
    }

    fn run_on_threads(&self, pieces: usize, work: &(dyn Fn(usize) + Sync)) {
        std::thread::scope(|scope| {
            if pieces > 1 {
                scope.spawn(|| work(1));
            }
            work(0);
        });
    }

    fn share(&mut self, from: SeqId, to: SeqId, tokens: u32) {
        assert!(self.shape.shares_prefixes, "nothing can be shared");
        assert!(self.seqs[to as usize].is_empty(), "a new sequence must be empty");
        self.seqs[to as usize] = self.seqs[from as usize][..tokens as usize].to_vec();
    }

    fn truncate(&mut self, seq: SeqId, tokens: u32) {
        assert_eq!(self.shape.undo, Undo::LastTokens, "a state cannot be taken back");
        let held = (tokens - self.firsts[seq as usize]) as usize;
        assert!(self.seqs[seq as usize].len() >= held);
        self.seqs[seq as usize].truncate(held);
    }

    fn checkpoint(&mut self, seq: SeqId, spare: SeqId) {
        assert_eq!(self.shape.undo, Undo::WholeBatch, "it does not need checkpoints");
        assert!(self.seqs[spare as usize].is_empty(), "a sequence has this id");
        self.seqs[spare as usize] = self.seqs[seq as usize].clone();
        assert!(self.spares.insert(spare), "another checkpoint has this id");
    }

    fn roll_back(&mut self, seq: SeqId, spare: SeqId) {
        self.seqs[seq as usize] = self.seqs[spare as usize].clone();
        self.drop_checkpoint(spare);
    }

    fn drop_checkpoint(&mut self, spare: SeqId) {
        assert!(self.spares.remove(&spare), "there is no checkpoint");
        self.seqs[spare as usize].clear();
    }

    fn clear(&mut self, seq: SeqId) {
        self.seqs[seq as usize].clear();
    }

    fn save(&mut self, seq: SeqId, tokens: u32, bytes_max: usize) -> Option<Box<[u8]>> {
        let held = &self.seqs[seq as usize];
        let state: Vec<u8> = held.iter().flat_map(|(_, token)| token.to_le_bytes()).collect();
        (held.len() == tokens as usize && state.len() <= bytes_max).then(|| state.into())
    }

    fn restore(&mut self, seq: SeqId, state: &[u8]) -> bool {
        assert!(self.seqs[seq as usize].is_empty(), "a restored sequence must be empty");
        if std::mem::take(&mut self.fail_next_restore) {
            return false;
        }
        for bytes in state.chunks_exact(4) {
            let token = Token::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            self.seqs[seq as usize].push((self.next_cell, token));
            self.next_cell += 1;
        }
        assert!(self.cells() <= self.shape.kv_cells, "the pool is overrun");
        true
    }

    fn piece(&self, token: Token, control: bool, out: &mut Vec<u8>) {
        FakeTokenizer.piece(token, control, out);
    }

    fn end_tokens(&self) -> &[Token] {
        &[FakeTokenizer::END]
    }
}
