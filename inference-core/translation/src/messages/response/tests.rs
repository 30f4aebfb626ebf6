//! Responses to Anthropic's clients.

use serde_json::{Value, json};

use super::*;

fn writer() -> Writer {
    let mut conversation = Conversation { model: Some("m".into()), ..Conversation::default() };
    conversation.sampling.stop = vec!["END".into()];
    Writer::new(&conversation, Origin { random: 0xab, now: 0 })
}

/// The events for chunks whose deltas are `deltas`, and an end with `finish`.
fn events(deltas: &[Value], finish: Value) -> Vec<Value> {
    let mut writer = writer();
    let mut out = Vec::new();
    let chunk = |choice: Value| json!({"choices": [choice]}).to_string();
    let mut chunks: Vec<_> =
        deltas.iter().map(|delta| chunk(json!({"index": 0, "delta": delta}))).collect();
    chunks.push(chunk(finish));
    let usage = json!({"prompt_tokens": 10, "completion_tokens": 3,
        "prompt_tokens_details": {"cached_tokens": 4}});
    chunks.push(json!({"choices": [], "usage": usage}).to_string());
    for chunk in chunks {
        writer.chunk(&Chunk::read(chunk.as_bytes()).unwrap(), &mut out);
    }
    writer.end(&mut out);
    let text = String::from_utf8(out).unwrap();
    let events = text.split_terminator("\n\n").map(|event| {
        let (name, data) = event.split_once('\n').unwrap();
        let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(name.strip_prefix("event: "), data["type"].as_str(), "{event}");
        data
    });
    events.collect()
}

fn kinds(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["type"].as_str().unwrap()).collect()
}

#[test]
fn reasoning_text_and_calls_become_blocks() {
    let call = |fields: Value| json!({"tool_calls": [fields]});
    let events = events(
        &[
            json!({"role": "assistant", "content": ""}),
            json!({"reasoning_content": "Hm"}),
            json!({"content": "I "}),
            json!({"content": "look."}),
            call(json!({"index": 0, "id": "t1", "function": {"name": "f", "arguments": ""}})),
            call(json!({"index": 0, "function": {"arguments": "{\"a\":"}})),
            call(json!({"index": 0, "function": {"arguments": "1}"}})),
            call(json!({"index": 1, "id": "t2", "function": {"name": "g", "arguments": "{}"}})),
        ],
        json!({"index": 0, "delta": {}, "finish_reason": "tool_calls"}),
    );
    let block = ["content_block_start", "content_block_delta", "content_block_stop"];
    let text = [block[0], block[1], block[1], block[2]];
    let expected: Vec<&str> = ["message_start"]
        .into_iter()
        .chain(block)
        .chain(text)
        .chain(text)
        .chain(block)
        .chain(["message_delta", "message_stop"])
        .collect();
    assert_eq!(kinds(&events), expected);
    let indexes: Vec<_> = events.iter().filter_map(|event| event["index"].as_u64()).collect();
    assert_eq!(indexes, [0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3]);
    assert_eq!(events[0]["message"]["id"], "msg_000000000000000000000000000000ab");
    let start = json!({"type": "tool_use", "id": "t1", "name": "f", "input": {}});
    assert_eq!(events[8]["content_block"], start);
    assert_eq!(events[9]["delta"], json!({"type": "input_json_delta", "partial_json": "{\"a\":"}));
    let end = &events[events.len() - 2];
    assert_eq!(end["delta"], json!({"stop_reason": "tool_use", "stop_sequence": null}));
    let usage = json!({"input_tokens": 6, "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 4, "output_tokens": 3});
    assert_eq!(end["usage"], usage);
}

#[test]
fn a_response_says_why_it_ended() {
    let reason = |finish: &str, stop: Value| {
        let end = json!({"index": 0, "delta": {}, "finish_reason": finish, "stop_reason": stop});
        let events = events(&[json!({"content": "a"})], end);
        let delta = &events[events.len() - 2]["delta"];
        (delta["stop_reason"].as_str().unwrap().to_string(), delta["stop_sequence"].clone())
    };
    assert_eq!(reason("stop", json!(null)), ("end_turn".into(), json!(null)));
    assert_eq!(reason("stop", json!("END")), ("stop_sequence".into(), json!("END")));
    assert_eq!(reason("stop", json!(128009)), ("end_turn".into(), json!(null)));
    assert_eq!(reason("length", json!(null)), ("max_tokens".into(), json!(null)));
}

#[test]
fn a_whole_message_has_the_same_blocks() {
    let completion = json!({
        "choices": [{"message": {"content": "Hi", "reasoning_content": "Hm", "tool_calls": [
            {"id": "t", "function": {"name": "f", "arguments": "{\"a\": 1}"}},
            {"id": "u", "function": {"name": "g", "arguments": "{\"cut"}},
        ]}, "finish_reason": "tool_calls"}],
        "usage": {"prompt_tokens": 2, "completion_tokens": 1},
    });
    let answer = Answer::read(completion.to_string().as_bytes()).unwrap();
    let message: Value = serde_json::from_slice(&writer().whole(answer)).unwrap();
    assert_eq!(
        message["content"],
        json!([
            {"type": "thinking", "thinking": "Hm", "signature": ""},
            {"type": "text", "text": "Hi"},
            {"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}},
            {"type": "tool_use", "id": "u", "name": "g", "input": {}},
        ])
    );
    assert_eq!(message["stop_reason"], "tool_use");
}

#[test]
fn a_broken_stream_ends_with_an_error_event() {
    let error = ErrorDetail {
        message: "gone".into(),
        kind: "upstream_error".into(),
        param: None,
        code: None,
    };
    let mut out = Vec::new();
    writer().fail(502, &error, &mut out);
    let expected = "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"api_error\",\"message\":\"gone\"}}\n\n";
    assert_eq!(String::from_utf8(out).unwrap(), expected);
}
