//! What a key may use.

use fleet_tests::client::{Answer, Client};
use fleet_tests::mock_node::MockNode;
use fleet_tests::{chat, streamed};
use serde_json::json;
use tokio::task::JoinHandle;

use super::Gateway;

const DIGEST: &str = "5532e44183f47ed1fc146851b96d585c24da5bd5fe31a885cebc357261ed8f7f";

/// A gateway whose only key has these limits.
async fn limited(limits: &str) -> (Gateway, Client) {
    let keys = format!("keys: [{{name: ada, sha256: {DIGEST}, {limits}}}]\n");
    let gateway = Gateway::start_with_keys(&keys, "").await;
    let client = gateway.client.with_key(Some("key-of-ada"));
    (gateway, client)
}

fn ask(client: &Client) -> JoinHandle<Answer> {
    let client = client.clone();
    tokio::spawn(async move { client.chat(&chat("Hi")).await })
}

async fn answered(client: &Client, node: &mut MockNode, total_tokens: u32) -> Answer {
    let asking = ask(client);
    let usage = json!({"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": total_tokens});
    let body = json!({"choices": [], "usage": usage}).to_string();
    node.asked().await.reply(200, "application/json", body);
    asking.await.unwrap()
}

fn is_refused(answer: &Answer) -> u32 {
    assert_eq!((answer.status, answer.error_code().as_str()), (429, "rate_limit_exceeded"));
    assert_eq!(answer.json()["error"]["type"], "rate_limit_error");
    answer.header("retry-after").unwrap().parse().unwrap()
}

#[tokio::test]
async fn requests_a_minute_have_a_limit_and_every_answer_says_what_is_left() {
    let (gateway, client) = limited("requests_per_minute: 2").await;
    let mut a = gateway.node("a", 1).await;
    for left in ["1", "0"] {
        let answer = answered(&client, &mut a, 10).await;
        assert_eq!(answer.status, 200);
        assert_eq!(answer.header("x-ratelimit-limit-requests"), Some("2"));
        assert_eq!(answer.header("x-ratelimit-remaining-requests"), Some(left));
        assert!(answer.header("x-ratelimit-reset-requests").unwrap().ends_with('s'));
        assert_eq!(answer.header("x-ratelimit-limit-tokens"), None);
    }
    let refused = ask(&client).await.unwrap();
    assert!((20..=30).contains(&is_refused(&refused)), "{:?}", refused.headers);
    assert_eq!(refused.header("x-ratelimit-remaining-requests"), Some("0"));
    assert!(a.is_asked().is_none());
    gateway.is_idle().await;
}

#[tokio::test]
async fn tokens_a_minute_are_those_that_the_answer_tells() {
    let (gateway, client) = limited("tokens_per_minute: 4000").await;
    let mut a = gateway.node("a", 1).await;
    // Far more than was reserved: the next request owes the rest.
    let first = answered(&client, &mut a, 4_100).await;
    let left: u32 = first.header("x-ratelimit-remaining-tokens").unwrap().parse().unwrap();
    assert!(left > 3_600, "only an estimate yet");
    let wait = is_refused(&ask(&client).await.unwrap());
    assert!((1..=10).contains(&wait), "{wait}");
    assert!(a.is_asked().is_none());
    gateway.is_idle().await;
}

#[tokio::test]
async fn a_stream_counts_by_the_usage_that_it_tells() {
    let (gateway, client) = limited("tokens_per_minute: 4000").await;
    let mut a = gateway.node("a", 1).await;
    let reader = client.clone();
    let asking = tokio::spawn(async move { reader.stream(&streamed(chat("Hi"))).await });
    let stream = a.asked().await.stream();
    stream.say("Hello").await;
    let usage = json!({"choices": [], "usage": {"total_tokens": 4_100}});
    stream.send(format!("data: {usage}\n\n")).await;
    stream.done().await;
    assert!(asking.await.unwrap().finish().await.done);
    gateway.is_idle().await;
    is_refused(&ask(&client).await.unwrap());
}

#[tokio::test]
async fn an_answer_whose_client_leaves_counts_by_its_tokens() {
    let (gateway, client) = limited("tokens_per_minute: 10000").await;
    let mut a = gateway.node("a", 1).await;
    let asking = ask(&client);
    let stream = a.asked().await.stream();
    stream.note(&[7; 12_000]).await;
    drop(stream);
    // Another node is told of the tokens, so they are known.
    let mut b = gateway.node("b", 1).await;
    assert_eq!(b.asked().await.resume.choices[0].tokens.len(), 12_000);
    asking.abort();
    gateway.is_idle().await;
    is_refused(&ask(&client).await.unwrap());
}

#[tokio::test]
async fn a_refused_request_reserves_nothing() {
    let (gateway, client) = limited("tokens_per_minute: 1000").await;
    let mut a = gateway.node("a", 1).await;
    for _ in 0..6 {
        let asking = ask(&client);
        a.asked().await.refuse(400);
        assert_eq!(asking.await.unwrap().status, 400);
    }
    assert_eq!(answered(&client, &mut a, 10).await.status, 200);
}

#[tokio::test]
async fn requests_side_by_side_have_a_limit() {
    let (gateway, client) = limited("concurrent_max: 1").await;
    let mut a = gateway.node("a", 4).await;
    let first = ask(&client);
    let held = a.asked().await;
    let refused = ask(&client).await.unwrap();
    is_refused(&refused);
    assert!(
        refused.json()["error"]["message"]
            .as_str()
            .unwrap()
            .contains("limit of concurrent requests")
    );
    held.answer("done");
    assert_eq!(first.await.unwrap().status, 200);
    gateway.is_idle().await;
    assert_eq!(answered(&client, &mut a, 10).await.status, 200);
}

#[tokio::test]
async fn a_key_may_be_kept_to_some_models() {
    let (gateway, client) = limited("models: [other]").await;
    let _a = gateway.node("a", 1).await;
    let refused = ask(&client).await.unwrap();
    assert_eq!((refused.status, refused.error_code().as_str()), (403, "model_not_allowed"));
    assert_eq!(refused.json()["error"]["param"], "model");
    let listed = client.get("/v1/models").await.json();
    assert_eq!(listed["data"], json!([]), "it does not see the others either");
    assert_eq!(client.get("/v1/models/flotilla-demo").await.status, 404);
}
