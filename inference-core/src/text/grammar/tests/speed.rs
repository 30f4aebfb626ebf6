//! Measures how long masks take. Not a check: `cargo test --release speed -- --ignored
//! --nocapture`.

use std::time::{Duration, Instant};

use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64;
use serde_json::json;

use super::vocabularies::large_pieces;
use super::{Vocabulary, schema};
use crate::text::grammar::{Grammar, Grammars};
use crate::text::output::call_grammar::{CallGrammarRequest, call_grammar};
use crate::text::output::{CallFormat, CallIds, Format, ToolSet};
use crate::types::constraint::Constraint;
use crate::types::request::Token;
use crate::types::tool_choice::ToolChoice;

const MIDDLING: &str = r#"{"type": "object", "properties": {
    "id": {"type": "string", "format": "uuid"},
    "title": {"type": "string", "maxLength": 80},
    "status": {"enum": ["open", "closed", "in progress", "wontfix"]},
    "tags": {"type": "array", "items": {"type": "string", "pattern": "^[a-z-]{1,20}$"}},
    "people": {"type": "array", "maxItems": 20, "items": {"type": "object", "properties": {
        "name": {"type": "string"}, "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "mail": {"type": "string", "format": "email"}},
        "required": ["name", "age"], "additionalProperties": false}},
    "due": {"type": "string", "format": "date"},
    "note": {"anyOf": [{"type": "string"}, {"type": "null"}]}},
    "required": ["id", "title", "status", "tags", "people", "due", "note"],
    "additionalProperties": false}"#;

/// Resident memory in KiB.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|l| l.starts_with("VmRSS")).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|n| n.parse().ok()).unwrap_or(0)
}

fn percentiles(name: &str, mut times: Vec<Duration>) {
    times.sort();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
    println!(
        "  {name}: {} x, median {:?}, p99 {:?}, max {:?}",
        times.len(),
        at(0.5),
        at(0.99),
        at(1.0)
    );
}

/// Prefers the longest of some allowed tokens, as models do.
fn measure(name: &str, vocabulary: &Vocabulary, constraint: &Constraint) {
    let begin = Instant::now();
    let grammar = vocabulary.grammars.compile(constraint).unwrap();
    println!("{name}: compiled in {:?}, again in {:?}", begin.elapsed(), {
        let again = Instant::now();
        let _ = vocabulary.grammars.compile(constraint).unwrap();
        again.elapsed()
    });
    let [mut masks, mut checks, mut accepts] = [Vec::new(), Vec::new(), Vec::new()];
    let mut rng = Pcg64::seed_from_u64(9);
    for _ in 0..20 {
        let mut state = grammar.clone();
        for _ in 0..150 {
            let mut logits = vec![0.0f32; vocabulary.pieces.len()];
            let mut fresh: Grammar = state.clone();
            let begin = Instant::now();
            state.mask(&mut logits).unwrap();
            masks.push(begin.elapsed());
            let allowed: Vec<Token> =
                (0..vocabulary.end).filter(|t| logits[*t as usize] == 0.0).collect();
            let Some(last) = allowed.len().checked_sub(1) else { break };
            let pick = |rng: &mut Pcg64| allowed[rng.next_u32() as usize % (last + 1)];
            let length = |t: &Token| vocabulary.pieces[*t as usize].bytes.len().min(7);
            let token = (0..3).map(|_| pick(&mut rng)).max_by_key(length).unwrap();
            let begin = Instant::now();
            assert!(fresh.allows(token).unwrap());
            checks.push(begin.elapsed());
            let begin = Instant::now();
            state.accept(token).unwrap();
            accepts.push(begin.elapsed());
        }
    }
    percentiles("mask", masks);
    percentiles("allows", checks);
    percentiles("accept", accepts);
}

/// The grammar of `tool_choice: auto` with 20 tools.
fn optional_calls(calls: CallFormat) -> Constraint {
    let function = |i| {
        json!({"type": "function", "function": {"name": format!("look_at_the_thing_{i}"),
            "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}}})
    };
    let tools = ToolSet::from_openai(&(0..20).map(function).collect::<Vec<_>>()).unwrap();
    let format = Format { reasoning: None, calls, ids: CallIds::Any };
    let request = CallGrammarRequest {
        format: &format,
        tools: &tools,
        choice: &ToolChoice::Auto,
        calls_max: 20,
        starts_in_reasoning: false,
    };
    Constraint::Lark(call_grammar(&request, &|_| None).unwrap().lark)
}

#[test]
#[ignore = "a measurement"]
fn speed() {
    let pieces = large_pieces();
    let (before, begin) = (resident(), Instant::now());
    let end = pieces.len() as Token - 1;
    let grammars = Grammars::new(pieces.clone(), &[end]).unwrap();
    println!("vocabulary of {}: {:?}, {} KiB", pieces.len(), begin.elapsed(), resident() - before);
    let vocabulary = Vocabulary { grammars, pieces, end };
    measure("json object", &vocabulary, &Constraint::JsonObject);
    measure("middling schema", &vocabulary, &schema(MIDDLING));
    let json = crate::text::grammar::gbnf::tests::JSON;
    measure("JSON as GBNF", &vocabulary, &Constraint::Gbnf(json.into()));
    for calls in [CallFormat::Hermes, CallFormat::Llama, CallFormat::Pythonic] {
        measure(&format!("text and calls of {calls:?}"), &vocabulary, &optional_calls(calls));
    }
    println!("memory in the end: {} KiB more", resident() - before);
}
