//! What llama.cpp's tokenizers guarantee for every text.

use std::ffi::CStr;

use llama_cpp_sys_2 as sys;

use super::weights::{PIECE_BYTES_MAX, Weights};
use crate::types::model::TextRules;

/// Attributes of tokens whose pieces show all the text they represent.
const SHOWN: sys::llama_token_attr = sys::LLAMA_TOKEN_ATTR_NORMAL
    | sys::LLAMA_TOKEN_ATTR_CONTROL
    | sys::LLAMA_TOKEN_ATTR_USER_DEFINED
    | sys::LLAMA_TOKEN_ATTR_BYTE
    | sys::LLAMA_TOKEN_ATTR_UNKNOWN;
/// Attributes of tokens that strip the adjacent whitespace.
const STRIPS: sys::llama_token_attr = sys::LLAMA_TOKEN_ATTR_LSTRIP | sys::LLAMA_TOKEN_ATTR_RSTRIP;

/// BPE and SentencePiece vocabularies keep every byte; the others normalize text, or have unknown
/// tokens for any number of characters. SentencePiece prepends a space to each text, so a part is
/// tokenized differently alone than after another.
pub(crate) fn read(weights: &Weights) -> TextRules {
    let vocab = weights.vocab();
    // SAFETY: the vocabulary is valid.
    let kind = unsafe { sys::llama_vocab_type(vocab) };
    let is_bpe = kind == sys::LLAMA_VOCAB_TYPE_BPE;
    let mut rules = TextRules {
        keeps_bytes: is_bpe || kind == sys::LLAMA_VOCAB_TYPE_SPM,
        cuts_at_lines: is_bpe,
        hidden_bytes: 0,
    };
    for id in 0..i32::try_from(weights.vocabulary()).unwrap_or(0) {
        // SAFETY: the id is inside the vocabulary; a text that is not null lives as long as the
        // vocabulary.
        let (attributes, text) = unsafe {
            let text = sys::llama_vocab_get_text(vocab, id);
            let bytes = if text.is_null() { &[][..] } else { CStr::from_ptr(text).to_bytes() };
            (sys::llama_vocab_get_attr(vocab, id), bytes)
        };
        if attributes & SHOWN == 0 || text.len() > PIECE_BYTES_MAX {
            rules.hidden_bytes = rules.hidden_bytes.max(text.len());
        }
        let mut ends = [text.first(), text.last()].into_iter().flatten();
        let at_letters = ends.any(u8::is_ascii_alphabetic);
        rules.cuts_at_lines &= attributes & STRIPS == 0 || !at_letters;
    }
    rules
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hardware::Kernel;
    use crate::llama::{LlamaTokenizer, register};
    use crate::model_file::memory_plan::LoadMode;
    use crate::prepare::{Bounds, solid_bytes};
    use crate::types::model::Tokenizer;
    use std::path::Path;

    fn demo() -> LlamaTokenizer {
        register(Kernel::Baseline);
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("demo-model/flotilla-demo.gguf");
        LlamaTokenizer(Weights::load(&[path], LoadMode::Mmap).unwrap())
    }

    /// Lines of words, code, numbers and other scripts, some very long.
    fn mixed() -> String {
        let lines = [
            "The capital of France is Paris",
            "for (int i = 0; i < 12345; i++) { x[i] += 1.5e-3; }",
            "don't we'll it's\n\n\n   Grüße, 世界! 🐱",
            "a\nb\r\nc\t\td",
            "<|im_start|>user",
            "####################",
        ];
        let long = ["x".repeat(70_000), " ".repeat(70_000), "ab\n".repeat(50_000)];
        let all: Vec<&str> = lines.into_iter().cycle().take(9000).collect();
        [all.join("\n"), long.join("\nfoo\nbar "), all.concat()].join("\n")
    }

    #[test]
    fn the_tokens_of_the_parts_of_a_text_are_those_of_the_text() {
        let tokenizer = demo();
        let bounds = Bounds::new(&tokenizer);
        let text = mixed();
        for control in [false, true] {
            let parts: Vec<&str> = bounds.parts(&text).collect();
            assert!(parts.len() > 5, "{}", parts.len());
            let read = parts.iter().flat_map(|part| tokenizer.tokenize(part, control).unwrap());
            assert!(read.eq(tokenizer.tokenize(&text, control).unwrap()), "control: {control}");
        }
    }

    #[test]
    fn a_text_has_at_least_as_many_tokens_as_its_bytes_say() {
        let tokenizer = demo();
        let bounds = Bounds::new(&tokenizer);
        let text = mixed();
        let fewest = bounds.tokens_min(solid_bytes(text.as_bytes()));
        let tokens = tokenizer.tokenize(&text, true).unwrap().len();
        assert!(0 < fewest && fewest <= tokens, "{fewest} {tokens}");
        // The longest tokens alone: the minimum number of tokens.
        let piece = |token| {
            let mut bytes = Vec::new();
            tokenizer.piece(token, true, &mut bytes);
            bytes
        };
        for token in 0..tokenizer.vocabulary() {
            let text = String::from_utf8_lossy(&piece(token)).repeat(50);
            let fewest = bounds.tokens_min(solid_bytes(text.as_bytes()));
            assert!(fewest <= tokenizer.tokenize(&text, true).unwrap().len(), "{text}");
        }
    }
}
