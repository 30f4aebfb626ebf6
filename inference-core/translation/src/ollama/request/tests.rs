//! Requests of Ollama's clients.

use inference_protocol::openai::ParseError;
use serde_json::json;

use super::*;
use crate::chat as completions;
use crate::writer::translated;
use crate::{ClientApi, Origin};

fn read_json(api: ClientApi, body: &Value) -> Result<Value, ParseError> {
    let origin = Origin { random: 1, now: 0 };
    let translated = translated(api, body.to_string().as_bytes(), origin)?;
    Ok(serde_json::from_slice(&translated.body).unwrap())
}

/// The chat completion request for a chat.
fn chat_of(body: &Value) -> Value {
    read_json(ClientApi::OllamaChat, body).unwrap()
}

/// The chat completion request for `fields` beside a message.
fn chat_with(fields: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "hi"}]});
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    chat_of(&body)
}

#[test]
fn calls_and_results_without_ids_are_paired() {
    let call = |name: &str| json!({"function": {"name": name, "arguments": {"city": "Köln"}}});
    let chat = chat_of(&json!({"model": "m:latest", "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "", "thinking": "Hm.", "tool_calls": [call("f"), call("g")]},
        {"role": "tool", "content": "7", "tool_name": "g"},
        {"role": "tool", "content": "8"},
        {"role": "assistant", "content": "I look.", "tool_calls": [
            {"id": "own", "function": {"index": 0, "name": "f"}}]},
        {"role": "tool", "content": "9", "tool_call_id": "own"},
    ], "tools": [{"type": "function", "function":
        {"name": "f", "description": "d", "parameters": {"type": "object"}}}]}));
    let called = |id: &str, name: &str, arguments: &str| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
    let city = r#"{"city":"Köln"}"#;
    assert_eq!(
        chat["messages"],
        json!([
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Weather?"},
            {"role": "assistant", "content": null, "reasoning_content": "Hm.", "tool_calls": [
                called("call00000", "f", city), called("call00001", "g", city)]},
            {"role": "tool", "tool_call_id": "call00001", "content": "7"},
            {"role": "tool", "tool_call_id": "call00000", "content": "8"},
            {"role": "assistant", "content": "I look.", "tool_calls": [called("own", "f", "{}")]},
            {"role": "tool", "tool_call_id": "own", "content": "9"},
        ])
    );
    assert_eq!((&chat["model"], &chat["stream"]), (&json!("m:latest"), &json!(true)));
    let function = json!({"name": "f", "description": "d", "parameters": {"type": "object"}});
    assert_eq!(chat["tools"], json!([{"type": "function", "function": function}]));
}

#[test]
fn successive_messages_of_a_role_become_one_and_empty_ones_none() {
    let chat = chat_of(&json!({"messages": [
        {"role": "system", "content": "a"},
        {"role": "system", "content": "b"},
        {"role": "user", "content": "c"},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": "d"},
    ]}));
    let merged =
        json!([{"role": "system", "content": "a\n\nb"}, {"role": "user", "content": "c\n\nd"}]);
    assert_eq!(chat["messages"], merged);
}

#[test]
fn options_become_parameters() {
    let chat = chat_with(json!({"options": {
        "num_predict": 9.0, "temperature": 0, "top_k": 5, "top_p": 0.5, "min_p": 0.1, "seed": 7,
        "stop": ["END"], "repeat_penalty": 1.1, "repeat_last_n": -1, "presence_penalty": 1,
        "frequency_penalty": 0.2, "typical_p": 0.9, "num_ctx": 8192, "num_gpu": 1, "mirostat": 0,
        "tfs_z": 1, "invented": "x", "num_thread": null,
    }, "keep_alive": "5m"}));
    let expected = json!({
        "messages": [{"role": "user", "content": "hi"}], "stream": true,
        "stream_options": {"include_usage": true}, "max_completion_tokens": 9, "temperature": 0.0,
        "top_k": 5, "top_p": 0.5, "min_p": 0.1, "seed": 7, "stop": ["END"], "repeat_penalty": 1.1,
        "repeat_last_n": -1, "presence_penalty": 1, "frequency_penalty": 0.2, "typical_p": 0.9,
        "timings": true,
    });
    assert_eq!(chat, expected);
}

#[test]
fn values_that_mean_no_limit_and_random_are_left_out() {
    for unlimited in [-2, -1, 0] {
        let chat = chat_with(json!({"options": {"num_predict": unlimited, "seed": -1}}));
        assert_eq!((&chat["max_completion_tokens"], &chat["seed"]), (&json!(null), &json!(null)));
    }
    assert_eq!(chat_with(json!({"options": {"stop": "a"}}))["stop"], json!(["a"]));
}

#[test]
fn think_sets_the_switch_and_the_effort() {
    let think = |think: Value| {
        let chat = chat_with(json!({"think": think}));
        let switch = chat["chat_template_kwargs"]["enable_thinking"].as_bool();
        (switch, chat["reasoning_effort"].as_str().map(String::from))
    };
    assert_eq!(think(json!(null)), (None, None));
    assert_eq!(think(json!(true)), (Some(true), None));
    assert_eq!(think(json!(false)), (Some(false), None));
    assert_eq!(think(json!("low")), (Some(true), Some("low".into())));
}

