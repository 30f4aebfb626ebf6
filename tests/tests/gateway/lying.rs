//! Nodes that report what cannot be, and requests that ask for more than nodes can do in time: what
//! counts, and against whom.

use fleet_tests::mock_node::{Asked, MockNode, healthy};
use fleet_tests::process::metric;
use fleet_tests::{chat, eventually};
use inference_protocol::fleet::NodeStatus;
use inference_protocol::resume::Usage;
use serde_json::{Value, json};

use super::{Gateway, posts};

const DIGEST: &str = "5532e44183f47ed1fc146851b96d585c24da5bd5fe31a885cebc357261ed8f7f";
const EMBEDDINGS: &str = "/v1/embeddings";
const CORRECTED: &str = "gateway_node_usage_corrected_total{node=\"a\"}";

/// A gateway whose only key has these limits.
async fn limited(limits: &str) -> Gateway {
    let keys = format!("keys: [{{name: ada, sha256: {DIGEST}, {limits}}}]\n");
    let mut gateway = Gateway::start_with_keys(&keys, "").await;
    gateway.client = gateway.client.with_key(Some("key-of-ada"));
    gateway
}

async fn used(gateway: &Gateway) -> [u64; 2] {
    gateway.is_idle().await;
    let overview = gateway.admin.get("/admin/v1/overview").await.json();
    let tenants = overview["tenants"].as_array().unwrap();
    let ada = tenants.iter().find(|tenant| tenant["name"] == "ada").unwrap();
    ["prompt_tokens", "completion_tokens"].map(|name| ada[name].as_u64().unwrap())
}

