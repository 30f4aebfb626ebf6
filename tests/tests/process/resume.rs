//! Answers of every kind, broken off at many places and gone on with: the client reads what it
//! would have read from one node.

use fleet_tests::chat;
use fleet_tests::client::Client;
use fleet_tests::process::Agent;
use flotilla_gateway::scheduler::progress::Progress;
use inference_protocol::resume::{RESUME_HEADER, Resume};
use inference_protocol::sse::{events, payloads};
use serde_json::{Value, json};

/// Places where each answer is broken off, about.
const CUTS: usize = 9;

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";

fn with(mut request: Value, fields: &Value) -> Value {
    request.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    request
}

fn tools() -> Value {
    json!([{"type": "function", "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 12}},
            "required": ["city"],
            "additionalProperties": false,
        },
    }}])
}

/// Requests of every kind, and whether they are streamed.
fn requests() -> Vec<(&'static str, Value)> {
    let count = || chat("Count from 1 to 40.");
    let schema = json!({"type": "object", "properties": {"city": {"type": "string", "maxLength": 9},
        "people": {"type": "integer", "minimum": 1, "maximum": 9999}},
        "required": ["city", "people"], "additionalProperties": false});
    let schema = json!({"type": "json_schema", "json_schema":
        {"name": "city", "strict": true, "schema": schema}});
    let capital = || chat("What is the capital of France?");
    let text = json!({"model": "flotilla-demo", "prompt": "1, 2, 3, 4,", "max_tokens": 40,
        "temperature": 0, "echo": true, "stop": [" 12", "zzz"]});
    let all = [
        (CHAT, count()),
        (CHAT, with(count(), &json!({"stream_options": {"include_usage": true}}))),
        (CHAT, with(count(), &json!({"max_tokens": 7, "stop": ["5, 6, 7, 8, 9"]}))),
        (CHAT, with(capital(), &json!({"temperature": 1.2, "seed": 5, "max_tokens": 30}))),
        (CHAT, with(capital(), &json!({"temperature": 1.0, "max_tokens": 30, "top_p": 0.9}))),
        (CHAT, with(capital(), &json!({"n": 3, "temperature": 0.9, "seed": 3, "max_tokens": 12}))),
        (CHAT, with(capital(), &json!({"frequency_penalty": 0.6, "repeat_penalty": 1.2}))),
        (CHAT, with(capital(), &json!({"logprobs": true, "top_logprobs": 2, "stop": ["is P"]}))),
        (CHAT, with(capital(), &json!({"response_format": schema, "max_tokens": 90}))),
        (CHAT, with(capital(), &json!({"tools": tools(), "tool_choice": "required"}))),
        (TEXT, text.clone()),
        (TEXT, with(text, &json!({"logprobs": 1}))),
    ];
    let streamed = |(path, request): (&'static str, Value)| {
        let stream = with(request.clone(), &json!({"stream": true}));
        [(path, stream), (path, request)]
    };
    all.into_iter().flat_map(streamed).collect()
}

/// What a node says to a request, from where the answer stands.
async fn ask(client: &Client, path: &str, request: &Value, progress: &Progress) -> Vec<u8> {
    let resume = json!(progress.resume()).to_string();
    let client = client.with_header(RESUME_HEADER, &resume.len().to_string());
    let answer = client.post(path, format!("{resume}{request}")).await;
    let body = String::from_utf8_lossy(&answer.body);
    assert_eq!(answer.status, 200, "{request} {resume}: {body}");
    answer.body.to_vec()
}

/// What clients compare: all but what differs from node to node.
fn told(mut payload: Value) -> Value {
    if let Some(usage) = payload.get_mut("usage").and_then(Value::as_object_mut) {
        usage.remove("prompt_tokens_details");
    }
    payload
}

/// The payloads of each choice, and of none.
fn read(said: &[u8]) -> Vec<Vec<Value>> {
    let mut lists = vec![Vec::new(); 4];
    for payload in payloads(said) {
        let json = serde_json::from_slice(payload).unwrap_or(Value::Null);
        let index = json.pointer("/choices/0/index").and_then(Value::as_u64);
        lists[index.map_or(3, |index| index as usize)].push(told(json));
    }
    lists
}

