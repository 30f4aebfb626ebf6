//! Long lists of texts are embedded and scored by all nodes of the model.

use fleet_tests::client::Answer;
use fleet_tests::mock_node::{Asked, MockNode, healthy};
use fleet_tests::process::metric;
use fleet_tests::{SOON, eventually};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{Gateway, posts};

const EMBEDDINGS: &str = "/v1/embeddings";
const RERANK: &str = "/v1/rerank";
/// A hash of `key-of-ada`.
const DIGEST: &str = "5532e44183f47ed1fc146851b96d585c24da5bd5fe31a885cebc357261ed8f7f";

fn embed(count: usize) -> Value {
    let texts: Vec<String> = (0..count).map(|n| n.to_string()).collect();
    json!({"model": "flotilla-demo", "input": texts})
}

/// Embeds each text as the number that it is. Each takes two tokens.
fn answer(asked: Asked) -> usize {
    let texts = asked.body["input"].as_array().unwrap().clone();
    let embedding = |(index, text): (usize, &Value)| {
        let number: f64 = text.as_str().unwrap().parse().unwrap();
        json!({"object": "embedding", "index": index, "embedding": [number, 0.5]})
    };
    let data: Vec<Value> = texts.iter().enumerate().map(embedding).collect();
    let tokens = 2 * texts.len();
    let usage = json!({"prompt_tokens": tokens, "total_tokens": tokens});
    let list = json!({"object": "list", "data": data, "model": "flotilla-demo", "usage": usage});
    asked.reply(200, "application/json", list.to_string());
    texts.len()
}

/// The next request at any of two nodes.
async fn next(a: &mut MockNode, b: &mut MockNode) -> Asked {
    tokio::select! {
        asked = a.asked() => asked,
        asked = b.asked() => asked,
    }
}

fn check_embeddings(answer: &Answer, count: usize) {
    assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.body));
    let list = answer.json();
    let data = list["data"].as_array().unwrap();
    assert_eq!(data.len(), count);
    for (index, entry) in data.iter().enumerate() {
        assert_eq!(
            (&entry["index"], &entry["embedding"][0]),
            (&json!(index), &json!(index as f64))
        );
    }
    let tokens = 2 * count;
    assert_eq!(list["usage"], json!({"prompt_tokens": tokens, "total_tokens": tokens}));
}

#[tokio::test]
async fn both_nodes_embed_parts_at_a_time_and_the_response_is_in_order() {
    let keys = format!("keys: [{{name: ada, sha256: {DIGEST}, tokens_per_month: 1000000}}]\n");
    let mut gateway = Gateway::start_with_keys(&keys, "").await;
    gateway.client = gateway.client.with_key(Some("key-of-ada"));
    let (mut a, mut b) = (gateway.node("a", 1).await, gateway.node("b", 1).await);
    let running = posts(&gateway, EMBEDDINGS, embed(100));
    // The last part is answered before those that came first.
    let (first, second) = (a.asked().await, b.asked().await);
    assert_eq!(answer(first), 32);
    assert_eq!(answer(a.asked().await), 32);
    assert_eq!(answer(a.asked().await), 4);
    assert_eq!(answer(second), 32);
    let response = running.await.unwrap();
    check_embeddings(&response, 100);
    assert_eq!(response.header("x-flotilla-endpoint"), Some("a, b"));
    assert_eq!(response.header("x-flotilla-class"), Some("standard"));

    // It is one request, which used the tokens of all parts.
    gateway.is_idle().await;
    let metrics = gateway.admin.get("/metrics").await;
    let text = String::from_utf8_lossy(&metrics.body).to_string();
    let requests: Vec<&str> =
        text.lines().filter(|line| line.starts_with("gateway_requests_total")).collect();
    assert_eq!(requests.len(), 1, "{requests:?}");
    assert!(requests[0].ends_with(" 1") && requests[0].contains("embeddings"), "{requests:?}");
    let overview = gateway.admin.get("/admin/v1/overview").await.json();
    let ada = overview["tenants"].as_array().unwrap().iter().find(|t| t["name"] == "ada").unwrap();
    assert_eq!((&ada["prompt_tokens"], &ada["completion_tokens"]), (&json!(200), &json!(0)));
}

