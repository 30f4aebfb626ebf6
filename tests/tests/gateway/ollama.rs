//! Ollama's API at the gateway.

use fleet_tests::client::Answer;
use fleet_tests::mock_node::healthy;
use inference_protocol::resume::{Mark, Usage};
use serde_json::{Value, json};

use super::{Gateway, posts};

fn lines(answer: &Answer) -> Vec<Value> {
    assert_eq!(answer.header("content-type"), Some("application/x-ndjson"));
    let text = std::str::from_utf8(&answer.body).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[tokio::test]
async fn a_chat_is_streamed_in_lines_without_comments_and_continues_on_another_node() {
    // A stream of events would get a comment after every millisecond.
    let gateway = Gateway::start("timeouts: {comment_ms: 1}\n").await;
    let mut a = gateway.node("a", 1).await;
    let messages = json!([{"role": "user", "content": "Hi"}]);
    let chat = json!({"model": "flotilla-demo:latest", "messages": messages});
    let asking = posts(&gateway, "/api/chat", chat);
    let asked = a.asked().await;
    assert_eq!(asked.resume.model.as_deref(), Some("flotilla-demo"), "without the tag");
    assert_eq!((&asked.body["messages"], &asked.body["stream"]), (&messages, &json!(true)));
    let stream = asked.stream();
    stream.say_marked(&[1], "Hel").await;
    let mut b = gateway.node("b", 1).await;
    drop(stream);
    let stream = b.asked().await.stream();
    stream.say_marked(&[2], "lo").await;
    let mut usage = String::new();
    Mark::Usage(Usage { prompt: 9, completion: 2, cached: 0 }).write(&mut usage);
    let counts = json!({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 2}});
    stream.send(format!("{usage}data: {counts}\n\n")).await;
    stream.close("data: [DONE]\n\n").await;
    let lines = lines(&asking.await.unwrap());
    let text: String =
        lines.iter().map(|line| line["message"]["content"].as_str().unwrap()).collect();
    assert_eq!(text, "Hello");
    let last = lines.last().unwrap();
    assert_eq!((&last["done"], &last["eval_count"]), (&json!(true), &json!(2)));
    gateway.is_idle().await;
}

#[tokio::test]
async fn a_model_is_loaded_without_a_node_and_embeddings_go_to_one() {
    let gateway = Gateway::start("").await;
    let mut a = gateway.node("a", 1).await;
    let load = posts(&gateway, "/api/generate", json!({"model": "flotilla-demo"})).await.unwrap();
    assert_eq!((load.status, &load.json()["done_reason"]), (200, &json!("load")));
    let none = posts(&gateway, "/api/embed", json!({"model": "flotilla-demo", "input": []}));
    assert_eq!(none.await.unwrap().json()["embeddings"], json!([]));
    // Of a model that nobody serves there is nothing to load.
    for (path, body) in [
        ("/api/generate", json!({"model": "another"})),
        ("/api/chat", json!({"model": "another", "messages": []})),
        ("/api/embed", json!({"model": "another", "input": []})),
    ] {
        let refused = posts(&gateway, path, body.clone()).await.unwrap();
        assert_eq!(refused.status, 404, "{path} {body}");
    }
    assert!(a.is_asked().is_none());

    let embedding = posts(&gateway, "/api/embed", json!({"model": "flotilla-demo", "input": "x"}));
    let asked = a.asked().await;
    assert_eq!(asked.body["input"], json!(["x"]));
    let list = json!({"data": [{"index": 0, "embedding": [0.5]}], "usage": {"prompt_tokens": 1}});
    asked.reply(200, "application/json", list.to_string());
    let embedded = embedding.await.unwrap().json();
    assert_eq!(embedded["embeddings"], json!([[0.5]]));
    gateway.is_idle().await;
}

#[tokio::test]
async fn models_are_listed_and_shown_under_their_tags() {
    let gateway = Gateway::start("aliases: {small: flotilla-demo}\n").await;
    let mut status = healthy("a", 1);
    status.models[0].id = "org/model ü".into();
    let _other = gateway.node_with(status).await;
    let mut status = healthy("b", 1);
    let details = &mut status.models[0].details;
    (details.family, details.bytes, details.parameters) = ("qwen3".into(), 9_000, 7_000_000);
    (details.reasons, details.fills) = (true, true);
    let _b = gateway.node_with(status).await;
    let tags = gateway.client.get("/api/tags").await.json();
    let names: Vec<_> = tags["models"].as_array().unwrap().iter().map(|m| &m["name"]).collect();
    assert_eq!(names, ["flotilla-demo:latest", "org/model ü:latest", "small:latest"]);
    let show = |name| posts(&gateway, "/api/show", json!({"model": name}));
    let shown = show("small:latest").await.unwrap();
    let all = json!(["completion", "tools", "insert", "thinking"]);
    assert_eq!(shown.json()["capabilities"], all, "of the model that the alias stands for");
    assert_eq!(shown.json()["details"]["parameter_size"], "7M");
    let sizes: Vec<_> = tags["models"].as_array().unwrap().iter().map(|m| &m["size"]).collect();
    assert_eq!(sizes, [9_000, 0, 9_000]);
    let unknown = show("other").await.unwrap();
    assert_eq!(unknown.status, 404);
    assert!(unknown.json()["error"].is_string());
    assert!(gateway.client.get("/api/version").await.json()["version"].is_string());
    let pull = posts(&gateway, "/api/pull", json!({"model": "x"})).await.unwrap();
    assert!(pull.status == 404 && pull.json()["error"].is_string());

    // Names come percent-encoded in paths.
    let one = gateway.client.get("/v1/models/org%2Fmodel%20%C3%BC").await;
    assert_eq!(one.json()["id"], "org/model ü");
    assert_eq!(gateway.client.get("/v1/models/").await.json()["object"], "list");
}
