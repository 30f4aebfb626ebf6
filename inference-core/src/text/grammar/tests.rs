//! Tests of grammars as requests use them.

use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64;

use super::*;
use crate::types::constraint::Constraint;
use crate::types::request::Token;

mod bombs;
mod generated;
mod speed;
mod suites;
mod vocabularies;

pub(in crate::text::grammar) use vocabularies::{BYTES_END, bytes, large};

/// Feeds `text` byte by byte, with a vocabulary of bytes; true if it may end after it.
pub(in crate::text::grammar) fn accepts(grammar: &Grammar, text: &[u8]) -> bool {
    let mut grammar = grammar.clone();
    for byte in text {
        match grammar.accept(Token::from(*byte)) {
            Ok(()) => {}
            Err(GrammarError::Rejected(_)) => return false,
            Err(e) => panic!("{e} in {}", String::from_utf8_lossy(text)),
        }
    }
    grammar.accept(BYTES_END).is_ok()
}

/// The parts of a vocabulary that the tests need.
pub(in crate::text::grammar) struct Vocabulary {
    pub(crate) grammars: Grammars,
    pub(crate) pieces: Vec<Piece>,
    pub(crate) end: Token,
}

/// Draws tokens that `grammar` allows until the end: uniformly, but preferring those that close.
fn draw(vocabulary: &Vocabulary, mut grammar: Grammar, seed: u64, most: usize) -> Option<String> {
    let mut rng = Pcg64::seed_from_u64(seed);
    let closing: Vec<Token> = (0..).zip(&vocabulary.pieces).filter_map(closes).collect();
    let (mut text, mut tokens) = (Vec::new(), Vec::new());
    let start = grammar.clone();
    while tokens.len() < most {
        let mut logits = vec![0.0f32; vocabulary.pieces.len()];
        grammar.mask(&mut logits).unwrap();
        let is_allowed = |token: &Token| logits[*token as usize] == 0.0;
        let end = is_allowed(&vocabulary.end);
        assert_eq!(end, grammar.may_end().unwrap());
        if end && (grammar.must_end() || rng.next_u32() % 2 == 0) {
            grammar.accept(vocabulary.end).unwrap();
            assert!(grammar.must_end());
            assert_replays(start, &tokens, vocabulary);
            return Some(String::from_utf8(text).unwrap());
        }
        let fond = rng.next_u32() % 3 == 0;
        let mut allowed: Vec<Token> = match fond {
            true => closing.iter().copied().filter(is_allowed).collect(),
            false => Vec::new(),
        };
        if allowed.is_empty() {
            let all = 0..vocabulary.pieces.len() as Token;
            allowed = all.filter(is_allowed).filter(|t| *t != vocabulary.end).collect();
        }
        let token = allowed[rng.next_u32() as usize % allowed.len()];
        let other = rng.next_u32() % vocabulary.pieces.len() as Token;
        assert_eq!(grammar.allows(other).unwrap(), is_allowed(&other));
        grammar.accept(token).unwrap();
        text.extend(&vocabulary.pieces[token as usize].bytes);
        tokens.push(token);
    }
    None
}

fn closes((token, piece): (Token, &Piece)) -> Option<Token> {
    matches!(piece.bytes.as_slice(), b"\"" | b"]" | b"}" | b")" | b"\n").then_some(token)
}

/// Checks that the same tokens, checked one by one without masks, lead to the same state.
fn assert_replays(mut grammar: Grammar, tokens: &[Token], vocabulary: &Vocabulary) {
    for token in tokens {
        assert_eq!(grammar.allows(*token), Ok(true));
        grammar.accept(*token).unwrap();
    }
    assert_eq!(grammar.allows(vocabulary.end), Ok(true));
    grammar.accept(vocabulary.end).unwrap();
}

fn compiled(constraint: Constraint) -> Grammar {
    bytes().grammars.compile(&constraint).unwrap_or_else(|e| panic!("{constraint:?}: {e}"))
}

fn refused(constraint: Constraint) -> GrammarError {
    match bytes().grammars.compile(&constraint) {
        Err(e) => e,
        Ok(_) => panic!("{constraint:?} was compiled"),
    }
}

fn schema(text: &str) -> Constraint {
    Constraint::JsonSchema(text.into())
}