#[tokio::test]
async fn a_part_whose_node_dies_is_embedded_by_another_and_nothing_else_is_repeated() {
    let gateway = Gateway::start("").await;
    let (mut a, mut b) = (gateway.node("a", 1).await, gateway.node("b", 1).await);
    let running = posts(&gateway, EMBEDDINGS, embed(96));
    let (first, lost) = (a.asked().await, b.asked().await);
    let texts = lost.body["input"].clone();
    b.dies();
    answer(first);
    let mut asked = Vec::new();
    for _ in 0..2 {
        let next = a.asked().await;
        asked.push(next.body["input"].clone());
        answer(next);
    }
    assert!(asked.contains(&texts), "{asked:?}");
    check_embeddings(&running.await.unwrap(), 96);
    assert!(a.is_asked().is_none());
}

#[tokio::test]
async fn a_refused_part_is_the_response_and_the_others_are_cancelled() {
    let gateway = Gateway::start("").await;
    let (mut a, mut b) = (gateway.node("a", 1).await, gateway.node("b", 1).await);
    let running = posts(&gateway, EMBEDDINGS, embed(100));
    let (refusing, _other) = (a.asked().await, b.asked().await);
    refusing.refuse(400);
    let response = running.await.unwrap();
    assert_eq!((response.status, response.error_code().as_str()), (400, "no"));
    gateway.is_idle().await;
    // Their results would not be those of the request.
    let running = posts(&gateway, EMBEDDINGS, embed(100));
    let wrong = json!({"data": [{"index": 0, "embedding": [1]}]}).to_string();
    for _ in 0..4 {
        let asked = next(&mut a, &mut b).await;
        asked.reply(200, "application/json", wrong.clone());
    }
    let response = running.await.unwrap();
    assert_eq!((response.status, response.error_code().as_str()), (502, "node_answer"));
    gateway.is_idle().await;
}

#[tokio::test]
async fn a_client_that_leaves_frees_the_slots_of_all_parts() {
    let gateway = Gateway::start("").await;
    let (mut a, mut b) = (gateway.node("a", 1).await, gateway.node("b", 1).await);
    let running = posts(&gateway, EMBEDDINGS, embed(100));
    let (_first, _second) = (a.asked().await, b.asked().await);
    running.abort();
    timeout(SOON, gateway.is_idle()).await.unwrap();
    assert!(a.is_asked().is_none() && b.is_asked().is_none());
    // Both parts have used their prompts, of at least a token per 16 bytes.
    let used = "gateway_tokens_total{endpoint_kind=\"node\",kind=\"prompt\",\
                model=\"flotilla-demo\",tenant=\"anonymous\"}";
    assert!(metric(&gateway.admin, used).await > 0.0);
}

#[tokio::test]
async fn parts_count_as_concurrent_requests_of_their_key() {
    let keys =
        |max: u32| format!("keys: [{{name: ada, sha256: {DIGEST}, concurrent_max: {max}}}]\n");
    let mut gateway = Gateway::start_with_keys(&keys(2), "").await;
    gateway.client = gateway.client.with_key(Some("key-of-ada"));
    let (mut a, mut b) = (gateway.node("a", 1).await, gateway.node("b", 1).await);
    let mut c = gateway.node("c", 1).await;
    let running = posts(&gateway, EMBEDDINGS, embed(96));
    for answered in 1..=3 {
        let asked = tokio::select! {
            asked = a.asked() => asked,
            asked = b.asked() => asked,
            asked = c.asked() => asked,
        };
        if answered == 1 {
            let refused = gateway.asks("Hi").await.unwrap();
            assert_eq!(
                (refused.status, refused.error_code().as_str()),
                (429, "rate_limit_exceeded")
            );
        }
        answer(asked);
    }
    check_embeddings(&running.await.unwrap(), 96);
    gateway.is_idle().await;

    // Alone, the request goes to one node as it is.
    let mut gateway = Gateway::start_with_keys(&keys(1), "").await;
    gateway.client = gateway.client.with_key(Some("key-of-ada"));
    let (mut a, mut b) = (gateway.node("a", 1).await, gateway.node("b", 1).await);
    let running = posts(&gateway, EMBEDDINGS, embed(96));
    assert_eq!(answer(next(&mut a, &mut b).await), 96);
    check_embeddings(&running.await.unwrap(), 96);
    gateway.is_idle().await;
}

