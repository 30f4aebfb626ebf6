//! Vocabularies of model files with random weights, one for each pre-tokenizer that llama.cpp
//! knows.

use crate::model_file::gguf::write::Writer;

/// Names of llama.cpp's pre-tokenizers (`tokenizer.ggml.pre`). llama.cpp treats those in one group
/// alike.
pub const PRE_TOKENIZERS: &[&[&str]] = &[
    &["default"],
    &["minicpm5"],
    &[
        "llama3",
        "llama-v3",
        "llama-bpe",
        "falcon3",
        "falcon-h1",
        "pixtral",
        "midm-2.0",
        "lfm2",
        "jina-v5-nano",
    ],
    &["deepseek-llm"],
    &["deepseek-coder"],
    &["deepseek-v3"],
    &["spark2_5"],
    &["youtu"],
    &["falcon"],
    &["mpt"],
    &["starcoder"],
    &[
        "gpt-2",
        "phi-2",
        "jina-es",
        "jina-de",
        "gigachat",
        "jina-v2-es",
        "jina-v2-de",
        "a.x-4.0",
        "mellum",
        "modern-bert",
        "jina-v1-en",
        "jina-v2-code",
        "roberta-bpe",
        "exaone4",
    ],
    &["jais-2"],
    &["gemma4", "granite-embed-multi-311m"],
    &["mmbert"],
    &["sarvam-moe"],
    &["whitespace"],
    &["refact"],
    &["command-r"],
    &["qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez"],
    &["qwen35"],
    &["stablelm2"],
    &["olmo"],
    &["dbrx"],
    &["smaug-bpe"],
    &["poro-chat"],
    &["chatglm-bpe", "glm4", "glm5"],
    &["viking"],
    &["jais"],
    &["tekken"],
    &["smollm"],
    &["codeshell"],
    &["bloom"],
    &["gpt3-finnish"],
    &["exaone"],
    &["exaone-moe"],
    &["chameleon"],
    &["minerva-7b"],
    &["gpt-4o", "llama4", "kanana2", "talkie"],
    &["granite-embed-multi-97m"],
    &["tiny_aya", "cohere2moe"],
    &["superbpe"],
    &["trillion"],
    &["granite-docling"],
    &["bailingmoe", "bailingmoe2", "llada-moe"],
    &["seed-coder"],
    &["hunyuan"],
    &["hunyuan-dense"],
    &["hy_v4"],
    &["joyai-llm"],
    &["kimi-k2"],
    &["ufakzeka"],
    &["grok-2"],
    &["afmoe"],
    &["laguna"],
    &["minimax-m2"],
    &["solar-open"],
    &["mellum2"],
];
/// The default pre-tokenizer of a file.
pub const DEFAULT_PRE: &str = "qwen2";

/// Pre-tokenizers that split raw UTF-8 instead of GPT-2's letters for bytes.
const RAW: [&str; 5] = ["gemma4", "granite-embed-multi-311m", "mmbert", "sarvam-moe", "whitespace"];

const NORMAL: i32 = 1;
const CONTROL: i32 = 3;
const BYTE: i32 = 6;
/// Id of the first control token (BOS).
const BEGINNING: u32 = 256;
/// Id of the second control token (EOS).
const END: u32 = 257;

/// Tokens and merges of a file, and how it splits texts.
#[derive(Debug, Clone)]
pub(crate) struct Vocabulary {
    /// llama.cpp's name for the kind of tokenizer.
    pub(crate) model: &'static str,
    pre: &'static str,
    tokens: Vec<String>,
    kinds: Vec<i32>,
    merges: Vec<String>,
}

impl Vocabulary {
    /// The 256 bytes as the pre-tokenizer expects them, two control tokens, and names that no text
    /// is tokenized to. `None` if llama.cpp does not know `pre`.
    pub(crate) fn new(pre: &str, size: usize) -> Option<Self> {
        let pre = PRE_TOKENIZERS.iter().copied().flatten().copied().find(|name| *name == pre)?;
        // Drops spaces, which the pre-tokenizer alone does not.
        let model = if pre == "whitespace" { "whitespace" } else { "gpt2" };
        let (tokens, kinds, merges) = (Vec::new(), Vec::new(), Vec::new());
        let mut new = Self { model, pre, tokens, kinds, merges };
        let kind = if new.is_raw() { BYTE } else { NORMAL };
        let mut bytes: Vec<u8> = (0..=255).collect();
        bytes.sort_by_key(|byte| gpt2_letter(*byte));
        for byte in bytes {
            new.add(new.byte(byte), kind);
        }
        new.add("<|im_start|>".into(), CONTROL);
        new.add("<|im_end|>".into(), CONTROL);
        new.merge("t", "o");
        for n in 0..size.saturating_sub(new.tokens.len()) {
            new.add(format!("tok{n}"), NORMAL);
        }
        Some(new)
    }

