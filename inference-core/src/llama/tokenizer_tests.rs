//! Tests every pre-tokenizer that llama.cpp knows. Texts that crash a process with std::regex are
//! split on a stack too small for std::regex, and texts that std::regex survives are split the same
//! way.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64;

use super::{LlamaTokenizer, LoadError, Weights, register};
use crate::hardware::Kernel;
use crate::model_file::memory_plan::LoadMode;
use crate::prepare::Bounds;
use crate::tools::synth::{PRE_TOKENIZERS, Vocabulary, small_file};
use crate::types::model::Tokenizer;
use crate::types::request::{Failure, Token};

unsafe extern "C" {
    /// Makes this thread split texts with std::regex, as llama.cpp does.
    fn flotilla_use_std_regex(on: bool);
}

/// Characters of a long text; std::regex crashes at 7,000 with a usual stack.
const LONG: usize = 25_000;
/// Characters of a text for std::regex, and a stack large enough for it.
const SHORT: usize = 1000;
const LARGE_STACK: usize = 1 << 30;
/// A stack too small for one frame per character of a long text.
const SMALL_STACK: usize = 256 << 10;

/// One of each class of characters that the expressions distinguish, and a few combinations.
const UNITS: [&str; 44] = [
    " ",
    "\t",
    "\n",
    "\r\n",
    "\u{b}",
    "\u{85}",
    "\u{a0}",
    "\u{2003}",
    "\u{3000}",
    "a",
    "Z",
    "aA",
    "é",
    "ǅ",
    "ʰ",
    "ж",
    "א",
    "中",
    "あ",
    "ア",
    "가",
    "ㄱ",
    "ก",
    "\u{301}",
    "\u{94d}",
    "1",
    "٣",
    "²",
    "!",
    "'",
    "$",
    "€",
    "/",
    "😀",
    "👨‍👩",
    "\u{ad}",
    "\u{e000}",
    "\u{0}",
    "'s",
    "a ",
    " 1",
    " \n",
    "<sentinel:",
    "…",
];

/// A file that is deleted on drop.
struct File(PathBuf);

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn load(
    vocabulary: &Vocabulary,
    layers: u32,
    change: impl Fn(&mut Vec<u8>),
) -> Result<Weights, LoadError> {
    static FILES: AtomicUsize = AtomicUsize::new(0);
    let number = FILES.fetch_add(1, Ordering::Relaxed);
    let name = format!("flotilla-tokenizer-{}-{number}.gguf", std::process::id());
    let file = File(std::env::temp_dir().join(name));
    let mut bytes = small_file(vocabulary, layers);
    change(&mut bytes);
    std::fs::write(&file.0, bytes).unwrap();
    register(Kernel::Baseline);
    Weights::load(&[&file.0], LoadMode::Mmap)
}

fn tokenizer(pre: &str) -> LlamaTokenizer {
    LlamaTokenizer(load(&Vocabulary::of_pairs(pre), 1, |_| {}).unwrap())
}

/// Runs `run` on a thread with a stack of `bytes`.
fn on_stack<T: Send>(bytes: usize, run: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(bytes);
        thread.spawn_scoped(scope, run).unwrap().join().unwrap()
    })
}

/// Runs `run` on the first name of each group and its tokenizer, spread over the cores.
fn each_pre_tokenizer(run: impl Fn(&str, &LlamaTokenizer) + Sync) {
    let next = AtomicUsize::new(0);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                while let Some(names) = PRE_TOKENIZERS.get(next.fetch_add(1, Ordering::Relaxed)) {
                    run(names[0], &tokenizer(names[0]));
                }
            });
        }
    });
}

/// The text of tokens without spaces, because some pre-tokenizers replace or drop them.
fn spoken(tokenizer: &LlamaTokenizer, tokens: &[Token]) -> String {
    let mut pieces = BTreeMap::new();
    let mut bytes = Vec::new();
    for token in tokens {
        let piece: &mut Vec<u8> = pieces.entry(*token).or_default();
        if piece.is_empty() {
            tokenizer.piece(*token, true, piece);
        }
        bytes.extend_from_slice(piece);
    }
    solid(&String::from_utf8(bytes).unwrap())
}

fn solid(text: &str) -> String {
    text.chars().filter(|c| !c.is_whitespace() && *c != '\u{2581}').collect()
}

fn repeated(unit: &str, characters: usize) -> String {
    unit.repeat(characters.div_ceil(unit.chars().count()))
}

/// The Big List of Naughty Strings, if it is available next to the repository.
fn naughty_strings() -> Vec<String> {
    let data = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../shared/data");
    let Ok(text) = std::fs::read_to_string(data.join("naughty-strings/blns.json")) else {
        println!("skipped: there are no naughty strings");
        return Vec::new();
    };
    serde_json::from_str(&text).unwrap()
}

/// Random sequences of units, some of them repeated.
fn mixtures(count: usize, characters: usize) -> Vec<String> {
    let mut rng = Pcg64::seed_from_u64(1);
    let mut below = |most: usize| rng.next_u32() as usize % most;
    let mut mixture = || {
        let units: Vec<&str> = (0..1 + below(12)).map(|_| UNITS[below(UNITS.len())]).collect();
        let mut text = String::new();
        while text.len() < characters {
            let times = if below(8) == 0 { 1 + below(40) } else { 1 };
            text += &units[below(units.len())].repeat(times);
        }
        text
    };
    (0..count).map(|_| mixture()).collect()
}

#[test]
fn every_name_of_a_pre_tokenizer_loads() {
    for name in PRE_TOKENIZERS.iter().copied().flatten() {
        let vocabulary = Vocabulary::new(name, 300).unwrap();
        let tokenizer = LlamaTokenizer(load(&vocabulary, 1, |_| {}).unwrap());
        assert!(!tokenizer.tokenize("to be", false).unwrap().is_empty(), "{name}");
    }
}

