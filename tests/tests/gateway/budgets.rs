//! What a key may use in a month, and what else outlives a gateway.

use std::path::Path;

use fleet_tests::client::{Answer, Client};
use fleet_tests::mock_node::{Asked, MockNode};
use fleet_tests::process::{Folder, metric};
use fleet_tests::{chat, eventually, not_before_midnight};
use inference_protocol::resume::Usage;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::Gateway;

const DIGEST: &str = "5532e44183f47ed1fc146851b96d585c24da5bd5fe31a885cebc357261ed8f7f";

/// A gateway whose only key has this budget, and that keeps its state there.
async fn gateway(budget: &str, state: &Path) -> Gateway {
    not_before_midnight().await;
    let keys = format!("keys: [{{name: ada, sha256: {DIGEST}, {budget}}}]\n");
    let mut gateway =
        Gateway::start_with_keys(&keys, &format!("state_file: '{}'\n", state.display())).await;
    gateway.client = gateway.client.with_key(Some("key-of-ada"));
    gateway
}

async fn uses(gateway: &Gateway, node: &mut MockNode, tokens: u32) {
    let asking = gateway.asks("Hi");
    let usage = json!({"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": tokens});
    let body = json!({"choices": [], "usage": usage}).to_string();
    node.asked().await.reply(200, "application/json", body);
    assert_eq!(asking.await.unwrap().status, 200);
    gateway.is_idle().await;
}

fn is_exhausted(answer: &Answer) {
    assert_eq!((answer.status, answer.error_code().as_str()), (429, "insufficient_quota"));
    assert_eq!(answer.json()["error"]["type"], "insufficient_quota");
    assert_eq!(answer.header("x-should-retry"), Some("false"), "the month is long");
    assert_eq!(answer.header("retry-after"), None);
}

fn saved(state: &Path) -> Option<Value> {
    let saved: Value = serde_json::from_slice(&std::fs::read(state).ok()?).ok()?;
    saved.pointer("/ledger/used/ada/tokens").cloned()
}

#[tokio::test]
async fn a_key_that_has_used_its_tokens_of_the_month_is_refused_after_a_restart_too() {
    let folder = Folder::new();
    let state = folder.path().join("state.json");
    let first = gateway("tokens_per_month: 1000", &state).await;
    let mut a = first.node("a", 1).await;
    uses(&first, &mut a, 999).await;
    uses(&first, &mut a, 1).await;
    is_exhausted(&first.client.chat(&chat("Hi")).await);
    eventually("it to be saved", async || (saved(&state)? == 1000).then_some(())).await;
    assert!(metric(&first.admin, "gateway_state_saves_total{outcome=\"ok\"}").await >= 1.0);
    // As if it were killed.
    drop(first);
    let second = gateway("tokens_per_month: 1000", &state).await;
    is_exhausted(&second.client.chat(&chat("Hi")).await);
    let more = gateway("tokens_per_month: 1001", &state).await;
    let mut a = more.node("a", 1).await;
    uses(&more, &mut a, 1).await;
    is_exhausted(&more.client.chat(&chat("Hi")).await);
}

/// Waits for the next request of `client` at the node: its response, and what it may use.
async fn asked(client: &Client, node: &mut MockNode, body: &Value) -> (JoinHandle<Answer>, Asked) {
    let (client, body) = (client.clone(), body.clone());
    let asking = tokio::spawn(async move { client.chat(&body).await });
    (asking, node.asked().await)
}

/// Answers a request, which has used so many tokens.
async fn used((asking, asked): (JoinHandle<Answer>, Asked), tokens: u64) {
    let stream = asked.stream();
    stream.note(&(0..tokens as u32 - 1).collect::<Vec<_>>()).await;
    let usage = Usage { prompt: 1, completion: tokens - 1, cached: 0 };
    stream.close_marked(usage, &json!({"choices": [], "usage": {}}).to_string()).await;
    assert_eq!(asking.await.unwrap().status, 200);
}