#[tokio::test]
async fn a_node_that_reports_more_than_can_be_uses_up_no_budget_and_no_limit() {
    let gateway =
        limited("tokens_per_month: 100000, tokens_per_minute: 100000, max_tokens: 10").await;
    let mut a = gateway.node("a", 1).await;
    let absurd = 9_000_000_000_000_000_u64;
    let usage = json!({"prompt_tokens": absurd, "completion_tokens": absurd,
        "total_tokens": 2 * absurd});
    let asking = gateway.asks("Hi");
    let body = json!({"choices": [], "usage": usage}).to_string();
    a.asked().await.reply(200, "application/json", body);
    assert_eq!(asking.await.unwrap().status, 200);
    let [prompt, completion] = used(&gateway).await;
    let bytes = chat("Hi").to_string().len() as u64;
    assert_eq!((prompt, completion), (bytes + 4096, 10));
    // By marks, and with more cached than there was.
    let running = gateway.streams("Hi");
    let stream = a.asked().await.stream();
    stream.say_marked(&[7, 8], "Hel").await;
    let usage = Usage { prompt: 5, completion: absurd, cached: absurd };
    stream.close_marked(usage, "[DONE]").await;
    assert!(running.await.unwrap().done);
    assert_eq!(used(&gateway).await, [prompt + 5, completion + 3]);
    assert_eq!(metric(&gateway.admin, CORRECTED).await, 2.0);
    let cached = "gateway_tokens_total{endpoint_kind=\"node\",kind=\"cached\",\
                  model=\"flotilla-demo\",tenant=\"ada\"}";
    assert_eq!(metric(&gateway.admin, cached).await, 5.0);
    // What can be is taken as it is, and the key may go on.
    let asking = gateway.asks("Hi");
    let usage = json!({"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12});
    let body = json!({"choices": [], "usage": usage}).to_string();
    a.asked().await.reply(200, "application/json", body);
    assert_eq!(asking.await.unwrap().status, 200);
    assert_eq!(used(&gateway).await, [prompt + 14, completion + 6]);
    assert_eq!(metric(&gateway.admin, CORRECTED).await, 2.0);
}

#[tokio::test]
async fn a_node_with_figures_that_cannot_be_is_put_out() {
    let gateway = Gateway::start("").await;
    let changes: [fn(&mut NodeStatus); 4] = [
        |status| status.slots = u32::MAX,
        |status| status.models[0].context_tokens = u32::MAX,
        |status| status.models[0].digest = "x".repeat(1000),
        |status| status.models = vec![status.models[0].clone(); 2],
    ];
    for change in changes {
        let mut node = gateway.node("a", 4).await;
        node.says(change);
        node.is_put_out().await;
        eventually("it to be gone", async || (gateway.linked().await == 0).then_some(())).await;
    }
    let mut odd = healthy("a", 4);
    odd.prefill_tokens_per_second = Some(f32::MAX);
    odd.decode_tokens_per_second = Some(-5.0);
    let _a = gateway.node_with(odd).await;
    let metrics = String::from_utf8(gateway.admin.get("/metrics").await.body.to_vec()).unwrap();
    assert!(!metrics.contains("gateway_node_prefill_tokens_per_second{"), "{metrics}");
    assert!(!metrics.contains("gateway_node_decode_tokens_per_second{"), "{metrics}");
}

/// Two nodes of which only the first has free slots: that one may be ejected.
async fn two_nodes(gateway: &Gateway, slots: u32) -> [MockNode; 2] {
    let (a, b) = (gateway.node("a", slots).await, gateway.node("b", 1).await);
    b.says(|status| status.slots_busy_elsewhere = 1);
    eventually("b to be busy", async || (gateway.health("/slots/busy").await == 1).then_some(()))
        .await;
    [a, b]
}

fn embed(inputs: usize) -> Value {
    json!({"model": "flotilla-demo", "input": vec!["text"; inputs]})
}

#[tokio::test]
async fn a_response_beyond_its_limit_counts_against_its_node_only_if_nobody_asked_for_as_much() {
    let limits = "limits: {response_bytes_max: 200000}\nhealth: {probe_interval_ms: 0}\n";
    let gateway = Gateway::start(limits).await;
    let [mut a, _b] = two_nodes(&gateway, 1).await;
    let large = "x".repeat(300_000);
    for _ in 0..8 {
        let asking = posts(&gateway, EMBEDDINGS, embed(100));
        a.asked().await.reply(200, "application/json", large.clone());
        let answer = asking.await.unwrap();
        assert_eq!((answer.status, answer.error_code().as_str()), (422, "response_too_large"));
    }
    gateway.is_idle().await;
    assert_eq!(gateway.health("/nodes/ejected").await, 0);
    for _ in 0..5 {
        let asking = posts(&gateway, EMBEDDINGS, embed(1));
        a.asked().await.reply(200, "application/json", large.clone());
        let answer = asking.await.unwrap();
        assert_eq!((answer.status, answer.error_code().as_str()), (502, "node_answer"));
    }
    gateway.is_idle().await;
    assert_eq!(gateway.health("/nodes/ejected").await, 1);
}

#[tokio::test]
async fn a_first_token_that_is_late_because_of_the_prompts_size_does_not_count_against_its_node() {
    let more = "timeouts: {first_token_ms: 1500}\nhealth: {probe_interval_ms: 0}\n";
    let gateway = Gateway::start(more).await;
    let [mut a, _b] = two_nodes(&gateway, 5).await;
    let usage = json!({"prompt_tokens": 1, "total_tokens": 1});
    let answer = |asked: Asked| {
        asked.reply(200, "application/json", json!({"data": [], "usage": usage}).to_string());
    };
    // It is learned how long a token takes: parts of a millisecond, at least.
    for _ in 0..9 {
        let asking = posts(&gateway, EMBEDDINGS, embed(1));
        answer(a.asked().await);
        assert_eq!(asking.await.unwrap().status, 200);
    }
    let times_out = async |a: &mut MockNode, body: Value| {
        let asking: Vec<_> = (0..5).map(|_| posts(&gateway, EMBEDDINGS, body.clone())).collect();
        let mut asked = Vec::new();
        for _ in 0..5 {
            asked.push(a.asked().await);
        }
        for answer in asking {
            assert_eq!(answer.await.unwrap().status, 504);
        }
        gateway.is_idle().await;
        gateway.health("/nodes/ejected").await
    };
    let long = json!({"model": "flotilla-demo", "input": "x".repeat(1_000_000)});
    assert_eq!(times_out(&mut a, long).await, 0, "nobody could read that in time");
    assert_eq!(times_out(&mut a, embed(1)).await, 1, "and this anybody");
}

#[tokio::test]
async fn two_thousand_embeddings_of_a_thousand_dimensions_pass_with_the_limits_that_are_set() {
    let gateway = Gateway::start("").await;
    let mut a = gateway.node("a", 1).await;
    let (inputs, dimensions) = (2048, 1024);
    let floats = vec!["-0.0012345678"; dimensions].join(",");
    let base64 = "vzkK".repeat(dimensions * 4 / 3);
    for vector in [format!("[{floats}]"), format!("\"{base64}\"")] {
        let asking = posts(&gateway, EMBEDDINGS, embed(inputs));
        let asked = a.asked().await;
        assert_eq!(asked.body["input"].as_array().map(Vec::len), Some(inputs));
        let entry =
            |n| format!("{{\"object\":\"embedding\",\"index\":{n},\"embedding\":{vector}}}");
        let data = (0..inputs).map(entry).collect::<Vec<_>>().join(",");
        let usage = json!({"prompt_tokens": 3 * inputs, "total_tokens": 3 * inputs});
        let whole = format!("{{\"data\":[{data}],\"usage\":{usage}}}");
        let bytes = whole.len();
        asked.reply(200, "application/json", whole);
        let answer = asking.await.unwrap();
        assert_eq!((answer.status, answer.body.len()), (200, bytes));
    }
    assert_eq!(metric(&gateway.admin, CORRECTED).await, 0.0, "each input has tokens of its own");
    gateway.is_idle().await;
}

#[tokio::test]
async fn what_a_rerank_reads_again_with_each_document_is_believed() {
    let gateway = limited("tokens_per_month: 1000000").await;
    let mut a = gateway.node("a", 1).await;
    let body = json!({"model": "flotilla-demo", "query": "q ".repeat(3000),
        "documents": ["a", "b", "c"]});
    let asking = posts(&gateway, "/v1/rerank", body);
    let usage = json!({"prompt_tokens": 18_000, "total_tokens": 18_000});
    let told = json!({"results": [], "usage": usage}).to_string();
    a.asked().await.reply(200, "application/json", told);
    assert_eq!(asking.await.unwrap().status, 200);
    assert_eq!(used(&gateway).await, [18_000, 0]);
}
