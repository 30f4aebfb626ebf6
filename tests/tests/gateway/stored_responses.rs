//! Responses that were sent to their clients, after a restart of the gateway.

use fleet_tests::batches::delete;
use fleet_tests::client::{Answer, Client};
use fleet_tests::eventually;
use fleet_tests::mock_node::{Asked, MockNode};
use fleet_tests::process::{Folder, metric};
use serde_json::{Value, json};

use super::batches::Kept;

const PATH: &str = "/v1/responses";

/// Asks, and has the node answer with `text`.
async fn turn(
    client: &Client,
    node: &mut MockNode,
    previous: Option<&str>,
    input: &str,
    text: &str,
) -> (Vec<String>, String) {
    let request =
        json!({"model": "flotilla-demo", "input": input, "previous_response_id": previous});
    let (client, body) = (client.clone(), request.to_string());
    let asking = tokio::spawn(async move { client.post(PATH, body).await });
    let asked = node.asked().await;
    let messages = said(&asked);
    asked.answer(text);
    let answer: Answer = asking.await.unwrap();
    assert_eq!(answer.status, 200, "{:?}", answer.body);
    (messages, answer.json()["id"].as_str().unwrap().into())
}

fn said(asked: &Asked) -> Vec<String> {
    let messages = asked.body["messages"].as_array().unwrap();
    messages.iter().map(|message| message["content"].as_str().unwrap().into()).collect()
}

/// Waits until so many bytes, at least, are in the store: it is written after its client has it.
async fn until_stored(kept: &Kept, ids: &[&str]) {
    for id in ids {
        assert_eq!(kept.ada.get(&format!("{PATH}/{id}")).await.status, 200);
    }
    eventually("responses to be stored", async || {
        let bytes = metric(&kept.gateway.admin, "gateway_store_bytes").await;
        (bytes > 100.0 * ids.len() as f64).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_conversation_goes_on_after_restarts_and_costs_each_turn_once() {
    let folder = Folder::new();
    let kept = Kept::start(folder.path(), "").await;
    let mut node = kept.gateway.node("a", 1).await;
    let (_, first) = turn(&kept.ada, &mut node, None, "Hi", "Hello").await;
    let (_, second) = turn(&kept.ada, &mut node, Some(&first), "And?", "Well.").await;
    let shown = kept.ada.get(&format!("{PATH}/{second}")).await.json();
    until_stored(&kept, &[&first, &second]).await;
    kept.stop().await;

    let kept = Kept::start(folder.path(), "").await;
    let path = format!("{PATH}/{second}");
    assert_eq!(kept.ada.get(&path).await.json(), shown);
    assert_eq!(kept.bob.get(&path).await.status, 404, "it is another tenant's");
    let items = kept.ada.get(&format!("{path}/input_items")).await.json();
    let texts: Vec<&Value> =
        items["data"].as_array().unwrap().iter().map(|item| &item["content"][0]["text"]).collect();
    assert_eq!(texts, ["And?", "Hello", "Hi"]);
    let mut node = kept.gateway.node("a", 1).await;
    let (messages, third) = turn(&kept.ada, &mut node, Some(&second), "So?", "So.").await;
    assert_eq!(messages, ["Hi", "Hello", "And?", "Well.", "So?"]);
    let refused = json!({"model": "flotilla-demo", "input": "x", "previous_response_id": third});
    assert_eq!(kept.bob.post(PATH, refused.to_string()).await.status, 400);
    until_stored(&kept, &[&first, &second, &third]).await;
    let three = metric(&kept.gateway.admin, "gateway_store_bytes").await;
    let (_, fourth) = turn(&kept.ada, &mut node, Some(&third), "Yes", "Fine.").await;
    eventually("the last one to be stored", async || {
        let bytes = metric(&kept.gateway.admin, "gateway_store_bytes").await;
        (bytes > three).then_some(())
    })
    .await;
    let four = metric(&kept.gateway.admin, "gateway_store_bytes").await;
    assert!(four - three < three / 2.0, "one turn more: {three} and {four}");

    // Deleted, it is in later ones only.
    assert_eq!(delete(&kept.bob, &format!("{PATH}/{first}")).await, 404);
    assert_eq!(delete(&kept.ada, &format!("{PATH}/{first}")).await, 200);
    kept.stop().await;
    let kept = Kept::start(folder.path(), "").await;
    assert_eq!(kept.ada.get(&format!("{PATH}/{first}")).await.status, 404);
    let gone = json!({"model": "flotilla-demo", "input": "x", "previous_response_id": first});
    let refused = kept.ada.post(PATH, gone.to_string()).await.json();
    assert_eq!(refused["error"]["param"], "previous_response_id");
    let mut node = kept.gateway.node("a", 1).await;
    let (messages, fifth) = turn(&kept.ada, &mut node, Some(&fourth), "Bye", "Bye.").await;
    assert_eq!(messages.len(), 9);
    assert_eq!(messages[0], "Hi");

    // Nothing is left once all are deleted.
    for id in [&second, &third, &fourth, &fifth] {
        assert_eq!(delete(&kept.ada, &format!("{PATH}/{id}")).await, 200);
    }
    eventually("the store to be empty", async || {
        (metric(&kept.gateway.admin, "gateway_store_bytes").await == 0.0).then_some(())
    })
    .await;
    kept.gateway.is_idle().await;
}

#[tokio::test]
async fn a_response_that_shall_not_be_stored_is_in_no_database() {
    let folder = Folder::new();
    let kept = Kept::start(folder.path(), "").await;
    let mut node = kept.gateway.node("a", 1).await;
    let request = json!({"model": "flotilla-demo", "input": "secret words", "store": false});
    let (client, body) = (kept.ada.clone(), request.to_string());
    let asking = tokio::spawn(async move { client.post(PATH, body).await });
    node.asked().await.answer("Hello");
    assert_eq!(asking.await.unwrap().status, 200);
    // The next one is stored after it would have been.
    let (_, next) = turn(&kept.ada, &mut node, None, "Hi", "Hello").await;
    until_stored(&kept, &[&next]).await;
    kept.stop().await;
    for entry in std::fs::read_dir(folder.path()).unwrap().flatten() {
        let content = std::fs::read(entry.path()).unwrap_or_default();
        assert!(!content.windows(12).any(|part| part == b"secret words"), "{entry:?}");
    }
}

#[tokio::test]
async fn a_response_older_than_its_age_is_gone_after_a_restart() {
    let folder = Folder::new();
    let kept = Kept::start_beside(folder.path(), "limits: {stored_age_s: 1}\n").await;
    let mut node = kept.gateway.node("a", 1).await;
    let (_, id) = turn(&kept.ada, &mut node, None, "Hi", "Hello").await;
    eventually("it to be stored", async || {
        (metric(&kept.gateway.admin, "gateway_store_bytes").await > 0.0).then_some(())
    })
    .await;
    kept.stop().await;
    let kept = Kept::start_beside(folder.path(), "limits: {stored_age_s: 1}\n").await;
    eventually("it to be deleted", async || {
        let is_gone = kept.ada.get(&format!("{PATH}/{id}")).await.status == 404;
        let bytes = metric(&kept.gateway.admin, "gateway_store_bytes").await;
        (is_gone && bytes == 0.0).then_some(())
    })
    .await;
}