    fn is_raw(&self) -> bool {
        RAW.contains(&self.pre)
    }

    fn add(&mut self, token: String, kind: i32) {
        self.tokens.push(token);
        self.kinds.push(kind);
    }

    fn merge(&mut self, left: &str, right: &str) {
        self.add(format!("{left}{right}"), NORMAL);
        self.merges.push(format!("{left} {right}"));
    }

    /// A byte as a token.
    fn byte(&self, byte: u8) -> String {
        if self.is_raw() {
            return format!("<0x{byte:02X}>");
        }
        gpt2_letter(byte).to_string()
    }

    /// Adds the vocabulary to a model file's header.
    pub(crate) fn write_metadata(&self, writer: &mut Writer) {
        writer.numbers("tokenizer.ggml.token_type", &self.kinds);
        writer.text("tokenizer.ggml.model", self.model);
        writer.text("tokenizer.ggml.pre", self.pre);
        writer.texts("tokenizer.ggml.tokens", &self.tokens);
        writer.texts("tokenizer.ggml.merges", &self.merges);
        if self.is_raw() {
            // llama.cpp prepends a BOS token to every text for gemma4, whatever the file says.
            writer.number("tokenizer.ggml.bos_token_id", BEGINNING);
        }
        writer.number("tokenizer.ggml.eos_token_id", END);
        writer.flag("tokenizer.ggml.add_bos_token", false);
    }
}

/// GPT-2's letter for a byte: printable ones stand for themselves, the others start at U+0100.
fn gpt2_letter(byte: u8) -> char {
    let printable = |b: u8| (33..=126).contains(&b) || (161..=172).contains(&b) || b >= 174;
    if printable(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|b| !printable(*b)).count() as u32;
    char::from_u32(256 + before).unwrap_or_default()
}

#[cfg(test)]
impl Vocabulary {
    pub(crate) fn len(&self) -> usize {
        self.tokens.len()
    }

    /// A vocabulary in which every two adjacent characters of one kind become one token if the
    /// pre-tokenizer leaves them in one word, so that the tokens show how a text was split.
    pub(crate) fn of_pairs(pre: &str) -> Self {
        let mut new = Self::new(pre, 0).unwrap();
        let ascii: Vec<u8> = (b'!'..=b'~').chain(*b" \n\t").collect();
        let high: Vec<u8> = (128..=255).collect();
        let kinds = if new.is_raw() { vec![ascii] } else { vec![ascii, high] };
        for bytes in kinds {
            let letters: Vec<String> = bytes.iter().map(|byte| new.letter(*byte)).collect();
            for left in &letters {
                for right in &letters {
                    if (left.as_str(), right.as_str()) != ("t", "o") {
                        new.merge(left, right);
                    }
                }
            }
        }
        new
    }

    /// A byte as texts contain it when they are split; an ASCII byte if the pre-tokenizer splits
    /// raw text.
    fn letter(&self, byte: u8) -> String {
        match byte {
            b' ' if self.is_raw() => "\u{2581}".into(),
            _ if self.is_raw() => char::from(byte).to_string(),
            _ => self.byte(byte),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_vocabulary_has_every_byte_once_and_no_name_twice() {
        for names in PRE_TOKENIZERS {
            for vocabulary in
                [Vocabulary::new(names[0], 1024).unwrap(), Vocabulary::of_pairs(names[0])]
            {
                let unique: BTreeSet<&String> = vocabulary.tokens.iter().collect();
                assert_eq!(
                    (vocabulary.len(), vocabulary.kinds.len()),
                    (unique.len(), unique.len())
                );
                assert_eq!(vocabulary.tokens[256..259], ["<|im_start|>", "<|im_end|>", "to"]);
            }
        }
        assert_eq!(Vocabulary::new(DEFAULT_PRE, 1024).unwrap().len(), 1024);
        assert!(Vocabulary::new("no-such-name", 1024).is_none());
    }

    #[test]
    fn no_pre_tokenizer_is_listed_twice() {
        let names: Vec<&str> = PRE_TOKENIZERS.iter().copied().flatten().copied().collect();
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
    }
}
