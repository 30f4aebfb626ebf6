//! Which slots batches take, and when they give way.

use fleet_tests::batches::{begun, ended, line, stored};
use fleet_tests::mock_node::Asked;
use fleet_tests::process::Folder;
use serde_json::json;

use super::batches::{Kept, echo};

#[tokio::test]
async fn an_urgent_request_with_a_short_deadline_is_let_in_because_lines_give_way() {
    let folder = Folder::new();
    let kept = Kept::start(folder.path(), "").await;
    let mut node = kept.gateway.node("a", 1).await;
    let urgent = kept.ada.with_header("x-flotilla-deadline-ms", "5000");
    // From these, the gateway learns that responses take longer than that.
    let lines: String = (0..2).map(|i| line(&format!("{i}"), &format!("batch {i}"))).collect();
    let id = begun(&kept.ada, &lines).await;
    for _ in 0..4 {
        let line = node.asked().await.stream();
        let (asking, request) = (urgent.clone(), fleet_tests::chat("urgent"));
        let chat = tokio::spawn(async move { asking.chat(&request).await });
        line.is_given_up().await;
        assert_eq!(echo(&mut node).await, "urgent");
        assert_eq!(chat.await.unwrap().status, 200);
    }
    for _ in 0..2 {
        node.asked().await.answer("done");
    }
    assert_eq!(ended(&kept.ada, &id).await["request_counts"]["completed"], 2);
}

#[tokio::test]
async fn lines_that_cannot_continue_leave_a_slot_free_for_others_and_all_wait_for_their_model() {
    let folder = Folder::new();
    let kept = Kept::start(folder.path(), "").await;
    let mut node = kept.gateway.node("a", 3).await;
    let asking = kept.ada.clone();
    let first = tokio::spawn(async move { asking.chat(&fleet_tests::chat("here")).await });
    echo(&mut node).await;
    assert_eq!(first.await.unwrap().status, 200);
    let embed = |i: usize, model: &str| {
        let body = json!({"model": model, "input": format!("batch {i}")});
        let line = json!({"custom_id": format!("{i}"), "method": "POST", "url": "/v1/embeddings",
            "body": body});
        format!("{line}\n")
    };
    let lines: String = (0..4).map(|i| embed(i, "flotilla-demo")).collect();
    let file = stored(&kept.ada, &(lines + &embed(4, "other-model"))).await;
    let asked =
        json!({"input_file_id": file, "endpoint": "/v1/embeddings", "completion_window": "24h"});
    let created = kept.ada.post("/v1/batches", asked.to_string()).await.json();
    let id = created["id"].as_str().unwrap();
    let running = [node.asked().await, node.asked().await];
    // The batch leaves the third slot free, so a chat gets it at once.
    let asking = kept.ada.clone();
    let chat = tokio::spawn(async move { asking.chat(&fleet_tests::chat("again")).await });
    assert_eq!(echo(&mut node).await, "again");
    assert_eq!(chat.await.unwrap().status, 200);
    assert!(node.is_asked().is_none());
    let vectors = json!({"object": "list", "model": "m", "data": [{"index": 0, "embedding": [1]}]});
    let embeds = |asked: Asked| asked.reply(200, "application/json", vectors.to_string());
    running.into_iter().for_each(embeds);
    for _ in 0..2 {
        embeds(node.asked().await);
    }
    // A node with the other model comes later, as after a restart of the gateway.
    let mut status = fleet_tests::mock_node::healthy("b", 2);
    status.models[0].id = "other-model".into();
    let mut b = kept.gateway.node_with(status).await;
    embeds(b.asked().await);
    let ended = ended(&kept.ada, id).await;
    assert_eq!(ended["request_counts"], json!({"total": 5, "completed": 5, "failed": 0}));
}
