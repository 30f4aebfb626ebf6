//! How long an answer may be: whatever a request says, and wherever it goes.

use fleet_tests::client::Answer;
use fleet_tests::mock_node::{Asked, MockNode};
use fleet_tests::process::run;
use fleet_tests::{chat, eventually};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::Gateway;

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";

/// A gateway whose only key may have five tokens, with an external endpoint that is ready.
async fn gateway(more: &str) -> (Gateway, MockNode) {
    let made = run("flotilla-gateway", &["key", "new", "--name", "ada"]).stdout;
    let (head, entry) = made.split_once("keys:\n").unwrap();
    let (url, gpu) = MockNode::external().await;
    let keys = format!("keys:\n{entry}  max_tokens: 5\n");
    let models = "{flotilla-demo: theirs}";
    let external = format!("external: [{{name: gpu, url: '{url}', models: {models}{more}}}]\n");
    let mut gateway = Gateway::start_with_keys(&keys, &external).await;
    gateway.client = gateway.client.with_key(head.lines().nth(1));
    eventually("the endpoint to be ready", async || {
        (gateway.health("/external/ready").await == 1).then_some(())
    })
    .await;
    (gateway, gpu)
}

fn asks(gateway: &Gateway, path: &'static str, body: String) -> JoinHandle<Answer> {
    let client = gateway.client.clone();
    tokio::spawn(async move { client.post(path, body).await })
}