/// The other node has a CPU without AVX-512, decodes one token after the other, and keeps no
/// prefix.
#[tokio::test]
async fn answers_of_every_kind_go_on_wherever_they_are_broken_off() {
    let agent = Agent::start(&[]).await;
    let other = ["--kernel", "baseline", "--no-speculation", "--no-prefix-cache"];
    let other = Agent::start(&other).await;
    let mut resumed = 0;
    for (path, request) in requests() {
        let streamed = request["stream"] == true;
        let new = || Progress::new(Resume::new(7, 1_700_000_000));
        let unbroken = ask(&agent.client, path, &request, &new()).await;
        let all: Vec<&[u8]> = events(&unbroken).collect();
        let mut progress = new();
        let whole = progress.read(&unbroken.clone().into(), streamed).unwrap();
        assert!(progress.is_complete() && whole.error.is_none(), "{request}");
        let whole = read(&whole.events);
        for cut in (0..all.len()).step_by((all.len() / CUTS).max(1)).chain([all.len() - 1]) {
            let mut progress = new();
            let said = progress.read(&all[..cut].concat().into(), streamed).unwrap().events;
            let rest = ask(&other.client, path, &request, &progress).await;
            progress.switch_endpoint(false);
            let rest = progress.read(&rest.into(), streamed).unwrap();
            assert_eq!(rest.error, None, "{request} after {cut} of {}", all.len());
            let said = [said, rest.events].concat();
            assert!(progress.is_complete());
            assert_eq!(read(&said), whole, "{request} after {cut} of {}", all.len());
            resumed += 1;
        }
    }
    assert!(resumed > 150, "{resumed}");
}

#[tokio::test]
async fn what_cannot_go_on_is_refused_by_name() {
    let agent = Agent::start(&[]).await;
    let body = chat("Hi").to_string();
    let said = json!({"tokens": [1], "events": 0, "bytes": 0});
    let resume = |choices: Value| json!({"id": "0", "created": 1, "seed": 1, "choices": choices});
    let unknown = json!({"tokens": [4_000_000_000u32], "events": 0, "bytes": 0});
    let long = json!({"tokens": vec![1; 5000], "events": 0, "bytes": 0});
    for (resume, length, code) in [
        (resume(json!([said, said])).to_string(), None, "invalid_value"),
        (resume(json!([unknown])).to_string(), None, "unknown_token"),
        (resume(json!([long])).to_string(), None, "context_length_exceeded"),
        (json!({"id": "a b", "created": 1, "seed": 1}).to_string(), None, "invalid_value"),
        ("{}".to_string(), None, "invalid_value"),
        (String::new(), Some("99999"), "invalid_value"),
        (String::new(), Some("-1"), "invalid_value"),
        (String::new(), Some("x"), "invalid_value"),
    ] {
        let length = length.map_or(resume.len().to_string(), Into::into);
        let client = agent.client.with_header(RESUME_HEADER, &length);
        let answer = client.post(CHAT, format!("{resume}{body}")).await;
        assert_eq!((answer.status, answer.error_code().as_str()), (400, code), "{resume}");
    }
}

#[tokio::test]
async fn events_that_another_version_wrote_are_not_gone_on_with() {
    let agent = Agent::start(&[]).await;
    let request = with(chat("Count from 1 to 40."), &json!({"stream": true}));
    let new = || Progress::new(Resume::new(7, 1_700_000_000));
    let unbroken = ask(&agent.client, CHAT, &request, &new()).await;
    let mut progress = new();
    let begun: Vec<&[u8]> = events(&unbroken).take(9).collect();
    progress.read(&begun.concat().into(), true).unwrap();
    let mut resume = json!(progress.resume());
    let bytes = resume["choices"][0]["bytes"].as_u64().unwrap();
    for other in [bytes - 1, bytes + 1] {
        resume["choices"][0]["bytes"] = json!(other);
        let resume = resume.to_string();
        let client = agent.client.with_header(RESUME_HEADER, &resume.len().to_string());
        let answer = client.post(CHAT, format!("{resume}{request}")).await;
        let body = String::from_utf8_lossy(&answer.body).into_owned();
        assert!(body.contains("resume_mismatch") && !body.contains("[DONE]"), "{body}");
    }
}
