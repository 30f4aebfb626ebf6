//! Budgets of money, and of the users of a key, at gateways that share their store, in a real
//! PostgreSQL.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fleet_tests::client::Client;
use fleet_tests::mock_node::MockNode;
use fleet_tests::postgres::{Postgres, psql};
use fleet_tests::process::Fleet;
use fleet_tests::{chat, eventually, eventually_within};
use hyper::Method;
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::interval;

use super::shared_store::{Shared, until_available};

/// Most tokens of a response, and what it costs: one for each.
const COST: u64 = 40;
/// Allotments that a gateway does not need are free within ten seconds, and what a killed one had
/// within thirty.
const FREE: Duration = Duration::from_secs(60);

/// An external endpoint with a model of its own, which costs one for a token of a response.
fn external(url: &str, model: &str, day_max: &str) -> String {
    let prices = "prompt_price_per_million: 0, completion_price_per_million: 1000000";
    let more = format!("concurrent_max: 64, {prices}{day_max}");
    format!("external: [{{name: gpu, url: '{url}', models: [{model}], {more}}}]\n")
}

/// A question that costs at most [`COST`].
fn question(model: &str) -> Value {
    let mut question = chat("What is the capital of France?");
    question["model"] = model.into();
    question["max_tokens"] = COST.into();
    question
}

/// Answers every request as dear as it may be. Returns what was paid so far.
fn answers(mut endpoint: MockNode) -> (JoinHandle<()>, Arc<AtomicU64>) {
    let paid = Arc::<AtomicU64>::default();
    let sum = paid.clone();
    let answering = tokio::spawn(async move {
        loop {
            let asked = endpoint.asked().await;
            sum.fetch_add(COST, Ordering::Relaxed);
            let choice = json!({"index": 0, "finish_reason": "stop",
                "message": {"role": "assistant", "content": "Paris."}});
            let usage = json!({"prompt_tokens": 9, "completion_tokens": COST});
            let body = json!({"choices": [choice], "usage": usage}).to_string();
            asked.reply(200, "application/json", body);
        }
    });
    (answering, paid)
}

async fn until_external(gateway: &Fleet) {
    eventually("the endpoint to be ready", async || {
        (gateway.health().await["external"]["ready"] == 1).then_some(())
    })
    .await;
}

/// Asks again and again, until all of the budget is paid.
async fn asks_until_paid(client: Client, paid: Arc<AtomicU64>, budget: u64) {
    let client = client.with_header("x-flotilla-deadline-ms", "200");
    while paid.load(Ordering::Relaxed) < budget {
        let answer = client.chat(&question("gpu-model")).await;
        let is_refused =
            || ["queue_timeout", "insufficient_quota"].contains(&&*answer.error_code());
        assert!(answer.status == 200 || is_refused(), "{:?}", answer.body);
    }
}

