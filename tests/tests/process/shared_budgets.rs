//! Budgets of keys at gateways that share their store, in a real PostgreSQL.

use std::sync::Arc;
use std::time::Duration;

use fleet_tests::client::Client;
use fleet_tests::mock_node::{MockNode, healthy};
use fleet_tests::postgres::{Postgres, psql};
use fleet_tests::process::Fleet;
use fleet_tests::{chat, eventually, eventually_within, streamed};
use hyper::Method;
use inference_protocol::resume::Usage;
use rustix::process::Signal;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::interval;

use super::shared_store::{Shared, until_available};

#[tokio::test(flavor = "multi_thread")]
async fn a_budget_is_that_of_all_gateways_and_outlives_a_kill() {
    let Some(server) = Postgres::start(&[]).await else { return };
    let shared = Shared::new(&server.database("flotilla"));
    let (key, keys) = shared.key("tokens_per_month: 30");
    let more = format!("keys_file: {keys}\n{}", shared.store());
    let mut a = Fleet::start(&more).await;
    let b = a.another();
    let mut of_a = MockNode::join(a.client.address(), healthy("n", 1)).await;
    let _of_b = MockNode::join(b.client.address(), healthy("m", 1)).await;
    a.wait_for_slots("n").await;
    b.wait_for_slots("m").await;
    let poor = a.client.with_key(Some(&key));
    let asking = tokio::spawn(async move { poor.chat(&chat("Hi")).await });
    let stream = of_a.asked().await.stream();
    let choice = json!({"index": 0, "message": {"role": "assistant", "content": "!"},
        "finish_reason": "stop"});
    stream.note(&(0..11).collect::<Vec<_>>()).await;
    let used = Usage { prompt: 20, completion: 11, cached: 0 };
    stream.close_marked(used, &json!({"choices": [choice]}).to_string()).await;
    assert_eq!(asking.await.unwrap().status, 200);
    let text = eventually("usage to be stored", async || {
        let table = b.admin.get("/admin/v1/usage").await;
        let text = String::from_utf8(table.body.to_vec()).unwrap();
        text.contains(",poor,").then_some(text)
    })
    .await;
    assert!(text.contains(",poor,standard,flotilla-demo,,20,0,11,0"), "{text}");
    let poor = b.client.with_key(Some(&key));
    // A request for a model that nobody serves is refused for that, as long as it is let in.
    eventually("the other one to refuse", async || {
        let request = json!({"model": "other", "messages": []});
        let refused = poor.post("/v1/chat/completions", request.to_string()).await;
        (refused.error_code() == "insufficient_quota").then_some(())
    })
    .await;
    a.server.signal(Signal::KILL);
    a.server.ended().await;
    a.restart();
    let poor = a.client.with_key(Some(&key));
    let refused = poor.chat(&chat("Hi")).await;
    assert_eq!((refused.status, refused.error_code().as_str()), (429, "insufficient_quota"));
}

