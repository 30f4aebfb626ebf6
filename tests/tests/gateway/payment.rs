//! What is paid for, however it ends: at external endpoints, and at nodes of ours.

use std::path::{Path, PathBuf};

use fleet_tests::mock_node::MockNode;
use fleet_tests::process::{Folder, metric};
use fleet_tests::{chat, eventually, not_before_midnight, streamed};
use serde_json::{Value, json};

use super::Gateway;

const DIGEST: &str = "5532e44183f47ed1fc146851b96d585c24da5bd5fe31a885cebc357261ed8f7f";
/// One for a token of a prompt, ten for one of an answer.
const PRICES: &str = "prompt_price_per_million: 1000000, completion_price_per_million: 10000000";

struct Books {
    gateway: Gateway,
    gpu: MockNode,
    state: PathBuf,
    _folder: Folder,
}

/// A gateway with an external endpoint that a key prefers, and a file for its state.
async fn books(key: &str, more: &str) -> Books {
    not_before_midnight().await;
    let folder = Folder::new();
    let state = folder.path().join("state.json");
    let (url, gpu) = MockNode::external().await;
    let keys = format!("keys: [{{name: ada, sha256: {DIGEST}, external: prefer{key}}}]\n");
    let entry = format!("{{name: gpu, url: '{url}', models: [flotilla-demo], {PRICES}}}");
    let more = format!("external: [{entry}]\nstate_file: '{}'\n{more}", state.display());
    let mut gateway = Gateway::start_with_keys(&keys, &more).await;
    gateway.client = gateway.client.with_key(Some("key-of-ada"));
    gateway.client = gateway.client.with_header("x-flotilla-class", "interactive");
    eventually("the endpoint to be ready", async || {
        (gateway.health("/external/ready").await == 1).then_some(())
    })
    .await;
    Books { gateway, gpu, state, _folder: folder }
}

/// What a prompt is estimated to have: a token for five bytes of its request.
fn prompt_of(request: &Value) -> f64 {
    (1 + request.to_string().len() / 5) as f64
}

fn saved(state: &Path) -> Option<(f64, f64)> {
    let saved: Value = serde_json::from_slice(&std::fs::read(state).ok()?).ok()?;
    let figure = |path: &str| saved.pointer(path).and_then(Value::as_f64);
    Some((figure("/ledger/spent/external:gpu")?, figure("/ledger/used/ada/spend")?))
}

impl Books {
    /// All books say that so much was spent.
    async fn agree(&self, amount: f64) {
        self.gateway.is_idle().await;
        let overview = self.gateway.admin.get("/admin/v1/overview").await.json();
        assert_eq!(overview["external"][0]["spent_today"], json!(amount));
        let tenants = overview["tenants"].as_array().unwrap();
        let ada = tenants.iter().find(|tenant| tenant["name"] == "ada").unwrap();
        assert_eq!(ada["spent"], json!(amount));
        if amount > 0.0 {
            let spent =
                "gateway_spent_total{endpoint=\"external:gpu\",for=\"tokens\",tenant=\"ada\"}";
            assert_eq!(metric(&self.gateway.admin, spent).await, amount);
            let saved = async || (saved(&self.state)? == (amount, amount)).then_some(());
            eventually("the ledger to be saved", saved).await;
        }
    }
}

#[tokio::test]
async fn a_client_that_leaves_before_its_answer_has_spent_its_prompt() {
    let mut books = books("", "").await;
    let request = chat("a question that is not answered");
    let client = books.gateway.client.clone();
    let asking = tokio::spawn({
        let request = request.clone();
        async move { client.chat(&request).await }
    });
    let asked = books.gpu.asked().await;
    asking.abort();
    books.agree(prompt_of(&request)).await;
    drop(asked);
}

#[tokio::test]
async fn a_client_that_leaves_a_stream_has_spent_what_it_got() {
    let mut books = books("", "").await;
    let request = streamed(chat("a question"));
    let client = books.gateway.client.clone();
    let asking = tokio::spawn({
        let request = request.clone();
        async move { client.stream(&request).await }
    });
    let stream = books.gpu.asked().await.stream();
    stream.say("a").await;
    let mut reading = asking.await.unwrap();
    assert!(reading.next_chunk().await);
    stream.say("nine byte").await;
    assert!(reading.next_chunk().await);
    drop(reading);
    stream.is_given_up().await;
    books.agree(prompt_of(&request) + 10.0 * 4.0).await;
}

