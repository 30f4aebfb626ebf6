//! llama-server's own API at the gateway.

use fleet_tests::client::Answer;
use fleet_tests::mock_node::healthy;
use inference_protocol::resume::{Mark, Usage};
use serde_json::{Value, json};

use super::{Gateway, keys, posts};

fn events(answer: &Answer) -> Vec<Value> {
    assert_eq!(answer.header("content-type"), Some("text/event-stream"));
    let payloads = inference_protocol::sse::payloads(&answer.body);
    payloads.map(|payload| serde_json::from_slice(payload).unwrap()).collect()
}

/// An event with text of a completion and the token that led to it.
fn text(token: u32, text: &str) -> String {
    let mut event = String::new();
    Mark::Tokens { choice: 0, tokens: vec![token] }.write(&mut event);
    let choice = json!({"index": 0, "text": text, "finish_reason": null});
    format!("{event}data: {}\n\n", json!({"choices": [choice]}))
}

#[tokio::test]
async fn a_completion_needs_no_model_and_continues_on_another_node() {
    let gateway = Gateway::start("").await;
    let mut a = gateway.node("a", 1).await;
    let asked = json!({"prompt": "Hi", "stream": true, "n_predict": 9, "model": ""});
    let asking = posts(&gateway, "/completion", asked);
    let asked = a.asked().await;
    assert_eq!(
        (asked.path.as_str(), &asked.body["model"]),
        ("/v1/completions", &json!("flotilla-demo"))
    );
    assert_eq!(asked.body["max_tokens"], 9);
    let stream = asked.stream();
    stream.send(text(1, "Hel")).await;
    let mut b = gateway.node("b", 1).await;
    drop(stream);
    let stream = b.asked().await.stream();
    stream.send(text(2, "lo")).await;
    let mut end = String::new();
    Mark::Usage(Usage { prompt: 9, completion: 2, cached: 0 }).write(&mut end);
    let choice = json!({"index": 0, "text": "", "finish_reason": "length"});
    let counts =
        json!({"choices": [choice], "usage": {"prompt_tokens": 9, "completion_tokens": 2}});
    stream.send(format!("{end}data: {counts}\n\ndata: [DONE]\n\n")).await;
    let events = events(&asking.await.unwrap());
    let said: String = events.iter().map(|event| event["content"].as_str().unwrap()).collect();
    assert_eq!(said, "Hello");
    let last = events.last().unwrap();
    assert_eq!((&last["stop"], &last["stop_type"]), (&json!(true), &json!("limit")));
    assert_eq!((&last["tokens_evaluated"], &last["tokens_predicted"]), (&json!(9), &json!(2)));
    gateway.is_idle().await;
}

#[tokio::test]
async fn a_gap_is_filled_and_only_what_an_editor_asks_for_returned() {
    let gateway = Gateway::start("").await;
    let mut a = gateway.node("a", 1).await;
    let gap = json!({"input_prefix": "fn ", "input_suffix": "}", "prompt": "ma",
        "input_extra": [{"filename": "b.rs", "text": "b"}], "n_indent": 4,
        "t_max_predict_ms": 500, "t_max_prompt_ms": 500, "samplers": ["top_k", "infill"],
        "response_fields": ["content", "timings/prompt_n"]});
    let asking = posts(&gateway, "/infill", gap);
    let asked = a.asked().await;
    assert_eq!((&asked.body["prompt"], &asked.body["suffix"]), (&json!("fn ma"), &json!("}")));
    assert_eq!(asked.body["input_extra"], json!([{"filename": "b.rs", "text": "b"}]));
    let choice = json!({"index": 0, "text": "in() {", "finish_reason": "stop"});
    let body = json!({"choices": [choice], "timings": {"prompt_n": 7},
        "usage": {"prompt_tokens": 7, "completion_tokens": 2}});
    asked.reply(200, "application/json", body.to_string());
    let expected = json!({"content": "in() {", "timings/prompt_n": 7});
    assert_eq!(asking.await.unwrap().json(), expected);
    for (body, param) in [
        (json!({"input_suffix": "b"}), "input_prefix"),
        (json!({"input_prefix": "a", "input_suffix": "b", "n_cmpl": 2}), "n_cmpl"),
    ] {
        let refused = posts(&gateway, "/infill", body).await.unwrap();
        assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!(param)));
    }
    gateway.is_idle().await;
}

