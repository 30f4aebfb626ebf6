//! Every slot is busy.

use fleet_tests::client::Client;
use fleet_tests::mock_node::Asked;
use fleet_tests::{chat, eventually, streamed};
use tokio::task::JoinHandle;

use super::Gateway;

fn ask(client: &Client, text: &str) -> JoinHandle<(u16, String)> {
    let (client, request) = (client.clone(), chat(text));
    tokio::spawn(async move {
        let answer = client.chat(&request).await;
        match answer.status {
            200 => (200, answer.content()),
            status => {
                assert!(answer.header("retry-after").is_some());
                (status, answer.error_code())
            }
        }
    })
}

fn text(asked: &Asked) -> String {
    asked.body["messages"][0]["content"].as_str().unwrap().to_string()
}

#[tokio::test]
async fn requests_wait_in_line_for_a_slot() {
    let gateway = Gateway::start("").await;
    let mut a = gateway.node("a", 1).await;
    let mut asking = Vec::new();
    for (number, name) in ["first", "second", "third"].into_iter().enumerate() {
        asking.push(ask(&gateway.client, name));
        eventually("the request to be in line", async || {
            (gateway.health("/requests_in_flight").await == number as u64 + 1).then_some(())
        })
        .await;
        eventually("the queue", async || {
            (gateway.health("/queue_depth").await == number as u64).then_some(())
        })
        .await;
    }
    for (name, asking) in ["first", "second", "third"].into_iter().zip(asking) {
        let asked = a.asked().await;
        assert_eq!(text(&asked), name);
        assert!(a.is_asked().is_none(), "there is one slot");
        asked.answer(name);
        assert_eq!(asking.await.unwrap(), (200, name.into()));
    }
    gateway.is_idle().await;
}

#[tokio::test]
async fn a_full_queue_refuses_at_once_and_a_long_wait_ends() {
    let gateway = Gateway::start("limits: {queue_depth_max: 1}\ntimeouts: {queue_ms: 500}\n").await;
    let mut a = gateway.node("a", 1).await;
    let first = ask(&gateway.client, "first");
    let held = a.asked().await;
    let waiting = ask(&gateway.client, "waits");
    eventually("the queue", async || (gateway.health("/queue_depth").await == 1).then_some(()))
        .await;
    assert_eq!(ask(&gateway.client, "too many").await.unwrap(), (503, "queue_full".into()));
    assert_eq!(waiting.await.unwrap(), (503, "queue_timeout".into()));
    held.answer("done");
    assert_eq!(first.await.unwrap(), (200, "done".into()));
    assert!(a.is_asked().is_none(), "who gave up is not asked for");
    gateway.is_idle().await;
}

#[tokio::test]
async fn a_client_that_leaves_the_line_makes_room() {
    let gateway = Gateway::start("limits: {queue_depth_max: 1}\n").await;
    let mut a = gateway.node("a", 1).await;
    let first = ask(&gateway.client, "first");
    let held = a.asked().await;
    let leaving = ask(&gateway.client, "leaves");
    eventually("the queue", async || (gateway.health("/queue_depth").await == 1).then_some(()))
        .await;
    leaving.abort();
    eventually("room", async || (gateway.health("/queue_depth").await == 0).then_some(())).await;
    let next = ask(&gateway.client, "next");
    held.answer("done");
    let asked = a.asked().await;
    assert_eq!(text(&asked), "next");
    asked.answer("done");
    assert_eq!((first.await.unwrap().0, next.await.unwrap().0), (200, 200));
    gateway.is_idle().await;
}

#[tokio::test]
async fn requests_go_where_the_share_of_free_slots_is_largest() {
    let gateway = Gateway::start("").await;
    let (mut small, mut large) = (gateway.node("s", 1).await, gateway.node("l", 3).await);
    let asking: Vec<_> = (0..4).map(|_| ask(&gateway.client, "Hi")).collect();
    let mut held = vec![small.asked().await];
    for _ in 0..3 {
        held.push(large.asked().await);
    }
    assert!(small.is_asked().is_none() && large.is_asked().is_none());
    held.into_iter().for_each(|asked| asked.answer("Hello"));
    for asking in asking {
        assert_eq!(asking.await.unwrap().0, 200);
    }
    gateway.is_idle().await;
}

#[tokio::test]
async fn requests_of_others_on_a_node_count() {
    let gateway = Gateway::start("").await;
    let (mut a, mut b) = (gateway.node("a", 4).await, gateway.node("b", 4).await);
    a.says(|s| s.slots_busy_elsewhere = 3);
    eventually("a to be busy", async || (gateway.health("/slots/busy").await == 3).then_some(()))
        .await;
    for _ in 0..3 {
        let asking = ask(&gateway.client, "Hi");
        b.asked().await.answer("Hello");
        assert_eq!(asking.await.unwrap().0, 200);
    }
    assert!(a.is_asked().is_none());
}

#[tokio::test]
async fn a_request_that_waits_is_served_by_a_node_that_joins() {
    let gateway = Gateway::start("").await;
    let mut a = gateway.node("a", 1).await;
    let client = gateway.client.clone();
    let first = tokio::spawn(async move { client.stream(&streamed(chat("Hi"))).await });
    let stream = a.asked().await.stream();
    stream.say("Hel").await;
    let waiting = ask(&gateway.client, "waits");
    eventually("the queue", async || (gateway.health("/queue_depth").await == 1).then_some(()))
        .await;
    let mut b = gateway.node("b", 1).await;
    b.asked().await.answer("Hello");
    assert_eq!(waiting.await.unwrap(), (200, "Hello".into()));
    stream.done().await;
    assert!(first.await.unwrap().finish().await.done);
    gateway.is_idle().await;
}
