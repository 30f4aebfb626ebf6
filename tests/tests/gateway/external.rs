//! Endpoints that are no nodes of ours: when they are asked, with what, and what it costs.

use fleet_tests::client::Answer;
use fleet_tests::mock_node::{Asked, MockNode};
use fleet_tests::process::{metric, run};
use fleet_tests::{chat, eventually, streamed};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::Gateway;

const USE: &str = "allow_anonymous: true\n";
const NAME: &str = "external:gpu";

/// An entry for an external endpoint.
fn entry(url: &str, more: &str) -> String {
    format!("external: [{{name: gpu, url: '{url}', models: {{flotilla-demo: big/demo}}{more}}}]\n")
}

/// A gateway with an external endpoint that is ready.
async fn gateway(keys: &str, more: &str) -> (Gateway, MockNode) {
    let (url, gpu) = MockNode::external().await;
    let gateway = Gateway::start_with_keys(keys, &entry(&url, more)).await;
    eventually("the endpoint to be ready", async || {
        (gateway.health("/external/ready").await == 1).then_some(())
    })
    .await;
    (gateway, gpu)
}

/// A key whose requests may go outside in these cases: the key, and its entry.
fn key(external: &str) -> (String, String) {
    let made = run("flotilla-gateway", &["key", "new", "--name", "ada", "--external", external]);
    let (head, entry) = made.stdout.split_once("keys:\n").unwrap();
    (head.lines().nth(1).unwrap().to_string(), format!("keys:\n{entry}"))
}

fn asks(gateway: &Gateway, headers: &[(&str, &str)], request: Value) -> JoinHandle<Answer> {
    let client = headers.iter().fold(gateway.client.clone(), |c, (n, v)| c.with_header(n, v));
    tokio::spawn(async move { client.chat(&request).await })
}

fn answer(asked: Asked, text: &str, prompt: u64, completion: u64) {
    let usage = json!({
        "prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion,
    });
    let message = json!({"role": "assistant", "content": text});
    let choices = json!([{"index": 0, "message": message, "finish_reason": "stop"}]);
    let body = json!({"model": "big/demo", "choices": choices, "usage": usage});
    asked.reply(200, "application/json", body.to_string());
}

const HURRY: [(&str, &str); 1] = [("x-flotilla-deadline-ms", "300")];

#[tokio::test]
async fn what_no_node_can_begin_in_time_goes_outside() {
    let (gateway, mut gpu) = gateway(USE, ", key_file: join.key").await;
    let mut a = gateway.node("a", 1).await;
    let first = gateway.asks("one");
    let at_a = a.asked().await;
    let second = asks(&gateway, &HURRY, chat("two"));
    let at_gpu = gpu.asked().await;
    assert_eq!(at_gpu.body["model"], "big/demo");
    assert_eq!(at_gpu.body["messages"][0]["content"], "two");
    assert_eq!(at_gpu.authorization.as_deref(), Some("Bearer a-join-key-for-tests-only"));
    answer(at_gpu, "from the gpu", 9, 3);
    let second = second.await.unwrap();
    assert_eq!(
        (second.content(), second.header("x-flotilla-endpoint")),
        ("from the gpu".into(), Some(NAME))
    );
    at_a.answer("from a");
    assert_eq!(first.await.unwrap().header("x-flotilla-endpoint"), Some("a"));
    let third = asks(&gateway, &HURRY, chat("three"));
    a.asked().await.answer("back on a node as soon as there is a slot");
    assert_eq!(third.await.unwrap().header("x-flotilla-endpoint"), Some("a"));
    gateway.is_idle().await;
}

#[tokio::test]
async fn a_key_that_prefers_it_goes_outside_with_what_is_interactive_only() {
    let (secret, entry) = key("prefer");
    let (gateway, mut gpu) = gateway(&entry, "").await;
    let mut a = gateway.node("a", 4).await;
    let authorization = format!("Bearer {secret}");
    let key = ("authorization", authorization.as_str());
    let urgent = asks(&gateway, &[key, ("x-flotilla-class", "interactive")], chat("now"));
    answer(gpu.asked().await, "at once", 1, 1);
    assert_eq!(urgent.await.unwrap().header("x-flotilla-endpoint"), Some(NAME));
    let standard = asks(&gateway, &[key], chat("whenever"));
    a.asked().await.answer("here");
    assert_eq!(standard.await.unwrap().header("x-flotilla-endpoint"), Some("a"));
    let mut priority = chat("now");
    priority["service_tier"] = "priority".into();
    let priority = asks(&gateway, &[key], priority);
    let asked = gpu.asked().await;
    assert_eq!(asked.body.get("service_tier"), None, "it was for us");
    asked.refuse(500);
    // It fails: a node does it.
    a.asked().await.answer("after all");
    assert_eq!(priority.await.unwrap().content(), "after all");
}