#[tokio::test]
async fn embeddings_come_as_a_list_of_lists() {
    let gateway = Gateway::start("").await;
    let mut a = gateway.node("a", 1).await;
    let asking = posts(&gateway, "/embedding", json!({"content": "x"}));
    let asked = a.asked().await;
    assert_eq!((asked.path.as_str(), &asked.body["input"]), ("/v1/embeddings", &json!(["x"])));
    let list = json!({"data": [{"index": 0, "embedding": [0.5]}], "usage": {"prompt_tokens": 1}});
    asked.reply(200, "application/json", list.to_string());
    assert_eq!(asking.await.unwrap().json(), json!([{"index": 0, "embedding": [[0.5]]}]));
    gateway.is_idle().await;
}

#[tokio::test]
async fn properties_are_those_of_a_node_with_the_slots_of_all() {
    let gateway = Gateway::start("aliases: {small: flotilla-demo}\n").await;
    let mut a = gateway.node("a", 3).await;
    let mut b = gateway.node("b", 4).await;
    for path in ["/props", "/props?model=flotilla-demo", "/props?autoload=0&model=small"] {
        let client = gateway.client.clone();
        let asking = tokio::spawn(async move { client.get(path).await });
        let asked = tokio::select! {
            asked = a.asked() => asked,
            asked = b.asked() => asked,
        };
        assert_eq!(asked.path, "/props", "{path}");
        let named = asked.resume.model.clone().or(asked.body["model"].as_str().map(Into::into));
        assert_eq!(named.as_deref(), Some("flotilla-demo"), "{path}");
        let props = json!({"total_slots": 3, "chat_template": "t"});
        asked.reply(200, "application/json", props.to_string());
        let props = asking.await.unwrap().json();
        assert_eq!(props, json!({"total_slots": 7, "chat_template": "t"}));
    }
    let changes = posts(&gateway, "/props", json!({"chat_template": "x"})).await.unwrap();
    assert_eq!(changes.status, 405);
    gateway.is_idle().await;
}

#[tokio::test]
async fn without_a_name_the_model_is_the_only_one_that_the_key_may_use() {
    let (gateway, key) = keys::gateway("  models: [flotilla-demo, none]\n", "").await;
    let mut a = gateway.node("a", 1).await;
    let mut status = healthy("b", 1);
    status.models[0].id = "other".into();
    let _b = gateway.node_with(status).await;
    for path in ["/completion", "/tokenize"] {
        let client = gateway.client.with_key(Some(&key));
        let asking = tokio::spawn(async move { client.post(path, r#"{"prompt":"Hi"}"#).await });
        let asked = a.asked().await;
        assert_eq!(asked.body["model"], "flotilla-demo", "{path}");
        asked.refuse(400);
        assert_eq!(asking.await.unwrap().status, 400);
    }
}

#[tokio::test]
async fn without_a_name_and_with_two_models_there_is_no_telling_which() {
    let gateway = Gateway::start("").await;
    let _a = gateway.node("a", 1).await;
    let mut status = healthy("b", 1);
    status.models[0].id = "other".into();
    let _b = gateway.node_with(status).await;
    for path in ["/completion", "/tokenize"] {
        let refused = posts(&gateway, path, json!({"prompt": "Hi"})).await.unwrap();
        let param = &refused.json()["error"]["param"];
        assert_eq!((refused.status, param), (400, &json!("model")), "{path}");
    }
    let refused = gateway.client.get("/props").await;
    assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!("model")));
}