/// Asks until the budget is used up. Returns how many tokens the responses say were used.
pub(super) async fn uses_up(client: Client) -> u64 {
    let mut tokens = 0;
    loop {
        let answer = client.chat(&chat("What is the capital of France?")).await;
        if answer.status == 200 {
            tokens += answer.json()["usage"]["total_tokens"].as_u64().unwrap();
            continue;
        }
        match answer.error_code().as_str() {
            "insufficient_quota" => return tokens,
            "rate_limit_exceeded" => {}
            other => panic!("{other}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn racing_requests_at_two_gateways_do_not_exceed_a_budget() {
    let budget = 3000;
    let Some(server) = Postgres::start(&[]).await else { return };
    let shared = Shared::new(&server.database("flotilla"));
    let (key, keys) = shared.key(&format!("tokens_per_month: {budget}"));
    let a = Fleet::start(&format!("keys_file: {keys}\n{}", shared.store())).await;
    let b = a.another();
    let (_of_a, _of_b) = (a.join("a", &[]).await, b.join("b", &[]).await);
    a.wait_for_slots("a").await;
    b.wait_for_slots("b").await;
    let clients = [&a, &b].map(|gateway| gateway.client.with_key(Some(&key)));
    let asking = (0..16).map(|n| tokio::spawn(uses_up(clients[n % 2].clone())));
    let mut tokens = 0;
    for asked in asking.collect::<Vec<_>>() {
        tokens += asked.await.unwrap();
    }
    assert!((budget / 2..=budget).contains(&tokens), "{tokens} of {budget}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_store_only_keys_with_a_budget_are_refused_and_not_before_they_need_more() {
    let Some(mut server) = Postgres::start(&[]).await else { return };
    let shared = Shared::new(&server.database("flotilla"));
    let (key, keys) = shared.key("tokens_per_month: 1000000, max_tokens: 10");
    let gateway = Fleet::start(&format!("keys_file: {keys}\n{}", shared.store())).await;
    let _agent = gateway.join("a", &[]).await;
    gateway.wait_for_slots("a").await;
    let poor = gateway.client.with_key(Some(&key));
    let question = json!({"model": "flotilla-demo", "messages": [], "max_tokens": 1});
    let question = |mut long: String| {
        let mut question = question.clone();
        long.push('?');
        question["messages"] = json!([{"role": "user", "content": long}]);
        question
    };
    assert_eq!(poor.chat(&question(String::new())).await.status, 200);
    server.kill();
    until_available(&gateway, false).await;
    // An eighth of the budget was allotted to the gateway.
    assert_eq!(poor.chat(&question(String::new())).await.status, 200);
    let more = question("x".repeat(200_000));
    let refused = poor.chat(&more).await;
    assert_eq!((refused.status, refused.error_code().as_str()), (503, "store_unavailable"));
    assert_eq!(gateway.client.chat(&chat("Hi")).await.status, 200);
    server.restart().await;
    until_available(&gateway, true).await;
    let refused = poor.chat(&more).await;
    assert_eq!(refused.error_code(), "context_length_exceeded", "it is let in");
}

const CHAT: &str = "/v1/chat/completions";
/// What a killed gateway had is counted when it was silent for ten seconds, within ten more.
const SETTLED: Duration = Duration::from_secs(60);

/// Relays a response of so many tokens and is killed, without an end of the response.
async fn relays_and_is_killed(gateway: &mut Fleet, key: &str, tokens: u32) {
    let mut node = MockNode::join(gateway.client.address(), healthy("n", 1)).await;
    gateway.wait_for_slots("n").await;
    let poor = gateway.client.with_key(Some(key));
    let asking = tokio::spawn(async move { poor.stream(&streamed(chat("Hi"))).await });
    let stream = node.asked().await.stream();
    for token in 0..tokens {
        stream.say_marked(&[token], "a").await;
    }
    let mut read = asking.await.unwrap();
    for _ in 0..tokens {
        assert!(read.next_chunk().await);
    }
    gateway.server.signal(Signal::KILL);
    gateway.server.ended().await;
    gateway.restart();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_killed_gateway_has_relayed_counts_and_the_rest_of_its_allotment_is_free() {
    let Some(server) = Postgres::start(&[]).await else { return };
    let url = server.database("flotilla");
    let shared = Shared::new(&url);
    let (key, keys) = shared.key("tokens_per_month: 100000");
    let mut gateway = Fleet::start(&format!("keys_file: {keys}\n{}", shared.store())).await;
    relays_and_is_killed(&mut gateway, &key, 40).await;
    let number = |sql: &str| psql(&url, sql).unwrap().trim().parse::<u64>().unwrap();
    let allotted = "SELECT coalesce(sum(amount), 0) FROM allotments";
    let used = "SELECT coalesce(sum(tokens), 0) FROM usage_sums WHERE name = 'poor'";
    assert!(number(allotted) > 0, "until it is known what was used");
    eventually_within(SETTLED, "the allotment to be free", async || {
        (number(allotted) == 0).then_some(())
    })
    .await;
    let used = number(used);
    assert!((40..40 + 50).contains(&used), "40 tokens and a short prompt, not {used}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_alone_knows_after_a_kill_what_it_had_relayed() {
    let folder = fleet_tests::process::Folder::new();
    let shared = Shared { folder };
    let (key, keys) = shared.key("tokens_per_month: 50");
    let store = format!("store: {{dir: '{}/store'}}\n", shared.folder.path().display());
    let mut gateway = Fleet::start(&format!("keys_file: {keys}\n{store}")).await;
    relays_and_is_killed(&mut gateway, &key, 50).await;
    let poor = gateway.client.with_key(Some(&key));
    eventually_within(SETTLED, "the budget to be used up", async || {
        // A request for a model that nobody serves is refused for that, as long as it is let in.
        let request = json!({"model": "other", "messages": []});
        let refused = poor.post("/v1/chat/completions", request.to_string()).await;
        (refused.error_code() == "insufficient_quota").then_some(())
    })
    .await;
    let left = std::fs::read_dir(shared.folder.path().join("store")).unwrap();
    let names = left.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let files = names.into_iter().filter(|name| name.starts_with("budgets-"));
    assert!(files.count() <= 1, "that of the killed gateway is gone");
}

/// Streams until the budget is used up, whatever happens to the gateway. Returns how many tokens
/// were seen: of a response that was cut off, those that have arrived.
async fn streams_until_used_up(client: Client, seen: Arc<watch::Sender<usize>>) {
    let mut request = streamed(chat("What is the capital of France?"));
    request["max_tokens"] = 40.into();
    request["stream_options"] = json!({"include_usage": true});
    let mut plain = chat("What is the capital of France?");
    plain["max_tokens"] = 40.into();
    let plain = plain.to_string();
    let mut pace = interval(Duration::from_millis(20));
    loop {
        pace.tick().await;
        let Ok(mut stream) = client.try_stream(&request).await else { continue };
        let status = stream.status;
        while stream.next_chunk().await {
            seen.send_modify(|tokens| *tokens += 1);
        }
        let transcript = stream.into_transcript();
        if let Some(usage) = transcript.usage.filter(|_| status == 200) {
            let all = usage["total_tokens"].as_u64().unwrap() as usize;
            seen.send_modify(|tokens| *tokens += all - transcript.chunks);
        }
        if status == 429 {
            let Ok(answer) = client.try_send(Method::POST, CHAT, plain.clone().into()).await else {
                continue;
            };
            match answer.status {
                200 => {
                    let used = answer.json()["usage"]["total_tokens"].as_u64().unwrap();
                    seen.send_modify(|tokens| *tokens += used as usize);
                }
                // So few tokens may be left that no prompt fits.
                429 if answer.error_code() == "insufficient_quota" => return,
                _ => {}
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_budget_is_not_exceeded_although_gateways_are_killed() {
    let budget = 8000;
    let Some(server) = Postgres::start(&[]).await else { return };
    let url = server.database("flotilla");
    let shared = Shared::new(&url);
    let (key, keys) = shared.key(&format!("tokens_per_month: {budget}"));
    let a = Fleet::start(&format!("keys_file: {keys}\n{}", shared.store())).await;
    let b = a.another();
    let _agent = a.join("n", &["--join", &b.url, "--slots", "4"]).await;
    b.wait_for_slots("n").await;
    let seen = Arc::new(watch::Sender::new(0));
    let asking: Vec<_> = [&a, &b, &a, &b, &a, &b]
        .map(|gateway| gateway.client.with_key(Some(&key)))
        .map(|client| tokio::spawn(streams_until_used_up(client, seen.clone())))
        .into();
    let mut gateways = [a, b];
    for kill in 0..4 {
        let mut seen = seen.subscribe();
        seen.wait_for(|tokens| *tokens >= (kill + 1) * budget / 8).await.unwrap();
        let killed = &mut gateways[kill % 2];
        killed.server.signal(Signal::KILL);
        killed.server.ended().await;
        killed.restart();
        killed.wait_for_slots("n").await;
    }
    for asked in asking {
        asked.await.unwrap();
    }
    let seen = *seen.borrow();
    let sql = "SELECT tokens FROM usage_sums WHERE name = 'poor' AND kind = 'month'";
    let used = || psql(&url, sql).unwrap().trim().parse::<usize>().unwrap();
    eventually("all use to be stored", async || (used() >= seen).then_some(())).await;
    assert!(used() <= budget, "{seen} seen, {} counted, of {budget}", used());
    assert!(seen > budget * 8 / 10, "{seen} of {budget}: too much was held back");
}
