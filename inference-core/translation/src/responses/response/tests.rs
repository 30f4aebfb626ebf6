//! Tests of responses: events, objects, what is stored, and that both ways agree.

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::store::Page;
use crate::writer::{ClientApi, ResponseWriter, Translation, translate, translated};

const ORIGIN: Origin = Origin { random: 0xab, now: 100 };

fn writer(fields: Value) -> ResponseWriter {
    let mut body = json!({"model": "m", "input": "x"});
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    translated(ClientApi::Responses, body.to_string().as_bytes(), ORIGIN).unwrap().writer
}

fn chunk(delta: &Value, finish: Value) -> String {
    let choice = json!({"index": 0, "delta": delta, "finish_reason": finish});
    format!("data: {}\n\n", json!({"choices": [choice]}))
}

const USAGE: &str = r#"{"prompt_tokens":10,"completion_tokens":3,"prompt_tokens_details":
    {"cached_tokens":4},"completion_tokens_details":{"reasoning_tokens":1}}"#;

fn read_events(written: &[u8]) -> Vec<Value> {
    let text = std::str::from_utf8(written).unwrap();
    let events = text.split_terminator("\n\n").map(|event| {
        let (name, data) = event.split_once('\n').unwrap();
        let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(name.strip_prefix("event: "), data["type"].as_str(), "{event}");
        data
    });
    events.collect()
}

/// The events of a stream of these deltas. Checks their numbers, and that pieces make wholes.
fn stream(writer: &mut ResponseWriter, deltas: &[Value], finish: &str) -> Vec<Value> {
    let mut written = Vec::new();
    writer.set_elapsed(Duration::from_secs(5));
    for delta in deltas {
        written.extend(writer.events(chunk(delta, json!(null)).as_bytes()).unwrap());
    }
    written.extend(writer.events(chunk(&json!({}), json!(finish)).as_bytes()).unwrap());
    let usage = USAGE.replace('\n', "");
    let end = format!("data: {{\"choices\":[],\"usage\":{usage}}}\n\ndata: [DONE]\n\n");
    written.extend(writer.events(end.as_bytes()).unwrap());
    let events = read_events(&written);
    for (number, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], json!(number));
    }
    check_pieces(&events);
    events
}

/// The deltas of each item are its text, and the last event has the items that ended.
fn check_pieces(events: &[Value]) {
    let mut pieces = std::collections::BTreeMap::<(String, String), String>::new();
    let mut items = Vec::new();
    for event in events {
        let kind = event["type"].as_str().unwrap();
        let key = |kind: &str| (kind.to_string(), event["item_id"].as_str().unwrap().to_string());
        if let Some(kind) = kind.strip_suffix(".delta") {
            *pieces.entry(key(kind)).or_default() += event["delta"].as_str().unwrap();
        } else if kind == "response.output_item.done" {
            assert_eq!(event["output_index"], json!(items.len()));
            items.push(event["item"].clone());
        } else if let Some(kind) = kind.strip_suffix(".done")
            && !kind.ends_with("_part")
        {
            let whole = ["text", "arguments", "input"].iter().find_map(|name| event[name].as_str());
            let pieces = pieces.remove(&key(kind)).unwrap_or_default();
            assert_eq!(whole, Some(pieces.as_str()), "{event}");
        }
    }
    assert!(pieces.is_empty(), "{pieces:?}");
    assert_eq!(events.last().unwrap()["response"]["output"], json!(items));
}

fn kinds(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["type"].as_str().unwrap()).collect()
}

fn call(fields: Value) -> Value {
    json!({"tool_calls": [fields]})
}