#[tokio::test]
async fn what_all_nodes_have_failed_goes_outside_and_does_not_wait_for_its_deadline() {
    let (gateway, mut gpu) = gateway(USE, "").await;
    let mut a = gateway.node("a", 1).await;
    let running = gateway.asks("one");
    a.asked().await.refuse(500);
    answer(gpu.asked().await, "from the gpu", 1, 1);
    assert_eq!(running.await.unwrap().content(), "from the gpu");
}

#[tokio::test]
async fn a_key_that_may_not_go_outside_does_not() {
    let (secret, entry) = key("never");
    let (gateway, mut gpu) = gateway(&entry, "").await;
    let authorization = format!("Bearer {secret}");
    let key = ("authorization", authorization.as_str());
    let refused = asks(&gateway, &[key], chat("nobody else")).await.unwrap();
    assert_eq!((refused.status, refused.error_code().as_str()), (503, "no_node"));
    let mut a = gateway.node("a", 1).await;
    let first = asks(&gateway, &[key], chat("one"));
    let at_a = a.asked().await;
    let second = asks(&gateway, &[key, HURRY[0]], chat("two")).await.unwrap();
    assert_eq!((second.status, second.error_code().as_str()), (503, "queue_timeout"));
    at_a.answer("done");
    first.await.unwrap();
    assert!(gpu.is_asked().is_none());
}

#[tokio::test]
async fn a_model_that_only_others_serve_is_served_and_waits_for_their_slots() {
    let (gateway, mut gpu) = gateway(USE, ", concurrent_max: 1").await;
    assert_eq!(gateway.client.get("/readyz").await.status, 200);
    let listed = gateway.client.get("/v1/models").await.json();
    assert_eq!(listed["data"][0]["id"], "flotilla-demo");
    let first = gateway.asks("one");
    let one = gpu.asked().await;
    let second = gateway.asks("two");
    eventually("the second to wait", async || {
        (gateway.health("/queue_depth").await == 1).then_some(())
    })
    .await;
    assert!(gpu.is_asked().is_none());
    answer(one, "1", 1, 1);
    assert_eq!(first.await.unwrap().content(), "1");
    answer(gpu.asked().await, "2", 1, 1);
    assert_eq!(second.await.unwrap().content(), "2");
    gateway.is_idle().await;
}

#[tokio::test]
async fn a_stream_from_outside_is_counted_and_shows_its_usage_to_who_asks_only() {
    let prices = ", prompt_price_per_million: 1, completion_price_per_million: 2.5";
    let (gateway, mut gpu) = gateway(USE, prices).await;
    let usage = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":600000,\
                 \"completion_tokens\":400000,\"total_tokens\":1000000}}\n\ndata: [DONE]\n\n";
    for wants_usage in [false, true] {
        let mut request = streamed(chat("one"));
        if wants_usage {
            request["stream_options"] = json!({"include_usage": true});
        }
        let client = gateway.client.clone();
        let stream = tokio::spawn(async move { client.stream(&request).await.finish().await });
        let asked = gpu.asked().await;
        assert_eq!(asked.body["stream_options"]["include_usage"], true);
        let said = asked.stream();
        said.say("some").await;
        said.say(" words").await;
        said.send(usage).await;
        drop(said);
        let said = stream.await.unwrap();
        assert_eq!((said.text.as_str(), said.done), ("some words", true));
        assert_eq!(said.usage.is_some(), wants_usage);
    }
    gateway.is_idle().await;
    let spent =
        "gateway_spent_total{endpoint=\"external:gpu\",for=\"tokens\",tenant=\"anonymous\"}";
    assert!((metric(&gateway.admin, spent).await - 3.2).abs() < 1e-9);
    let tokens = "gateway_tokens_total{endpoint_kind=\"external\",kind=\"completion\",\
                  model=\"flotilla-demo\",tenant=\"anonymous\"}";
    assert_eq!(metric(&gateway.admin, tokens).await, 800_000.0);
    // What a node answers is saved.
    let mut a = gateway.node("a", 1).await;
    let here = gateway.asks("two");
    answer(a.asked().await, "here", 2_000, 0);
    here.await.unwrap();
    let saved = "gateway_saved_total{model=\"flotilla-demo\",tenant=\"anonymous\"}";
    assert_eq!(metric(&gateway.admin, saved).await, 0.002);
}

