//! Every event and object of the Responses API is what OpenAI's description says, where that lies
//! beside the checkout.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test may panic and print"
)]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use inference_protocol::openai::ErrorDetail;
use inference_protocol::sse::payloads;
use inference_translation::store::{Limits, Page, Store};
use inference_translation::{ClientApi, Origin, ResponseWriter, Translation, translate};
use jsonschema::Validator;
use serde_json::{Value, json};

struct Description {
    event: Validator,
    response: Validator,
    items: Validator,
}

impl Description {
    fn read() -> Option<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let path = root.join("../shared/data/openai-openapi/openapi.yaml");
        let Ok(text) = std::fs::read_to_string(&path) else {
            eprintln!("skipped: there is no {}", path.display());
            return None;
        };
        // A bound of 64 bits, rounded beyond them.
        let text = text.replace("-9223372036854776000", "-9223372036854775808");
        let all: serde_yaml::Value = serde_yaml::from_str(&text).unwrap();
        let components = serde_json::to_value(&all["components"]).unwrap();
        let of = |name: &str| {
            let schema = json!({"$ref": format!("#/components/schemas/{name}"),
                "components": components});
            jsonschema::validator_for(&schema).unwrap()
        };
        let (event, response) = (of("ResponseStreamEvent"), of("Response"));
        Some(Self { event, response, items: of("ResponseItemList") })
    }
}

fn check(validator: &Validator, what: &str, value: &Value) {
    let errors: Vec<_> = validator
        .iter_errors(value)
        .map(|error| format!("{} at '{}'", error, error.instance_path()))
        .collect();
    assert!(errors.is_empty(), "{what}: {errors:#?}\n{value:#}");
}

/// Requests of every kind.
fn requests() -> Vec<Value> {
    let function = json!({"type": "function", "name": "f", "parameters": {"type": "object"}});
    let tools = json!([function, {"type": "custom", "name": "patch"}, {"type": "local_shell"},
        {"type": "web_search"}, {"type": "tool_search", "execution": "client", "description": "d",
            "parameters": {}},
        {"type": "namespace", "name": "mcp__n", "description": "d", "tools": [function]}]);
    vec![
        json!({"model": "m", "input": "x"}),
        json!({"model": "m", "input": "x", "stream": true, "instructions": "I", "tools": tools,
            "tool_choice": "auto", "reasoning": {"effort": "low", "summary": "auto"},
            "include": ["message.output_text.logprobs", "reasoning.encrypted_content"],
            "top_logprobs": 1, "metadata": {"a": "b"}, "temperature": 0.5, "user": "ada",
            "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}},
                "verbosity": "low"}, "service_tier": "flex", "max_output_tokens": 99,
            "truncation": "auto", "prompt_cache_key": "k", "safety_identifier": "s"}),
        json!({"model": "m", "store": false, "tools": tools,
            "tool_choice": {"type": "allowed_tools", "mode": "auto",
                "tools": [{"type": "function", "name": "f"}]},
            "input": [{"role": "user", "content": [{"type": "input_text", "text": "x"}]}]}),
        json!({"model": "m", "tools": tools, "input": [
            {"role": "developer", "content": "d"}, {"role": "user", "content": "u"},
            {"type": "reasoning", "summary": [], "encrypted_content": "x"},
            {"role": "assistant", "content": "a"},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "custom_tool_call", "call_id": "d", "name": "patch", "input": "x"},
            {"type": "local_shell_call", "id": "lsh", "call_id": "e", "status": "completed",
                "action": {"type": "exec", "command": ["ls"], "env": {}}},
            {"type": "function_call_output", "call_id": "c", "output": "7"},
            {"type": "custom_tool_call_output", "call_id": "d", "output": "8"},
            {"type": "local_shell_call_output", "id": "e", "call_id": "e", "output": "9"}]}),
    ]
}

/// Parts of a message: their deltas in a stream are these whole.
fn messages() -> Vec<Value> {
    let call = |index: usize, name: &str, arguments: &str| {
        json!({"index": index, "id": format!("c{index}"), "type": "function",
            "function": {"name": name, "arguments": arguments}})
    };
    vec![
        json!({"content": "Hi"}),
        json!({"reasoning_content": "Hm", "content": "Hi"}),
        json!({"content": null, "tool_calls": [call(0, "f", "{\"a\":1}"),
            call(1, "patch", "{\"input\":\"x\\n\"}"), call(2, "local_shell", "{\"command\":[\"a\"]}"),
            call(3, "tool_search", "{}"), call(4, "mcp__n__f", ""), call(5, "unknown", "{")]}),
        json!({"content": ""}),
    ]
}

