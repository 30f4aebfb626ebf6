//! Everything that the gateway answers is what our description of the API says (docs/openapi.json),
//! and what OpenAI's own says where it is beside the checkout, with answers of a real agent.

use std::collections::BTreeMap;

use fleet_tests::client::{Answer, Client};
use fleet_tests::process::{Agent, Fleet};
use fleet_tests::{chat, root, streamed};
use hyper::Method;
use inference_protocol::sse::payloads;
use jsonschema::Validator;
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";
const TEXT_KIND: &str = "CreateCompletionResponse";

/// OpenAI's names of answers, and ours.
const KINDS: [(&str, &str); 6] = [
    ("ListModelsResponse", "ModelList"),
    ("Model", "Model"),
    ("CreateChatCompletionResponse", "ChatCompletion"),
    ("CreateChatCompletionStreamResponse", "ChatChunk"),
    (TEXT_KIND, "Completion"),
    ("ErrorResponse", "ErrorBody"),
];

type Validators = BTreeMap<&'static str, Validator>;

/// What answers are compared with, and what did not fit.
struct Description {
    openai: Option<Validators>,
    ours: Validators,
    wrong: Vec<String>,
    compared: usize,
}

fn validators(
    components: &Value,
    name: fn(&(&'static str, &'static str)) -> &'static str,
) -> Validators {
    let of = |kind: &(&'static str, &'static str)| {
        let schema = json!({"$ref": format!("#/components/schemas/{}", name(kind)),
            "components": components});
        (kind.0, jsonschema::validator_for(&schema).unwrap())
    };
    KINDS.iter().map(of).collect()
}

impl Description {
    fn read() -> Self {
        let text = std::fs::read_to_string(root().join("docs/openapi.json")).unwrap();
        let ours: Value = serde_json::from_str(&text).unwrap();
        let ours = validators(&ours["components"], |kind| kind.1);
        Self { openai: Self::of_openai(), ours, wrong: Vec::new(), compared: 0 }
    }

    fn of_openai() -> Option<Validators> {
        let path = root().join("../shared/data/openai-openapi/openapi.yaml");
        let Ok(text) = std::fs::read_to_string(&path) else {
            eprintln!("skipped: there is no {}", path.display());
            return None;
        };
        // A bound of 64 bits, rounded beyond them.
        let text = text.replace("-9223372036854776000", "-9223372036854775808");
        let all: serde_yaml::Value = serde_yaml::from_str(&text).unwrap();
        let mut components = serde_json::to_value(&all["components"]).unwrap();
        allow_null(&mut components);
        Some(validators(&components, |kind| kind.0))
    }

    fn compare(&mut self, kind: &str, what: &str, value: &Value) {
        self.compared += 1;
        let mut value = value.clone();
        let all = [("ours", Some(&self.ours)), ("OpenAI's", self.openai.as_ref())];
        for (whose, validators) in all {
            if whose == "OpenAI's" && kind == TEXT_KIND {
                say_the_end(&mut value);
            }
            let Some(validators) = validators else { continue };
            for error in validators[kind].iter_errors(&value) {
                let at = error.instance_path().to_string();
                self.wrong.push(format!("{whose} {kind} ({what}) at '{at}': {error}"));
            }
        }
    }

    fn whole(&mut self, kind: &str, what: &str, answer: &Answer) {
        assert_eq!(answer.status, 200, "{what}: {:?}", answer.body);
        self.compare(kind, what, &answer.json());
    }

    /// Every event of a stream but the last, which is no JSON.
    fn events(&mut self, kind: &str, what: &str, answer: &Answer) {
        assert_eq!(answer.status, 200, "{what}: {:?}", answer.body);
        let events: Vec<&[u8]> = payloads(&answer.body).collect();
        assert_eq!(events.last(), Some(&&b"[DONE]"[..]), "{what}");
        for event in &events[..events.len() - 1] {
            let event: Value = serde_json::from_slice(event).unwrap();
            self.compare(kind, what, &event);
        }
    }

    fn refusal(&mut self, what: &str, status: u16, answer: &Answer) {
        assert_eq!(answer.status, status, "{what}: {:?}", answer.body);
        self.compare("ErrorResponse", what, &answer.json());
    }
}

/// In a stream of text, OpenAI says null until a choice ends, as it does for chats, and for the
/// logprob of the first token of an echoed prompt, and forgot to describe both.
fn say_the_end(event: &mut Value) {
    for choice in event["choices"].as_array_mut().into_iter().flatten() {
        if choice.get("finish_reason") == Some(&Value::Null) {
            choice["finish_reason"] = json!("stop");
        }
        for (list, value) in [("token_logprobs", json!(0.0)), ("top_logprobs", json!({}))] {
            if let Some(first) = choice["logprobs"].get_mut(list).and_then(|all| all.get_mut(0)) {
                *first = value;
            }
        }
    }
}

/// The description says 3.1 and `nullable`, which only 3.0 knows.
fn allow_null(schema: &mut Value) {
    match schema {
        Value::Array(items) => items.iter_mut().for_each(allow_null),
        Value::Object(fields) => {
            fields.values_mut().for_each(allow_null);
            if fields.get("nullable") == Some(&json!(true)) {
                *schema = json!({"anyOf": [schema.take(), {"type": "null"}]});
            }
        }
        _ => {}
    }
}

fn weather() -> Value {
    json!([{"type": "function", "function": {"name": "get_weather", "strict": true, "parameters":
        {"type": "object", "properties": {"city": {"type": "string", "maxLength": 9}},
            "required": ["city"], "additionalProperties": false}}}])
}

