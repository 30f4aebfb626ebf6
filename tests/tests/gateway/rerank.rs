//! Rerank as clients of other servers ask for it: nodes see one format.

use fleet_tests::mock_node::healthy;
use serde_json::json;

use super::{Gateway, posts};

fn scores() -> String {
    let score = |index: usize, score: f64| json!({"index": index, "relevance_score": score});
    let usage = json!({"prompt_tokens": 7, "total_tokens": 7});
    json!({"object": "list", "model": "flotilla-demo", "results": [score(1, 0.9), score(0, 0.1)],
        "usage": usage})
    .to_string()
}

#[tokio::test]
async fn texts_are_ranked_as_at_tei_and_need_no_model_if_there_is_only_one() {
    let gateway = Gateway::start("").await;
    let mut a = gateway.node("a", 1).await;
    let body = json!({"query": "q", "texts": ["x", "y"], "return_text": true, "truncate": true});
    let running = posts(&gateway, "/rerank", body.clone());
    let asked = a.asked().await;
    let documents = json!({"model": "flotilla-demo", "query": "q", "documents": ["x", "y"]});
    assert_eq!(asked.body, documents);
    asked.reply(200, "application/json", scores());
    let answer = running.await.unwrap();
    let list = json!([{"index": 1, "text": "y", "score": 0.9},
        {"index": 0, "text": "x", "score": 0.1}]);
    assert_eq!((answer.status, answer.json()), (200, list));

    let mut status = healthy("b", 1);
    status.models[0].id = "other".into();
    let mut b = gateway.node_with(status).await;
    let unclear = posts(&gateway, "/rerank", body).await.unwrap();
    assert_eq!((unclear.status, &unclear.json()["error"]["param"]), (400, &json!("model")));
    let named = json!({"model": "other", "query": "q", "texts": ["x", "y"]});
    let running = posts(&gateway, "/v1/rerank", named);
    b.asked().await.reply(200, "application/json", scores());
    assert_eq!(running.await.unwrap().json()[0], json!({"index": 1, "score": 0.9}));
    for (field, value) in
        [("raw_scores", json!(true)), ("texts", json!([7])), ("query", json!(null))]
    {
        let mut body = json!({"model": "other", "query": "q", "texts": ["x"]});
        body[field] = value;
        let refused = posts(&gateway, "/rerank", body).await.unwrap();
        let param = refused.json()["error"]["param"].as_str().unwrap().to_string();
        assert!(refused.status == 400 && param.starts_with(field), "{field} {param}");
    }
    assert!(a.is_asked().is_none() && b.is_asked().is_none());
}

#[tokio::test]
async fn cohere_and_jina_read_the_response_as_it_is() {
    let gateway = Gateway::start("").await;
    let mut a = gateway.node("a", 1).await;
    for path in ["/v1/rerank", "/v2/rerank", "/rerank", "/v1/reranking", "/reranking"] {
        let body = json!({"model": "flotilla-demo", "query": "q", "documents": ["x", "y"]});
        let running = posts(&gateway, path, body);
        a.asked().await.reply(200, "application/json", scores());
        let answer = running.await.unwrap().json();
        assert_eq!(answer["results"][0], json!({"index": 1, "relevance_score": 0.9}), "{path}");
        assert_eq!(answer["usage"]["total_tokens"], 7);
    }
}