#[test]
fn a_format_is_any_json_or_a_schema() {
    let format = |format: Value| chat_with(json!({"format": format}))["response_format"].clone();
    assert_eq!(format(json!("")), json!(null));
    assert_eq!(format(json!("json")), json!({"type": "json_object"}));
    let schema = json!({"type": "object"});
    assert_eq!(
        format(schema.clone()),
        json!({"type": "json_schema", "json_schema": {"name": "response", "schema": schema}})
    );
}

#[test]
fn logprobs_and_streaming_are_passed_on() {
    let chat = chat_with(json!({"stream": false, "logprobs": true, "top_logprobs": 2}));
    assert_eq!((&chat["logprobs"], &chat["top_logprobs"]), (&json!(true), &json!(2)));
    assert_eq!((&chat["stream"], &chat["stream_options"]), (&json!(false), &json!(null)));
    let without = chat_with(json!({"logprobs": false, "top_logprobs": 2}));
    assert_eq!((&without["logprobs"], &without["top_logprobs"]), (&json!(null), &json!(null)));
}

#[test]
fn a_prompt_becomes_a_chat() {
    let body = json!({"model": "m", "prompt": "Why?", "system": "Be brief.", "suffix": "",
        "template": "", "context": [], "raw": false, "images": null, "format": "json",
        "think": false, "options": {"temperature": 1}, "stream": false});
    let chat = read_json(ClientApi::OllamaGenerate, &body).unwrap();
    let expected = json!({
        "model": "m", "stream": false, "temperature": 1.0, "response_format": {"type": "json_object"},
        "chat_template_kwargs": {"enable_thinking": false, "thinking": false},
        "messages": [
            {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}],
        "timings": true,
    });
    assert_eq!(chat, expected);
}

#[test]
fn what_cannot_be_honored_is_refused_with_its_path() {
    let message = |message: Value| json!({"messages": [{"role": "user", "content": "a"}, message]});
    let field = |name: &str, value: Value| {
        let mut body = json!({"messages": [{"role": "user", "content": "a"}], "prompt": "a"});
        body[name] = value;
        body
    };
    let call = |call: Value| message(json!({"role": "assistant", "tool_calls": [call]}));
    for (body, param) in [
        (json!({}), "messages"),
        (json!({"messages": []}), "messages"),
        (message(json!({"role": "robot"})), "messages[1].role"),
        (message(json!({"role": "user", "content": ["a"]})), "messages[1].content"),
        (message(json!({"role": "user", "images": ["AA=="]})), "messages[1].images"),
        (call(json!({"id": "a"})), "messages[1].tool_calls[0].function"),
        (call(json!({"function": {}})), "messages[1].tool_calls[0].function.name"),
        (
            call(json!({"function": {"name": "f", "arguments": "{}"}})),
            "messages[1].tool_calls[0].function.arguments",
        ),
        (field("tools", json!([{"type": "search"}])), "tools[0].type"),
        (field("tools", json!([{"function": {}}])), "tools[0].function.name"),
        (field("format", json!("yaml")), "format"),
        (field("think", json!("hard")), "think"),
        (field("options", json!({"temperature": "hot"})), "options.temperature"),
        (field("options", json!({"num_predict": 1.5})), "options.num_predict"),
        (field("options", json!({"stop": [7]})), "options.stop[0]"),
        (field("options", json!({"mirostat": 2})), "options.mirostat"),
        (field("options", json!({"tfs_z": 0.5})), "options.tfs_z"),
        (field("_debug_render_only", json!(true)), "_debug_render_only"),
    ] {
        let error = read_json(ClientApi::OllamaChat, &body).unwrap_err();
        assert_eq!(error.param.as_deref(), Some(param), "{body}: {}", error.message);
    }
    for (name, value) in [
        ("prompt", json!("")),
        ("suffix", json!("b")),
        ("template", json!("{{ .Prompt }}")),
        ("context", json!([1])),
        ("raw", json!(true)),
        ("images", json!(["AA=="])),
    ] {
        let body = field(name, value);
        let error = read_json(ClientApi::OllamaGenerate, &body).unwrap_err();
        assert_eq!(error.param.as_deref(), Some(name), "{body}: {}", error.message);
    }
}

#[test]
fn every_turn_begins_as_the_one_before() {
    let call = json!({"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]});
    let turn = [call, json!({"role": "tool", "content": "7"})];
    let messages = |turns: usize| {
        let all = turn.iter().cycle().take(2 * turns).cloned();
        let body = json!({"messages": Value::from_iter(all)});
        chat(Fields::of(body).unwrap()).unwrap().messages
    };
    assert_eq!(messages(2)[..], messages(3)[..4]);
    let body = Conversation { messages: messages(2), ..Conversation::default() };
    let written: Value = serde_json::from_slice(&completions::body(&body)).unwrap();
    assert_eq!(written["messages"][3]["tool_call_id"], "call00001");
}