/// A body with more fields, as they are written.
fn with(path: &str, fields: &str) -> String {
    let prompt = match path {
        CHAT => r#""messages":[{"role":"user","content":"Hi"}]"#,
        _ => r#""prompt":"Hi""#,
    };
    let prompt = if fields.contains("\"prompt\"") { "\"user\":\"u\"" } else { prompt };
    format!(r#"{{"model":"flotilla-demo",{prompt},{fields}}}"#)
}

fn answer(asked: Asked) {
    asked.reply(200, "application/json", r#"{"choices":[{"message":{"content":"x"}}]}"#.into());
}

#[tokio::test]
async fn a_keys_max_tokens_holds_whatever_form_a_request_writes_it_in() {
    let (gateway, mut gpu) = gateway("").await;
    let cases = [
        (CHAT, r#""max_tokens":-2"#, "max_tokens"),
        (CHAT, r#""max_tokens":"9000""#, "max_tokens"),
        (CHAT, r#""max_tokens":9000.0"#, "max_tokens"),
        (CHAT, r#""max_tokens":1e4"#, "max_tokens"),
        (CHAT, r#""max_tokens":0"#, "max_tokens"),
        (CHAT, r#""max_tokens":[9000]"#, "max_tokens"),
        (CHAT, r#""max_tokens":9000"#, "max_tokens"),
        (CHAT, r#""max_completion_tokens":-2"#, "max_completion_tokens"),
        (CHAT, r#""max_completion_tokens":9000"#, "max_completion_tokens"),
        (CHAT, r#""max_completion_tokens":5,"max_tokens":9000"#, "max_tokens"),
        (CHAT, r#""max_completion_tokens":9000,"max_tokens":5"#, "max_completion_tokens"),
        (CHAT, r#""max_tokens":5,"n":2"#, "max_tokens"),
        (CHAT, r#""n":6"#, "n"),
        (CHAT, r#""n":-1"#, "n"),
        (CHAT, r#""n":"2""#, "n"),
        (TEXT, r#""max_tokens":-2"#, "max_tokens"),
        (TEXT, r#""max_tokens":3,"n":2"#, "max_tokens"),
        (TEXT, r#""max_tokens":3,"prompt":["a","b"]"#, "max_tokens"),
        (TEXT, r#""max_tokens":5,"best_of":20"#, "best_of"),
        (TEXT, r#""prompt":["a","b","c","d","e","f","g","h","i"],"n":15"#, "prompt"),
    ];
    for (path, fields, param) in cases {
        let refused = gateway.client.post(path, with(path, fields)).await;
        assert_eq!(
            (refused.status, &refused.json()["error"]["param"]),
            (400, &json!(param)),
            "{fields}"
        );
    }
    // Parsers disagree on which of two counts.
    for fields in [r#""max_tokens":5,"max_tokens":9000"#, r#""n":1,"n":9"#] {
        let refused = gateway.client.post(CHAT, with(CHAT, fields)).await;
        assert_eq!((refused.status, refused.error_code().as_str()), (400, "invalid_value"));
    }
    assert!(gpu.is_asked().is_none());
}

#[tokio::test]
async fn an_external_endpoint_is_sent_known_fields_only_and_one_length() {
    let (gateway, mut gpu) = gateway(", fields: [cache_salt]").await;
    let fields = r#""max_completion_tokens":2,"n":2,"n_predict":-1,"max_new_tokens":9000,
        "max_length":9000,"min_tokens":0,"options":{},"service_tier":"priority",
        "temperature":0.5,"temperature":1,"response_format":{"type":"json_object"},
        "cache_salt":"s","invented":1,"stop":null"#;
    let running = asks(&gateway, CHAT, with(CHAT, fields));
    let asked = gpu.asked().await;
    let expected = json!({
        "model": "theirs", "messages": [{"role": "user", "content": "Hi"}], "n": 2,
        "temperature": 1, "response_format": {"type": "json_object"}, "cache_salt": "s",
        "stream": false, "max_tokens": 2,
    });
    assert_eq!(asked.body, expected);
    // Each field is there once, for whoever reads it how.
    let raw = String::from_utf8(asked.raw.to_vec()).unwrap();
    assert_eq!(raw.matches("temperature").count(), 1);
    answer(asked);
    assert_eq!(running.await.unwrap().status, 200);
    // What would be lost and change the response is refused, as our nodes refuse it.
    for field in [r#""num_predict":9000"#, r#""options":{"num_predict":9000}"#, r#""min_tokens":9"#]
    {
        let refused = gateway.client.post(CHAT, with(CHAT, field)).await;
        assert_eq!((refused.status, refused.error_code().as_str()), (400, "invalid_value"));
    }
    // Who says nothing gets what the key allows, in parts.
    for (path, fields, length) in [
        (CHAT, r#""user":"u""#, 5),
        (CHAT, r#""n":2"#, 2),
        (CHAT, r#""max_tokens":null"#, 5),
        (CHAT, r#""max_tokens":-1"#, 5),
        (TEXT, r#""prompt":["a","b"]"#, 2),
        (TEXT, r#""max_completion_tokens":9000"#, 5),
    ] {
        let running = asks(&gateway, path, with(path, fields));
        let asked = gpu.asked().await;
        assert_eq!(asked.body["max_tokens"], length, "{fields}");
        assert_eq!(asked.body.get("max_completion_tokens"), None);
        answer(asked);
        assert_eq!(running.await.unwrap().status, 200);
    }
}

#[tokio::test]
async fn an_endpoint_gets_the_length_under_the_name_that_it_knows() {
    let (gateway, mut gpu) = gateway(", max_tokens_field: max_completion_tokens").await;
    for fields in [r#""max_tokens":3"#, r#""max_completion_tokens":3"#] {
        let running = asks(&gateway, CHAT, with(CHAT, fields));
        let asked = gpu.asked().await;
        assert_eq!(asked.body["max_completion_tokens"], 3);
        assert_eq!(asked.body.get("max_tokens"), None);
        answer(asked);
        running.await.unwrap();
    }
}

#[tokio::test]
async fn the_choices_of_an_answer_share_what_its_key_allows_at_our_nodes_too() {
    let (gateway, _gpu) = gateway("").await;
    let mut a = gateway.node("a", 1).await;
    for (path, fields, length) in [
        (CHAT, r#""user":"u""#, 5),
        (CHAT, r#""n":2"#, 2),
        (CHAT, r#""max_tokens":2,"n":2,"max_new_tokens":9000"#, 2),
        (CHAT, r#""n_predict":2.0,"n_cmpl":2"#, 2),
        (CHAT, r#""max_tokens":-1"#, 5),
        (TEXT, r#""prompt":["a","b"],"n":2"#, 1),
        (TEXT, r#""prompt":[1,2,3,4,5,6,7]"#, 5),
    ] {
        let running = asks(&gateway, path, with(path, fields));
        let asked = a.asked().await;
        assert_eq!(asked.resume.tokens_max, Some(length), "{fields}");
        answer(asked);
        assert_eq!(running.await.unwrap().status, 200);
    }
}

#[tokio::test]
async fn what_generates_nothing_may_have_fields_of_that_name() {
    let (gateway, mut gpu) = gateway("").await;
    let body = r#"{"model":"flotilla-demo","input":"a","max_tokens":"x","n":-1}"#;
    let running = asks(&gateway, "/v1/embeddings", body.into());
    let asked = gpu.asked().await;
    assert_eq!(asked.body, json!({"model": "theirs", "input": "a"}));
    asked.reply(200, "application/json", r#"{"data":[]}"#.into());
    assert_eq!(running.await.unwrap().status, 200);
}

#[tokio::test]
async fn what_an_external_endpoint_says_of_a_request_stays_at_the_gateway() {
    let (gateway, mut gpu) = gateway("").await;
    let secret = "key sk-secret of org-secret at http://10.9.8.7/secret";
    let error = |kind: &str| {
        let error = json!({"message": secret, "type": kind, "param": "temperature",
            "code": "org-secret"});
        json!({ "error": error }).to_string()
    };
    let told = |answer: &Value| {
        let text = answer.to_string();
        assert!(!text.contains("secret") && !text.contains("10.9"), "{text}");
        answer["error"]["code"].as_str().unwrap_or_default().to_string()
    };
    let running = asks(&gateway, CHAT, chat("Hi").to_string());
    gpu.asked().await.reply(400, "application/json", error("invalid_request_error"));
    let answer = running.await.unwrap();
    assert_eq!((answer.status, told(&answer.json()).as_str()), (400, "external_refused"));
    assert_eq!(answer.json()["error"]["param"], "temperature");
    for status in [301, 404, 500] {
        let running = asks(&gateway, CHAT, chat("Hi").to_string());
        gpu.asked().await.reply(status, "text/html", format!("<h1>{secret}</h1>"));
        let answer = running.await.unwrap();
        assert_eq!((answer.status, told(&answer.json()).as_str()), (503, "node_refused"));
        assert!(answer.headers.get("location").is_none());
    }
    // In an answer of status 200, and in the middle of a stream.
    let running = asks(&gateway, CHAT, chat("Hi").to_string());
    gpu.asked().await.reply(200, "application/json", error("server_error"));
    let answer = running.await.unwrap();
    assert_eq!((answer.status, told(&answer.json()).as_str()), (502, "external_failed"));
    for kind in ["invalid_request_error", "server_error"] {
        let running = gateway.streams("Hi");
        let stream = gpu.asked().await.stream();
        stream.say("Hel").await;
        stream.send(format!("data: {}\n\n", error(kind))).await;
        let said = running.await.unwrap();
        assert_eq!((said.text.as_str(), said.done), ("Hel", false));
        assert_eq!(said.errors, ["external_failed"]);
        told(&said.error_events[0]);
    }
    gateway.is_idle().await;
}
