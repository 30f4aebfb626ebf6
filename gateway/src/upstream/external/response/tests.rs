//! Tests of responses in the forms that engines give them.

use super::*;
use crate::scheduler::usage::Task;

fn info(api: Api, tokens_max: Option<u64>) -> ResponseInfo {
    let (has_logprobs, echoes) = (false, false);
    let task = match api {
        Api::Embeddings => Task::Embed(1),
        _ => Task::Generate { tokens_max, choices: 1, has_logprobs, echoes },
    };
    ResponseInfo { api, limits: UsageLimits::new(50, task), tokens_max }
}

/// What a client of a stream gets, as the payloads of its events.
fn streamed(api: Api, stream: &str) -> Vec<Value> {
    let mut reader = StreamReader::new(info(api, Some(5)));
    let mut events = Vec::from(reader.read(stream.as_bytes()));
    if !reader.is_done {
        events.extend(reader.end(b"").expect("it is complete"));
    }
    let payloads = sse::payloads(&events);
    payloads.map(|payload| serde_json::from_slice(payload).unwrap_or("[DONE]".into())).collect()
}

fn chunk(delta: Value, finish: Value) -> String {
    let choice = json!({"index": 0, "delta": delta, "finish_reason": finish});
    sse::data(&json!({"id": "x", "choices": [choice]}).to_string())
}

fn text() -> String {
    chunk(json!({"content": "Hi"}), Value::Null)
}

const DONE_EVENT: &str = "data: [DONE]\n\n";

/// The reason of the only choice, and the usage.
fn end(payloads: &[Value]) -> (&str, (u64, u64)) {
    let [.., last, choice, usage, done] = payloads else { panic!("{payloads:?}") };
    assert_eq!(*done, "[DONE]", "{payloads:?}");
    assert_eq!(usage["choices"], json!([]), "{payloads:?}");
    let reason = &choice["choices"][0]["finish_reason"];
    assert!(last["choices"][0]["finish_reason"].is_null(), "{payloads:?}");
    let count = |name: &str| usage["usage"][name].as_u64().unwrap();
    (reason.as_str().unwrap(), (count("prompt_tokens"), count("completion_tokens")))
}