#[test]
fn reasoning_text_and_calls_become_items() {
    let deltas = [
        json!({"role": "assistant", "content": ""}),
        json!({"reasoning_content": "Hm"}),
        json!({"content": "I "}),
        json!({"content": "look."}),
        call(json!({"index": 0, "id": "c1", "function": {"name": "f", "arguments": ""}})),
        call(json!({"index": 0, "function": {"arguments": "{\"a\":1}"}})),
        call(json!({"index": 1, "id": "c2", "function": {"name": "g"}})),
    ];
    let events = stream(&mut writer(json!({})), &deltas, "tool_calls");
    let expected = [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.reasoning_text.delta",
        "response.reasoning_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ];
    assert_eq!(kinds(&events), expected);
    let response = &events[23]["response"];
    let id = |kind: &str, index: u32| format!("{kind}_{:032x}{index:08x}", 0xab);
    let output = json!([
        {"type": "reasoning", "id": id("rs", 0), "summary": [],
            "content": [{"type": "reasoning_text", "text": "Hm"}], "status": "completed"},
        {"type": "message", "id": id("msg", 1), "status": "completed", "role": "assistant",
            "content": [{"type": "output_text", "text": "I look.", "annotations": [], "logprobs": []}]},
        {"type": "function_call", "id": id("fc", 2), "status": "completed", "call_id": "c1",
            "name": "f", "arguments": "{\"a\":1}"},
        {"type": "function_call", "id": id("fc", 3), "status": "completed", "call_id": "c2",
            "name": "g", "arguments": "{}"},
    ]);
    assert_eq!(response["output"], output);
    let usage = json!({"input_tokens": 10, "input_tokens_details": {"cached_tokens": 4,
        "cache_write_tokens": 0}, "output_tokens": 3,
        "output_tokens_details": {"reasoning_tokens": 1}, "total_tokens": 13});
    assert_eq!(response["usage"], usage);
    assert_eq!((&response["created_at"], &response["completed_at"]), (&json!(100), &json!(105)));
    assert_eq!(events[0]["response"]["status"], "in_progress");
    assert_eq!(events[2]["item"]["content"], json!([]));
}

#[test]
fn a_response_repeats_its_request() {
    let fields = json!({
        "instructions": "I", "metadata": {"a": "b"}, "temperature": 0.5, "store": false,
        "tools": [{"type": "function", "name": "f"}, {"type": "web_search"}],
        "reasoning": {"effort": "low"}, "text": {"verbosity": "low"}, "user": "ada",
    });
    let completion = json!({"choices": [{"message": {"content": "Hi"}}], "service_tier": "flex"});
    let whole = writer(fields).whole(completion.to_string().as_bytes()).unwrap();
    let response: Value = serde_json::from_slice(&whole).unwrap();
    for (field, value) in [
        ("id", json!(format!("resp_{:032x}", 0xab))),
        ("object", json!("response")),
        ("model", json!("m")),
        ("instructions", json!("I")),
        ("metadata", json!({"a": "b"})),
        ("temperature", json!(0.5)),
        ("top_p", json!(null)),
        ("store", json!(false)),
        ("reasoning", json!({"effort": "low", "summary": null})),
        ("text", json!({"format": {"type": "text"}, "verbosity": "low"})),
        ("tool_choice", json!("auto")),
        ("parallel_tool_calls", json!(true)),
        ("truncation", json!("disabled")),
        ("user", json!("ada")),
        ("service_tier", json!("flex")),
        ("error", json!(null)),
        ("incomplete_details", json!(null)),
    ] {
        assert_eq!(response[field], value, "{field}");
    }
    let function = json!({"type": "function", "name": "f", "parameters": null, "strict": null});
    assert_eq!(response["tools"], json!([function, {"type": "web_search"}]));
    assert!(response.get("usage").is_none());
}

#[test]
fn reasoning_is_repeated_where_the_request_asks_for_it() {
    let fields = json!({"reasoning": {"effort": "low", "summary": "auto"},
        "include": ["reasoning.encrypted_content"]});
    let deltas = [json!({"reasoning": "Hm"}), json!({"reasoning": "."}), json!({"content": "a"})];
    let events = stream(&mut writer(fields), &deltas, "stop");
    let count = |kind: &str| events.iter().filter(|event| event["type"] == kind).count();
    assert_eq!(count("response.reasoning_summary_part.added"), 1);
    assert_eq!(count("response.reasoning_summary_text.delta"), 2);
    assert_eq!(count("response.reasoning_summary_text.done"), 1);
    assert_eq!(count("response.reasoning_summary_part.done"), 1);
    let reasoning = &events.last().unwrap()["response"]["output"][0];
    assert_eq!(reasoning["summary"], json!([{"type": "summary_text", "text": "Hm."}]));
    assert_eq!(reasoning["encrypted_content"], "flotilla-reasoning:Hm.");
}

fn tools() -> Value {
    json!([{"type": "custom", "name": "patch"}, {"type": "local_shell"},
        {"type": "tool_search", "execution": "client"},
        {"type": "namespace", "name": "mcp__n", "description": "d", "tools": [
            {"type": "function", "name": "js"}, {"type": "custom", "name": "run"}]}])
}

#[test]
fn calls_return_in_the_form_of_their_tool() {
    let begin = |index: usize, name: &str, arguments: &str| {
        call(json!({"index": index, "id": format!("c{index}"),
            "function": {"name": name, "arguments": arguments}}))
    };
    let more = |index: usize, arguments: &str| {
        call(json!({"index": index, "function": {"arguments": arguments}}))
    };
    let deltas = [
        begin(0, "patch", "{\"input"),
        more(0, "\": \"a\\"),
        more(0, "nb\"}"),
        begin(1, "local_shell", "{\"command\":[\"ls\",\"-l\"],\"timeout_ms\":5}"),
        begin(2, "tool_search", "{\"query\":\"q\"}"),
        begin(3, "mcp__n__js", "{}"),
        begin(4, "mcp__n__run", "{\"input\":\"x\"}"),
    ];
    let events = stream(&mut writer(json!({"tools": tools()})), &deltas, "tool_calls");
    let output = events.last().unwrap()["response"]["output"].as_array().unwrap();
    let kinds: Vec<_> = output.iter().map(|item| item["type"].as_str().unwrap()).collect();
    let expected = [
        "custom_tool_call",
        "local_shell_call",
        "tool_search_call",
        "function_call",
        "custom_tool_call",
    ];
    assert_eq!(kinds, expected);
    assert_eq!((&output[0]["input"], &output[0]["name"]), (&json!("a\nb"), &json!("patch")));
    let action = json!({"type": "exec", "command": ["ls", "-l"], "env": {}, "timeout_ms": 5,
        "user": null, "working_directory": null});
    assert_eq!(output[1]["action"], action);
    assert_eq!(output[2]["arguments"], json!({"query": "q"}));
    assert_eq!((&output[3]["name"], &output[3]["namespace"]), (&json!("js"), &json!("mcp__n")));
    assert_eq!((&output[4]["name"], &output[4]["namespace"]), (&json!("run"), &json!("mcp__n")));
    assert_eq!(output[4]["call_id"], "c4");
}

#[test]
fn a_response_says_why_it_is_incomplete() {
    for (finish, reason) in [("length", "max_output_tokens"), ("content_filter", "content_filter")]
    {
        let deltas = [
            json!({"content": "a"}),
            call(json!({"index": 0, "id": "c", "function": {"name": "f", "arguments": "{\"cut"}})),
        ];
        let mut writer = writer(json!({}));
        let events = stream(&mut writer, &deltas, finish);
        let last = events.last().unwrap();
        assert_eq!(last["type"], "response.incomplete");
        assert_eq!(last["response"]["status"], "incomplete");
        assert_eq!(last["response"]["incomplete_details"], json!({"reason": reason}));
        assert_eq!(last["response"]["output"][0]["status"], "completed");
        assert_eq!(last["response"]["output"][1]["status"], "incomplete");
        assert_eq!(last["response"]["completed_at"], json!(null));
        assert!(writer.stored().is_some());
    }
}

#[test]
fn logprobs_are_returned_if_they_are_included() {
    let token = json!({"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []});
    let body =
        json!({"choices": [{"message": {"content": "a"}, "logprobs": {"content": [token]}}]});
    let logprobs = |fields: Value| {
        let whole = writer(fields).whole(body.to_string().as_bytes()).unwrap();
        let whole: Value = serde_json::from_slice(&whole).unwrap();
        whole["output"][0]["content"][0]["logprobs"].clone()
    };
    assert_eq!(logprobs(json!({"include": ["message.output_text.logprobs"]})), json!([token]));
    assert_eq!(logprobs(json!({})), json!([]));
}

#[test]
fn a_broken_stream_ends_with_a_failed_response() {
    let error = ErrorDetail {
        message: "gone".into(),
        kind: "upstream_error".into(),
        param: None,
        code: None,
    };
    let mut writer = writer(json!({}));
    let mut written =
        writer.events(chunk(&json!({"content": "a"}), json!(null)).as_bytes()).unwrap();
    written.extend(writer.fail(502, &error));
    written.extend(writer.fail(502, &error));
    let events = read_events(&written);
    let [.., error, failed] = events.as_slice() else { panic!("{events:?}") };
    assert_eq!((&error["type"], &error["message"]), (&json!("error"), &json!("gone")));
    assert_eq!(failed["type"], "response.failed");
    let response = &failed["response"];
    assert_eq!(response["error"], json!({"code": "server_error", "message": "gone"}));
    assert_eq!(response["output"][0]["status"], "incomplete");
    assert_eq!(response["output"][0]["content"][0]["text"], "a");
    assert!(writer.stored().is_none());
}

#[test]
fn a_stored_response_is_continued() {
    let body = json!({"model": "m", "instructions": "Old", "input": "Hi", "tools": tools()});
    let first = translated(ClientApi::Responses, body.to_string().as_bytes(), ORIGIN).unwrap();
    let mut writer = first.writer;
    let completion = json!({"choices": [{"message": {"reasoning_content": "Hm", "content": "Yo",
        "tool_calls": [{"id": "c", "function": {"name": "mcp__n__js", "arguments": "{}"}}]}}]});
    let whole = writer.whole(completion.to_string().as_bytes()).unwrap();
    let stored = Arc::new(writer.stored().unwrap());
    assert_eq!(stored.response(), whole);
    assert!(writer.stored().is_none(), "once");

    let reference = format!("msg_{:032x}{:08x}", 0xab, 1);
    let body = json!({"previous_response_id": stored.id(), "instructions": "New", "input": [
        {"type": "function_call_output", "call_id": "c", "output": "7"},
        {"type": "item_reference", "id": reference}]});
    let origin = Origin { random: 0xcd, now: 200 };
    let lookup = |id: &str| (id == stored.id()).then(|| stored.clone());
    let second =
        translate(ClientApi::Responses, body.to_string().as_bytes(), origin, &lookup).unwrap();
    let Translation::Request(second) = second else { panic!() };
    let chat: Value = serde_json::from_slice(&second.body).unwrap();
    let call = json!({"id": "c", "type": "function",
        "function": {"name": "mcp__n__js", "arguments": "{}"}});
    assert_eq!(
        chat["messages"],
        json!([
            {"role": "system", "content": "New"},
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "Yo", "reasoning_content": "Hm", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": "7"},
            {"role": "assistant", "content": "Yo"},
        ])
    );
    assert!(chat.get("tools").is_none());
    let mut writer = second.writer;
    writer.whole(completion.to_string().as_bytes()).unwrap();
    let page = Page::read(Some("order=asc&limit=100")).unwrap();
    let items = writer.stored().unwrap().input_items(&page).unwrap();
    let items: Value = serde_json::from_slice(&items).unwrap();
    let kinds: Vec<_> =
        items["data"].as_array().unwrap().iter().map(|item| &item["type"]).collect();
    let expected =
        ["message", "reasoning", "message", "function_call", "function_call_output", "message"];
    assert_eq!(kinds, expected);
}

/// Parts of a response that differ between a stream and a whole: nothing but the usage's place.
fn cut(text: &str, lengths: &[usize]) -> Vec<String> {
    let (mut rest, mut lengths, mut pieces) = (text, lengths.iter().cycle(), Vec::new());
    while !rest.is_empty() {
        let mut at = (*lengths.next().unwrap()).min(rest.len());
        while !rest.is_char_boundary(at) {
            at += 1;
        }
        pieces.push(rest[..at].to_string());
        rest = &rest[at..];
    }
    pieces
}

proptest! {
    #[test]
    fn a_stream_in_any_pieces_and_a_whole_agree(
        (reasoning, text, input) in (any::<String>(), any::<String>(), any::<String>()),
        lengths in prop::collection::vec(1usize..9, 1..9),
        has_extras in any::<bool>(),
        finish in prop::sample::select(vec!["stop", "length", "tool_calls"]),
    ) {
        let arguments = json!({"input": input}).to_string();
        let mut fields = json!({"tools": tools()});
        if has_extras {
            fields["reasoning"] = json!({"summary": "auto"});
            fields["include"] = json!(["reasoning.encrypted_content"]);
        }
        let calls = ["patch", "f", "local_shell", "mcp__n__run"];
        let mut deltas = Vec::new();
        deltas.extend(cut(&reasoning, &lengths).into_iter().map(|r| json!({"reasoning_content": r})));
        deltas.extend(cut(&text, &lengths).into_iter().map(|text| json!({"content": text})));
        for (index, name) in calls.iter().enumerate() {
            let id = format!("c{index}");
            deltas.push(call(json!({"index": index, "id": id, "function": {"name": name}})));
            deltas.extend(cut(&arguments, &lengths).into_iter().map(|arguments| {
                call(json!({"index": index, "function": {"arguments": arguments}}))
            }));
        }
        let mut streamed = writer(fields.clone());
        let events = stream(&mut streamed, &deltas, finish);
        let calls = calls.iter().enumerate().map(|(index, name)| {
            json!({"id": format!("c{index}"), "function": {"name": name, "arguments": arguments}})
        });
        let completion = json!({
            "choices": [{"message": {"reasoning_content": reasoning, "content": text,
                "tool_calls": calls.collect::<Vec<_>>()}, "finish_reason": finish}],
            "usage": serde_json::from_str::<Value>(USAGE).unwrap(),
        });
        let mut whole = writer(fields);
        whole.set_elapsed(Duration::from_secs(5));
        let written = whole.whole(completion.to_string().as_bytes()).unwrap();
        let response: Value = serde_json::from_slice(&written).unwrap();
        prop_assert_eq!(&events.last().unwrap()["response"], &response);
        prop_assert_eq!(&response["output"].as_array().unwrap().last().unwrap()["input"], &input);
        let (streamed, whole) = (streamed.stored().unwrap(), whole.stored().unwrap());
        prop_assert_eq!(streamed.response(), whole.response());
        prop_assert_eq!(streamed.response(), written);
    }
}

#[test]
fn a_response_in_the_background_begins_before_its_node_does() {
    assert!(writer(json!({})).enqueue().is_none());
    let mut writer = writer(json!({"background": true}));
    let (events, queued) = writer.enqueue().unwrap();
    assert!(writer.enqueue().is_none(), "once");
    let queued: Value = serde_json::from_slice(queued.response()).unwrap();
    assert_eq!((&queued["status"], &queued["background"]), (&json!("queued"), &json!(true)));
    let mut events = read_events(&events);
    events.extend(read_events(
        &writer.events(chunk(&json!({"content": "a"}), json!("stop")).as_bytes()).unwrap(),
    ));
    events.extend(read_events(&writer.events(b"data: [DONE]\n\n").unwrap()));
    for (number, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], json!(number));
    }
    let names: Vec<_> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    let first = ["response.created", "response.queued", "response.in_progress"];
    assert_eq!(names[..3], first);
    assert_eq!(*names.last().unwrap(), "response.completed");
    assert_eq!(events[1]["response"], queued);
    assert_eq!(events[2]["response"]["status"], "in_progress");
    assert!(writer.stored().is_some());
}