#[tokio::test]
async fn requests_side_by_side_cannot_exceed_a_budget_together() {
    let folder = Folder::new();
    let gateway = gateway("tokens_per_month: 6000", &folder.path().join("state.json")).await;
    let mut node = gateway.node("a", 4).await;
    let body = json!({"model": "flotilla-demo", "messages": [], "max_tokens": 1000});
    let first = asked(&gateway.client, &mut node, &body).await;
    let most = first.1.resume.usage_max.unwrap();
    assert!((1000..6000).contains(&most), "{most}: the prompt at most, and 1,000 tokens");
    let second = asked(&gateway.client, &mut node, &body).await;
    assert_eq!(second.1.resume.usage_max, Some(6000 - most), "what is left");
    let refused = gateway.client.chat(&body).await;
    assert_eq!((refused.status, refused.error_code().as_str()), (429, "rate_limit_exceeded"));
    assert_eq!(
        (refused.header("retry-after"), refused.header("x-should-retry")),
        (Some("1"), None)
    );
    let name = "gateway_refusals_total{reason=\"limit_budget\",tenant=\"ada\"}";
    assert_eq!(metric(&gateway.admin, name).await, 1.0);
    used(first, 300).await;
    used(second, 200).await;
    gateway.is_idle().await;
    // What they have not used is free again.
    let body = json!({"model": "flotilla-demo", "messages": [], "max_tokens": 20000});
    let third = asked(&gateway.client, &mut node, &body).await;
    assert_eq!(third.1.resume.usage_max, Some(5500));
    third.1.answer("Hi");
    assert_eq!(third.0.await.unwrap().status, 200);
}

#[tokio::test]
async fn a_client_that_leaves_has_used_no_more_than_was_reserved_for_it() {
    let folder = Folder::new();
    let state = folder.path().join("state.json");
    let gateway = gateway("tokens_per_month: 30", &state).await;
    let mut a = gateway.node("a", 1).await;
    let (asking, asked) = asked(&gateway.client, &mut a, &chat("Hi")).await;
    assert_eq!(asked.resume.usage_max, Some(30));
    let stream = asked.stream();
    // The prompt has a token, which the gateway does not know: its estimate is larger.
    stream.note(&[7; 29]).await;
    drop(stream);
    let mut b = gateway.node("b", 1).await;
    assert_eq!(b.asked().await.resume.choices[0].tokens.len(), 29, "the gateway has seen them");
    asking.abort();
    gateway.is_idle().await;
    eventually("it to be saved", async || saved(&state)).await;
    assert_eq!(saved(&state).unwrap(), 30);
}

#[tokio::test]
async fn a_prompt_that_is_longer_than_what_is_left_of_a_budget_is_refused_by_the_node() {
    let folder = Folder::new();
    let gateway = gateway("tokens_per_month: 100", &folder.path().join("state.json")).await;
    let mut node = gateway.node("a", 1).await;
    let (asking, asked) = asked(&gateway.client, &mut node, &chat("Hi")).await;
    assert_eq!(asked.resume.usage_max, Some(100));
    let error = json!({"message": "long", "type": "insufficient_quota", "param": null, "code": "insufficient_quota"});
    asked.reply(402, "application/json", json!({"error": error}).to_string());
    is_exhausted(&asking.await.unwrap());
    assert!(node.is_asked().is_none(), "another node would say the same");
}

#[tokio::test]
async fn an_external_endpoint_is_asked_for_no_more_than_a_budget_has_left() {
    let folder = Folder::new();
    let (gateway, mut gpu) = paying("tokens_per_month: 500", &folder).await;
    let (asking, asked) = asked(&gateway.client, &mut gpu, &chat("Hi")).await;
    let most = asked.body["max_tokens"].as_u64().unwrap();
    assert!((400..500).contains(&most), "{most}");
    asked.answer("Hi");
    assert_eq!(asking.await.unwrap().status, 200);
}

#[tokio::test]
async fn a_request_without_a_budget_has_no_limit() {
    let gateway = Gateway::start("").await;
    let mut node = gateway.node("a", 1).await;
    let (asking, asked) = asked(&gateway.client, &mut node, &chat("Hi")).await;
    assert_eq!(asked.resume.usage_max, None);
    asked.answer("Hi");
    assert_eq!(asking.await.unwrap().status, 200);
}

#[tokio::test]
async fn a_gateway_that_stops_saves_what_was_used_until_then() {
    let folder = Folder::new();
    let state = folder.path().join("state.json");
    let mut gateway = gateway("tokens_per_month: 1000", &state).await;
    let mut a = gateway.node("a", 1).await;
    uses(&gateway, &mut a, 400).await;
    gateway.stop.cancel();
    (&mut gateway.running).await.unwrap();
    assert_eq!(saved(&state), Some(400.into()));
}