#[tokio::test]
async fn documents_are_ranked_over_all_parts() {
    let gateway = Gateway::start("").await;
    let (mut a, mut b) = (gateway.node("a", 1).await, gateway.node("b", 1).await);
    let documents: Vec<String> = (0..40).map(|n| n.to_string()).collect();
    let body = json!({"model": "flotilla-demo", "query": "q", "documents": documents, "top_n": 3});
    let running = posts(&gateway, RERANK, body);
    for _ in 0..2 {
        let asked = next(&mut a, &mut b).await;
        assert_eq!((&asked.body["query"], &asked.body["top_n"]), (&json!("q"), &json!(3)));
        let documents = asked.body["documents"].as_array().unwrap();
        let score = |index: usize| {
            let number: f64 = documents[index].as_str().unwrap().parse().unwrap();
            json!({"index": index, "relevance_score": number / 100.0})
        };
        let best: Vec<Value> = (0..documents.len()).rev().take(3).map(score).collect();
        let usage = json!({"prompt_tokens": 5, "total_tokens": 5});
        asked.reply(200, "application/json", json!({"results": best, "usage": usage}).to_string());
    }
    let ranked = running.await.unwrap().json();
    let results = ranked["results"].as_array().unwrap();
    let indexes: Vec<&Value> = results.iter().map(|result| &result["index"]).collect();
    assert_eq!(indexes, [39, 38, 37]);
    assert_eq!(ranked["usage"]["total_tokens"], 10);
}

#[tokio::test]
async fn ollamas_lists_are_split_too() {
    let gateway = Gateway::start("").await;
    let (mut a, mut b) = (gateway.node("a", 1).await, gateway.node("b", 1).await);
    let running = posts(&gateway, "/api/embed", embed(50));
    for _ in 0..2 {
        answer(next(&mut a, &mut b).await);
    }
    let embedded = running.await.unwrap().json();
    let embeddings = embedded["embeddings"].as_array().unwrap();
    assert_eq!((embeddings.len(), &embeddings[49][0]), (50, &json!(49.0)));
    assert_eq!(embedded["prompt_eval_count"], 100);
    let running = posts(&gateway, "/api/embed", embed(50));
    next(&mut a, &mut b).await.refuse(400);
    let refused = running.await.unwrap();
    assert_eq!((refused.status, &refused.json()["error"]), (400, &json!("no")));
}

#[tokio::test]
async fn parts_go_only_to_nodes_with_the_commonest_model_file() {
    let gateway = Gateway::start("").await;
    let mut other = healthy("c", 4);
    other.models[0].digest = "another".into();
    let (mut a, mut b) = (gateway.node("a", 1).await, gateway.node("b", 1).await);
    let mut c = gateway.node_with(other).await;
    let running = posts(&gateway, EMBEDDINGS, embed(100));
    for _ in 0..2 {
        let (first, second) = (a.asked().await, b.asked().await);
        answer(first);
        answer(second);
    }
    check_embeddings(&running.await.unwrap(), 100);
    // One node of each file: the list is not split.
    gateway.is_idle().await;
    b.dies();
    eventually("b to be gone", async || (gateway.linked().await == 2).then_some(())).await;
    let running = posts(&gateway, EMBEDDINGS, embed(100));
    assert_eq!(answer(next(&mut a, &mut c).await), 100);
    check_embeddings(&running.await.unwrap(), 100);
}
