//! Nodes that join, lie, fall silent and come back.

use std::net::SocketAddr;

use fleet_tests::mock_node::{MockNode, healthy, join_headers, join_id, join_status};
use fleet_tests::process::metric;
use fleet_tests::{chat, eventually, streamed};
use inference_protocol::fleet::{NodeState, NodeStatus};

use super::Gateway;

#[tokio::test]
async fn a_join_that_is_not_one_is_refused() {
    let gateway = Gateway::start("").await;
    type Change<'a> = &'a [(&'a str, Option<&'a str>)];
    let changes: [(Change, u16); 10] = [
        (&[("authorization", None)], 401),
        (&[("authorization", Some("Bearer wrong"))], 401),
        (&[("x-flotilla-version", Some("999"))], 426),
        (&[("x-flotilla-version", None)], 426),
        (&[("x-flotilla-version", Some("999, 1000"))], 426),
        (&[("x-flotilla-version", Some("3,4"))], 101),
        (&[("x-flotilla-node", Some("a b"))], 400),
        (&[("x-flotilla-epoch", Some("soon"))], 400),
        (&[("upgrade", Some("websocket"))], 400),
        (&[], 101),
    ];
    for (change, expected) in changes {
        assert_eq!(join_status(gateway.address, change).await, expected, "{change:?}");
    }
    assert_eq!(gateway.client.get("/fleet/v1/join").await.status, 405);
    assert_eq!(gateway.linked().await, 0);
}

/// A later release speaks a later version of the link, too, and tells more about itself.
#[tokio::test]
async fn a_node_of_a_later_release_is_linked_and_what_it_adds_is_ignored() {
    let gateway = Gateway::start("").await;
    let headers = join_headers(gateway.address, "later", "4, 3").await;
    assert_eq!(headers["x-flotilla-version"], "3", "the version that the link speaks");
    let _node = MockNode::join(gateway.address, healthy("later", 1)).await;
    eventually("the node to be linked", async || (gateway.linked().await == 1).then_some(())).await;
}

/// Several addresses may lead to one gateway: a node that has a link to it gets no second one,
/// which would put the first out.
#[tokio::test]
async fn a_node_that_is_linked_already_is_told_so() {
    let gateway = Gateway::start("").await;
    let other = Gateway::start("").await;
    let (id, another) = (join_id(gateway.address).await, join_id(other.address).await);
    assert!(id.len() == 32 && id != another, "{id} and {another}");
    let linked = |list: String| async move {
        join_status(gateway.address, &[("x-flotilla-linked", Some(&list))]).await
    };
    assert_eq!(linked(another.clone()).await, 101);
    assert_eq!(linked(format!("{another},{id}")).await, 409);
}

#[tokio::test]
async fn a_node_that_says_it_is_another_is_put_out() {
    let gateway = Gateway::start("").await;
    let mut liar = MockNode::join_as(gateway.address, "honest", 1, healthy("liar", 1)).await;
    liar.is_put_out().await;
    let mut endless = healthy("endless", 1);
    endless.models[0].id = "x".repeat(100_000);
    let mut endless = MockNode::join(gateway.address, endless).await;
    endless.is_put_out().await;
    assert_eq!(gateway.linked().await, 0);
}

#[tokio::test]
async fn a_node_that_falls_silent_is_out_and_its_requests_go_elsewhere() {
    let gateway = Gateway::start("").await;
    let mut a = gateway.node("a", 1).await;
    let asking = gateway.asks("Hi");
    let _held = a.asked().await;
    let mut b = gateway.node("b", 1).await;
    a.falls_silent();
    b.asked().await.answer("Hello");
    assert_eq!(asking.await.unwrap().content(), "Hello");
    a.is_put_out().await;
    assert_eq!(gateway.linked().await, 1);
    gateway.is_idle().await;
}

#[tokio::test]
async fn a_draining_node_finishes_and_takes_nothing_new() {
    let gateway = Gateway::start("").await;
    let mut a = gateway.node("a", 4).await;
    let request = streamed(chat("Hi"));
    let (mut asking, stream) = tokio::join!(gateway.client.stream(&request), async {
        let stream = a.asked().await.stream();
        stream.say("Hel").await;
        stream
    });
    // Another node could begin a response of which nothing has come.
    assert!(asking.next_chunk().await);
    a.says(|s| s.state = NodeState::Draining);
    eventually("the node to drain", async || {
        (gateway.health("/nodes/ready").await == 0).then_some(())
    })
    .await;
    let mut b = gateway.node("b", 1).await;
    for _ in 0..3 {
        let next = gateway.asks("Next");
        b.asked().await.answer("Hello");
        assert_eq!(next.await.unwrap().content(), "Hello");
    }
    stream.say("lo").await;
    stream.done().await;
    let said = asking.finish().await;
    assert_eq!((said.text.as_str(), said.done), ("Hello", true));
    assert!(a.is_asked().is_none());
    gateway.is_idle().await;
}

#[tokio::test]
async fn a_node_that_comes_back_starts_from_zero() {
    let gateway = Gateway::start("").await;
    let mut before = gateway.node("a", 1).await;
    let broken = gateway.streams("Hi");
    let stream = before.asked().await.stream();
    stream.say("Hel").await;
    eventually("the slot to be taken", async || {
        (gateway.health("/slots/leased").await == 1).then_some(())
    })
    .await;
    // It joins again before its old link has timed out.
    let mut after = MockNode::join(gateway.address, healthy("a", 1)).await;
    before.is_put_out().await;
    assert_eq!(broken.await.unwrap().errors, ["node_lost"]);
    gateway.is_idle().await;
    assert_eq!(gateway.linked().await, 1);
    let next = gateway.asks("Next");
    after.asked().await.answer("Hello");
    assert_eq!(next.await.unwrap().content(), "Hello");
}

