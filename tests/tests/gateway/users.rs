//! Users behind one key: fair turns, limits of their own, bounded state; and classes of aliases.

use fleet_tests::client::{Answer, Client};
use fleet_tests::mock_node::{Asked, MockNode};
use fleet_tests::process::{Folder, metric};
use fleet_tests::{chat, eventually};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::Gateway;

const ADA: &str = "5532e44183f47ed1fc146851b96d585c24da5bd5fe31a885cebc357261ed8f7f";
const BOB: &str = "808a1d81b5de08d72083995df738947d519d230a20c236003268f0f4b65ee475";

/// A gateway with the key of Open WebUI, of which more is said, and another key.
async fn gateway(more: &str) -> (Gateway, Client, Client) {
    let keys = format!(
        "keys: [{{name: webui, sha256: {ADA}, {more}}}, {{name: bob, sha256: {BOB}}}]\n\
         aliases: {{titles: {{model: flotilla-demo, class: batch}}, chat: flotilla-demo}}\n"
    );
    let gateway = Gateway::start_with_keys(&keys, "").await;
    let [webui, bob] = ["key-of-ada", "key-of-bob"].map(|key| gateway.client.with_key(Some(key)));
    (gateway, webui, bob)
}

fn user(client: &Client, id: &str) -> Client {
    client.with_header("X-OpenWebUI-User-Id", id)
}

fn ask(client: &Client, request: Value) -> JoinHandle<Answer> {
    let client = client.clone();
    tokio::spawn(async move { client.chat(&request).await })
}

fn with(text: &str, field: &str, value: Value) -> Value {
    let mut request = chat(text);
    request[field] = value;
    request
}

async fn waits(gateway: &Gateway, depth: u64) {
    eventually("the queue", async || (gateway.health("/queue_depth").await == depth).then_some(()))
        .await;
}

/// Answers what waits, one after the other; returns the order.
async fn answer_all(node: &mut MockNode, count: usize) -> Vec<String> {
    let mut order = Vec::new();
    for _ in 0..count {
        let asked = node.asked().await;
        order.push(asked.body["messages"][0]["content"].as_str().unwrap().to_string());
        asked.answer("done");
    }
    order
}

async fn answered(node: &mut MockNode, asking: JoinHandle<Answer>, total_tokens: u32) -> Answer {
    let usage = json!({"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": total_tokens});
    let body = json!({"choices": [], "usage": usage}).to_string();
    node.asked().await.reply(200, "application/json", body);
    asking.await.unwrap()
}

/// Refused, with the user's limit as the reason.
fn is_over_limit(answer: &Answer, code: &str) {
    assert_eq!((answer.status, answer.error_code().as_str()), (429, code));
    let error = answer.json()["error"]["message"].to_string();
    assert!(error.contains("this user of the API key"), "{error}");
}

async fn refusals(gateway: &Gateway, reason: &str) -> f64 {
    let name = format!("gateway_refusals_total{{reason=\"{reason}\",tenant=\"webui\"}}");
    metric(&gateway.admin, &name).await
}

/// While a slot is taken, five requests of one user and one of another wait; returns the order.
async fn five_and_one(gateway: &Gateway, a: &mut MockNode, asks: [(Client, Value); 2]) -> usize {
    let [(first, many), (second, one)] = asks;
    let running = ask(&first, many.clone());
    let held = a.asked().await;
    let mut waiting = vec![running];
    for depth in 1..=5 {
        waiting.push(ask(&first, many.clone()));
        waits(gateway, depth).await;
    }
    waiting.push(ask(&second, one));
    waits(gateway, 6).await;
    held.answer("done");
    let order = answer_all(a, 6).await;
    for answer in waiting {
        assert_eq!(answer.await.unwrap().status, 200);
    }
    gateway.is_idle().await;
    order.iter().position(|text| text == "few").unwrap()
}

#[tokio::test]
async fn two_users_behind_one_key_share_fairly_by_a_header() {
    let (gateway, webui, _) = gateway("users: header").await;
    let mut a = gateway.node("a", 1).await;
    let [many, few] = ["u-many", "u-few"].map(|id| user(&webui, id));
    let place = five_and_one(&gateway, &mut a, [(many, chat("many")), (few, chat("few"))]).await;
    assert!(place <= 1, "{place}");
}

#[tokio::test]
async fn two_users_behind_one_key_share_fairly_by_a_field() {
    let (gateway, webui, _) = gateway("users: field").await;
    let mut a = gateway.node("a", 1).await;
    let many = with("many", "user", "u-many".into());
    let few = with("few", "metadata", json!({"user_id": "u-few"}));
    let place = five_and_one(&gateway, &mut a, [(webui.clone(), many), (webui, few)]).await;
    assert!(place <= 1, "{place}");
}

