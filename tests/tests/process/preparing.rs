//! Prompts on their way to the engine: large ones hold up nobody else.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fleet_tests::client::Client;
use fleet_tests::process::{Agent, Fleet, Folder};
use fleet_tests::{chat, eventually};
use inference_protocol::fleet::{PREFIX_GROUP_HEADER, TENANT_HEADER};
use serde_json::json;
use tokio::task::JoinSet;

const KEY: &str = "the-key-of-this-agent";
const LARGE_REQUESTS: usize = 7;

async fn agent(folder: &Folder) -> Agent {
    let key = folder.write("api.key", KEY);
    Agent::start(&["--key-file", key.to_str().unwrap()]).await
}

/// A client whose requests are a tenant's.
fn tenant(agent: &Agent, name: &str) -> Client {
    agent.client.with_key(Some(KEY)).with_header(TENANT_HEADER, name)
}

#[tokio::test]
async fn a_small_request_is_answered_while_another_tenants_large_ones_are_prepared() {
    let folder = Folder::new();
    let agent = agent(&folder).await;
    // A text without lines is read in one go, some hundred times slower than the chat below.
    let large = json!({"content": "x y ".repeat(7 << 18)}).to_string();
    let answered = Arc::new(AtomicUsize::new(0));
    let mut running = JoinSet::new();
    for _ in 0..LARGE_REQUESTS {
        let (client, body) = (tenant(&agent, "large"), large.clone());
        let answered = answered.clone();
        running.spawn(async move {
            let status = client.post("/tokenize", body).await.status;
            answered.fetch_add(1, Ordering::Relaxed);
            status
        });
    }
    let in_flight = async || agent.metric("node_engine_requests_in_flight").await as usize;
    eventually("all large requests to be at the engine", async || {
        let (waiting, answered) = (in_flight().await, answered.load(Ordering::Relaxed));
        (waiting > 2 && waiting + answered >= LARGE_REQUESTS).then_some(())
    })
    .await;
    let answer = tenant(&agent, "small").chat(&chat("What is the capital of France?")).await;
    assert_eq!(answer.content(), "The capital of France is Paris.");
    assert!(in_flight().await > 0, "the small request waited for all large ones");
    let statuses = running.join_all().await;
    assert_eq!(statuses, [413; LARGE_REQUESTS], "more tokens than are told at once");
}

#[tokio::test]
async fn tenants_of_a_group_share_cached_prefixes_and_others_do_not() {
    let folder = Folder::new();
    let agent = agent(&folder).await;
    let cached = async |client: Client| {
        let answer = client.chat(&chat("What is the capital of France?")).await.json();
        answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
    };
    let of_team = |name| tenant(&agent, name).with_header(PREFIX_GROUP_HEADER, "team");
    assert_eq!(cached(of_team("ada")).await, 0);
    assert!(cached(of_team("bob")).await > 0);
    assert_eq!(cached(tenant(&agent, "ada")).await, 0, "what the group has is the group's");
    assert_eq!(cached(tenant(&agent, "team")).await, 0, "a tenant with its name is not the group");
    let other = tenant(&agent, "eve").with_header(PREFIX_GROUP_HEADER, "other");
    assert_eq!(cached(other).await, 0);
}

#[tokio::test]
async fn a_chat_that_cannot_fit_is_refused_once_for_all_its_choices() {
    let agent = Agent::start(&[]).await;
    let mut request = chat(&"word ".repeat(1 << 20));
    request["n"] = json!(16);
    let answer = agent.client.chat(&request).await;
    assert_eq!((answer.status, answer.error_code().as_str()), (400, "context_length_exceeded"));
    assert_eq!(answer.json()["error"]["param"], "messages");
    eventually("none of them to be in flight", async || {
        (agent.metric("node_engine_requests_in_flight").await == 0.0).then_some(())
    })
    .await;
}

/// Claude Code sends this block before the system prompt, with another number in each request.
fn billing(number: usize) -> String {
    format!(
        "x-anthropic-billing-header: cc_version=2.1.197.{number:03x}; cc_entrypoint=cli; cch={number:05x};"
    )
}

#[tokio::test]
async fn requests_that_differ_only_in_a_billing_header_share_nearly_all_of_their_prompt() {
    let fleet = Fleet::start("").await;
    let _node = fleet.join("a", &[]).await;
    let system = "Answer in one word. ".repeat(40);
    for as_blocks in [true, false] {
        let ask = async |number: usize| {
            let system = match as_blocks {
                true => json!([{"type": "text", "text": billing(number)},
                    {"type": "text", "text": format!("{as_blocks} {system}")}]),
                false => json!(format!("{}\n{as_blocks} {system}", billing(number))),
            };
            let request = json!({"model": "flotilla-demo", "max_tokens": 4, "system": system,
                "messages": [{"role": "user", "content": "What is the capital of France?"}]});
            let answer = fleet.client.post("/v1/messages", request.to_string()).await;
            let usage = answer.json()["usage"].clone();
            let count = |name: &str| usage[name].as_f64().unwrap_or_else(|| panic!("{usage}"));
            let (read, rest) = (count("cache_read_input_tokens"), count("input_tokens"));
            assert!(read + rest > 200.0, "{usage}");
            read / (read + rest)
        };
        ask(1).await;
        let cached = ask(2).await;
        assert!(cached >= 0.95, "{cached} is cached");
    }
}
