//! Texts of models, and the calls of tools in them.

use std::sync::LazyLock;

use inference_core::text::output::{
    CallFormat, CallIds, Format, OutputPart, ParsedMessage, Parser, ReasoningDelimiters, ToolSet,
    join_parts,
};
use serde_json::json;
use serde_json::value::RawValue;

use crate::input::{Choices, split, text};

const REASONING: ReasoningDelimiters = ReasoningDelimiters { open: "<think>", close: "</think>" };
/// Most calls of one answer.
const CALLS_MAX: usize = 3;
/// Stands for any word: in none of the marks, and in no call's frame.
const WORD: char = 'é';

static TOOLS: LazyLock<ToolSet> = LazyLock::new(|| {
    let properties = json!({
        "city": {"type": "string"}, "days": {"type": "integer"}, "deep": {"type": "object"},
        "units": {"type": ["string", "null"]}, "list": {"type": "array"}, "free": {},
    });
    let function = |name: &str| {
        json!({"type": "function", "function": {"name": name,
            "parameters": {"type": "object", "properties": properties}}})
    };
    ToolSet::from_openai(&[function("get_weather"), function("send"), function("now")])
        .expect("three good tools")
});

/// The parts of an answer do not depend on its chunks, no word of it is lost, and the calls that
/// are complete have JSON for their arguments.
pub fn tool_calls(data: &[u8]) {
    let (&[which, flags, ref rest @ ..], all) = (data, CallFormat::ALL) else { return };
    let (answer, choices) = split(rest);
    let answer = text(answer);
    let mut choices = Choices::new(choices);
    let calls = all[usize::from(which) % all.len()];
    let thinks = flags & 1 == 1 && calls != CallFormat::Harmony;
    let format = Format { reasoning: thinks.then_some(REASONING), calls, ids: CallIds::Any };
    let tools = if flags & 4 == 4 { ToolSet::default() } else { TOOLS.clone() };
    let parser = || Parser::new(&format, tools.clone(), flags & 2 == 2, CALLS_MAX);

    let (parts, complete) = parse(parser(), &[answer]);
    let pieces = choices.text_pieces(answer);
    assert_eq!(parse(parser(), &pieces), (parts.clone(), complete), "the same in {pieces:?}");
    check_order(&parts);

    let message = join_parts(parts);
    // A harmony header is no text, whatever it holds; nor is what stands beside a call's parts.
    if calls != CallFormat::Harmony && message.calls.is_empty() {
        assert_eq!(words(&message), answer.matches(WORD).count(), "{message:?}");
    }
    assert!(message.calls.len() <= CALLS_MAX);
    // Its syntax: models may escape half a character, which is no text of Rust's.
    let is_json = |arguments: &str| {
        arguments.starts_with('{') && serde_json::from_str::<&RawValue>(arguments).is_ok()
    };
    let good = message.calls.iter().filter(|call| is_json(&call.arguments)).count();
    assert!(!complete || good > 0, "a complete call without arguments: {message:?}");
    assert!(message.calls.iter().all(|call| tools.get(&call.name).is_some()), "{message:?}");
}

/// Neighbours of one kind are made one.
fn parse(mut parser: Parser, chunks: &[&str]) -> (Vec<OutputPart>, bool) {
    let mut parts: Vec<OutputPart> = chunks.iter().flat_map(|chunk| parser.push(chunk)).collect();
    let (last, complete) = parser.finish();
    parts.extend(last);
    let mut joined: Vec<OutputPart> = Vec::new();
    for part in parts {
        match (joined.last_mut(), part) {
            (Some(OutputPart::Content(text)), OutputPart::Content(more))
            | (Some(OutputPart::Reasoning(text)), OutputPart::Reasoning(more)) => {
                text.push_str(&more)
            }
            (
                Some(OutputPart::CallArguments { index, fragment }),
                OutputPart::CallArguments { index: same, fragment: more },
            ) if *index == same => fragment.push_str(&more),
            (_, part) => joined.push(part),
        }
    }
    (joined, complete)
}

/// Calls begin in order, and arguments belong to the latest.
fn check_order(parts: &[OutputPart]) {
    let mut begun = 0;
    for part in parts {
        match part {
            OutputPart::CallStart { index, .. } => {
                assert_eq!(*index, begun);
                begun += 1;
            }
            OutputPart::CallArguments { index, .. } => assert_eq!(index + 1, begun),
            OutputPart::Content(_) | OutputPart::Reasoning(_) => {}
        }
    }
}

fn words(message: &ParsedMessage) -> usize {
    let texts = [&message.content, &message.reasoning];
    texts.into_iter().flatten().map(|text| text.matches(WORD).count()).sum()
}