#[tokio::test]
async fn without_users_the_requests_of_a_key_are_served_in_order() {
    let (gateway, webui, _) = gateway("class_max: interactive").await;
    let mut a = gateway.node("a", 1).await;
    let [many, few] = ["u-many", "u-few"].map(|id| user(&webui, id));
    let place = five_and_one(&gateway, &mut a, [(many, chat("many")), (few, chat("few"))]).await;
    assert_eq!(place, 5);
}

#[tokio::test]
async fn many_users_of_one_key_do_not_hold_up_another_key() {
    let (gateway, webui, bob) = gateway("users: header").await;
    let mut a = gateway.node("a", 1).await;
    let running = ask(&user(&webui, "0"), chat("webui"));
    let held = a.asked().await;
    let mut waiting = vec![running];
    for number in 1..=8 {
        waiting.push(ask(&user(&webui, &number.to_string()), chat("webui")));
        waits(&gateway, number).await;
    }
    for depth in 9..=10 {
        waiting.push(ask(&bob, chat("bob")));
        waits(&gateway, depth).await;
    }
    held.answer("done");
    let order = answer_all(&mut a, 10).await;
    let bobs = order[..4].iter().filter(|text| *text == "bob").count();
    assert_eq!(bobs, 2, "one of each tenant in turn: {order:?}");
    for answer in waiting {
        assert_eq!(answer.await.unwrap().status, 200);
    }
}

/// Answers with that many tokens, and says whose request it was.
fn end_with(asked: Asked, tokens: impl Fn(&str) -> usize) -> String {
    let text = asked.body["messages"][0]["content"].as_str().unwrap().to_string();
    let tokens = tokens(&text);
    let message = json!({"role": "assistant", "content": "and so on ".repeat(tokens)});
    let usage = json!({"prompt_tokens": 10, "completion_tokens": tokens,
        "total_tokens": 10 + tokens});
    let choice = json!({"index": 0, "message": message, "finish_reason": "stop"});
    let body = json!({"choices": [choice], "usage": usage}).to_string();
    asked.reply(200, "application/json", body);
    text
}

#[tokio::test]
async fn a_tenant_whose_answers_are_long_waits_for_those_whose_answers_are_short() {
    let (gateway, long, short) = gateway("class_max: interactive").await;
    let mut a = gateway.node("a", 1).await;
    // Nothing tells them apart before they end. One answer of 900 tokens is worth 30 of 30.
    let tokens = |text: &str| if text == "long" { 900 } else { 30 };
    let mut waiting = vec![ask(&long, chat("long"))];
    let held = a.asked().await;
    for depth in 1..20 {
        let is_long = depth <= 3;
        let (client, text) = if is_long { (&long, "long") } else { (&short, "short") };
        waiting.push(ask(client, chat(text)));
        waits(&gateway, depth).await;
    }
    let mut order = vec![end_with(held, tokens)];
    while order.len() < 20 {
        order.push(end_with(a.asked().await, tokens));
    }
    for answer in waiting {
        assert_eq!(answer.await.unwrap().status, 200);
    }
    let early = order[..16].iter().filter(|text| *text == "long").count();
    assert!(early <= 2, "{order:?}");
}

#[tokio::test]
async fn each_user_has_its_own_requests_a_minute_and_refusals_cost_the_key_nothing() {
    let limits = "users: header, requests_per_minute: 5, user_limits: {requests_per_minute: 2}";
    let (gateway, webui, _) = gateway(limits).await;
    let mut a = gateway.node("a", 1).await;
    let [ada, eve] = ["ada", "eve"].map(|id| user(&webui, id));
    for _ in 0..2 {
        assert_eq!(answered(&mut a, ask(&ada, chat("Hi")), 5).await.status, 200);
    }
    for _ in 0..9 {
        let refused = ask(&ada, chat("Hi")).await.unwrap();
        is_over_limit(&refused, "rate_limit_exceeded");
        let wait: u32 = refused.header("retry-after").unwrap().parse().unwrap();
        assert!((20..=30).contains(&wait), "{wait}");
    }
    let answer = answered(&mut a, ask(&eve, chat("Hi")), 5).await;
    assert_eq!(answer.header("x-ratelimit-remaining-requests"), Some("2"), "what the key has");
    assert_eq!(refusals(&gateway, "limit_user_requests").await, 9.0);
    // Requests without an id are together one more user.
    for status in [200, 200, 429] {
        let asking = ask(&webui, chat("Hi"));
        let answer = match status {
            200 => answered(&mut a, asking, 5).await,
            _ => asking.await.unwrap(),
        };
        assert_eq!(answer.status, status);
    }
    assert!(a.is_asked().is_none());
    gateway.is_idle().await;
}

