//! Vocabularies for tests: bytes, and one as large and varied as those of real models.

use std::collections::HashSet;
use std::sync::LazyLock;

use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64;

use super::Vocabulary;
use crate::text::grammar::{Grammars, Piece};
use crate::types::request::Token;

/// The end token of [`bytes`].
pub(crate) const BYTES_END: Token = 256;
/// Number of tokens of [`large`]: the same as Qwen 2.5.
const LARGE: usize = 151_936;

/// One token for each byte.
pub(crate) fn bytes() -> &'static Vocabulary {
    static BYTES: LazyLock<Vocabulary> = LazyLock::new(|| {
        let bytes = (0..=u8::MAX).map(|b| Piece { bytes: vec![b], special: false });
        let end = Piece { bytes: b"</s>".to_vec(), special: true };
        vocabulary(bytes.chain([end]).collect())
    });
    &BYTES
}

/// Bytes, words, fragments of code and JSON, blanks, CJK and special tokens.
pub(crate) fn large() -> &'static Vocabulary {
    static LARGE: LazyLock<Vocabulary> = LazyLock::new(|| vocabulary(large_pieces()));
    &LARGE
}

fn vocabulary(pieces: Vec<Piece>) -> Vocabulary {
    let end = pieces.len() as Token - 1;
    let grammars = Grammars::new(pieces.clone(), &[end]).unwrap();
    Vocabulary { grammars, pieces, end }
}

pub(crate) fn large_pieces() -> Vec<Piece> {
    let mut pieces: Vec<Piece> =
        (0..=u8::MAX).map(|b| Piece { bytes: vec![b], special: false }).collect();
    let mut known: HashSet<Vec<u8>> = pieces.iter().map(|p| p.bytes.clone()).collect();
    let mut rng = Pcg64::seed_from_u64(1);
    let mut texts = punctuation();
    while pieces.len() < LARGE - 64 {
        let text = texts.pop().unwrap_or_else(|| word(&mut rng)).into_bytes();
        if known.insert(text.clone()) {
            pieces.push(Piece { bytes: text, special: false });
        }
    }
    let name = |i: usize| format!("<|special_{i}|>").into_bytes();
    pieces.extend((0..64).map(|i| Piece { bytes: name(i), special: true }));
    pieces
}

fn punctuation() -> Vec<String> {
    let marks = [
        "{\"", "\":", "\": ", "\":\"", "\": \"", "\",", "\",\"", "\", \"", "\"}", "\"]", "]}",
        "},", "},{", "[{", "[[", "]]", "}}", "[]", "{}", "[\"", "\"],", "\\n", "\\\"", "\\u", "//",
        "/*", "=>", "==", "->", "();", ");\n", " = ", " {", " }", " [", " ]", " (", " )", ": ",
        ", ", " \"", ",\n", "{\n", "}\n", "[\n", "]\n", "null", "true", "false", " null", " true",
        " false", "true,", "0.", ".0", "00", "000",
    ];
    let mut texts: Vec<String> = marks.map(String::from).to_vec();
    for count in 2..80 {
        texts.extend([" ".repeat(count), format!("\n{}", " ".repeat(count - 1))]);
        texts.push("\t".repeat(count));
    }
    texts
}

/// A word or a fragment, sometimes after a blank, capitalized, or in another script.
fn word(rng: &mut Pcg64) -> String {
    const SOUNDS: [&str; 24] = [
        "a", "e", "i", "o", "u", "th", "r", "n", "st", "l", "in", "er", "on", "re", "at", "en",
        "co", "de", "ing", "tion", "m", "p", "s", "ch",
    ];
    let mut below = |n: u32| rng.next_u32() % n;
    let kind = below(100);
    if kind < 16 {
        let base = [0x4e00, 0x0430, 0xac00, 0x3041, 0xe0][below(5) as usize];
        let letters = 1 + below(3);
        return (0..letters).filter_map(|_| char::from_u32(base + below(60))).collect();
    }
    let mut text: String = (0..1 + below(5)).map(|_| SOUNDS[below(24) as usize]).collect();
    match kind {
        16..30 => text[..1].make_ascii_uppercase(),
        30..34 => text.make_ascii_uppercase(),
        34..38 => text.insert(0, '_'),
        38..41 => text.push_str("();"),
        41..43 => text.insert(0, '.'),
        _ => {}
    }
    if kind > 45 || kind % 2 == 0 { format!(" {text}") } else { text }
}