/// Requests at two gateways pay all of a budget, and no more.
async fn pay_all_of(key: &str, day_max: &str, budget: u64) {
    let Some(server) = Postgres::start(&[]).await else { return };
    let shared = Shared::new(&server.database("flotilla"));
    let (url, endpoint) = MockNode::external().await;
    let (answering, paid) = answers(endpoint);
    let (key, keys) = shared.key(key);
    let external = external(&url, "gpu-model", day_max);
    let a = Fleet::start(&format!("keys_file: {keys}\n{external}{}", shared.store())).await;
    let b = a.another();
    until_external(&a).await;
    until_external(&b).await;
    let clients = [&a, &b].map(|gateway| gateway.client.with_key(Some(&key)));
    let asking: Vec<_> = (0..12)
        .map(|n| tokio::spawn(asks_until_paid(clients[n % 2].clone(), paid.clone(), budget)))
        .collect();
    for asked in asking {
        asked.await.unwrap();
    }
    for client in clients {
        let client = client.with_header("x-flotilla-deadline-ms", "200");
        // A gateway knows within five seconds what the other one has spent.
        let refused = client.chat(&question("gpu-model")).await;
        assert!(["queue_timeout", "insufficient_quota"].contains(&&*refused.error_code()));
    }
    assert_eq!(paid.load(Ordering::Relaxed), budget);
    answering.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn racing_requests_at_two_gateways_do_not_exceed_what_an_endpoint_may_cost_on_a_day() {
    pay_all_of("external: overflow", ", spend_per_day_max: 4000", 4000).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn racing_requests_at_two_gateways_do_not_exceed_what_a_key_may_spend_in_a_month() {
    pay_all_of("external: overflow, spend_per_month: 4000", "", 4000).await;
}

/// Asks again and again, whatever happens to the gateway.
async fn asks(client: Client) {
    let client = client.with_header("x-flotilla-deadline-ms", "200");
    let mut pace = interval(Duration::from_millis(20));
    loop {
        pace.tick().await;
        let body = question("gpu-model").to_string().into();
        let _ = client.try_send(Method::POST, "/v1/chat/completions", body).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_key_may_spend_is_not_exceeded_although_gateways_are_killed() {
    let (budget, kills) = (4000, 4);
    let Some(server) = Postgres::start(&[]).await else { return };
    let database = server.database("flotilla");
    let shared = Shared::new(&database);
    let (url, endpoint) = MockNode::external().await;
    let (answering, paid) = answers(endpoint);
    let (key, keys) = shared.key(&format!("external: overflow, spend_per_month: {budget}"));
    let external = external(&url, "gpu-model", "");
    let a = Fleet::start(&format!("keys_file: {keys}\n{external}{}", shared.store())).await;
    let b = a.another();
    until_external(&a).await;
    until_external(&b).await;
    let clients = [&a, &b].map(|gateway| gateway.client.with_key(Some(&key)));
    let asking: Vec<_> = (0..12).map(|n| tokio::spawn(asks(clients[n % 2].clone()))).collect();
    let mut gateways = [a, b];
    for kill in 0..kills {
        eventually_within(FREE, "more to be paid", async || {
            (paid.load(Ordering::Relaxed) >= (kill + 1) * budget / 8).then_some(())
        })
        .await;
        let killed = &mut gateways[kill as usize % 2];
        killed.server.signal(Signal::KILL);
        killed.server.ended().await;
        killed.restart();
    }
    let counted = || {
        let sql = "SELECT cost FROM usage_sums WHERE name = 'poor' AND kind = 'month'";
        psql(&database, sql).unwrap().trim().parse::<u64>().unwrap_or(0) / 1_000_000_000
    };
    eventually_within(FREE * 2, "the budget to be used up", async || {
        (counted() >= budget).then_some(())
    })
    .await;
    asking.iter().for_each(JoinHandle::abort);
    let paid = paid.load(Ordering::Relaxed);
    assert_eq!(counted(), budget);
    assert!(paid <= budget, "{paid} of {budget}");
    assert!(paid > budget * 6 / 10, "{paid} of {budget}: too much was held back");
    answering.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn racing_requests_at_two_gateways_do_not_exceed_the_budget_of_a_user() {
    let budget = 2000;
    let Some(server) = Postgres::start(&[]).await else { return };
    let shared = Shared::new(&server.database("flotilla"));
    let limits = format!("users: header, user_limits: {{tokens_per_month: {budget}}}");
    let (key, keys) = shared.key(&limits);
    let a = Fleet::start(&format!("keys_file: {keys}\n{}", shared.store())).await;
    let b = a.another();
    let _agent = a.join("n", &["--join", &b.url, "--slots", "4"]).await;
    b.wait_for_slots("n").await;
    let clients = [&a, &b].map(|gateway| gateway.client.with_key(Some(&key)));
    let asking: Vec<_> = (0..8)
        .map(|n| clients[n % 2].with_header("x-user-id", "ada"))
        .map(|client| tokio::spawn(super::shared_budgets::uses_up(client)))
        .collect();
    let mut tokens = 0;
    for asked in asking {
        tokens += asked.await.unwrap();
    }
    assert!((budget / 2..=budget).contains(&tokens), "{tokens} of {budget}");
    let other = clients[0].with_header("x-user-id", "bob");
    assert_eq!(other.chat(&chat("Hi")).await.status, 200, "another user");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_killed_gateway_may_have_paid_counts_and_the_rest_of_its_allotment_is_free() {
    let Some(server) = Postgres::start(&[]).await else { return };
    let database = server.database("flotilla");
    let shared = Shared::new(&database);
    let (url, mut endpoint) = MockNode::external().await;
    let (key, keys) = shared.key("external: overflow, spend_per_month: 4000");
    let external = external(&url, "gpu-model", "");
    let mut gateway =
        Fleet::start(&format!("keys_file: {keys}\n{external}{}", shared.store())).await;
    until_external(&gateway).await;
    let client = gateway.client.with_key(Some(&key));
    let asking = tokio::spawn(async move {
        let body = question("gpu-model").to_string().into();
        client.try_send(Method::POST, "/v1/chat/completions", body).await
    });
    let _asked = endpoint.asked().await;
    gateway.server.signal(Signal::KILL);
    gateway.server.ended().await;
    assert!(asking.await.unwrap().is_err());
    let number = |sql: &str| psql(&database, sql).unwrap().trim().parse::<u64>().unwrap();
    let allotted = "SELECT coalesce(sum(amount), 0) FROM allotments WHERE kind = 'spend'";
    assert!(number(allotted) > 0, "until it is known what was paid");
    gateway.restart();
    eventually_within(FREE, "the allotment to be free", async || {
        (number(allotted) == 0).then_some(())
    })
    .await;
    let spent = "SELECT cost FROM usage_sums WHERE name = 'poor' AND kind = 'month'";
    assert_eq!(number(spent), COST * 1_000_000_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_store_nothing_is_paid_beyond_an_allotment_and_nodes_answer() {
    let Some(mut server) = Postgres::start(&[]).await else { return };
    let shared = Shared::new(&server.database("flotilla"));
    let (url, endpoint) = MockNode::external().await;
    let (answering, paid) = answers(endpoint);
    let (key, keys) = shared.key("external: prefer, spend_per_month: 1000");
    let external = external(&url, "flotilla-demo", "");
    let gateway = Fleet::start(&format!("keys_file: {keys}\n{external}{}", shared.store())).await;
    let _agent = gateway.join("n", &[]).await;
    gateway.wait_for_slots("n").await;
    until_external(&gateway).await;
    let client = gateway.client.with_key(Some(&key));
    let client = client.with_header("x-flotilla-class", "interactive");
    let ask = async || client.chat(&question("flotilla-demo")).await;
    let answer = ask().await;
    assert_eq!(answer.header("x-flotilla-endpoint"), Some("external:gpu"));
    server.kill();
    until_available(&gateway, false).await;
    let at_node = eventually("the allotment to be used up", async || {
        let answer = ask().await;
        assert_eq!(answer.status, 200);
        (answer.header("x-flotilla-endpoint") == Some("n")).then_some(())
    });
    at_node.await;
    let before = paid.load(Ordering::Relaxed);
    assert!(before < 500, "{before} of 1000: what one gateway is allotted at once");
    server.restart().await;
    until_available(&gateway, true).await;
    eventually("the endpoint to be paid again", async || {
        let answer = ask().await;
        (answer.header("x-flotilla-endpoint") == Some("external:gpu")).then_some(())
    })
    .await;
    answering.abort();
}
