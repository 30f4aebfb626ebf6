//! Constraints of answers: GBNF, JSON schemas, Lark and regular expressions.

use std::sync::LazyLock;

use inference_core::text::grammar::{Grammar, GrammarError, Grammars, Piece};
use inference_core::types::constraint::Constraint;
use inference_core::types::request::Token;
use serde_json::value::RawValue;

use crate::input::{Choices, split, text};

/// Most tokens of an answer.
const TOKENS_MAX: usize = 48;
/// Tokens of more than one byte.
const WORDS: [&str; 40] = [
    "{\"", "\":", "\": ", "\":\"", "\": \"", "\",", "\",\"", "\"}", "\"]", "]}", "},", "[{", "[\"",
    "{}", "[]", "\\\"", "\\u", "null", "true", "false", " \"", ",\n", "\n\n", "  ", "    ", "the",
    " a", "ab", "abc", "ing", "00", "000", "123", "-1", ".5", "e+", "é", "日本", "😀", "::",
];

/// A vocabulary of bytes, some words, a special token and an end.
struct Vocabulary {
    grammars: Grammars,
    pieces: Vec<Piece>,
    end: Token,
}

static VOCABULARY: LazyLock<Vocabulary> = LazyLock::new(|| {
    let plain = |bytes: &[u8]| Piece { bytes: bytes.to_vec(), special: false };
    let special = |name: &str| Piece { bytes: name.as_bytes().to_vec(), special: true };
    let mut pieces: Vec<Piece> = (0..=u8::MAX).map(|byte| plain(&[byte])).collect();
    pieces.extend(WORDS.iter().map(|word| plain(word.as_bytes())));
    pieces.extend(["<|tool|>", "</s>"].map(special));
    let end = pieces.len() as Token - 1;
    let grammars = Grammars::new(pieces.clone(), &[end]).expect("a good vocabulary");
    Vocabulary { grammars, pieces, end }
});

/// A grammar of llama.cpp's is translated, or refused by an error that tells the client why.
pub fn gbnf(data: &[u8]) {
    let (grammar, choices) = split(data);
    check(&Constraint::Gbnf(text(grammar).into()), Choices::new(choices));
}

/// The same for llguidance's Lark, and for regular expressions.
pub fn lark(data: &[u8]) {
    let (grammar, choices) = split(data);
    let constraint = match text(grammar).strip_prefix('~') {
        Some(regex) => Constraint::Regex(regex.into()),
        None => Constraint::Lark(text(grammar).into()),
    };
    check(&constraint, Choices::new(choices));
}

/// The same for JSON schemas, strict or not; what is written under them is JSON.
pub fn json_schema(data: &[u8]) {
    let (schema, choices) = split(data);
    let (schema, mut choices) = (text(schema), Choices::new(choices));
    let constraint = match choices.byte() & 1 {
        0 => Constraint::JsonSchema(schema.into()),
        _ => Constraint::LenientJsonSchema(schema.into()),
    };
    if let Some(answer) = check(&constraint, choices) {
        // Not a value: numbers may be larger than any of Rust's.
        let value = serde_json::from_str::<&RawValue>(&answer);
        assert!(value.is_ok(), "{answer:?} is not JSON: {value:?}");
    }
}

/// Compiles a constraint and writes an answer under it. Nothing where there is none, or where it
/// does not end soon.
fn check(constraint: &Constraint, mut choices: Choices<'_>) -> Option<String> {
    let compiled = VOCABULARY.grammars.compile(constraint);
    let grammar = compiled.map_err(|error| judge(&error)).ok()?;
    let mut going = grammar.clone();
    let mut tokens = Vec::new();
    while tokens.len() < TOKENS_MAX {
        let allowed = step(&mut going, &mut choices)?;
        let end = allowed.contains(&VOCABULARY.end);
        let token = match end && (allowed.len() == 1 || choices.byte() & 1 == 0) {
            true => VOCABULARY.end,
            false => allowed[choices.below(allowed.len())],
        };
        going.accept(token).map_err(|error| judge(&error)).ok()?;
        tokens.push(token);
        if token == VOCABULARY.end {
            replay(grammar, &tokens);
            tokens.pop();
            let bytes = tokens.iter().flat_map(|t| &VOCABULARY.pieces[*t as usize].bytes);
            return Some(answer(constraint, bytes.copied().collect()));
        }
    }
    None
}

/// The answer, which is UTF-8 unless the grammar may negate or name tokens by their numbers: a
/// negation matches any bytes, and a token may be part of a character.
fn answer(constraint: &Constraint, bytes: Vec<u8>) -> String {
    match constraint {
        Constraint::Lark(text) if text.contains('~') || text.contains("<[") => {
            String::from_utf8_lossy(&bytes).into()
        }
        _ => String::from_utf8(bytes).expect("UTF-8"),
    }
}

/// The tokens that may come next; asking for them one by one tells the same.
fn step(grammar: &mut Grammar, choices: &mut Choices<'_>) -> Option<Vec<Token>> {
    let mut asked = grammar.clone();
    let mut logits = vec![0.0f32; VOCABULARY.pieces.len()];
    grammar.mask(&mut logits).map_err(|error| judge(&error)).ok()?;
    let all = 0..VOCABULARY.pieces.len() as Token;
    let allowed: Vec<Token> = all.filter(|token| logits[*token as usize] == 0.0).collect();
    assert!(!allowed.is_empty(), "no error, and nothing may come");
    for token in [VOCABULARY.end, choices.below(VOCABULARY.pieces.len()) as Token] {
        let one = asked.allows(token).map_err(|error| judge(&error)).ok()?;
        assert_eq!(one, allowed.contains(&token), "token {token}");
    }
    Some(allowed)
}

/// The same tokens, checked without masks, lead to the same end.
fn replay(mut grammar: Grammar, tokens: &[Token]) {
    for token in tokens {
        if let Err(error) = grammar.accept(*token) {
            return judge(&error);
        }
    }
    assert!(grammar.must_end());
}

/// Errors are the client's to mend; neither a fault of ours nor a panic that was caught.
fn judge(error: &GrammarError) {
    let is_fault = matches!(error, GrammarError::Internal(_) | GrammarError::Rejected(_));
    let why = match error {
        GrammarError::Invalid(why) | GrammarError::TooComplex(why) => why.as_str(),
        _ => "",
    };
    // As llguidance begins what it says of a panic; a client's own words may hold the same.
    assert!(!is_fault && !why.starts_with("panic: "), "{error:?}");
    assert!(!error.to_string().is_empty());
}
