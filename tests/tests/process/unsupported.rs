//! Fields of other servers' APIs: what would change a response is refused by its name, at an
//! agent's own port and through a gateway; what asks for nothing passes.

use fleet_tests::chat;
use fleet_tests::client::{Answer, Client};
use fleet_tests::process::{Agent, Fleet, Folder, run};
use inference_protocol::openai::{Endpoint, IGNORED, UNSUPPORTED, Unsupported};
use serde_json::{Value, json};

fn path(endpoint: Endpoint) -> &'static str {
    match endpoint {
        Endpoint::Chat => "/v1/chat/completions",
        Endpoint::Completions => "/v1/completions",
        Endpoint::Embeddings => "/v1/embeddings",
        Endpoint::Rerank => "/v1/rerank",
    }
}

/// A request that is right.
fn plain(endpoint: Endpoint) -> Value {
    let mut request = match endpoint {
        Endpoint::Chat => chat("What is the capital of France?"),
        Endpoint::Completions => json!({"prompt": "The"}),
        Endpoint::Embeddings => json!({"input": "a"}),
        Endpoint::Rerank => json!({"query": "a", "documents": ["b", "c"]}),
    };
    request["model"] = json!("flotilla-demo");
    if matches!(endpoint, Endpoint::Chat | Endpoint::Completions) {
        request["max_tokens"] = json!(1);
    }
    request
}

async fn send(client: &Client, endpoint: Endpoint, fields: &[(&str, Value)]) -> Answer {
    let mut request = plain(endpoint);
    for (name, value) in fields {
        request[*name] = value.clone();
    }
    client.post(path(endpoint), request.to_string()).await
}

fn assert_refused(answer: &Answer, row: &Unsupported) {
    assert_eq!((answer.status, answer.error_code().as_str()), (400, "invalid_value"));
    let error = &answer.json()["error"];
    assert_eq!(error["param"], row.field, "{error}");
    let said = error["message"].as_str().unwrap();
    assert!(said.contains(row.field) && said.contains(row.instead), "{said}");
}

/// Every row of an endpoint: its value is refused, and all that ask for nothing pass at once.
async fn check(client: &Client, endpoint: Endpoint) {
    let rows: Vec<&Unsupported> =
        UNSUPPORTED.iter().filter(|row| row.at.contains(&endpoint)).collect();
    for row in &rows {
        let value = serde_json::from_str(row.refused).unwrap();
        assert_refused(&send(client, endpoint, &[(row.field, value)]).await, row);
    }
    let most = rows.iter().map(|row| row.neutral.len()).max().unwrap();
    for index in 0..=most {
        let value = |row: &&Unsupported| match row.neutral.get(index) {
            Some(text) => (row.field, serde_json::from_str(text).unwrap()),
            None => (row.field, Value::Null),
        };
        let fields: Vec<(&str, Value)> = rows.iter().map(value).collect();
        let answer = send(client, endpoint, &fields).await;
        assert_eq!(answer.status, 200, "{index}: {:?}", answer.body);
    }
    let ignored = IGNORED.iter().flat_map(|(_, fields)| *fields);
    let fields: Vec<(&str, Value)> = ignored.map(|name| (*name, json!({"a": 1}))).collect();
    let answer = send(client, endpoint, &fields).await;
    assert_eq!(answer.status, 200, "{:?}", answer.body);
}

#[tokio::test]
async fn an_agent_alone_refuses_every_unsupported_field_and_accepts_its_neutral_values() {
    let agent = Agent::start(&[]).await;
    check(&agent.client, Endpoint::Chat).await;
    check(&agent.client, Endpoint::Completions).await;
    let folder = Folder::new();
    for (shape, pooling, endpoint) in
        [("tiny-embed", "mean", Endpoint::Embeddings), ("tiny-rerank", "rank", Endpoint::Rerank)]
    {
        let model = folder.path().join(shape);
        let file = model.to_str().unwrap();
        let made = run("flotilla-agent", &["synth", "--shape", shape, "--quant", "f16", file]);
        assert_eq!(made.code, Some(0), "{}", made.stderr);
        let named = ["--model-name", "flotilla-demo", "--pooling", pooling];
        let agent = Agent::start_with_model(&model, &named).await;
        check(&agent.client, endpoint).await;
    }
}

#[tokio::test]
async fn a_gateway_passes_unsupported_fields_on_and_the_refusal_back() {
    let fleet = Fleet::start("").await;
    let _node = fleet.join("a", &[]).await;
    check(&fleet.client, Endpoint::Chat).await;
    check(&fleet.client, Endpoint::Completions).await;
}

#[tokio::test]
async fn constraints_in_forms_that_are_not_known_are_refused_by_name() {
    let agent = Agent::start(&[]).await;
    let tools = json!([{"type": "function", "function": {"name": "f"}}]);
    for (param, value) in [
        ("response_format", json!({"type": "structural_tag", "format": {"type": "any_text"}})),
        ("response_format", json!({"type": "regex", "pattern": "a+"})),
        ("response_format", json!({"type": "grammar", "grammar": "root ::= \"a\""})),
        ("response_format", json!({"type": "json_object", "json_schema": {"schema": {}}})),
        ("response_format", json!({"type": "text", "schema": {"type": "object"}})),
        ("tool_choice", json!("any")),
        ("tool_choice", json!({"type": "custom", "custom": {"name": "f"}})),
        ("tool_choice", json!({"type": "function", "name": "f"})),
        ("tool_choice", json!({"type": "allowed_tools", "allowed_tools": {"mode": "required"}})),
    ] {
        let fields = [("tools", tools.clone()), (param, value.clone())];
        let fields = if param == "tool_choice" { &fields[..] } else { &fields[1..] };
        let answer = send(&agent.client, Endpoint::Chat, fields).await;
        assert_eq!(answer.status, 400, "{value}: {:?}", answer.body);
        assert_eq!(answer.json()["error"]["param"], param, "{value}");
    }
    let newer = json!({"newer_than_this": 1});
    let answer = send(&agent.client, Endpoint::Chat, &[("structured_outputs", newer)]).await;
    let error = &answer.json()["error"];
    assert_eq!((answer.status, &error["code"]), (400, &json!("invalid_value")), "{error}");
    assert!(error["param"].as_str().unwrap().starts_with("structured_outputs"), "{error}");
    let custom =
        json!([{"type": "custom", "custom": {"name": "f", "format": {"type": "grammar"}}}]);
    let answer = send(&agent.client, Endpoint::Chat, &[("tools", custom)]).await;
    assert_eq!((answer.status, &answer.json()["error"]["param"]), (400, &json!("tools[0].type")));
}
