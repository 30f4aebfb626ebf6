//! Tests of the parser over all model families.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::parser::CALL_BYTES_MAX;
use super::*;

mod families;
mod newer;
mod samples;
pub(crate) mod writer;

use writer::{tools, write};

const REASONING: Option<ReasoningDelimiters> =
    Some(ReasoningDelimiters { open: "<think>", close: "</think>" });

fn format(calls: CallFormat) -> Format {
    let reasoning = if calls == CallFormat::Harmony { None } else { REASONING };
    Format { reasoning, calls, ids: CallIds::Any }
}

/// Parses `chunks`. Returns the joined parts and whether a call is complete.
fn parse_chunks<'a>(
    mut parser: Parser,
    chunks: impl IntoIterator<Item = &'a str>,
) -> (Vec<OutputPart>, bool) {
    let mut parts: Vec<OutputPart> = chunks.into_iter().flat_map(|c| parser.push(c)).collect();
    let (last, complete) = parser.finish();
    parts.extend(last);
    (merge(parts), complete)
}

/// Merges adjacent parts of one kind.
fn merge(parts: Vec<OutputPart>) -> Vec<OutputPart> {
    let mut out: Vec<OutputPart> = Vec::new();
    for part in parts {
        match (out.last_mut(), part) {
            (Some(OutputPart::Content(a)), OutputPart::Content(b)) => a.push_str(&b),
            (Some(OutputPart::Reasoning(a)), OutputPart::Reasoning(b)) => a.push_str(&b),
            (
                Some(OutputPart::CallArguments { index, fragment }),
                OutputPart::CallArguments { index: i, fragment: b },
            ) if *index == i => fragment.push_str(&b),
            (_, part) => out.push(part),
        }
    }
    out
}

fn parse(calls: CallFormat, text: &str) -> ParsedMessage {
    let parser = Parser::new(&format(calls), tools(), false, 8);
    join_parts(parse_chunks(parser, [text]).0)
}

fn content(message: &ParsedMessage) -> &str {
    message.content.as_deref().unwrap_or_default()
}

fn arguments(message: &ParsedMessage) -> Vec<(String, Value)> {
    let read = |c: &ParsedCall| (c.name.clone(), serde_json::from_str(&c.arguments).unwrap());
    message.calls.iter().map(read).collect()
}

fn expected(calls: &[(&str, Value)]) -> Vec<(String, Value)> {
    calls.iter().map(|(n, a)| (n.to_string(), a.clone())).collect()
}

/// Cuts `text` into pieces of `sizes` characters, taken in turns.
fn cut<'a>(text: &'a str, sizes: &[usize]) -> Vec<&'a str> {
    let mut chunks = Vec::new();
    let mut rest = text;
    for size in sizes.iter().cycle() {
        let end = rest.char_indices().nth(*size).map_or(rest.len(), |(i, _)| i);
        let (chunk, more) = rest.split_at(end);
        chunks.push(chunk);
        rest = more;
        if rest.is_empty() {
            break;
        }
    }
    chunks
}