#[tokio::test]
async fn a_cordoned_node_is_cordoned_after_a_restart_too() {
    let folder = Folder::new();
    let state = folder.path().join("state.json");
    let first = gateway("tokens_per_month: 1000", &state).await;
    let _a = first.node("a", 1).await;
    assert_eq!(first.admin.post("/admin/v1/nodes/a/cordon", "").await.status, 200);
    let cordoned = async || {
        let saved: Value = serde_json::from_slice(&std::fs::read(&state).ok()?).ok()?;
        (saved["cordoned"] == json!(["a"])).then_some(())
    };
    eventually("it to be saved", cordoned).await;
    drop(first);
    let second = gateway("tokens_per_month: 1000", &state).await;
    let mut a = second.node("a", 1).await;
    assert_eq!(metric(&second.admin, "gateway_node_cordoned{node=\"a\"}").await, 1.0);
    assert_eq!(second.admin.post("/admin/v1/nodes/a/uncordon", "").await.status, 200);
    uses(&second, &mut a, 1).await;
}

#[tokio::test]
async fn a_state_that_cannot_be_read_is_put_aside_and_one_that_cannot_be_written_hurts_nobody() {
    let folder = Folder::new();
    let state = folder.write("state.json", "{\"version\": 1, \"ledg");
    let first = gateway("tokens_per_month: 1000", &state).await;
    let aside = folder.path().join("state.unreadable");
    let aside =
        eventually("it to be put aside", async || std::fs::read_to_string(&aside).ok()).await;
    assert!(aside.ends_with("ledg"));
    // A folder stands where the file should.
    eventually("it to be saved", async || std::fs::read(&state).ok()).await;
    std::fs::remove_file(&state).unwrap();
    std::fs::create_dir(&state).unwrap();
    let mut a = first.node("a", 1).await;
    uses(&first, &mut a, 1000).await;
    let failed = "gateway_state_saves_total{outcome=\"failed\"}";
    eventually("it to fail", async || (metric(&first.admin, failed).await > 0.0).then_some(()))
        .await;
    is_exhausted(&first.client.chat(&chat("Hi")).await);
}

/// A gateway with an external endpoint that takes 2 dollars for a million tokens; its only key has
/// `more`.
async fn paying(more: &str, folder: &Folder) -> (Gateway, MockNode) {
    let (url, gpu) = MockNode::external().await;
    let keys = format!("keys: [{{name: ada, sha256: {DIGEST}, {more}}}]\n");
    let external = format!(
        "external: [{{name: gpu, url: '{url}', models: [flotilla-demo], completion_price_per_million: 2}}]\n\
         state_file: '{}'\n",
        folder.path().join("state.json").display()
    );
    let mut gateway = Gateway::start_with_keys(&keys, &external).await;
    eventually("the endpoint", async || {
        (gateway.health("/external/ready").await == 1).then_some(())
    })
    .await;
    gateway.client = gateway.client.with_key(Some("key-of-ada"));
    (gateway, gpu)
}

/// Gets a response of a million tokens.
async fn pays(gateway: &Gateway, client: &Client, gpu: &mut MockNode) {
    let client = client.clone();
    let asking = tokio::spawn(async move { client.chat(&chat("Hi")).await });
    let usage = json!({"completion_tokens": 1_000_000, "total_tokens": 1_000_000});
    let choice = json!({"index": 0, "message": {"role": "assistant", "content": "Hello"}});
    let body = json!({"choices": [choice], "usage": usage}).to_string();
    gpu.asked().await.reply(200, "application/json", body);
    assert_eq!(asking.await.unwrap().status, 200);
    gateway.is_idle().await;
}

#[tokio::test]
async fn what_external_endpoints_are_paid_for_a_key_has_a_budget() {
    let folder = Folder::new();
    let (gateway, mut gpu) = paying("spend_per_month: 2.0", &folder).await;
    pays(&gateway, &gateway.client, &mut gpu).await;
    is_exhausted(&gateway.client.chat(&chat("Hi")).await);
}

#[tokio::test]
async fn what_external_endpoints_are_paid_for_a_user_has_a_budget() {
    let folder = Folder::new();
    let users = "users: header, user_limits: {spend_per_month: 2.0}";
    let (gateway, mut gpu) = paying(users, &folder).await;
    let (ada, eve) = (
        gateway.client.with_header("x-user-id", "ada"),
        gateway.client.with_header("x-user-id", "eve"),
    );
    pays(&gateway, &ada, &mut gpu).await;
    let refused = ada.chat(&chat("Hi")).await;
    is_exhausted(&refused);
    assert!(refused.json()["error"]["message"].as_str().unwrap().starts_with("this user"));
    pays(&gateway, &eve, &mut gpu).await;
    is_exhausted(&eve.chat(&chat("Hi")).await);
}
