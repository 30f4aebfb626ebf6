//! Responses to Ollama's clients.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::writer::translated;
use crate::{ClientApi, ResponseWriter};

const CHAT: &str = r#"{"model":"m:latest","messages":[{"role":"user","content":"a"}]}"#;
const PROMPT: &str = r#"{"model":"m:latest","prompt":"a"}"#;

fn writer(api: ClientApi) -> ResponseWriter {
    let body = if api == ClientApi::OllamaChat { CHAT } else { PROMPT };
    translated(api, body.as_bytes(), Origin { random: 1, now: 1_700_000_000 }).unwrap().writer
}

fn sse(chunk: &Value) -> String {
    inference_protocol::sse::data(&chunk.to_string())
}

/// A stream of these deltas, with an end.
fn stream(deltas: &[Value], finish: &str) -> Vec<String> {
    let chunk = |choice: Value| sse(&json!({"choices": [choice]}));
    let mut events: Vec<_> =
        deltas.iter().map(|delta| chunk(json!({"index": 0, "delta": delta}))).collect();
    events.push(chunk(json!({"index": 0, "delta": {}, "finish_reason": finish})));
    let usage = json!({"prompt_tokens": 10, "completion_tokens": 3});
    events.push(sse(&json!({"choices": [], "usage": usage})));
    events.push("data: [DONE]\n\n".into());
    events
}

fn lines(api: ClientApi, deltas: &[Value], finish: &str) -> Vec<Value> {
    let mut writer = writer(api);
    let mut out = Vec::new();
    for (ms, event) in (10..).step_by(10).zip(stream(deltas, finish)) {
        writer.set_elapsed(Duration::from_millis(ms));
        out.extend(writer.events(event.as_bytes()).unwrap());
    }
    read(out)
}