const TAKEN: &str = "gateway_joins_refused_total{reason=\"node_name_taken\"}";

#[tokio::test]
async fn a_second_node_of_a_name_is_refused_until_the_first_is_gone() {
    let gateway = Gateway::start("").await;
    let mut first = gateway.node("m", 1).await;
    let running = gateway.streams("Hi");
    let stream = first.asked().await.stream();
    stream.say("Hel").await;
    let another = [("x-flotilla-epoch", Some("2"))];
    for refused in 1..=3 {
        assert_eq!(join_status(gateway.address, &another).await, 423);
        assert_eq!(metric(&gateway.admin, TAKEN).await, f64::from(refused));
    }
    stream.say("lo").await;
    stream.done().await;
    let said = running.await.unwrap();
    assert_eq!((said.text.as_str(), said.done), ("Hello", true));
    // A link without a heartbeat is over, and what was its name is free.
    first.falls_silent();
    eventually("the name to be free", async || {
        (join_status(gateway.address, &another).await == 101).then_some(())
    })
    .await;
}

/// A gateway that dials a node.
async fn dialing(address: SocketAddr) -> Gateway {
    let list = format!("[{{url: 'http://{address}'}}]");
    Gateway::start(&format!("nodes: {{join_key_file: join.key, static: {list}}}\n")).await
}

async fn is_linked(gateway: &Gateway, nodes: u64) {
    eventually("nodes to be linked", async || (gateway.linked().await == nodes).then_some(()))
        .await;
}

#[tokio::test]
async fn a_second_node_of_a_name_that_is_dialed_is_not_taken_in() {
    let (at_first, mut first) = MockNode::listen(healthy("a", 1)).await;
    let gateway = dialing(at_first).await;
    is_linked(&gateway, 1).await;
    let running = gateway.streams("Hi");
    let stream = first.asked().await.stream();
    stream.say("Hel").await;
    // The same by another address, and another one of its name.
    for epoch in [1, 2] {
        let (at_second, mut second) =
            MockNode::listen(NodeStatus { epoch, ..healthy("a", 1) }).await;
        let list = format!("{{url: 'http://{at_first}'}}, {{url: 'http://{at_second}'}}");
        let nodes = format!("nodes: {{join_key_file: join.key, static: [{list}]}}\n");
        gateway.reconfigure(&format!("allow_anonymous: true\n{nodes}")).await;
        second.is_put_out().await;
        assert_eq!(metric(&gateway.admin, TAKEN).await, epoch as f64);
    }
    assert_eq!(gateway.linked().await, 1);
    stream.say("lo").await;
    stream.done().await;
    assert_eq!(running.await.unwrap().text, "Hello");
}

#[tokio::test]
async fn a_node_that_is_dialed_cannot_take_another_name() {
    let (address, mut renamed) = MockNode::listen(healthy("b", 1)).await;
    let gateway = dialing(address).await;
    is_linked(&gateway, 1).await;
    let mut a = gateway.node("a", 1).await;
    renamed.says(|status| status.node = "a".into());
    renamed.is_put_out().await;
    is_linked(&gateway, 1).await;
    let asking = gateway.asks("Hi");
    a.asked().await.answer("Hello");
    assert_eq!(asking.await.unwrap().content(), "Hello");
    // The name is still its owner's.
    assert_eq!(gateway.admin.post("/admin/v1/nodes/a/cordon", "").await.status, 200);
    assert_eq!(gateway.admin.post("/admin/v1/nodes/b/cordon", "").await.status, 404);
}

#[tokio::test]
async fn a_model_whose_nodes_are_lost_is_waited_for_and_others_are_unknown() {
    let gateway = Gateway::start("").await;
    let a = gateway.node("a", 1).await;
    let mut request = chat("Hi");
    request["model"] = "other".into();
    assert_eq!(gateway.client.chat(&request).await.error_code(), "model_not_found");
    a.dies();
    eventually("the node to be lost", async || (gateway.linked().await == 0).then_some(())).await;
    let waiting = gateway.asks("Hi");
    eventually("the queue", async || (gateway.health("/queue_depth").await == 1).then_some(()))
        .await;
    let mut b = gateway.node("b", 1).await;
    b.asked().await.answer("Hello");
    assert_eq!(waiting.await.unwrap().content(), "Hello");
    gateway.is_idle().await;
}

#[tokio::test]
async fn a_gateway_that_stops_finishes_streams_and_refuses_newcomers() {
    let mut gateway = Gateway::start("").await;
    let mut a = gateway.node("a", 1).await;
    let asking = gateway.streams("Hi");
    let stream = a.asked().await.stream();
    stream.say("Hel").await;
    gateway.stop.cancel();
    eventually("the listener to close", async || {
        gateway.client.try_stream(&chat("Hi")).await.is_err().then_some(())
    })
    .await;
    stream.say("lo").await;
    stream.done().await;
    let said = asking.await.unwrap();
    assert_eq!((said.text.as_str(), said.done), ("Hello", true));
    (&mut gateway.running).await.unwrap();
    a.is_put_out().await;
}

#[tokio::test]
async fn connections_beyond_the_limit_wait() {
    let gateway = Gateway::start("limits: {connections_max: 2}\n").await;
    // The node's link is one connection, so that one is left for clients.
    let node = MockNode::join(gateway.address, healthy("a", 1)).await;
    let held = tokio::net::TcpStream::connect(gateway.address).await.unwrap();
    let client = gateway.client.clone();
    let waiting = tokio::spawn(async move { client.get("/livez").await.status });
    drop(held);
    assert_eq!(waiting.await.unwrap(), 200);
    drop(node);
}
