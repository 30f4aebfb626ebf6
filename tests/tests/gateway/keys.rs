//! What a key says of its requests beside limits: names of models, deadlines, lengths.

use fleet_tests::client::Answer;
use fleet_tests::process::run;
use fleet_tests::{chat, eventually, streamed};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::Gateway;

/// A gateway with one key of which more is said, and that key.
pub async fn gateway(more: &str, config: &str) -> (Gateway, String) {
    let made = run("flotilla-gateway", &["key", "new", "--name", "ada"]).stdout;
    let (head, entry) = made.split_once("keys:\n").unwrap();
    let keys = format!("keys:\n{entry}{more}");
    let gateway = Gateway::start_with_keys(&keys, config).await;
    (gateway, head.lines().nth(1).unwrap().to_string())
}

fn asks(gateway: &Gateway, key: &str, request: Value) -> JoinHandle<Answer> {
    let client = gateway.client.with_key(Some(key));
    tokio::spawn(async move { client.chat(&request).await })
}

fn named(model: &str) -> Value {
    let mut request = chat("x");
    request["model"] = model.into();
    request
}

#[tokio::test]
async fn a_model_is_served_under_its_other_names_and_the_body_stays_as_it_was() {
    let own = "  aliases: {mine: flotilla-demo}\n  models: [mine, gpt]\n";
    let (gateway, key) = gateway(own, "aliases: {gpt: flotilla-demo, far: unknown}\n").await;
    let mut a = gateway.node("a", 1).await;
    for name in ["gpt", "mine"] {
        let running = asks(&gateway, &key, named(name));
        let asked = a.asked().await;
        assert_eq!(asked.body["model"], name);
        assert_eq!(asked.resume.model.as_deref(), Some("flotilla-demo"));
        asked.answer("yes");
        assert_eq!(running.await.unwrap().content(), "yes");
    }
    let client = gateway.client.with_key(Some(&key));
    let listed = client.get("/v1/models").await.json();
    let names: Vec<&str> =
        listed["data"].as_array().unwrap().iter().map(|m| m["id"].as_str().unwrap()).collect();
    assert_eq!(names, ["gpt", "mine"], "what is served and may be asked for");
    assert_eq!(client.get("/v1/models/gpt").await.status, 200);
    assert_eq!(client.get("/v1/models/far").await.status, 404);
    let forbidden = asks(&gateway, &key, named("flotilla-demo")).await.unwrap();
    assert_eq!((forbidden.status, forbidden.error_code().as_str()), (403, "model_not_allowed"));
}

#[tokio::test]
async fn a_model_without_another_name_is_not_named_twice() {
    let gateway = Gateway::start("").await;
    let mut a = gateway.node("a", 1).await;
    let running = gateway.asks("x");
    let asked = a.asked().await;
    assert_eq!((&asked.resume.model, asked.resume.tokens_max), (&None, None));
    asked.answer("yes");
    running.await.unwrap();
}

#[tokio::test]
async fn answers_are_as_long_as_their_key_allows() {
    let (gateway, key) = gateway("  max_tokens: 50\n", "").await;
    let mut a = gateway.node("a", 1).await;
    for more in [json!({}), json!({"max_tokens": 50}), json!({"max_completion_tokens": 7})] {
        let mut request = chat("x");
        request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let running = asks(&gateway, &key, request);
        let asked = a.asked().await;
        assert_eq!(asked.resume.tokens_max, Some(50));
        asked.answer("yes");
        assert_eq!(running.await.unwrap().status, 200);
    }
    let mut request = chat("x");
    request["max_tokens"] = 51.into();
    let refused = asks(&gateway, &key, request).await.unwrap();
    assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!("max_tokens")));
}

#[tokio::test]
async fn requests_wait_as_long_as_their_key_says() {
    let (gateway, key) = gateway("  deadline_ms: 100\n", "").await;
    let mut a = gateway.node("a", 1).await;
    let first = asks(&gateway, &key, chat("one"));
    let at_a = a.asked().await;
    let second = asks(&gateway, &key, chat("two")).await.unwrap();
    assert_eq!((second.status, second.error_code().as_str()), (503, "queue_timeout"));
    let after: u64 = second.header("retry-after-ms").unwrap().parse().unwrap();
    let seconds: u64 = second.header("retry-after").unwrap().parse().unwrap();
    assert!(after.div_ceil(1000) == seconds && seconds > 0, "{after} {seconds}");
    let took: u64 = second.header("openai-processing-ms").unwrap().parse().unwrap();
    assert!(took >= 100, "{took}");
    at_a.answer("done");
    first.await.unwrap();
}

#[tokio::test]
async fn a_stream_that_waits_for_long_stays_connected_by_comments() {
    let gateway = Gateway::start("timeouts: {comment_ms: 50}\n").await;
    let mut a = gateway.node("a", 1).await;
    let first = gateway.asks("one");
    let at_a = a.asked().await;
    let waiting = gateway.client.try_stream(&streamed(chat("two"))).await;
    // Its head is here although it has no slot.
    let waiting = waiting.unwrap();
    assert_eq!(gateway.health("/queue_depth").await, 1);
    at_a.answer("done");
    first.await.unwrap();
    let said = a.asked().await.stream();
    said.say("at last").await;
    said.done().await;
    let said = waiting.finish().await;
    assert_eq!((said.text.as_str(), said.done), ("at last", true), "{said:?}");
    // What goes wrong now is an event.
    let client = gateway.client.with_header("x-flotilla-deadline-ms", "200");
    let running = gateway.asks("three");
    let at_a = a.asked().await;
    let said = client.stream(&streamed(chat("four"))).await.finish().await;
    assert_eq!((said.errors, said.done), (vec!["queue_timeout".to_string()], false));
    at_a.answer("done");
    running.await.unwrap();
    gateway.is_idle().await;
}

#[tokio::test]
async fn the_list_of_models_follows_the_fleet_and_the_configuration() {
    let gateway = Gateway::start("").await;
    let listed = async || {
        let list = gateway.client.get("/v1/models").await.json();
        let ids = list["data"].as_array().unwrap().iter();
        ids.map(|model| model["id"].as_str().unwrap().to_string()).collect::<Vec<_>>()
    };
    assert!(listed().await.is_empty());
    let a = gateway.node("a", 1).await;
    assert_eq!(listed().await, ["flotilla-demo"]);
    a.says(|status| status.models[0].id = "other".into());
    eventually("another model", async || (listed().await == ["other"]).then_some(())).await;
    assert_eq!(gateway.admin.post("/admin/v1/nodes/a/cordon", "").await.status, 200);
    assert!(listed().await.is_empty());
    assert_eq!(gateway.admin.post("/admin/v1/nodes/a/uncordon", "").await.status, 200);
    gateway.reconfigure("allow_anonymous: true\naliases: {gpt: other}\n").await;
    assert_eq!(listed().await, ["gpt", "other"]);
    assert_eq!(gateway.client.get("/v1/models/gpt").await.status, 200);
    assert_eq!(gateway.client.get("/v1/models/flotilla-demo").await.status, 404);
}
