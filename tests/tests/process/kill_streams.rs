//! Streams of every API, with text, tools, and schemas, whose nodes die (`make kills STREAMS=1000`
//! for as many as one likes): each is complete and valid, and texts are those of a node that lives.

use std::collections::BTreeMap;
use std::time::Instant;

use fleet_tests::client::Client;
use fleet_tests::process::Fleet;
use fleet_tests::{chat, streamed};
use inference_protocol::sse::payloads;
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::kills::{again, all_slots_are_given_back, drawn, nodes};

/// Streams that lose their node, unless `FLOTILLA_STREAMS` says otherwise.
const STREAMS: u64 = 24;
/// Streams at a time: more than two nodes have slots for.
const CLIENTS: usize = 6;

const CHAT: &str = "/v1/chat/completions";
const RESPONSES: &str = "/v1/responses";
const MESSAGES: &str = "/v1/messages";

/// A schema with one answer per color, so that responses are long.
fn colors() -> Value {
    json!({
        "type": "object",
        "properties": {"colors": {"type": "array", "items": {"enum": ["red", "green", "blue"]},
            "minItems": 16, "maxItems": 16}},
        "required": ["colors"],
        "additionalProperties": false,
    })
}

/// Each API with text, a schema, and a tool: path and request.
fn requests() -> Vec<(&'static str, Value)> {
    let text = "Count from 1 to 40.";
    let messages = json!([{"role": "user", "content": text}]);
    let base = json!({"model": "flotilla-demo", "temperature": 0, "stream": true});
    let with = |fields: Value| {
        let mut request = base.clone();
        request.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        request
    };
    let completion = |fields: Value| {
        let mut request = with(json!({"messages": messages, "max_tokens": 400,
            "stream_options": {"include_usage": true}}));
        request.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        (CHAT, request)
    };
    let response = |fields: Value| {
        let mut request = with(json!({"input": text, "max_output_tokens": 400, "store": false}));
        request.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        (RESPONSES, request)
    };
    let message = |fields: Value| {
        let mut request = with(json!({"messages": messages, "max_tokens": 400}));
        request.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        (MESSAGES, request)
    };
    let function = json!({"name": "paint", "description": "Paints", "strict": true,
        "parameters": colors()});
    let mut flat = function.clone();
    flat["type"] = json!("function");
    vec![
        completion(json!({})),
        completion(json!({"response_format": {"type": "json_schema",
            "json_schema": {"name": "colors", "strict": true, "schema": colors()}}})),
        completion(json!({"tools": [{"type": "function", "function": function}],
            "tool_choice": "required", "parallel_tool_calls": false})),
        response(json!({})),
        response(json!({"text": {"format": {"type": "json_schema", "name": "colors",
            "strict": true, "schema": colors()}}})),
        response(json!({"tools": [flat], "tool_choice": "required",
            "parallel_tool_calls": false})),
        message(json!({})),
        message(json!({"output_config": {"format": {"type": "json_schema",
            "schema": colors()}}})),
        message(json!({"tools": [{"name": "paint", "description": "Paints",
            "input_schema": colors()}],
            "tool_choice": {"type": "any", "disable_parallel_tool_use": true}})),
    ]
}

/// What a stream says: the pieces of each text and call together, and how it ends.
#[derive(Debug, Default, PartialEq)]
struct Said {
    /// By the item, block, or choice that they belong to.
    texts: BTreeMap<String, String>,
    /// Why it ended, and the tokens that it used.
    end: Vec<Value>,
}

impl Said {
    fn add(&mut self, name: impl Into<String>, piece: &Value) {
        self.texts.entry(name.into()).or_default().push_str(piece.as_str().unwrap_or_default());
    }

    fn of(path: &str, body: &[u8]) -> Self {
        let mut payloads: Vec<&[u8]> = payloads(body).collect();
        if path == CHAT {
            assert_eq!(payloads.pop(), Some(&b"[DONE]"[..]));
        }
        let events = payloads.iter().map(|payload| serde_json::from_slice(payload).unwrap());
        let events: Vec<Value> = events.collect();
        match path {
            CHAT => Self::of_chat(&events),
            RESPONSES => Self::of_response(&events),
            _ => Self::of_message(&events),
        }
    }

    fn of_chat(chunks: &[Value]) -> Self {
        let mut said = Self::default();
        for chunk in chunks {
            assert!(chunk["error"].is_null(), "{chunk}");
            let choice = &chunk["choices"][0];
            let call = &choice["delta"]["tool_calls"][0]["function"];
            said.add("content", &choice["delta"]["content"]);
            said.add("name", &call["name"]);
            said.add("arguments", &call["arguments"]);
            said.end.extend(
                [&choice["finish_reason"], &chunk["usage"]["completion_tokens"]].map(Value::clone),
            );
        }
        said.end.retain(|value| !value.is_null());
        said
    }