#[tokio::test]
async fn each_user_has_its_own_tokens_a_minute_and_concurrent_requests() {
    let limits = "users: field, user_limits: {tokens_per_minute: 4000, concurrent_max: 1}";
    let (gateway, webui, _) = gateway(limits).await;
    let mut a = gateway.node("a", 4).await;
    let of = |id: &str| with("Hi", "safety_identifier", id.into());
    let first = ask(&webui, of("ada"));
    let held = a.asked().await;
    is_over_limit(&ask(&webui, of("ada")).await.unwrap(), "rate_limit_exceeded");
    assert_eq!(refusals(&gateway, "limit_user_concurrent").await, 1.0);
    assert_eq!(answered(&mut a, ask(&webui, of("eve")), 4_100).await.status, 200);
    held.answer("done");
    assert_eq!(first.await.unwrap().status, 200);
    gateway.is_idle().await;
    is_over_limit(&ask(&webui, of("eve")).await.unwrap(), "rate_limit_exceeded");
    assert_eq!(refusals(&gateway, "limit_user_tokens").await, 1.0);
    assert_eq!(answered(&mut a, ask(&webui, of("ada")), 5).await.status, 200);
}

#[tokio::test]
async fn a_user_that_has_used_its_month_is_refused_after_a_restart_too() {
    let folder = Folder::new();
    let state = folder.path().join("state.json");
    let keys = format!(
        "state_file: '{}'\nkeys: [{{name: webui, sha256: {ADA}, users: header, user_limits: \
         {{tokens_per_month: 100}}}}]\n",
        state.display()
    );
    let first = Gateway::start_with_keys(&keys, "").await;
    let mut a = first.node("a", 1).await;
    let ada = |gateway: &Gateway| user(&gateway.client.with_key(Some("key-of-ada")), "ada");
    assert_eq!(answered(&mut a, ask(&ada(&first), chat("Hi")), 100).await.status, 200);
    first.is_idle().await;
    is_over_limit(&ask(&ada(&first), chat("Hi")).await.unwrap(), "insufficient_quota");
    assert_eq!(refusals(&first, "insufficient_user_quota").await, 1.0);
    let eve = user(&first.client.with_key(Some("key-of-ada")), "eve");
    assert_eq!(answered(&mut a, ask(&eve, chat("Hi")), 9).await.status, 200);
    first.is_idle().await;
    // Operators see pseudonyms and their usage.
    let overview = first.admin.get("/admin/v1/overview").await.json();
    let tenants = overview["tenants"].as_array().unwrap();
    let webui = tenants.iter().find(|tenant| tenant["name"] == "webui").unwrap();
    let tokens: Vec<_> = webui["users"].as_array().unwrap().iter().collect();
    assert_eq!(tokens.iter().map(|u| &u["tokens_this_month"]).collect::<Vec<_>>(), [100, 9]);
    let name = tokens[0]["user"].as_str().unwrap().to_string();
    assert!(name.len() == 16 && name != "ada", "{name}");
    let saved = || std::fs::read_to_string(&state).ok();
    let saved = eventually("both to be saved", async || {
        saved().filter(|text| text.contains(&name) && text.contains("\"tokens\": 109"))
    });
    assert!(!saved.await.contains("eve"));
    drop(first);
    let second = Gateway::start_with_keys(&keys, "").await;
    is_over_limit(&ask(&ada(&second), chat("Hi")).await.unwrap(), "insufficient_quota");
}

#[tokio::test]
async fn a_flood_of_invented_users_stays_within_the_bound() {
    let (gateway, webui, bob) = gateway("users: header, users_max: 3").await;
    let mut a = gateway.node("a", 4).await;
    for number in 0..40 {
        let asking = ask(&user(&webui, &number.to_string()), chat("Hi"));
        assert_eq!(answered(&mut a, asking, 5).await.status, 200);
        gateway.is_idle().await;
    }
    let tracked = "gateway_users{tenant=\"webui\"}";
    assert_eq!(metric(&gateway.admin, tracked).await, 3.0);
    let evicted = "gateway_users_evicted_total{tenant=\"webui\"}";
    assert_eq!(metric(&gateway.admin, evicted).await, 37.0);
    // Three users have running requests: a fourth must wait for one of them.
    let mut held = Vec::new();
    for number in 0..3 {
        let asking = ask(&user(&webui, &number.to_string()), chat("Hi"));
        held.push((a.asked().await, asking));
    }
    let refused = ask(&user(&webui, "3"), chat("Hi")).await.unwrap();
    assert_eq!((refused.status, refused.error_code().as_str()), (429, "rate_limit_exceeded"));
    assert!(refused.json()["error"]["message"].to_string().contains("users_max"));
    assert!(refused.header("retry-after").is_some());
    assert_eq!(refusals(&gateway, "limit_users").await, 1.0);
    assert_eq!(answered(&mut a, ask(&bob, chat("Hi")), 5).await.status, 200, "another key");
    for (asked, asking) in held {
        asked.answer("done");
        assert_eq!(asking.await.unwrap().status, 200);
    }
    gateway.is_idle().await;
    // No series is named after a user.
    let metrics = String::from_utf8(gateway.admin.get("/metrics").await.body.to_vec()).unwrap();
    assert!(!metrics.contains("user=") && !metrics.contains("user_id"), "{metrics}");
}

