//! A conversation goes where its beginning is.

use fleet_tests::mock_node::{Asked, MockNode};
use fleet_tests::process::run;
use inference_protocol::fleet::PREFIX_GROUP_HEADER;
use serde_json::{Value, json};

use super::Gateway;

/// A turn of a conversation whose first message is long.
fn turn(salt: &str, turns: usize) -> Value {
    let mut messages = vec![json!({"role": "system", "content": salt.repeat(2000 / salt.len())})];
    for number in 0..turns {
        messages.push(json!({"role": "user", "content": format!("question {number}")}));
        messages.push(json!({"role": "assistant", "content": format!("answer {number}")}));
    }
    messages.push(json!({"role": "user", "content": "and now?"}));
    json!({"model": "flotilla-demo", "messages": messages})
}

async fn either<'a>(a: &mut MockNode, b: &mut MockNode) -> (&'a str, Asked) {
    tokio::select! {
        asked = a.asked() => ("a", asked),
        asked = b.asked() => ("b", asked),
    }
}

#[tokio::test]
async fn every_turn_of_a_conversation_goes_to_the_node_of_the_first() {
    let gateway = Gateway::start("").await;
    let (mut a, mut b) = (gateway.node("a", 4).await, gateway.node("b", 4).await);
    for conversation in ["Be brief. ", "Be polite. ", "Be careful. "] {
        let mut first = None;
        for number in 0..4 {
            let (client, request) = (gateway.client.clone(), turn(conversation, number));
            let asking = tokio::spawn(async move { client.chat(&request).await });
            let (node, asked) = either(&mut a, &mut b).await;
            asked.answer("done");
            assert_eq!(asking.await.unwrap().status, 200);
            assert_eq!(node, *first.get_or_insert(node), "turn {number} of {conversation}");
        }
    }
    gateway.is_idle().await;
}

#[tokio::test]
async fn keys_of_a_group_go_where_the_beginning_of_another_one_is() {
    let made = |name: &str, more: &[&str]| {
        let made =
            run("flotilla-gateway", &[&["key", "new", "--name", name], more].concat()).stdout;
        let (head, entry) = made.split_once("keys:\n").unwrap();
        (head.lines().nth(1).unwrap().to_string(), entry.to_string())
    };
    let group = ["--prefix-group", "team"];
    let [ada, bob] = ["ada", "bob"].map(|name| made(name, &group));
    let eve = made("eve", &[]);
    let keys = format!("keys:\n{}{}{}", ada.1, bob.1, eve.1);
    let gateway = Gateway::start_with_keys(&keys, "").await;
    let (mut a, mut b) = (gateway.node("a", 4).await, gateway.node("b", 4).await);
    let mut nodes = Vec::new();
    for (key, group) in [(&ada.0, Some("team")), (&bob.0, Some("team")), (&eve.0, None)] {
        for _ in 0..3 {
            let client = gateway.client.with_key(Some(key));
            let request = turn("Be brief. ", 1);
            let asking = tokio::spawn(async move { client.chat(&request).await });
            let (node, asked) = either(&mut a, &mut b).await;
            let header = asked.headers.get(PREFIX_GROUP_HEADER);
            assert_eq!(header.map(|name| name.to_str().unwrap()), group);
            asked.answer("done");
            assert_eq!(asking.await.unwrap().status, 200);
            nodes.push(node);
        }
    }
    assert!(nodes[..6].iter().all(|node| *node == nodes[0]), "{nodes:?}");
    gateway.is_idle().await;
}

#[tokio::test]
async fn a_node_that_holds_a_beginning_is_not_overrun() {
    let gateway = Gateway::start("").await;
    let (mut a, mut b) = (gateway.node("a", 2).await, gateway.node("b", 2).await);
    let mut held = Vec::new();
    let mut asking = Vec::new();
    for _ in 0..4 {
        let (client, request) = (gateway.client.clone(), turn("Be brief. ", 1));
        asking.push(tokio::spawn(async move { client.chat(&request).await }));
        held.push(either(&mut a, &mut b).await);
    }
    let on_a = held.iter().filter(|(node, _)| *node == "a").count();
    assert_eq!(on_a, 2, "every slot is used");
    held.into_iter().for_each(|(_, asked)| asked.answer("done"));
    for answer in asking {
        assert_eq!(answer.await.unwrap().status, 200);
    }
    gateway.is_idle().await;
}

#[tokio::test]
async fn the_policy_of_routing_is_configured() {
    let gateway = Gateway::start("routing: {policy: round_robin}\n").await;
    let (mut a, mut b) = (gateway.node("a", 4).await, gateway.node("b", 4).await);
    let mut order = Vec::new();
    for _ in 0..6 {
        let (client, request) = (gateway.client.clone(), turn("Be brief. ", 1));
        let asking = tokio::spawn(async move { client.chat(&request).await });
        let (node, asked) = either(&mut a, &mut b).await;
        asked.answer("done");
        assert_eq!(asking.await.unwrap().status, 200);
        order.push(node);
    }
    assert!(order.chunks(2).all(|pair| pair == ["a", "b"]), "{order:?}");
}