proptest! {
    #[test]
    fn any_chunking_gives_the_same_parts(
        which in 0..CallFormat::ALL.len(),
        pick in 0..1000usize,
        sizes in prop::collection::vec(1..9usize, 1..6),
        starts_in_reasoning in any::<bool>(),
    ) {
        let calls = CallFormat::ALL[which];
        let all = samples::all(calls);
        let text = &all[pick % all.len()];
        let new = || Parser::new(&format(calls), tools(), starts_in_reasoning, 3);
        prop_assert_eq!(parse_chunks(new(), cut(text, &sizes)), parse_chunks(new(), [text.as_str()]));
    }

    #[test]
    fn pieces_of_delimiters_in_any_order_never_panic_and_lose_no_word(
        which in 0..CallFormat::ALL.len(),
        picks in prop::collection::vec((0..1000usize, 0..1000usize), 0..12),
        sizes in prop::collection::vec(1..5usize, 1..4),
    ) {
        let calls = CallFormat::ALL[which];
        let mut tokens = format(calls).visible_tokens();
        tokens.extend(["word", "{", "}", "[", "]", "\"name\"", ": ", "\"now\"", ",", "\n", "```",
            "\"arguments\"", "{\"name\": \"now\", \"arguments\": {", "<function=now>", "now", "é"]);
        let mut text = String::new();
        for (a, b) in picks {
            let token = tokens[a % tokens.len()];
            let end = token.char_indices().nth(b % 30).map_or(token.len(), |(i, _)| i);
            text.push_str(&token[..end]);
        }
        let new = || Parser::new(&format(calls), tools(), false, 3);
        let (parts, complete) = parse_chunks(new(), cut(&text, &sizes));
        prop_assert_eq!(&(parts.clone(), complete), &parse_chunks(new(), [text.as_str()]));

        let message = join_parts(parts);
        let said = format!("{:?}", message);
        // A harmony header is not text, whatever it contains.
        if calls != CallFormat::Harmony {
            prop_assert_eq!(said.matches('é').count(), text.matches('é').count(), "{}", said);
        }
        let done = message.calls.iter()
            .filter(|c| serde_json::from_str::<serde_json::Map<_, _>>(&c.arguments).is_ok())
            .count();
        prop_assert_eq!(complete, done > 0, "{}", said);
    }

    #[test]
    fn without_tools_and_reasoning_every_text_passes_unchanged(text in any::<String>()) {
        for calls in CallFormat::ALL {
            if calls == CallFormat::Harmony || !calls_drop_nothing(calls) {
                continue;
            }
            let format = Format { reasoning: None, calls, ids: CallIds::Any };
            let parser = Parser::new(&format, ToolSet::default(), false, 3);
            prop_assert_eq!(join_parts(parse_chunks(parser, [text.as_str()]).0).content.unwrap_or_default(), text.clone());
        }
    }
}

fn calls_drop_nothing(calls: CallFormat) -> bool {
    use CallFormat as F;
    let dropping = [
        F::Pipes,
        F::KimiK3,
        F::Cohere,
        F::GigaChat,
        F::GigaChatToken,
        F::Solar,
        F::ToolCalls,
        F::Hunyuan,
        F::FunctionaryLines,
    ];
    !dropping.contains(&calls)
}

#[test]
fn every_place_to_cut_a_text_gives_the_same_parts() {
    for calls in CallFormat::ALL {
        let new = || Parser::new(&format(calls), tools(), false, 3);
        for text in samples::all(calls) {
            let whole = parse_chunks(new(), [text.as_str()]);
            assert_eq!(parse_chunks(new(), cut(&text, &[1])), whole, "{calls:?} {text}");
            for (place, _) in text.char_indices() {
                let (first, second) = text.split_at(place);
                assert_eq!(parse_chunks(new(), [first, second]), whole, "{calls:?} {place} {text}");
            }
        }
    }
}

#[test]
fn plain_text_is_passed_on_at_once() {
    for calls in CallFormat::ALL {
        let mut parser = Parser::new(&format(calls), tools(), false, 8);
        assert_eq!(parser.push("Hello"), [OutputPart::Content("Hello".into())], "{calls:?}");
        assert_eq!(parser.push(" you"), [OutputPart::Content(" you".into())], "{calls:?}");
    }
}

#[test]
fn arguments_are_passed_on_while_they_come() {
    let mut parser = Parser::new(&format(CallFormat::Hermes), tools(), false, 8);
    assert_eq!(parser.push("<tool_call>\n{\"name\": \"get_weather\", \"arguments\": "), []);
    let start = OutputPart::CallStart { index: 0, name: "get_weather".into(), id: None };
    let part = |fragment: &str| OutputPart::CallArguments { index: 0, fragment: fragment.into() };
    assert_eq!(parser.push("{\"ci"), [start, part("{\"ci")]);
    assert_eq!(parser.push("ty\": \"Par"), [part("ty\": \"Par")]);
    assert_eq!(parser.push("is\"}}\n</tool_"), [part("is\"}")]);
    assert_eq!(parser.push("call>"), []);
    assert_eq!(parser.finish(), (vec![], true));
}