    fn of_response(events: &[Value]) -> Self {
        let mut said = Self::default();
        for (number, event) in events.iter().enumerate() {
            assert_eq!(event["sequence_number"], number, "{event}");
            let kind = event["type"].as_str().unwrap();
            if kind.ends_with(".delta") {
                said.add(kind.trim_end_matches(".delta"), &event["delta"]);
            }
        }
        let last = events.last().unwrap();
        assert_eq!(last["type"], "response.completed", "{last}");
        let item = &last["response"]["output"][0];
        let whole = [&item["content"][0]["text"], &item["arguments"]];
        let whole = whole.into_iter().find_map(Value::as_str).unwrap();
        assert!(said.texts.values().any(|text| text == whole), "{whole} {said:?}");
        let usage = &last["response"]["usage"]["output_tokens"];
        said.end = vec![item["type"].clone(), item["name"].clone(), usage.clone()];
        said
    }

    fn of_message(events: &[Value]) -> Self {
        let mut said = Self::default();
        for event in events {
            let delta = &event["delta"];
            assert_ne!(event["type"], "error", "{event}");
            said.add("text", &delta["text"]);
            said.add("input", &delta["partial_json"]);
            said.end
                .extend([&delta["stop_reason"], &event["content_block"]["name"]].map(Value::clone));
        }
        said.end.retain(|value| !value.is_null());
        let end = &events[events.len() - 2];
        said.end.push(end["usage"]["output_tokens"].clone());
        assert_eq!(events.last().unwrap()["type"], "message_stop");
        said
    }

    /// Checks a stream beside one of a node that lives. Colors are a matter of taste: two are about
    /// as likely, and which one it is depends on who shares the batch.
    fn check(&self, expected: &Self, request: &Value) {
        if !request.to_string().contains("minItems") {
            return assert_eq!(self, expected, "{request}");
        }
        let value: Value = serde_json::from_str(self.longest()).unwrap();
        let colors = value["colors"].as_array().unwrap();
        let known = |color: &Value| ["red", "green", "blue"].iter().any(|name| color == name);
        assert!(colors.len() == 16 && colors.iter().all(known), "{self:?}");
        assert_eq!(value.as_object().map(serde_json::Map::len), Some(1), "{self:?}");
        let reasons = |said: &Self| -> Vec<Value> {
            said.end.iter().filter(|value| !value.is_number()).cloned().collect()
        };
        assert_eq!(reasons(self), reasons(expected), "{request}");
    }

    /// The text or the arguments of the call.
    fn longest(&self) -> &str {
        self.texts.values().max_by_key(|text| text.len()).unwrap()
    }
}

async fn ask(client: &Client, path: &str, request: &Value) -> Said {
    let answer = client.post(path, request.to_string()).await;
    let text = String::from_utf8_lossy(&answer.body);
    assert_eq!(answer.header("content-type"), Some("text/event-stream"), "{text}");
    Said::of(path, &answer.body)
}

#[tokio::test]
async fn streams_of_every_api_with_tools_and_schemas_outlive_their_nodes() {
    let wanted = std::env::var("FLOTILLA_STREAMS").map_or(STREAMS, |n| n.parse().unwrap());
    let fleet = Fleet::start("retries_max: 5\n").await;
    let mut nodes = nodes(&fleet).await;
    let mut rng = Pcg64::seed_from_u64(3);
    let mut pick = move |n: u64| rng.next_u64() % n;
    let mut all = Vec::new();
    for (path, request) in requests() {
        let said = ask(&fleet.client, path, &request).await;
        said.check(&said, &request);
        all.push((path, request, said));
    }
    let begun = Instant::now();
    let (mut streams, mut deaths, mut lost) = (0, 0, 0);
    while lost < wanted {
        let mut clients = JoinSet::new();
        for _ in 0..CLIENTS {
            let number = pick(all.len() as u64) as usize;
            let (client, (path, request)) =
                (fleet.client.clone(), (all[number].0, all[number].1.clone()));
            clients.spawn(async move { (number, ask(&client, path, &request).await) });
        }
        let mut watched = fleet.client.stream(&streamed(chat("Count from 1 to 40."))).await;
        for _ in 0..pick(60) {
            watched.next_chunk().await;
        }
        let victim = &mut nodes[pick(3) as usize];
        let death = drawn(pick(8));
        victim.dies(death);
        let watched = watched.finish().await;
        assert!(watched.done && watched.text.ends_with(" 40"), "{watched:?}");
        while let Some(done) = clients.join_next().await {
            let (number, said) = done.unwrap();
            let (_, request, expected) = &all[number];
            said.check(expected, request);
            streams += 1;
        }
        victim.lives_again(&fleet, death).await;
        deaths += 1;
        lost = again(&fleet.admin).await.iter().sum();
    }
    let ([retries, resumes], seconds) = (again(&fleet.admin).await, begun.elapsed().as_secs());
    eprintln!(
        "{streams} streams, {deaths} deaths, {lost} streams lost their node: {retries} before and \
         {resumes} after the first token, {seconds} s"
    );
    assert!(resumes > 0);
    all_slots_are_given_back(&fleet).await;
}