fn logprobs() -> Value {
    let token = json!({"token": "Hi", "logprob": -0.1, "bytes": [72, 105]});
    let mut chosen = token.clone();
    chosen["top_logprobs"] = json!([token]);
    json!({"content": [chosen]})
}

const USAGE: &str = r#"{"prompt_tokens":9,"completion_tokens":2,"total_tokens":11}"#;

fn streamed(message: &Value, finish: &str) -> String {
    let usage: Value = serde_json::from_str(USAGE).unwrap();
    let chunks = [
        json!({"choices": [{"index": 0, "delta": message, "logprobs": logprobs()}]}),
        json!({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}),
        json!({"choices": [], "usage": usage}),
    ];
    let chunks = chunks.map(|chunk| format!("data: {chunk}\n\n"));
    chunks.concat() + "data: [DONE]\n\n"
}

fn whole(message: &Value, finish: &str) -> String {
    let usage: Value = serde_json::from_str(USAGE).unwrap();
    let choice = json!({"message": message, "finish_reason": finish, "logprobs": logprobs()});
    json!({"choices": [choice], "usage": usage}).to_string()
}

fn writer(request: &Value, random: u128, store: &std::cell::RefCell<Store>) -> ResponseWriter {
    let lookup = |id: &str| store.borrow_mut().get(0, "t", id);
    let origin = Origin { random, now: 7 };
    let body = request.to_string();
    let translation = translate(ClientApi::Responses, body.as_bytes(), origin, &lookup).unwrap();
    let Translation::Request(translated) = translation else { panic!() };
    let mut writer = translated.writer;
    writer.set_elapsed(Duration::from_secs(2));
    writer
}

fn check_events(description: &Description, what: &str, written: &[u8]) {
    let mut events = 0;
    for event in payloads(written) {
        let event: Value = serde_json::from_slice(event).unwrap();
        check(&description.event, what, &event);
        if let Some(response) = event.get("response") {
            check(&description.response, what, response);
        }
        events += 1;
    }
    assert!(events >= 3, "{what}");
}

#[test]
fn everything_that_is_written_fits_the_description() {
    let Some(description) = Description::read() else { return };
    let limits = Limits { bytes_max: 1 << 20, tenant_bytes_max: 1 << 20, age_s_max: 9 };
    let store = std::cell::RefCell::new(Store::new(limits));
    let mut random = 0;
    let page = Page::read(Some("limit=100")).unwrap();
    for request in requests() {
        for message in messages() {
            for finish in ["stop", "length", "content_filter"] {
                let what = format!("{request} {message} {finish}");
                random += 1;
                let written = writer(&request, random, &store)
                    .events(streamed(&message, finish).as_bytes())
                    .unwrap();
                check_events(&description, &what, &written);
                let mut whole_writer = writer(&request, random, &store);
                let written = whole_writer.whole(whole(&message, finish).as_bytes()).unwrap();
                let response: Value = serde_json::from_slice(&written).unwrap();
                check(&description.response, &what, &response);
                let Some(stored) = whole_writer.stored() else { continue };
                let id = stored.id().to_string();
                assert!(store.borrow_mut().insert(0, "t", stored));
                let next = json!({"input": "y", "previous_response_id": id});
                random += 1;
                let mut writer = writer(&next, random, &store);
                writer.whole(whole(&message, finish).as_bytes()).unwrap();
                let stored = Arc::new(writer.stored().unwrap());
                let items = stored.input_items(&page).unwrap();
                check(&description.items, &what, &serde_json::from_slice(&items).unwrap());
            }
        }
    }
}

#[test]
fn a_failure_fits_the_description() {
    let Some(description) = Description::read() else { return };
    let limits = Limits { bytes_max: 0, tenant_bytes_max: 0, age_s_max: 0 };
    let store = std::cell::RefCell::new(Store::new(limits));
    let error = ErrorDetail {
        message: "gone".into(),
        kind: "upstream_error".into(),
        param: Some("p".into()),
        code: None,
    };
    for status in [400, 429, 502] {
        for message in messages() {
            let mut writer = writer(&requests()[1], 1, &store);
            let chunks = streamed(&message, "stop");
            let first = chunks.split_inclusive("\n\n").next().unwrap();
            let mut written = writer.events(first.as_bytes()).unwrap();
            written.extend(writer.fail(status, &error));
            check_events(&description, &format!("{status} {message}"), &written);
        }
    }
}