fn read(lines: Vec<u8>) -> Vec<Value> {
    let text = String::from_utf8(lines).unwrap();
    assert!(text.is_empty() || text.ends_with('\n'), "{text}");
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn parts_become_lines_and_calls_come_whole() {
    let call = |fields: Value| json!({"tool_calls": [fields]});
    let lines = lines(
        ClientApi::OllamaChat,
        &[
            json!({"role": "assistant", "content": ""}),
            json!({"reasoning_content": "Hm"}),
            json!({"content": "I look."}),
            call(json!({"index": 0, "id": "t1", "function": {"name": "f", "arguments": ""}})),
            call(json!({"index": 0, "function": {"arguments": "{\"a\":"}})),
            call(json!({"index": 0, "function": {"arguments": "1.0}"}})),
            call(json!({"index": 1, "id": "t2", "function": {"name": "g", "arguments": ""}})),
        ],
        "tool_calls",
    );
    let messages: Vec<_> = lines.iter().map(|line| line["message"].clone()).collect();
    let call = |index: u64, id: &str, name: &str, arguments: Value| {
        let function = json!({"index": index, "name": name, "arguments": arguments});
        json!({"role": "assistant", "content": "",
            "tool_calls": [{"id": id, "function": function}]})
    };
    let expected = [
        json!({"role": "assistant", "content": "", "thinking": "Hm"}),
        json!({"role": "assistant", "content": "I look."}),
        call(0, "t1", "f", json!({"a": 1.0})),
        call(1, "t2", "g", json!({})),
        json!({"role": "assistant", "content": ""}),
    ];
    assert_eq!(messages, expected);
    assert_eq!(lines[0]["created_at"], "2023-11-14T22:13:20.020000Z");
    assert!(lines[..4].iter().all(|line| line["done"] == false && line["model"] == "m:latest"));
    let mut end = lines[4].clone();
    end.as_object_mut().unwrap().retain(|name, _| name != "message");
    assert_eq!(
        end,
        json!({"model": "m:latest", "created_at": "2023-11-14T22:13:20.100000Z", "done": true,
            "done_reason": "stop", "total_duration": 100_000_000, "load_duration": 0,
            "prompt_eval_count": 10, "prompt_eval_duration": 20_000_000, "eval_count": 3,
            "eval_duration": 80_000_000})
    );
}

#[test]
fn a_prompt_is_answered_with_text() {
    let deltas = [json!({"reasoning_content": "Hm"}), json!({"content": "Hi"})];
    let lines = lines(ClientApi::OllamaGenerate, &deltas, "length");
    let said = |line: &Value| (line["response"].clone(), line["thinking"].clone());
    assert_eq!(said(&lines[0]), (json!(""), json!("Hm")));
    assert_eq!(said(&lines[1]), (json!("Hi"), json!(null)));
    assert_eq!(said(&lines[2]), (json!(""), json!(null)));
    assert_eq!(lines[2]["done_reason"], "length");
    assert!(lines.iter().all(|line| line.get("message").is_none()));
}

#[test]
fn a_call_that_the_token_limit_cuts_off_is_left_out() {
    let call = |index: u64, arguments: &str| json!({"tool_calls": [{"index": index, "id": "t", "function": {"name": "f", "arguments": arguments}}]});
    let lines = lines(ClientApi::OllamaChat, &[call(0, "{}"), call(1, "{\"a\":")], "length");
    assert_eq!(lines.len(), 2);
    assert_eq!(lines[0]["message"]["tool_calls"][0]["function"]["index"], 0);
    assert_eq!(lines[1]["done_reason"], "length");
}

#[test]
fn an_endpoint_that_reports_its_timings_is_believed() {
    let completion = json!({
        "choices": [{"message": {"content": "Hi"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 2, "completion_tokens": 1},
        "timings": {"prompt_n": 2, "prompt_ms": 1.5, "predicted_ms": 0.25},
    });
    let mut writer = writer(ClientApi::OllamaChat);
    let whole = writer.whole(completion.to_string().as_bytes()).unwrap();
    let whole: Value = serde_json::from_slice(&whole).unwrap();
    assert_eq!(whole["prompt_eval_duration"], 1_500_000);
    assert_eq!(whole["eval_duration"], 250_000);
    assert_eq!(whole["total_duration"], 1_750_000);
    let chunk = sse(&json!({"choices": [{"delta": {"content": "a"}}], "timings": "another form"}));
    assert_eq!(read(writer.events(chunk.as_bytes()).unwrap()).len(), 1);
}

#[test]
fn log_probabilities_are_passed_on() {
    let token = json!({"token": "Hi", "logprob": -0.5, "bytes": [72, 105], "top_logprobs": []});
    let logprobs = json!({"content": [token]});
    let choice = json!({"index": 0, "delta": {"content": "Hi"}, "logprobs": logprobs});
    let chunk = sse(&json!({"choices": [choice]}));
    let lines = read(writer(ClientApi::OllamaChat).events(chunk.as_bytes()).unwrap());
    assert_eq!(lines[0]["logprobs"], json!([token]));
    let completion = json!({"choices": [{"message": {"content": "Hi"}, "logprobs": logprobs}]});
    let whole = writer(ClientApi::OllamaGenerate).whole(completion.to_string().as_bytes());
    let whole: Value = serde_json::from_slice(&whole.unwrap()).unwrap();
    assert_eq!((&whole["logprobs"], &whole["response"]), (&json!([token]), &json!("Hi")));
}

#[test]
fn a_broken_stream_ends_with_an_error_line() {
    let error = ErrorDetail {
        message: "gone".into(),
        kind: "upstream_error".into(),
        param: None,
        code: None,
    };
    let mut writer = writer(ClientApi::OllamaChat);
    assert_eq!(writer.fail(502, &error), b"{\"error\":\"gone\"}\n");
    assert_eq!(super::super::error_body(&error), r#"{"error":"gone"}"#);
    assert_eq!(writer.stream_format().content_type(), "application/x-ndjson");
    assert!(!writer.stream_format().has_comments());
    let comment = writer.events(b": waiting\n\n").unwrap();
    assert_eq!(comment, b"");
}

/// The message of a whole response, and its other fields but the durations.
fn whole(api: ClientApi, message: &Value, finish: &str) -> Value {
    let completion = json!({"choices": [{"message": message, "finish_reason": finish}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 3}});
    let whole = writer(api).whole(completion.to_string().as_bytes()).unwrap();
    without_times(serde_json::from_slice(&whole).unwrap())
}

fn without_times(mut value: Value) -> Value {
    let is_time = |name: &str| name == "created_at" || name.ends_with("_duration");
    value.as_object_mut().unwrap().retain(|name, _| !is_time(name));
    value
}

/// Lines put together as clients do.
fn gathered(lines: &[Value]) -> Value {
    let (end, parts) = lines.split_last().unwrap();
    let mut whole = without_times(end.clone());
    let add = |into: &mut Value, from: &Value| {
        for name in ["content", "thinking", "response"] {
            if let Some(more) = from[name].as_str().filter(|more| !more.is_empty()) {
                into[name] = format!("{}{more}", into[name].as_str().unwrap_or_default()).into();
            }
        }
        if let Some(calls) = from["tool_calls"].as_array() {
            let mut all = into["tool_calls"].as_array().cloned().unwrap_or_default();
            all.extend(calls.iter().cloned());
            into["tool_calls"] = all.into();
        }
    };
    for part in parts {
        match part.get("message") {
            Some(message) => add(&mut whole["message"], message),
            None => add(&mut whole, part),
        }
    }
    whole
}

/// `text` in pieces, cut at these places.
fn pieces(text: &str, cuts: &[usize]) -> Vec<String> {
    let chars: Vec<char> = text.chars().collect();
    let mut cuts: Vec<_> = cuts.iter().map(|cut| cut % (chars.len() + 1)).collect();
    cuts.extend([0, chars.len()]);
    cuts.sort_unstable();
    cuts.windows(2).map(|ends| chars[ends[0]..ends[1]].iter().collect()).collect()
}

proptest! {
    #[test]
    fn streamed_and_whole_responses_agree(
        reasoning in ".{0,12}",
        text in ".{0,12}",
        calls in proptest::collection::vec(("[a-z]{1,4}", ".{0,12}"), 0..3),
        cuts in proptest::collection::vec(0_usize..40, 0..6),
        blocks in proptest::collection::vec(1_usize..4, 40),
        is_cut in any::<bool>(),
        is_chat in any::<bool>(),
    ) {
        let api = if is_chat { ClientApi::OllamaChat } else { ClientApi::OllamaGenerate };
        let calls = if is_chat { calls } else { Vec::new() };
        let finish = if is_cut { "length" } else { "stop" };
        let mut deltas = Vec::new();
        let field = |name: &str, piece: String| json!({ name: piece });
        deltas.extend(pieces(&reasoning, &cuts).into_iter().map(|p| field("reasoning_content", p)));
        deltas.extend(pieces(&text, &cuts).into_iter().map(|p| field("content", p)));
        let mut made = Vec::new();
        for (index, (name, value)) in calls.iter().enumerate() {
            let mut arguments = json!({ "a": value }).to_string();
            if is_cut && index + 1 == calls.len() {
                arguments.pop();
            }
            let id = format!("t{index}");
            let call = |function: Value| json!({"tool_calls": [{"index": index, "id": id, "function": function}]});
            deltas.push(call(json!({"name": name, "arguments": ""})));
            let parts = pieces(&arguments, &cuts).into_iter();
            deltas.extend(parts.map(|piece| call(json!({"arguments": piece}))));
            made.push(json!({"id": id, "function": {"name": name, "arguments": arguments}}));
        }

        let mut writer = writer(api);
        let events = stream(&deltas, finish);
        let mut rest = &events[..];
        let mut out = Vec::new();
        for size in blocks.into_iter().chain(std::iter::repeat(1)) {
            let (block, after) = rest.split_at(size.min(rest.len()));
            out.extend(writer.events(block.concat().as_bytes()).unwrap());
            rest = after;
            if rest.is_empty() {
                break;
            }
        }
        let message = json!({"content": text, "reasoning_content": reasoning, "tool_calls": made});
        prop_assert_eq!(gathered(&read(out)), whole(api, &message, finish));
    }
}
