//! Responses to llama-server's clients.

use inference_protocol::sse;
use serde_json::json;

use crate::writer::translated;
use crate::{ClientApi, Origin, ResponseWriter};

use super::*;

const ORIGIN: Origin = Origin { random: 1, now: 1_700_000_000 };

fn writer(fields: &Value) -> ResponseWriter {
    let mut body = json!({"model": "m", "prompt": "a", "temperature": 0.5, "stop": ["x"]});
    let (Value::Object(body), Value::Object(fields)) = (&mut body, fields) else { panic!() };
    body.extend(fields.clone());
    let body = serde_json::to_vec(body).unwrap();
    translated(ClientApi::LlamaCompletion, &body, ORIGIN).unwrap().writer
}

fn event(chunk: &Value) -> String {
    sse::data(&chunk.to_string())
}

fn events(writer: &mut ResponseWriter, chunks: &[Value]) -> Vec<Value> {
    let mut block: String = chunks.iter().map(event).collect();
    block.push_str("data: [DONE]\n\n");
    let out = writer.events(block.as_bytes()).unwrap();
    sse::payloads(&out).map(|payload| serde_json::from_slice(payload).unwrap()).collect()
}

fn text(text: &str) -> Value {
    json!({"choices": [{"index": 0, "text": text, "logprobs": null, "finish_reason": null}]})
}

const TIMINGS: &str = r#"{"prompt_n": 3, "prompt_ms": 1.50, "predicted_n": 2}"#;

fn timings() -> Value {
    serde_json::from_str(TIMINGS).unwrap()
}

#[test]
fn a_stream_has_an_event_for_each_text_and_one_at_the_end() {
    let end = json!({"index": 0, "text": "", "finish_reason": "stop", "stop_reason": "x"});
    let usage = json!({"prompt_tokens": 5, "completion_tokens": 2,
        "prompt_tokens_details": {"cached_tokens": 3}});
    let chunks = [
        text("Hi\n"),
        text("you"),
        json!({"choices": [end], "timings": timings()}),
        json!({"choices": [], "usage": usage}),
    ];
    let events = events(&mut writer(&json!({"stream": true})), &chunks);
    let expected = json!({"index": 0, "content": "Hi\n", "tokens": [], "stop": false});
    assert_eq!((&events[0], &events[1]["content"]), (&expected, &json!("you")));
    let expected = json!({"index": 0, "content": "", "tokens": [], "stop": true, "model": "m",
        "tokens_predicted": 2, "tokens_evaluated": 5, "tokens_cached": 3,
        "generation_settings": {"temperature": 0.5}, "has_new_line": true, "truncated": false,
        "stop_type": "word", "stopping_word": "x", "timings": timings()});
    assert_eq!((&events[2], events.len()), (&expected, 3));
}

#[test]
fn a_whole_response_says_why_it_ended() {
    for (finish, stop, expected) in [
        ("length", json!(null), ("limit", "")),
        ("stop", json!("x"), ("word", "x")),
        ("stop", json!(null), ("eos", "")),
        ("stop", json!(7), ("eos", "")),
    ] {
        let choice =
            json!({"index": 0, "text": "Hi", "finish_reason": finish, "stop_reason": stop});
        let usage = json!({"prompt_tokens": 5, "completion_tokens": 2});
        let body = json!({"choices": [choice], "usage": usage}).to_string();
        let whole = writer(&json!({})).whole(body.as_bytes()).unwrap();
        let whole: Value = serde_json::from_slice(&whole).unwrap();
        let said = (whole["stop_type"].as_str().unwrap(), whole["stopping_word"].as_str().unwrap());
        assert_eq!(said, expected);
        assert_eq!((&whole["content"], &whole["stop"]), (&json!("Hi"), &json!(true)));
        assert!(whole.get("timings").is_none() && whole.get("completion_probabilities").is_none());
    }
    assert!(writer(&json!({})).whole(b"{}").is_err());
}

#[test]
fn only_the_fields_that_the_request_names_are_returned() {
    let fields = json!({"response_fields": ["content", "timings/prompt_ms", "timings/none",
        "generation_settings/temperature", "none", "content/x"]});
    let choice = json!({"index": 0, "text": "Hi", "finish_reason": "stop"});
    let body = format!(r#"{{"choices":[{choice}],"timings":{TIMINGS}}}"#);
    let whole = writer(&fields).whole(body.as_bytes()).unwrap();
    let whole: Value = serde_json::from_slice(&whole).unwrap();
    let expected = json!({"content": "Hi", "timings/prompt_ms": 1.5,
        "generation_settings/temperature": 0.5});
    assert_eq!(whole, expected);
    let events = events(&mut writer(&fields), &[text("Hi")]);
    assert_eq!(events[0]["stop"], false);
    assert_eq!(events[1], json!({"content": "", "generation_settings/temperature": 0.5}));
}

#[test]
fn probabilities_come_token_by_token() {
    let logprobs = json!({"tokens": ["H", "i"], "token_logprobs": [-0.5, -1.25],
        "top_logprobs": [{"H": -0.5, "J": -2.0, "K": -3.0}, {}], "text_offset": [0, 1]});
    let choice = json!({"index": 0, "text": "Hi", "logprobs": logprobs, "finish_reason": "stop"});
    let likely = |text: &str, logprob: f64| json!({"token": text, "bytes": text.as_bytes(), "logprob": logprob});
    let mut first = likely("H", -0.5);
    first["top_logprobs"] = json!([likely("H", -0.5), likely("J", -2.0)]);
    let mut second = likely("i", -1.25);
    second["top_logprobs"] = json!([]);
    let expected = json!([first, second]);
    let body = json!({"choices": [choice]}).to_string();
    let whole = writer(&json!({"n_probs": 2})).whole(body.as_bytes()).unwrap();
    let whole: Value = serde_json::from_slice(&whole).unwrap();
    assert_eq!(whole["completion_probabilities"], expected);
    let events = events(&mut writer(&json!({"n_probs": 2})), &[json!({"choices": [choice]})]);
    assert_eq!(events[0]["completion_probabilities"], expected);
    assert!(events[1].get("completion_probabilities").is_none());
}

#[test]
fn prefill_progress_and_timings_of_chunks_are_passed_on() {
    let progress = json!({"total": 9, "cache": 0, "processed": 4, "time_ms": 2});
    let mut prefill = text("");
    prefill["prompt_progress"] = progress.clone();
    let mut said = text("a");
    said["timings"] = timings();
    let events = events(&mut writer(&json!({})), &[prefill, said]);
    assert_eq!((&events[0]["prompt_progress"], &events[0]["content"]), (&progress, &json!("")));
    assert_eq!((&events[1]["timings"], &events[2]["timings"]), (&timings(), &timings()));
}

#[test]
fn a_broken_stream_ends_with_an_error() {
    let error = ErrorDetail {
        message: "gone".into(),
        kind: "server_error".into(),
        param: None,
        code: Some("node_lost".into()),
    };
    let out = String::from_utf8(writer(&json!({})).fail(502, &error)).unwrap();
    assert!(
        out.starts_with(r#"data: {"error":{"message":"gone""#) && out.ends_with("\n\n"),
        "{out}"
    );
}