#[test]
fn nothing_is_a_call_where_there_are_no_tools() {
    let text = write(CallFormat::Hermes, &[("now", json!({}))]);
    let parser = Parser::new(&format(CallFormat::Hermes), ToolSet::default(), false, 8);
    let (parts, complete) = parse_chunks(parser, [text.as_str()]);
    assert_eq!((parts, complete), (vec![OutputPart::Content(text)], false));
}

#[test]
fn calls_beyond_the_limit_are_text() {
    let text = write(CallFormat::Hermes, &[("now", json!({})), ("send", json!({}))]);
    let parser = Parser::new(&format(CallFormat::Hermes), tools(), false, 1);
    let message = join_parts(parse_chunks(parser, [text.as_str()]).0);
    assert_eq!(arguments(&message), expected(&[("now", json!({}))]));
    assert!(content(&message).starts_with("<tool_call>\n{\"name\": \"send\""));
}

#[test]
fn a_call_that_grows_without_end_becomes_text() {
    let mut parser = Parser::new(&format(CallFormat::Hermes), tools(), false, 8);
    let mut parts = parser.push("<tool_call>{\"arguments\": {\"a\": \"");
    assert_eq!(parts, []);
    let filler = "x".repeat(CALL_BYTES_MAX);
    parts = parser.push(&filler);
    assert!(matches!(parts.as_slice(), [OutputPart::Content(text)] if text.len() > CALL_BYTES_MAX));
}

#[test]
fn control_characters_in_arguments_become_json() {
    let message = parse(
        CallFormat::Hermes,
        "<tool_call>{\"name\": \"send\", \"arguments\": {\"city\": \"a\nb\tc\"}}</tool_call>",
    );
    assert_eq!(arguments(&message), expected(&[("send", json!({"city": "a\nb\tc"}))]));
}

#[test]
fn the_order_and_dress_of_keys_does_not_matter() {
    let cases = [
        "{\"arguments\": {\"days\": 1}, \"name\": \"send\"}",
        "{\"id\": \"1\", \"type\": \"function\", \"name\": \"send\", \"parameters\": {\"days\": 1}}",
        "{\"type\": \"function\", \"function\": {\"name\": \"send\", \"arguments\": {\"days\": 1}}}",
        "{\"name\": \"send\", \"arguments\": \"{\\\"days\\\": 1}\"}",
        "{ \"function\" : \"send\" , \"arguments\" : { \"days\" : 1 } , \"id\": 7 }",
    ];
    for case in cases {
        for calls in [CallFormat::Hermes, CallFormat::Generic] {
            let message = parse(calls, &format!("<tool_call>{case}</tool_call>"));
            assert_eq!(arguments(&message), expected(&[("send", json!({"days": 1}))]), "{case}");
        }
    }
    let none = parse(CallFormat::Generic, "{\"name\": \"now\"}");
    assert_eq!(none.calls[0].arguments, "{}");
}

#[test]
fn a_name_before_broken_arguments_is_a_call_that_stays_incomplete() {
    let text =
        "<tool_call>{\"name\": \"send\", \"arguments\": {\"days\": 1, oops}}</tool_call> end";
    let parser = Parser::new(&format(CallFormat::Hermes), tools(), false, 8);
    let (parts, complete) = parse_chunks(parser, [text]);
    assert!(!complete);
    let message = join_parts(parts);
    assert_eq!(message.calls[0].arguments, "{\"days\": 1, ");
    assert_eq!(content(&message), "oops}}</tool_call> end");
}

#[test]
fn a_forgotten_brace_does_not_spoil_a_call() {
    let text = "<tool_call>{\"name\": \"send\", \"arguments\": {\"days\": 1}</tool_call> end";
    let message = parse(CallFormat::Hermes, text);
    assert_eq!(arguments(&message), expected(&[("send", json!({"days": 1}))]));
    assert_eq!(content(&message), "end");
}

#[test]
fn the_documentation_lists_every_notation() {
    let page = include_str!("../../../../docs/models.md");
    let missing = CallFormat::ALL.into_iter().filter(|c| !page.contains(&format!("`{c:?}`")));
    assert_eq!(missing.collect::<Vec<_>>(), []);
}
