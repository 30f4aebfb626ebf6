//! A deterministic model without weights, for tests and simulation.
//!
//! Its vocabulary is the 256 bytes and an ending token. It answers a prompt by repeating
//! it for ever, or until a token that the prompt marks as last: every answer is known
//! from its prompt, so that mixed-up sequences show at once.

use crate::model::{DecodeError, Model, Row, Shape, Slot, Tokenizer};
use crate::request::Token;

/// Bytes as tokens; `<e>` is the ending token.
#[derive(Debug, Clone, Copy)]
pub struct FakeTokenizer;

impl FakeTokenizer {
    /// The ending token.
    pub const END: Token = 256;
}

impl Tokenizer for FakeTokenizer {
    fn tokenize(&self, text: &str, special: bool) -> Vec<Token> {
        let bytes = |s: &str| s.bytes().map(Token::from).collect::<Vec<_>>();
        if !special {
            return bytes(text);
        }
        let mut parts = text.split("<e>");
        let mut tokens = bytes(parts.next().unwrap_or_default());
        for part in parts {
            tokens.push(Self::END);
            tokens.extend(bytes(part));
        }
        tokens
    }

    fn beginning(&self) -> Option<(Token, String)> {
        None
    }

    fn vocabulary(&self) -> u32 {
        Self::END + 1
    }
}

/// See the module.
#[derive(Debug)]
pub struct FakeModel {
    shape: Shape,
    sequences: Vec<Vec<Token>>,
    logits: Vec<Vec<f32>>,
    /// Fails the next batch.
    pub fail_next: bool,
    /// Rows of every batch that was decoded.
    pub batches: Vec<Vec<Row>>,
}

impl FakeModel {
    /// A model of `slots` sequences with `context_tokens` each.
    pub fn new(slots: u32, context_tokens: u32, batch_rows: u32) -> Self {
        let vocabulary = FakeTokenizer::END + 1;
        Self {
            shape: Shape { slots, context_tokens, batch_rows, vocabulary },
            sequences: vec![Vec::new(); slots as usize],
            logits: Vec::new(),
            fail_next: false,
            batches: Vec::new(),
        }
    }

    /// Tokens held for all sequences.
    pub fn cells(&self) -> usize {
        self.sequences.iter().map(Vec::len).sum()
    }

    /// What follows `sequence`: the token after the last place where its answer stands,
    /// reading the prompt as a circle. The prompt ends at the first 0x00, which is part
    /// of it; without one, the first token is repeated.
    fn next(sequence: &[Token]) -> Token {
        let prompt = sequence.iter().position(|t| *t == 0).map_or(1, |i| i + 1);
        let answered = sequence.len() - prompt.min(sequence.len());
        match sequence.get(answered % prompt) {
            Some(0) | None => FakeTokenizer::END,
            Some(token) => *token,
        }
    }
}

impl Model for FakeModel {
    fn shape(&self) -> Shape {
        self.shape
    }

    fn decode(&mut self, rows: &[Row]) -> Result<(), DecodeError> {
        assert!(!rows.is_empty() && rows.len() <= self.shape.batch_rows as usize);
        self.batches.push(rows.to_vec());
        if std::mem::take(&mut self.fail_next) {
            return Err(DecodeError("told to fail".into()));
        }
        self.logits = vec![Vec::new(); rows.len()];
        for (i, row) in rows.iter().enumerate() {
            let sequence = &mut self.sequences[row.slot as usize];
            assert_eq!(sequence.len(), row.position as usize, "positions must be consecutive");
            assert!(sequence.len() < self.shape.context_tokens as usize, "context overrun");
            sequence.push(row.token);
            if row.logits {
                let mut logits = vec![0.0; self.shape.vocabulary as usize];
                logits[Self::next(sequence) as usize] = 1.0;
                self.logits[i] = logits;
            }
        }
        Ok(())
    }

    fn logits(&self, row: usize) -> &[f32] {
        let logits = &self.logits[row];
        assert!(!logits.is_empty(), "logits of a row that did not want them");
        logits
    }

    fn clear(&mut self, slot: Slot) {
        self.sequences[slot as usize].clear();
    }

    fn piece(&self, token: Token, out: &mut Vec<u8>) {
        out.extend(u8::try_from(token));
    }

    fn is_end(&self, token: Token) -> bool {
        token == FakeTokenizer::END
    }
}