#[tokio::test]
async fn an_answer_that_comes_too_late_or_breaks_off_is_paid_for() {
    let mut books = books("", "timeouts: {first_token_ms: 300}\n").await;
    let request = chat("a question");
    let (client, body) = (books.gateway.client.clone(), request.clone());
    let asking = tokio::spawn(async move { client.chat(&body).await });
    let asked = books.gpu.asked().await;
    assert_eq!(asking.await.unwrap().status, 504);
    let late = prompt_of(&request);
    books.agree(late).await;
    drop(asked);

    let request = streamed(chat("another question"));
    let (client, body) = (books.gateway.client.clone(), request.clone());
    let asking = tokio::spawn(async move { client.stream(&body).await.finish().await });
    let stream = books.gpu.asked().await.stream();
    stream.say("some").await;
    drop(stream);
    assert_eq!(asking.await.unwrap().errors, ["node_lost"]);
    books.agree(late + prompt_of(&request) + 10.0).await;
}

#[tokio::test]
async fn an_endpoint_that_loses_against_a_second_node_is_paid_and_so_is_the_prompt_there() {
    let mut books = books("", "routing: {hedge_ms: 50}\n").await;
    let mut a = books.gateway.node("a", 1).await;
    let request = chat("a question");
    let (client, body) = (books.gateway.client.clone(), request.clone());
    let asking = tokio::spawn(async move { client.chat(&body).await });
    let (lost, won) = tokio::join!(books.gpu.asked(), a.asked());
    let usage = json!({"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9});
    let choices = json!([{"index": 0, "message": {"role": "assistant", "content": "Hi"}}]);
    won.reply(200, "application/json", json!({"choices": choices, "usage": usage}).to_string());
    assert_eq!(asking.await.unwrap().header("x-flotilla-endpoint"), Some("a"));
    books.agree(prompt_of(&request)).await;
    let overview = books.gateway.admin.get("/admin/v1/overview").await.json();
    let tenants = overview["tenants"].as_array().unwrap();
    let ada = tenants.iter().find(|tenant| tenant["name"] == "ada").unwrap();
    assert_eq!(ada["prompt_tokens"], json!(7 + prompt_of(&request) as u64));
    assert_eq!(ada["completion_tokens"], 2);
    drop(lost);
}

#[tokio::test]
async fn what_an_endpoint_refuses_costs_nothing() {
    let mut books = books("", "").await;
    let mut a = books.gateway.node("a", 1).await;
    for status in [429, 500] {
        let asking = books.gateway.asks("Hi");
        books.gpu.asked().await.refuse(status);
        a.asked().await.answer("here");
        assert_eq!(asking.await.unwrap().content(), "here");
    }
    let asking = books.gateway.asks("Hi");
    books.gpu.asked().await.refuse(400);
    assert_eq!(asking.await.unwrap().status, 400);
    books.agree(0.0).await;
}

#[tokio::test]
async fn an_answer_without_usage_or_too_large_is_paid_by_its_bytes() {
    let mut books = books("", "limits: {response_bytes_max: 20000}\n").await;
    let request = chat("Hi");
    let asks = |books: &Books| {
        let (client, body) = (books.gateway.client.clone(), request.clone());
        tokio::spawn(async move { client.chat(&body).await })
    };
    let asking = asks(&books);
    books.gpu.asked().await.answer(&"x".repeat(400));
    assert_eq!(asking.await.unwrap().status, 200);
    let first = prompt_of(&request) + 10.0 * 100.0;
    books.agree(first).await;
    let asking = asks(&books);
    books.gpu.asked().await.answer(&"x".repeat(40_000));
    assert_eq!(asking.await.unwrap().error_code(), "response_too_large");
    books.gateway.is_idle().await;
    let overview = books.gateway.admin.get("/admin/v1/overview").await.json();
    let spent = overview["external"][0]["spent_today"].as_f64().unwrap();
    // As far as it was read: at most the limit, and never less than the prompt.
    let most = first + prompt_of(&request) + 10.0 * 20_000.0 / 4.0;
    assert!((first + prompt_of(&request)..=most).contains(&spent), "{spent}");
    books.agree(spent).await;
}

#[tokio::test]
async fn usage_is_found_however_an_endpoint_spaces_its_json() {
    let mut books = books("", "").await;
    let usage = "{\"choices\": [], \"usage\" :\n {\"prompt_tokens\": 3, \"completion_tokens\": 2}}";
    let asking = books.gateway.asks("Hi");
    books.gpu.asked().await.reply(200, "application/json", usage.into());
    assert_eq!(asking.await.unwrap().status, 200);
    books.agree(23.0).await;
    let running = books.gateway.streams("Hi");
    let stream = books.gpu.asked().await.stream();
    stream.say("some words").await;
    stream.send(format!("data: {}\n\ndata: [DONE]\n\n", usage.replace('\n', ""))).await;
    let said = running.await.unwrap();
    assert_eq!((said.done, said.usage), (true, None), "its client did not ask for it");
    books.agree(46.0).await;
}

#[tokio::test]
async fn what_a_client_left_counts_toward_its_budget() {
    let mut books = books(", spend_per_month: 5", "").await;
    let client = books.gateway.client.clone();
    let asking = tokio::spawn(async move { client.chat(&chat("Hi")).await });
    let asked = books.gpu.asked().await;
    asking.abort();
    books.gateway.is_idle().await;
    let refused = books.gateway.client.chat(&chat("Hi")).await;
    assert_eq!((refused.status, refused.error_code().as_str()), (429, "insufficient_quota"));
    drop(asked);
}

/// A gateway whose only key may have a thousand tokens a minute.
async fn limited() -> Gateway {
    let keys = format!("keys: [{{name: ada, sha256: {DIGEST}, tokens_per_minute: 1000}}]\n");
    let mut gateway = Gateway::start_with_keys(&keys, "").await;
    gateway.client = gateway.client.with_key(Some("key-of-ada"));
    gateway
}

async fn prompt_tokens(gateway: &Gateway) -> u64 {
    let overview = gateway.admin.get("/admin/v1/overview").await.json();
    let tenants = overview["tenants"].as_array().unwrap();
    let ada = tenants.iter().find(|tenant| tenant["name"] == "ada").unwrap();
    ada["prompt_tokens"].as_u64().unwrap()
}

#[tokio::test]
async fn a_client_that_leaves_while_its_prompt_is_read_has_used_it() {
    let gateway = limited().await;
    let mut a = gateway.node("a", 1).await;
    let long = "x".repeat(4000);
    let asking = gateway.asks(&long);
    let asked = a.asked().await;
    asking.abort();
    gateway.is_idle().await;
    assert_eq!(prompt_tokens(&gateway).await, prompt_of(&chat(&long)) as u64);
    let refused = gateway.client.chat(&chat(&long)).await;
    assert_eq!((refused.status, refused.error_code().as_str()), (429, "rate_limit_exceeded"));
    drop(asked);
}

#[tokio::test]
async fn a_client_that_leaves_the_queue_or_whose_node_is_lost_has_used_nothing() {
    let gateway = limited().await;
    let mut a = gateway.node("a", 1).await;
    let first = gateway.asks("one");
    let held = a.asked().await;
    let second = gateway.asks("two");
    eventually("it to wait", async || (gateway.health("/queue_depth").await == 1).then_some(()))
        .await;
    second.abort();
    eventually("it to be gone", async || (gateway.health("/queue_depth").await == 0).then_some(()))
        .await;
    held.reset();
    // Its only node has failed it: it waits for another, and leaves.
    eventually("it to wait", async || (gateway.health("/queue_depth").await == 1).then_some(()))
        .await;
    first.abort();
    gateway.is_idle().await;
    assert_eq!(prompt_tokens(&gateway).await, 0);
}
