//! Paths without a version, which clients of llama-server and others use.

use fleet_tests::chat;
use fleet_tests::process::Fleet;
use serde_json::json;

#[tokio::test]
async fn paths_without_a_version_are_served_and_others_are_told_the_right_one() {
    let fleet = Fleet::start("").await;
    let node = fleet.join("a", &[]).await;
    let text = json!({"model": "flotilla-demo", "prompt": "Hello", "n_predict": 2}).to_string();
    for client in [&node.client, &fleet.client] {
        let said = client.post("/chat/completions", chat("Hello!").to_string()).await;
        assert_eq!((said.status, &said.json()["object"]), (200, &json!("chat.completion")));
        let said = client.post("/completions", text.clone()).await;
        assert_eq!(said.json()["usage"]["completion_tokens"], 2);
        assert_eq!(client.get("/models").await.json()["data"][0]["id"], "flotilla-demo");
        // They exist; the model makes neither.
        let body =
            json!({"model": "flotilla-demo", "input": "a", "query": "a", "documents": ["a"]});
        for path in ["/embeddings", "/rerank", "/reranking", "/v1/reranking"] {
            let said = client.post(path, body.to_string()).await;
            assert_ne!(said.status, 404, "{path}");
        }
        let unknown = client.post("/v2/nothing", text.clone()).await;
        assert_eq!((unknown.status, unknown.error_code().as_str()), (404, "unknown_url"));
        let message = unknown.json()["error"]["message"].to_string();
        assert!(message.contains("/v1/completions") && message.contains("/v1/embeddings"));
    }
    let slots = node.client.get("/slots").await.json();
    assert_eq!((slots.as_array().unwrap().len(), &slots[0]["is_processing"]), (4, &json!(false)));
    assert_eq!(slots[3]["n_ctx"], 1024);
    assert_eq!(node.client.post("/slots", "{}").await.status, 405);
}