#[tokio::test]
async fn a_user_that_fills_the_queue_leaves_room_for_another() {
    let (gateway, webui, _) = gateway("users: header, queue_depth_max: 4").await;
    let mut a = gateway.node("a", 1).await;
    let [many, few] = ["u-many", "u-few"].map(|id| user(&webui, id));
    let mut waiting = vec![ask(&many, chat("many"))];
    let held = a.asked().await;
    for depth in 1..=3 {
        waiting.push(ask(&many, chat("many")));
        waits(&gateway, depth).await;
    }
    let refused = ask(&many, chat("many")).await.unwrap();
    assert_eq!((refused.status, refused.error_code().as_str()), (429, "queue_full"));
    assert!(refused.json()["error"]["message"].to_string().contains("this user"));
    assert_eq!(refusals(&gateway, "queue_full_user").await, 1.0);
    waiting.push(ask(&few, chat("few")));
    waits(&gateway, 4).await;
    held.answer("done");
    answer_all(&mut a, 4).await;
    for answer in waiting {
        assert_eq!(answer.await.unwrap().status, 200);
    }
}

#[tokio::test]
async fn an_id_that_is_too_long_is_refused_with_the_name_of_its_header_or_field() {
    let long = "x".repeat(513);
    let (gateway, webui, _) = gateway("users: header, user_header: X-Mine").await;
    let refused = ask(&webui.with_header("x-mine", &long), chat("Hi")).await.unwrap();
    assert_eq!((refused.status, refused.error_code().as_str()), (400, "invalid_header"));
    assert_eq!(refused.json()["error"]["param"], "x-mine");
    let keys = format!("keys: [{{name: webui, sha256: {ADA}, users: field}}]\n");
    gateway.reconfigure(&keys).await;
    let refused = ask(&webui, with("Hi", "user", long.into())).await.unwrap();
    assert_eq!((refused.status, refused.error_code().as_str()), (400, "invalid_value"));
    assert_eq!(refused.json()["error"]["param"], "user");
    gateway.is_idle().await;
}

#[tokio::test]
async fn an_alias_sets_the_class_of_requests_that_may_ask_for_less_but_not_for_more() {
    let (gateway, webui, _) =
        gateway("aliases: {now: {model: flotilla-demo, class: interactive}}").await;
    let mut a = gateway.node("a", 1).await;
    let named = |name: &str| with("Hi", "model", name.into());
    let tier = |name: &str, tier: &str| {
        let mut request = named(name);
        request["service_tier"] = tier.into();
        request
    };
    let urgent = webui.with_header("x-flotilla-class", "interactive");
    let relaxed = webui.with_header("x-flotilla-class", "batch");
    for (client, request, class) in [
        (&webui, named("titles"), "batch"),
        (&urgent, named("titles"), "batch"),
        (&webui, tier("titles", "priority"), "batch"),
        (&webui, named("chat"), "standard"),
        (&urgent, named("chat"), "interactive"),
        (&webui, named("now"), "interactive"),
        (&webui, tier("now", "default"), "standard"),
        (&relaxed, named("now"), "batch"),
    ] {
        let name = request["model"].clone();
        let answer = answered(&mut a, ask(client, request), 5).await;
        assert_eq!(answer.header("x-flotilla-class"), Some(class), "{name}");
    }
}

#[tokio::test]
async fn titles_of_one_program_wait_behind_its_chats() {
    let (gateway, webui, _) = gateway("users: header").await;
    let mut a = gateway.node("a", 1).await;
    let webui = user(&webui, "ada");
    let mut waiting = vec![ask(&webui, chat("first"))];
    let held = a.asked().await;
    for depth in 1..=3 {
        waiting.push(ask(&webui, with("title", "model", "titles".into())));
        waits(&gateway, depth).await;
    }
    waiting.push(ask(&webui, with("chat", "model", "chat".into())));
    waits(&gateway, 4).await;
    held.answer("done");
    assert_eq!(answer_all(&mut a, 4).await, ["chat", "title", "title", "title"]);
    for answer in waiting {
        assert_eq!(answer.await.unwrap().status, 200);
    }
}