/// Chats of every kind.
fn chats() -> Vec<(&'static str, Value)> {
    let with = |what, fields: Value| {
        let mut request = chat("What is the capital of France?");
        request.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        (what, request)
    };
    let object = json!({"type": "object", "properties": {"a": {"type": "boolean"}},
        "required": ["a"], "additionalProperties": false});
    vec![
        with("a chat", json!({})),
        with("three choices", json!({"n": 3, "temperature": 1, "seed": 5})),
        with("logprobs", json!({"logprobs": true, "top_logprobs": 3})),
        with("cut", json!({"max_tokens": 2})),
        with("stopped", json!({"stop": " of"})),
        with("a call", json!({"tools": weather(), "tool_choice": "required", "max_tokens": 200})),
        with("tools unused", json!({"tools": weather(), "tool_choice": "none"})),
        with("usage", json!({"stream_options": {"include_usage": true}})),
        with("a tier", json!({"service_tier": "flex"})),
        with(
            "a schema",
            json!({"response_format": {"type": "json_schema", "json_schema":
            {"name": "x", "strict": true, "schema": object}}}),
        ),
    ]
}

/// Text completions of every kind.
fn texts() -> Vec<(&'static str, Value)> {
    let with = |what, fields: Value| {
        let mut request = json!({"model": "flotilla-demo", "prompt": "The", "max_tokens": 4});
        request.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        (what, request)
    };
    vec![
        with("a text", json!({})),
        with("two prompts", json!({"prompt": ["A", "B"], "n": 2})),
        with("logprobs of a text", json!({"logprobs": 2})),
        with("an echo", json!({"echo": true})),
        with("a scored prompt", json!({"echo": true, "logprobs": 2, "max_tokens": 0})),
        with("progress", json!({"return_progress": true})),
    ]
}

async fn answers(description: &mut Description, client: &Client) {
    let compared = [
        (CHAT, "CreateChatCompletionResponse", "CreateChatCompletionStreamResponse", chats()),
        (TEXT, TEXT_KIND, TEXT_KIND, texts()),
    ];
    for (path, whole, event, requests) in compared {
        for (what, mut request) in requests {
            let streamed = streamed(request.clone()).to_string();
            request.as_object_mut().unwrap().remove("stream_options");
            description.whole(whole, what, &client.post(path, request.to_string()).await);
            description.events(event, what, &client.post(path, streamed).await);
        }
    }
}

async fn refusals(description: &mut Description, client: &Client) {
    let with = |key: &str, value: Value| {
        let mut request = chat("Hi");
        request[key] = value;
        request.to_string()
    };
    let bodies = [
        ("no JSON", 400, "{".to_string()),
        ("a wrong type", 400, with("temperature", json!("hot"))),
        ("a wrong value", 400, with("n", json!(99))),
        ("a wrong schema", 400, with("json_schema", json!({"type": "sun"}))),
        ("an unknown model", 404, with("model", json!("gpt-9"))),
        ("an unknown tier", 400, with("service_tier", json!("gold"))),
        ("too long a prompt", 400, chat(&"word ".repeat(3000)).to_string()),
        ("too large a body", 413, "x".repeat(5 << 20)),
    ];
    for (what, status, body) in bodies {
        description.refusal(what, status, &client.post(CHAT, body).await);
    }
    let request = chat("Hi");
    let stranger = client.with_key(None);
    description.refusal("no key", 401, &stranger.chat(&request).await);
    description.refusal("a wrong key", 401, &client.with_key(Some("sk-0")).chat(&request).await);
    description.refusal("no key for models", 401, &stranger.get("/v1/models").await);
    description.refusal("an unknown path", 404, &client.get("/v1/nothing").await);
    description.refusal("no such model", 404, &client.get("/v1/models/gpt-9").await);
    description.refusal("a wrong method", 405, &client.get(CHAT).await);
    let options = client.try_send(Method::OPTIONS, CHAT, Default::default()).await.unwrap();
    description.refusal("a preflight", 405, &options);
    let class = client.with_header("x-flotilla-class", "gold");
    description.refusal("a wrong class", 400, &class.chat(&request).await);
}

/// A stream whose node dies while there is no other.
async fn broken_off(description: &mut Description, client: &Client, agent: &Agent) {
    let mut stream = client.stream(&streamed(chat("Count from 1 to 40."))).await;
    assert!(stream.next_chunk().await);
    agent.kill();
    let said = stream.finish().await;
    assert_eq!(said.errors.len(), 1, "{said:?}");
    description.compare("ErrorResponse", "a stream that breaks off", &said.error_events[0]);
}

#[tokio::test]
async fn every_answer_is_what_we_describe_and_what_openai_does() {
    let mut description = Description::read();
    let fleet = Fleet::start("timeouts: {resume_ms: 300, queue_ms: 500}\n").await;
    description.refusal("no node", 503, &fleet.client.chat(&chat("Hi")).await);
    let agent: Agent = fleet.join("a", &[]).await;
    let client = &fleet.client;
    description.whole("ListModelsResponse", "the models", &client.get("/v1/models").await);
    description.whole("Model", "a model", &client.get("/v1/models/flotilla-demo").await);
    answers(&mut description, client).await;
    refusals(&mut description, client).await;
    broken_off(&mut description, client, &agent).await;
    let Description { wrong, compared, .. } = description;
    eprintln!("{compared} answers compared");
    assert!(compared > 100, "only {compared} answers");
    assert!(wrong.is_empty(), "{} of {compared}:\n{}", wrong.len(), wrong.join("\n"));
}