#[test]
fn long_runs_of_any_character_are_tokenized_on_a_small_stack() {
    each_pre_tokenizer(|name, tokenizer| {
        for unit in UNITS {
            let text = repeated(unit, LONG);
            let tokens = on_stack(SMALL_STACK, || tokenizer.tokenize(&text, false).unwrap());
            assert_eq!(spoken(tokenizer, &tokens), solid(&text), "{name}: {unit:?}");
        }
    });
}

#[test]
fn a_megabyte_of_mixed_scripts_is_tokenized_on_a_small_stack() {
    let text = mixtures(64, 1 << 14).concat();
    each_pre_tokenizer(|name, tokenizer| {
        let tokens = on_stack(SMALL_STACK, || tokenizer.tokenize(&text, false).unwrap());
        assert_eq!(spoken(tokenizer, &tokens), solid(&text), "{name}");
    });
}

#[test]
fn tokens_are_those_of_llama_cpp_wherever_it_survives() {
    let naughty = naughty_strings();
    let mut texts: Vec<String> = ["", "\n", " ", "a"].map(|between| naughty.join(between)).into();
    texts.retain(|text| !text.is_empty());
    texts.extend(UNITS.map(|unit| repeated(unit, SHORT)));
    texts.extend(UNITS.map(|unit| format!("a{}a", repeated(unit, 7))));
    texts.extend(mixtures(40, 400));
    each_pre_tokenizer(|name, tokenizer| {
        let tokens = |text: &str| tokenizer.tokenize(text, false);
        let ours: Vec<_> = texts.iter().map(|text| tokens(text)).collect();
        let theirs: Vec<_> = on_stack(LARGE_STACK, || {
            // SAFETY: it sets a flag of this thread.
            unsafe { flotilla_use_std_regex(true) };
            texts.iter().map(|text| tokens(text)).collect()
        });
        for (text, (ours, theirs)) in texts.iter().zip(ours.iter().zip(&theirs)) {
            assert!(ours.is_ok() && ours == theirs, "{name}: {text:?}");
        }
    });
}

#[test]
fn a_text_that_is_read_in_parts_has_its_tokens_with_every_pre_tokenizer() {
    let text = mixtures(64, 1 << 13).join("x\ny");
    each_pre_tokenizer(|name, tokenizer| {
        let bounds = Bounds::new(tokenizer);
        let parts = bounds.parts(&text);
        let read = parts.flat_map(|part| tokenizer.tokenize(part, false).unwrap());
        assert!(read.eq(tokenizer.tokenize(&text, false).unwrap()), "{name}");
    });
}

#[test]
fn a_hundred_thousand_special_tokens_are_found_one_by_one() {
    const MANY: usize = 100_000;
    let tokenizer = tokenizer("tekken");
    let [letter, end] = tokenizer.tokenize("a<|im_end|>", true).unwrap()[..] else { panic!() };
    assert!(tokenizer.is_control(end));
    let tokens = tokenizer.tokenize(&"a<|im_end|>".repeat(MANY), true).unwrap();
    assert!(tokens.chunks(2).all(|pair| pair == [letter, end]) && tokens.len() == 2 * MANY);
    let tokens = tokenizer.tokenize(&"<|im_end|>".repeat(MANY), true).unwrap();
    assert_eq!(tokens, vec![end; MANY]);
}

#[test]
fn a_text_may_have_more_tokens_than_bytes() {
    // A space takes three bytes here and has no token.
    let vocabulary = Vocabulary::new("gemma4", 300).unwrap();
    let tokenizer = LlamaTokenizer(load(&vocabulary, 1, |_| {}).unwrap());
    let spaces = " ".repeat(1000);
    assert_eq!(tokenizer.tokenize(&spaces, false).unwrap().len(), 3000);
}

#[test]
fn what_llama_cpp_would_abort_on_is_an_error() {
    // This pre-tokenizer leaves spaces between words to a tokenizer that drops them.
    let mut vocabulary = Vocabulary::new("whitespace", 300).unwrap();
    let whole = LlamaTokenizer(load(&vocabulary, 1, |_| {}).unwrap());
    assert_eq!(whole.tokenize("two  spaces", false).unwrap().len(), "twospaces".len());
    vocabulary.model = "gpt2";
    let tokenizer = LlamaTokenizer(load(&vocabulary, 1, |_| {}).unwrap());
    assert_eq!(tokenizer.tokenize("two  spaces", false), Err(Failure::Untokenizable));
}

#[test]
fn a_tekken_model_without_a_chat_template_has_none() {
    let rename = |file: &mut Vec<u8>| {
        let key = b"tokenizer.chat_template";
        let at = file.windows(key.len()).position(|w| w == key).unwrap();
        file[at + key.len() - 1] = b'_';
    };
    // llama.cpp assumes one of its own formats for models of 40 layers.
    let weights = load(&Vocabulary::new("tekken", 300).unwrap(), 40, rename).unwrap();
    assert!(weights.chat_templates().is_none());
    let name_only = |file: &mut Vec<u8>| {
        let key = b"tokenizer.chat_template";
        let at = file.windows(key.len()).position(|w| w == key).unwrap();
        file[at + key.len()..].iter_mut().filter(|byte| **byte == b'{').for_each(|b| *b = b'(');
    };
    let weights = load(&Vocabulary::new("tekken", 300).unwrap(), 1, name_only).unwrap();
    assert!(weights.chat_templates().is_none(), "a text that is no template");
    let with_one = load(&Vocabulary::new("tekken", 300).unwrap(), 40, |_| {}).unwrap();
    assert!(with_one.chat_templates().unwrap().default.contains("im_start"));
}
