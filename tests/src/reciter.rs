//! A model file whose answers are chosen: which token it writes depends only on how many tokens are
//! before it. With it, a real engine writes what a model of any family would.
//!
//! The architecture is GPT-2, which adds a vector for the position to that of the token. Here all
//! other weights are zero, each position of an answer has a dimension of its own, and the output
//! matrix maps that to the token that comes next.

use std::collections::HashMap;
use std::path::Path;

use crate::gguf::{Gguf, Value};

/// Dimensions, and so the most tokens of all answers together.
const WIDTH: usize = 512;
const HEADS: u32 = 8;
const HIDDEN: usize = 32;
/// Tokens of the context.
pub const CONTEXT: usize = 8192;

const NORMAL: i32 = 1;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;

/// Tokens that are no ordinary text, by their spelling.
#[derive(Debug, Clone, Copy, Default)]
pub struct Special<'a> {
    /// Control tokens: no text is tokenized to them, and ordinary responses hide them.
    pub control: &'a [String],
    /// Words that are one token wherever they stand.
    pub words: &'a [String],
}

/// A model that recites.
#[derive(Debug)]
pub struct Reciter {
    tokens: Vec<String>,
    kinds: Vec<i32>,
    ids: HashMap<String, usize>,
    /// The token at each position.
    next: Vec<(usize, usize)>,
    end: usize,
}

impl Reciter {
    /// A vocabulary of all bytes and `special`. `end` is the control token that ends responses.
    pub fn new(special: Special<'_>, end: &str) -> Self {
        let (tokens, kinds, ids) = (Vec::new(), Vec::new(), HashMap::new());
        let mut new = Self { tokens, kinds, ids, next: Vec::new(), end: 0 };
        for byte in 0..=255 {
            new.token(&spell(&[byte]), NORMAL);
        }
        for token in special.control {
            new.token(token, CONTROL);
        }
        for token in special.words {
            new.token(token, USER_DEFINED);
        }
        new.end = new.token(end, CONTROL);
        new
    }

    fn token(&mut self, spelling: &str, kind: i32) -> usize {
        if let Some(id) = self.ids.get(spelling) {
            return *id;
        }
        let id = self.tokens.len();
        self.tokens.push(spelling.into());
        self.kinds.push(kind);
        self.ids.insert(spelling.into(), id);
        id
    }

    /// After a prompt of `prompt` tokens, writes `text` and ends. Special tokens stay whole; the
    /// rest is cut into pieces of `sizes` bytes, taken in turns, also amid characters.
    pub fn recite(&mut self, prompt: usize, text: &str, sizes: &[usize]) {
        let mut sizes = sizes.iter().copied().cycle();
        let (mut rest, mut position) = (text.as_bytes(), prompt);
        while !rest.is_empty() {
            let (id, length) = self.special_at_start(rest).unwrap_or_else(|| {
                let size = sizes.next().expect("there are sizes").min(rest.len());
                let special = (1..size).find(|at| self.special_at_start(&rest[*at..]).is_some());
                let length = special.unwrap_or(size);
                (self.token(&spell(&rest[..length]), NORMAL), length)
            });
            self.next.push((position - 1, id));
            position += 1;
            rest = &rest[length..];
        }
        self.next.push((position - 1, self.end));
        assert!(self.next.len() <= WIDTH, "the answers have more than {WIDTH} tokens");
        assert!(position <= CONTEXT, "the context is full");
    }

    /// The longest special token that a text starts with, and its bytes.
    fn special_at_start(&self, text: &[u8]) -> Option<(usize, usize)> {
        let special = self.tokens.iter().enumerate().skip(256);
        let special = special
            .filter(|(id, token)| self.kinds[*id] != NORMAL && text.starts_with(token.as_bytes()));
        special.max_by_key(|(_, token)| token.len()).map(|(id, token)| (id, token.len()))
    }

    /// Writes the file. `bos` is what templates call the token of the beginning.
    pub fn write(&self, file: &Path, template: &str, pre: &str, bos: Option<&str>) {
        let mut gguf = Gguf::default();
        let mut key = |name: &str, value: Value| gguf.key(name, value);
        key("general.architecture", Value::Text("gpt2".into()));
        key("general.name", Value::Text("a model that recites".into()));
        key("gpt2.context_length", Value::Number(CONTEXT as u32));
        key("gpt2.embedding_length", Value::Number(WIDTH as u32));
        key("gpt2.block_count", Value::Number(1));
        key("gpt2.feed_forward_length", Value::Number(HIDDEN as u32));
        key("gpt2.attention.head_count", Value::Number(HEADS));
        key("gpt2.attention.layer_norm_epsilon", Value::Fraction(1e-5));
        key("tokenizer.ggml.model", Value::Text("gpt2".into()));
        key("tokenizer.ggml.pre", Value::Text(pre.into()));
        key("tokenizer.ggml.tokens", Value::Texts(self.tokens.clone()));
        key("tokenizer.ggml.token_type", Value::Numbers(self.kinds.clone()));
        key("tokenizer.ggml.merges", Value::Texts(vec!["\u{100} \u{100}".into()]));
        key("tokenizer.ggml.eos_token_id", Value::Number(self.end as u32));
        if let Some(bos) = bos {
            key("tokenizer.ggml.bos_token_id", Value::Number(self.ids[bos] as u32));
        }
        key("tokenizer.ggml.add_bos_token", Value::Flag(false));
        key("tokenizer.chat_template", Value::Text(template.into()));
        self.add_tensors(&mut gguf);
        gguf.write(file);
    }

    fn add_tensors(&self, gguf: &mut Gguf) {
        let vocabulary = self.tokens.len();
        let (mut positions, mut output) =
            (vec![0.0; WIDTH * CONTEXT], vec![0.0; WIDTH * vocabulary]);
        for (dimension, (position, token)) in self.next.iter().enumerate() {
            positions[position * WIDTH + dimension] = 1.0;
            output[token * WIDTH + dimension] = 1.0;
        }
        gguf.tensor("token_embd.weight", &[WIDTH, vocabulary], vec![0.0; WIDTH * vocabulary]);
        gguf.tensor("position_embd.weight", &[WIDTH, CONTEXT], positions);
        gguf.tensor("output.weight", &[WIDTH, vocabulary], output);
        for name in ["output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"] {
            gguf.tensor(&format!("{name}.weight"), &[WIDTH], vec![1.0; WIDTH]);
            gguf.tensor(&format!("{name}.bias"), &[WIDTH], vec![0.0; WIDTH]);
        }
        for (name, columns, rows) in [
            ("attn_qkv", WIDTH, 3 * WIDTH),
            ("attn_output", WIDTH, WIDTH),
            ("ffn_up", WIDTH, HIDDEN),
            ("ffn_down", HIDDEN, WIDTH),
        ] {
            let zeros = vec![0.0; columns * rows];
            gguf.tensor(&format!("blk.0.{name}.weight"), &[columns, rows], zeros);
            gguf.tensor(&format!("blk.0.{name}.bias"), &[rows], vec![0.0; rows]);
        }
    }
}

/// Bytes as GPT-2's vocabularies spell them: printable ones stand for themselves, the others start
/// at U+0100.
fn spell(bytes: &[u8]) -> String {
    let printable = |b: u8| (33..=126).contains(&b) || (161..=172).contains(&b) || b >= 174;
    let letter = |byte: u8| match printable(byte) {
        true => char::from(byte),
        false => {
            let before = (0..byte).filter(|b| !printable(*b)).count() as u32;
            char::from_u32(256 + before).expect("a letter")
        }
    };
    bytes.iter().map(|byte| letter(*byte)).collect()
}