#[test]
fn the_largest_object_that_is_let_through_can_be_said_from_every_start() {
    let names: Vec<String> =
        (0..450).map(|i| format!(r#""p{i}": {{"type": "integer"}}"#)).collect();
    let object = format!(r#"{{"type": "object", "properties": {{{}}}}}"#, names.join(", "));
    let nested =
        format!(r#"{{"type": "array", "items": {{"anyOf": [{{"type": "string"}}, {object}]}}}}"#);
    let object = compiled(schema(&object));
    for said in ["{}", r#"{"p0":1}"#, r#"{"p0":1,"p9":2,"p449":3}"#, r#"{"p449":3,"q":[]}"#] {
        assert!(accepts(&object, said.as_bytes()), "{said}");
    }
    let nested = compiled(schema(&nested));
    assert!(accepts(&nested, br#"["a",{"p0":1},{"p448":1,"p449":2}]"#));
}

#[test]
fn the_end_is_allowed_exactly_where_the_answer_is_complete() {
    let mut grammar = compiled(Constraint::Choice(vec!["a".into(), "ab".into()]));
    assert!(!grammar.may_end().unwrap());
    assert_eq!(grammar.accept(BYTES_END), Err(GrammarError::Rejected(BYTES_END)));
    grammar.accept(b'a'.into()).unwrap();
    assert!(grammar.may_end().unwrap() && !grammar.must_end());
    grammar.accept(b'b'.into()).unwrap();
    assert!(grammar.must_end());
    assert_eq!(grammar.accept(b'c'.into()), Err(GrammarError::Rejected(b'c'.into())));
    let mut logits = [0.0; 257];
    grammar.mask(&mut logits).unwrap();
    assert_eq!(logits.iter().filter(|l| l.is_finite()).count(), 1);
    assert!(grammar.allows(BYTES_END).unwrap());
    grammar.accept(BYTES_END).unwrap();
    assert_eq!(grammar.accept(BYTES_END), Err(GrammarError::Rejected(BYTES_END)));
}

#[test]
fn a_rejected_token_leaves_the_state_as_it_was() {
    let mut grammar = compiled(Constraint::Regex("[ab]c".into()));
    for _ in 0..100 {
        assert_eq!(grammar.accept(b'c'.into()), Err(GrammarError::Rejected(b'c'.into())));
    }
    assert_eq!(grammar.accept(70_000), Err(GrammarError::Rejected(70_000)));
    assert!(accepts(&grammar, b"ac"));
}

#[test]
fn a_constraint_that_leads_to_a_dead_end_is_the_clients_to_mend() {
    let lark = r#"start: list::0
list::_: "" %if is_ones([0:2])
    | "a" list::set_bit(0) %if bit_clear(0)
"#;
    let mut grammar = compiled(Constraint::Lark(lark.into()));
    grammar.accept(b'a'.into()).unwrap();
    let error = grammar.mask(&mut [0.0; 257]).unwrap_err();
    let GrammarError::Invalid(why) = &error else { panic!("{error:?}") };
    assert!(why.contains("dead end"), "{why}");
}

#[test]
fn a_negation_does_not_allow_the_end_of_an_incomplete_answer() {
    // To llguidance, a special token is a text that no other text contains, and a negation matches
    // any text.
    let mut grammar = compiled(Constraint::Lark("start: A\nA: /ab/ ~/b/".into()));
    grammar.accept(b'a'.into()).unwrap();
    grammar.accept(b'b'.into()).unwrap();
    let mut after_b = compiled(Constraint::Lark("start: A\nA: ~/|b/".into()));
    assert!(!after_b.may_end().unwrap());
    for grammar in [&mut grammar, &mut after_b] {
        let mut logits = [0.0; 257];
        grammar.mask(&mut logits).unwrap();
        assert_eq!(logits[BYTES_END as usize].is_finite(), grammar.may_end().unwrap());
        assert!(logits[usize::from(b'c')].is_finite());
    }
    assert_eq!(after_b.accept(BYTES_END), Err(GrammarError::Rejected(BYTES_END)));
    assert!(accepts(&after_b, b"bc") && !accepts(&after_b, b"b"));
}

#[test]
fn a_negation_allows_control_tokens_only_where_they_are_named() {
    let piece = |text: &str, special| Piece { bytes: text.as_bytes().to_vec(), special };
    let pieces = [piece("a", false), piece("<|call|>", true), piece("</s>", true)];
    let grammars = Grammars::new(pieces, &[2]).unwrap();
    for (lark, allowed) in [("start: ~/b/", false), ("start: ~/b/ <|call|>", true)] {
        let mut grammar = grammars.compile(&Constraint::Lark(lark.into())).unwrap();
        grammar.accept(0).unwrap();
        let mut masked = grammar.clone();
        let mut logits = [0.0; 3];
        masked.mask(&mut logits).unwrap();
        assert_eq!(logits[1].is_finite(), allowed, "{lark}");
        assert!(logits[0].is_finite(), "{lark}");
        for _ in 0..2 {
            assert_eq!(grammar.allows(1), Ok(allowed), "{lark}");
        }
    }
}

#[test]
fn clones_go_on_by_themselves() {
    let mut one = compiled(Constraint::JsonObject);
    one.accept(b'{'.into()).unwrap();
    let mut other = one.clone();
    one.accept(b'}'.into()).unwrap();
    assert!(one.must_end() && !other.may_end().unwrap());
    other.accept(b'"'.into()).unwrap();
    assert!(accepts(&other, b"a\":1}"));
}

#[test]
fn tokens_may_hold_the_end_of_one_part_and_the_beginning_of_the_next() {
    let large = large();
    let constraint = schema(
        r#"{"properties": {"ab": {"type": "string"}, "c": {"type":
        "array", "items": {"type": "integer"}}}, "required": ["ab", "c"],
        "additionalProperties": false}"#,
    );
    let mut grammar = large.grammars.compile(&constraint).unwrap();
    let token = |text: &str| {
        let found = large.pieces.iter().position(|p| p.bytes == text.as_bytes() && !p.special);
        found.unwrap_or_else(|| panic!("no token {text:?}")) as Token
    };
    for piece in ["{\"", "a", "b", "\":\"", "x", "\",\"", "c", "\":", "[", "1", "]}"] {
        let token = token(piece);
        assert_eq!(grammar.allows(token), Ok(true), "{piece}");
        let mut logits = vec![0.0; large.pieces.len()];
        grammar.mask(&mut logits).unwrap();
        assert_eq!(logits[token as usize], 0.0, "{piece}");
        grammar.accept(token).unwrap();
    }
    assert!(grammar.must_end());
}

#[test]
fn special_tokens_are_never_text() {
    let large = large();
    let mut grammar = large.grammars.compile(&Constraint::Regex("(?s:.)*".into())).unwrap();
    let mut logits = vec![0.0; large.pieces.len()];
    grammar.mask(&mut logits).unwrap();
    for (token, piece) in large.pieces.iter().enumerate().filter(|(_, p)| p.special) {
        let allowed = logits[token] == 0.0;
        assert_eq!(allowed, token as Token == large.end, "{piece:?}");
    }
    assert!(logits.iter().filter(|l| **l == 0.0).count() > 100_000);
}

#[test]
fn tokens_with_the_same_bytes_are_allowed_together() {
    let piece = |bytes: &[u8]| Piece { bytes: bytes.to_vec(), special: false };
    let pieces = [piece(b"a"), piece(b"a"), piece(b"ab"), piece(b""), piece(b"a"), piece(b"ab")];
    let end = Piece { bytes: b"<end>".to_vec(), special: true };
    let grammars = Grammars::new(pieces.into_iter().chain([end]), &[6]).unwrap();
    let mut grammar = grammars.compile(&Constraint::Regex("ab?".into())).unwrap();
    let mut logits = [0.0; 7];
    grammar.mask(&mut logits).unwrap();
    let allowed: Vec<usize> = (0..7).filter(|i| logits[*i] == 0.0).collect();
    assert_eq!(allowed, [0, 1, 2, 4, 5]);
}

#[test]
fn every_ending_token_may_end() {
    let piece = |bytes: &[u8]| Piece { bytes: bytes.to_vec(), special: false };
    let pieces = [piece(b"a"), piece(b"</s>"), piece(b"<|end|>")];
    let grammars = Grammars::new(pieces, &[1, 2]).unwrap();
    let mut grammar = grammars.compile(&Constraint::Regex("a+".into())).unwrap();
    for token in [1, 2] {
        assert_eq!(grammar.allows(token), Ok(false));
    }
    grammar.accept(0).unwrap();
    for token in [0, 1, 2] {
        assert_eq!(grammar.allows(token), Ok(true));
        let mut logits = [0.0; 3];
        grammar.mask(&mut logits).unwrap();
        assert_eq!(logits, [0.0; 3]);
    }
}

#[test]
fn a_vocabulary_without_an_ending_token_is_refused() {
    let piece = Piece { bytes: b"a".to_vec(), special: false };
    assert!(Grammars::new([piece.clone()], &[]).is_err());
    assert!(Grammars::new([piece], &[1]).is_err());
}

#[test]
fn a_vocabulary_that_cannot_write_the_answer_ends_it_with_an_error() {
    let piece = |bytes: &[u8]| Piece { bytes: bytes.to_vec(), special: false };
    let grammars = Grammars::new([piece(b"a"), piece(b"</s>")], &[1]).unwrap();
    let mut grammar = grammars.compile(&Constraint::Regex("ab".into())).unwrap();
    grammar.accept(0).unwrap();
    assert!(matches!(grammar.mask(&mut [0.0; 2]), Err(GrammarError::Invalid(_))));
}

#[test]
fn constraints_survive_the_way_to_another_process() {
    for constraint in [
        Constraint::JsonObject,
        schema("{}"),
        Constraint::LenientJsonSchema("{}".into()),
        Constraint::Gbnf("root ::= \"a\"".into()),
        Constraint::Lark("start: \"a\"".into()),
        Constraint::Regex("a".into()),
        Constraint::Choice(vec!["a".into()]),
    ] {
        let bytes = postcard::to_allocvec(&constraint).unwrap();
        assert_eq!(postcard::from_bytes::<Constraint>(&bytes).unwrap(), constraint);
        assert!(bytes.len() < 64);
        compiled(constraint);
    }
}

#[test]
fn keywords_that_cannot_be_enforced_are_named() {
    for (keyword, value) in [
        ("not", "{}"),
        ("if", "{}"),
        ("uniqueItems", "true"),
        ("contains", "{}"),
        ("propertyNames", "{\"minLength\": 2}"),
        ("unevaluatedProperties", "false"),
        ("dependentRequired", "{}"),
    ] {
        let text = format!(r#"{{"properties": {{"a": {{"{keyword}": {value}}}}}}}"#);
        let GrammarError::Invalid(why) = refused(schema(&text)) else { panic!("{keyword}") };
        assert!(why.contains(keyword), "{why}");
        compiled(Constraint::LenientJsonSchema(text));
    }
}

#[test]
fn what_zod_and_pydantic_emit_is_enforced_or_ignored() {
    let name = r#"{"type":"string","pattern":"^(?!\\.)[a-z.]+$","minLength":2}"#;
    let GrammarError::Invalid(why) = refused(schema(name)) else { panic!() };
    assert!(why.contains("look-around"), "{why}");
    let lenient = compiled(Constraint::LenientJsonSchema(name.into()));
    assert!(accepts(&lenient, br#"".a""#) && !accepts(&lenient, br#""a""#));
    let record = r#"{"type":"object","propertyNames":{"type":"string","enum":["a","b"]},
        "additionalProperties":{"type":"integer"}}"#;
    let record = compiled(schema(record));
    assert!(accepts(&record, br#"{"b": 1, "a": 2}"#) && accepts(&record, b"{}"));
    assert!(!accepts(&record, br#"{"c": 1}"#) && !accepts(&record, br#"{"a": "x"}"#));
    let bytes = compiled(schema(r#"{"type":"string","format":"base64"}"#));
    assert!(accepts(&bytes, br#""YWI=""#) && !accepts(&bytes, br#""YWI""#));
    let prefix = r#"{"type":"string","format":"starts_with","pattern":"^ab.*"}"#;
    let prefix = compiled(schema(prefix));
    assert!(accepts(&prefix, br#""abc""#) && !accepts(&prefix, br#""bc""#));
}

#[test]
fn whitespace_in_answers_is_bounded() {
    let grammar = compiled(Constraint::JsonObject);
    assert!(accepts(&grammar, b"{\n  \"a\": [1, 2],\n  \"b\": {}\n}"));
    for blanks in ["     ", "\n\n", "\n \n", " \n"] {
        assert!(!accepts(&grammar, format!("{{{blanks}}}").as_bytes()), "{blanks:?}");
    }
    assert!(!accepts(&grammar, b" {}") && !accepts(&grammar, b"{} "));
}

#[test]
fn lark_and_expressions_work_and_their_mistakes_are_reported() {
    let lark = "start: item (\",\" item)*\nitem: /[0-9]+/ | \"(\" start \")\"";
    let grammar = compiled(Constraint::Lark(lark.into()));
    assert!(accepts(&grammar, b"1,(2,3)") && !accepts(&grammar, b"1,(2,3"));
    assert!(accepts(&compiled(Constraint::Regex("a/b|c".into())), b"a/b"));
    for wrong in [
        Constraint::Regex("a(".into()),
        Constraint::Regex(String::new()),
        Constraint::Regex("(?-u:\\xff)".into()),
        Constraint::Lark("start: b".into()),
        Constraint::Lark("%llguidance {\"allow_invalid_utf8\": true}\nstart: \"a\"".into()),
        Constraint::Choice(vec![]),
        schema("{\"type\": \"text\"}"),
        schema("{\"properties\": 1}"),
        schema("[]"),
        schema("{"),
        schema("false"),
    ] {
        let error = refused(wrong.clone());
        assert!(matches!(error, GrammarError::Invalid(_)), "{wrong:?}: {error:?}");
    }
}