#[tokio::test]
async fn what_may_be_spent_in_a_day_is_not_exceeded() {
    let terms = ", prompt_price_per_million: 1, spend_per_day_max: 0.5";
    let (gateway, mut gpu) = gateway(USE, terms).await;
    let mut a = gateway.node("a", 1).await;
    let _first = gateway.asks("one");
    let at_a = a.asked().await;
    let second = asks(&gateway, &HURRY, chat("two"));
    answer(gpu.asked().await, "dear", 600_000, 0);
    assert_eq!(second.await.unwrap().status, 200);
    let third = asks(&gateway, &HURRY, chat("three")).await.unwrap();
    assert_eq!((third.status, third.error_code().as_str()), (503, "queue_timeout"));
    assert!(gpu.is_asked().is_none());
    drop(at_a);
}

#[tokio::test]
async fn requests_side_by_side_cannot_spend_more_than_a_day_allows() {
    let terms = ", completion_price_per_million: 1, spend_per_day_max: 2.5";
    let (gateway, mut gpu) = gateway(USE, terms).await;
    let mut a = gateway.node("a", 1).await;
    let _first = gateway.asks("one");
    let at_a = a.asked().await;
    // Each may cost 1.
    let dear = |text: &str| {
        let mut request = chat(text);
        request["max_tokens"] = 1_000_000.into();
        request
    };
    let running = [asks(&gateway, &HURRY, dear("two")), asks(&gateway, &HURRY, dear("three"))];
    let at_gpu = [gpu.asked().await, gpu.asked().await];
    let refused = asks(&gateway, &HURRY, dear("four")).await.unwrap();
    assert_eq!((refused.status, refused.error_code().as_str()), (503, "queue_timeout"));
    assert!(gpu.is_asked().is_none());
    // What they have not spent is free again.
    at_gpu.into_iter().for_each(|asked| answer(asked, "cheap", 1, 200_000));
    for answered in running {
        assert_eq!(answered.await.unwrap().status, 200);
    }
    let last = [asks(&gateway, &HURRY, dear("five")), asks(&gateway, &HURRY, dear("six"))];
    for _ in &last {
        answer(gpu.asked().await, "cheap", 1, 1);
    }
    for answered in last {
        assert_eq!(answered.await.unwrap().status, 200);
    }
    drop(at_a);
}

#[tokio::test]
async fn an_endpoint_that_does_not_answer_is_not_asked_until_it_does() {
    let (gateway, mut gpu) = gateway(USE, "").await;
    gpu.falls_silent();
    eventually("the endpoint to be out", async || {
        (gateway.health("/external/ready").await == 0).then_some(())
    })
    .await;
    assert_eq!(gateway.client.get("/readyz").await.status, 503);
    let refused = asks(&gateway, &HURRY, chat("one")).await.unwrap();
    assert_eq!(refused.status, 503);
    assert!(gpu.is_asked().is_none());
}

#[tokio::test]
async fn terms_that_change_lose_no_answer() {
    let (url, mut gpu) = MockNode::external().await;
    let gateway = Gateway::start_with_keys(USE, &entry(&url, "")).await;
    let running = gateway.streams("one");
    let stream = gpu.asked().await.stream();
    stream.say("begun").await;
    gateway.reconfigure(&format!("{USE}{}", entry(&url, ", weight: 2"))).await;
    // The next request goes by the new terms, while the first one goes on.
    let next = gateway.asks("two");
    answer(gpu.asked().await, "two", 1, 1);
    assert_eq!(next.await.unwrap().content(), "two");
    stream.say(" and done").await;
    stream.done().await;
    let said = running.await.unwrap();
    assert_eq!((said.text.as_str(), said.done), ("begun and done", true), "{said:?}");
    gateway.is_idle().await;
}

#[tokio::test]
async fn endpoints_come_and_go_with_the_configuration_and_finish_what_they_have() {
    let (gateway, mut gpu) = gateway(USE, "").await;
    let running = gateway.streams("one");
    let stream = gpu.asked().await.stream();
    stream.say("begun").await;
    gateway.reconfigure(USE).await;
    eventually("it to take nothing new", async || {
        (gateway.health("/external/ready").await == 0).then_some(())
    })
    .await;
    stream.say(" and done").await;
    stream.done().await;
    assert!(running.await.unwrap().done);
    eventually("it to be gone", async || {
        let nodes = gateway.admin.get("/admin/v1/nodes").await.json();
        nodes["nodes"].as_array().unwrap().is_empty().then_some(())
    })
    .await;
}