#[test]
fn a_stream_that_is_openais_stays_as_it_is() {
    let usage = json!({"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4});
    let last = sse::data(&json!({"id": "x", "choices": [], "usage": usage}).to_string());
    let first = "data: {\"id\": \"x\",  \"choices\":[{\"index\":0,\"delta\":{\"content\":\"\\u0048\"}}]}\n\n";
    let stream = [first, &chunk(json!({}), json!("stop"))].concat();
    let mut reader = StreamReader::new(info(Api::ChatCompletions, None));
    assert_eq!(reader.read(stream.as_bytes()), stream, "to the byte");
    let mut end = String::from_utf8(reader.read(last.as_bytes()).into()).unwrap();
    end += std::str::from_utf8(&reader.read(DONE_EVENT.as_bytes())).unwrap();
    let payloads: Vec<_> = sse::payloads(end.as_bytes()).collect();
    let told: Value = serde_json::from_slice(payloads[0]).unwrap();
    assert_eq!((&told["usage"], &told["id"], payloads[1]), (&usage, &json!("x"), &b"[DONE]"[..]));
}

#[test]
fn what_ends_a_choice_has_openais_name() {
    let call = json!({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f"}}]});
    let function = json!({"function_call": {"name": "f"}});
    let plain = json!({"content": "Hi"});
    for (delta, finish, expected) in [
        (&plain, json!("eos_token"), "stop"),
        (&plain, json!("stop_sequence"), "stop"),
        (&plain, json!("stop"), "stop"),
        (&plain, json!(""), "stop"),
        (&plain, Value::Null, "stop"),
        (&plain, json!("max_tokens"), "length"),
        (&plain, json!("length"), "length"),
        (&call, json!("stop"), "tool_calls"),
        (&call, json!("function_call"), "tool_calls"),
        (&call, Value::Null, "tool_calls"),
        (&function, json!("function_call"), "function_call"),
        (&plain, json!("content_filter"), "content_filter"),
    ] {
        let stream =
            [&chunk(delta.clone(), Value::Null), &chunk(json!({}), finish.clone()), DONE_EVENT];
        let payloads = streamed(Api::ChatCompletions, &stream.concat());
        let reasons = payloads.iter().filter_map(|p| p["choices"][0]["finish_reason"].as_str());
        assert_eq!(reasons.collect::<Vec<_>>(), [expected], "{finish}");
        let message = json!({"index": 0, "message": delta, "finish_reason": finish});
        let body = Bytes::from(json!({ "choices": [message] }).to_string());
        let whole = whole(&body, &info(Api::ChatCompletions, Some(5))).unwrap();
        let whole: Value = serde_json::from_slice(&whole).unwrap();
        assert_eq!(whole["choices"][0]["finish_reason"], expected, "{finish}");
    }
}

#[test]
fn a_choice_without_an_end_has_reached_its_length_or_stopped() {
    for (completion, reason) in [(5, "length"), (4, "stop")] {
        let usage = json!({"prompt_tokens": 3, "completion_tokens": completion});
        let last = sse::data(&json!({"choices": [], "usage": usage}).to_string());
        let payloads = streamed(Api::ChatCompletions, &[&text(), &last, DONE_EVENT].concat());
        assert_eq!(end(&payloads), (reason, (3, completion)));
        let stream = "data: {\"choices\":[{\"text\":\"a\",\"finish_reason\":null}]}\n\n";
        let payloads = streamed(Api::Completions, &[stream, &last, DONE_EVENT].concat());
        assert_eq!(end(&payloads), (reason, (3, completion)));
        assert_eq!(payloads[1]["choices"][0]["text"], "");
    }
}

#[test]
fn usage_is_told_once_wherever_it_came() {
    let usage = json!({"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5, "more": {}});
    let with_usage = |event: &str| {
        let mut payload: Value =
            serde_json::from_str(event.trim().trim_start_matches("data: ")).unwrap();
        payload["usage"] = usage.clone();
        sse::data(&payload.to_string())
    };
    let last = sse::data(&json!({"choices": [], "usage": usage}).to_string());
    let finish = chunk(json!({}), json!("stop"));
    for stream in [
        [&text(), &finish, &last, DONE_EVENT],
        [&text(), &last, &finish, DONE_EVENT],
        [&last, &text(), &finish, DONE_EVENT],
        [&text(), &with_usage(&finish), "", DONE_EVENT],
        [&with_usage(&text()), &with_usage(&finish), "", DONE_EVENT],
        [&text(), &with_usage(&finish), "", ""],
    ] {
        let payloads = streamed(Api::ChatCompletions, &stream.concat());
        assert_eq!(end(&payloads), ("stop", (3, 2)), "{stream:?}");
        let told: Vec<_> = payloads.iter().filter(|p| p.get("usage").is_some()).collect();
        assert_eq!(told.len(), 1, "{stream:?}");
        assert_eq!(told[0]["usage"], usage);
    }
}

#[test]
fn what_is_not_reported_is_estimated() {
    let finish = chunk(json!({}), json!("stop"));
    let long = chunk(json!({"content": "12345678"}), Value::Null);
    for (usage, expected) in [
        (json!(null), (11, 3)),
        (json!({}), (11, 3)),
        (json!({"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}), (11, 3)),
        (json!({"prompt_tokens": 7}), (7, 3)),
        (json!({"completion_tokens": 1, "total_tokens": 9}), (8, 1)),
        // An event that cannot be read counts as one with text.
        (json!({"prompt_tokens": "7", "completion_tokens": 1.5}), (11, 4)),
    ] {
        let last = sse::data(&json!({"choices": [], "usage": usage}).to_string());
        let stream = [&text(), &long, &finish, &last, DONE_EVENT].concat();
        let mut reader = StreamReader::new(info(Api::ChatCompletions, None));
        let events = reader.read(stream.as_bytes());
        let payload = sse::payloads(&events).filter(|p| p.starts_with(b"{")).last().unwrap();
        let told: Value = serde_json::from_slice(payload).unwrap();
        let count = |name: &str| told["usage"][name].as_u64().unwrap();
        assert_eq!((count("prompt_tokens"), count("completion_tokens")), expected, "{usage}");
        assert_eq!(count("total_tokens"), expected.0 + expected.1, "{usage}");
    }
    for (body, expected) in [
        (r#" {"data":[]} "#, r#"{"data":[],"usage":{"prompt_tokens":11,"total_tokens":11}}"#),
        ("{}", r#"{"usage":{"prompt_tokens":11,"total_tokens":11}}"#),
        (r#"{"data":[],"usage":{"total_tokens":3}}"#, r#"{"data":[],"usage":{"total_tokens":3}}"#),
    ] {
        let read = whole(&Bytes::from_static(body.as_bytes()), &info(Api::Embeddings, None));
        assert_eq!(read.unwrap(), expected);
    }
}

#[test]
fn comments_and_line_ends_do_not_matter() {
    let mut reader = StreamReader::new(info(Api::ChatCompletions, None));
    assert_eq!(reader.read(b": ping\r\n\r\n: t 0 5\n\n\n\r\n"), KEEP_ALIVE);
    assert_eq!(reader.read(b"\n\nevent: ping\n\ndata:\n\nretry: 5\n\n"), "");
    let stream =
        b": t 0 7\r\nevent: message\r\nid: 1\r\ndata:{\"choices\":\r\ndata: [{\"index\":0,\
                   \"delta\":{\"content\":\"Hi\"}}]}\r\n\r\n";
    let expected = "data: {\"choices\": [{\"index\":0,\"delta\":{\"content\":\"Hi\"}}]}\n\n";
    assert_eq!(reader.read(stream), expected);
    assert_eq!(reader.end(b"data: {\"choic"), None, "it broke off");
}

#[test]
fn a_stream_that_breaks_off_is_incomplete_and_nothing_follows_its_end() {
    let mut reader = StreamReader::new(info(Api::ChatCompletions, None));
    reader.read(text().as_bytes());
    assert_eq!(reader.end(b""), None);
    let mut reader = StreamReader::new(info(Api::ChatCompletions, None));
    reader.read(text().as_bytes());
    let events = reader.end(b"data: [DONE]").unwrap();
    assert!(events.ends_with(DONE_EVENT.as_bytes()));
    assert_eq!(reader.read(text().as_bytes()), "");
    assert_eq!(StreamReader::new(info(Api::ChatCompletions, None)).end(b""), None);
    assert_eq!(streamed(Api::ChatCompletions, DONE_EVENT), [json!({"error": {"type": "empty"}})]);
}

#[test]
fn an_error_is_recognized_in_every_form() {
    for (event, expected) in [
        (r#"data: {"error":{"code":400}}"#, json!({"code": 400})),
        (
            r#"data: {"error":"a text","error_type":"generation"}"#,
            json!({"error_type": "generation", "message": "a text"}),
        ),
        (r#"data: {"detail":"no"}"#, json!({"detail": "no"})),
        (r#"data: {"object":"error","code":500}"#, json!({"object": "error", "code": 500})),
        (r#"error: {"code":500}"#, json!({"code": 500})),
        ("event: error\ndata: {\"message\":\"x\"}", json!({"message": "x"})),
        ("event: error\ndata: a text", json!({"message": null})),
        ("data: a text", json!({"type": "no_chunk"})),
        (
            r#"data: {"choices":[{"delta":{},"finish_reason":"error"}],"error":{"code":1}}"#,
            json!({"code": 1}),
        ),
        (r#"data: {"choices":[{"delta":{},"finish_reason":"abort"}]}"#, json!({"type": "abort"})),
    ] {
        let payloads = streamed(Api::ChatCompletions, &format!("{event}\n\n{}", text()));
        assert_eq!(payloads, [json!({ "error": expected })], "{event}");
    }
    for body in [
        r#"{"error":"a text"}"#,
        r#"{"object":"error","message":"x"}"#,
        r#"{"detail":"x"}"#,
        r#"{"choices":[{"message":{},"finish_reason":"abort"}]}"#,
        "{}",
        "<html>",
        "[]",
    ] {
        let body = Bytes::from_static(body.as_bytes());
        assert!(whole(&body, &info(Api::ChatCompletions, None)).is_err(), "{body:?}");
    }
    for body in [r#"{"error":"a text"}"#, r#"{"detail":[]}"#, "<html>"] {
        let body = Bytes::from_static(body.as_bytes());
        assert!(whole(&body, &info(Api::Embeddings, None)).is_err(), "{body:?}");
    }
}

#[test]
fn every_tool_call_has_a_number_of_its_own() {
    let part = |fields: Value| chunk(json!({"tool_calls": [fields]}), Value::Null);
    let begins = |index: Value, id: &str| {
        let mut call = json!({"id": id, "function": {"name": "f", "arguments": ""}});
        if !index.is_null() {
            call["index"] = index;
        }
        part(call)
    };
    let numbers = |stream: String| -> Vec<u64> {
        let payloads = streamed(Api::ChatCompletions, &(stream + DONE_EVENT));
        let calls = payloads.iter().filter_map(|p| p["choices"][0]["delta"].get("tool_calls"));
        calls.flat_map(|c| c.as_array().unwrap()).map(|c| c["index"].as_u64().unwrap()).collect()
    };
    let more = part(json!({"index": 0, "function": {"arguments": "{}"}}));
    let other_id = part(json!({"index": 0, "id": "z", "function": {"arguments": "{}"}}));
    assert_eq!(numbers([begins(json!(0), "a"), begins(json!(1), "b")].concat()), [0, 1]);
    // Ollama's, whose calls are whole.
    assert_eq!(numbers([begins(json!(0), "a"), begins(json!(0), "b")].concat()), [0, 1]);
    assert_eq!(numbers([begins(Value::Null, "a"), begins(Value::Null, "b")].concat()), [0, 1]);
    // The name again with every part, or an id for every part.
    assert_eq!(numbers([begins(json!(0), "a"), begins(json!(0), "a"), more].concat()), [0, 0, 0]);
    assert_eq!(numbers([begins(json!(0), "a"), other_id].concat()), [0, 0]);
    assert_eq!(numbers([begins(json!(2), "a"), begins(json!(5), "b")].concat()), [2, 5]);
}

#[test]
fn an_endpoint_cannot_make_us_remember_without_end() {
    let mut reader = StreamReader::new(info(Api::ChatCompletions, None));
    for index in 0..1000 {
        let call = json!({"index": index, "id": format!("{index}"), "function": {"name": "f"}});
        let choice = json!({"index": index, "delta": {"tool_calls": [call]}});
        reader.read(sse::data(&json!({"choices": [choice]}).to_string()).as_bytes());
        let call = json!({"index": 0, "id": "x".repeat(index), "function": {"name": "f"}});
        let choice = json!({"index": 0, "delta": {"tool_calls": [call]}});
        reader.read(sse::data(&json!({"choices": [choice]}).to_string()).as_bytes());
    }
    assert!(format!("{reader:?}").len() < 100_000);
}
