//! A node fails before it has said anything: another one answers.

use fleet_tests::mock_node::{Asked, MockNode};
use fleet_tests::process::metric;
use fleet_tests::{chat, streamed};
use inference_protocol::fleet::NodeState;

use super::Gateway;

/// Whichever of two nodes was asked first, and the other.
async fn first_asked<'a>(a: &'a mut MockNode, b: &'a mut MockNode) -> (Asked, &'a mut MockNode) {
    tokio::select! {
        asked = a.asked() => (asked, b),
        asked = b.asked() => (asked, a),
    }
}

async fn another_answers(streams: bool, fail: impl AsyncFnOnce(Asked)) {
    let gateway = Gateway::start("").await;
    let (mut a, mut b) = (gateway.node("a", 1).await, gateway.node("b", 1).await);
    let client = gateway.client.clone();
    let asking = tokio::spawn(async move {
        if streams {
            let said = client.stream(&streamed(chat("Hi"))).await.finish().await;
            assert_eq!((said.done, said.errors.len()), (true, 0));
            said.text
        } else {
            client.chat(&chat("Hi")).await.content()
        }
    });
    let (asked, other) = first_asked(&mut a, &mut b).await;
    fail(asked).await;
    let asked = other.asked().await;
    assert_eq!(asked.body["messages"][0]["content"], "Hi");
    if streams {
        let stream = asked.stream();
        stream.say("Hello").await;
        stream.done().await;
    } else {
        asked.answer("Hello");
    }
    assert_eq!(asking.await.unwrap(), "Hello");
    gateway.is_idle().await;
}

#[tokio::test]
async fn a_request_that_a_node_refuses_goes_to_another() {
    for status in [500, 503, 429, 401, 403] {
        another_answers(false, async |asked| asked.refuse(status)).await;
        another_answers(true, async |asked| asked.refuse(status)).await;
    }
}

#[tokio::test]
async fn a_request_that_a_node_drops_goes_to_another() {
    another_answers(false, async |asked| asked.reset()).await;
    another_answers(true, async |asked| asked.reset()).await;
}

#[tokio::test]
async fn a_stream_that_ends_before_its_first_event_goes_to_another() {
    another_answers(true, async |asked| drop(asked.stream())).await;
    another_answers(true, async |asked| {
        let stream = asked.stream();
        stream.send(": a comment\n\ndata: {\"choi").await;
    })
    .await;
}

#[tokio::test]
async fn a_stream_whose_first_event_is_an_error_goes_to_another() {
    another_answers(true, async |asked| {
        asked.stream().send("data: {\"error\": {}}\n\n".replace(": {", ":{")).await;
    })
    .await;
}

#[tokio::test]
async fn a_request_of_a_node_whose_connection_breaks_goes_to_another() {
    for streams in [false, true] {
        let gateway = Gateway::start("").await;
        let mut a = gateway.node("a", 1).await;
        let client = gateway.client.clone();
        let asking = tokio::spawn(async move {
            match streams {
                true => client.stream(&streamed(chat("Hi"))).await.finish().await.text,
                false => client.chat(&chat("Hi")).await.content(),
            }
        });
        let _asked = a.asked().await;
        let mut b = gateway.node("b", 1).await;
        a.dies();
        let asked = b.asked().await;
        match streams {
            true => {
                let stream = asked.stream();
                stream.say("Hello").await;
                stream.done().await;
            }
            false => asked.answer("Hello"),
        }
        assert_eq!(asking.await.unwrap(), "Hello");
        gateway.is_idle().await;
    }
}

#[tokio::test]
async fn retries_have_a_limit_and_never_return_to_a_node_that_failed() {
    let gateway = Gateway::start("retries_max: 2\n").await;
    let mut nodes = Vec::new();
    for name in ["a", "b", "c", "d"] {
        nodes.push(gateway.node(name, 1).await);
    }
    let asking = gateway.asks("Hi");
    let mut asked = vec![0; nodes.len()];
    while !asking.is_finished() {
        for (node, count) in nodes.iter_mut().zip(&mut asked) {
            if let Some(request) = node.is_asked() {
                *count += 1;
                request.refuse(503);
            }
        }
        tokio::task::yield_now().await;
    }
    let answer = asking.await.unwrap();
    assert_eq!((answer.status, answer.error_code().as_str()), (503, "node_refused"));
    assert!(answer.header("retry-after").is_some());
    asked.sort_unstable();
    assert_eq!(asked, [0, 1, 1, 1]);
    gateway.is_idle().await;
}

/// A tenth of all requests, and a few more: one a second, ten at first.
#[tokio::test]
async fn nodes_that_refuse_everything_are_not_asked_twice_as_much() {
    let gateway = Gateway::start("retries_max: 1\n").await;
    let mut nodes = Vec::new();
    for name in ["a", "b", "c"] {
        nodes.push(gateway.node(name, 1).await);
    }
    let (begun, requests, mut asked) = (std::time::Instant::now(), 60, 0);
    for _ in 0..requests {
        let asking = gateway.asks("Hi");
        while !asking.is_finished() {
            for request in nodes.iter_mut().filter_map(MockNode::is_asked) {
                asked += 1;
                request.refuse(503);
            }
            tokio::task::yield_now().await;
        }
        assert_eq!(asking.await.unwrap().error_code(), "node_refused");
    }
    let most = requests + requests / 10 + 10 + begun.elapsed().as_secs() + 1;
    assert!((requests + 10..=most).contains(&asked), "asked {asked} times, at most {most}");
    let refused = metric(&gateway.admin, "gateway_retries_refused_total").await;
    assert_eq!(refused, (2 * requests - asked) as f64);
    gateway.is_idle().await;
}

#[tokio::test]
async fn what_is_wrong_with_the_request_is_told_once() {
    let gateway = Gateway::start("").await;
    let (mut a, mut b) = (gateway.node("a", 1).await, gateway.node("b", 1).await);
    let asking = gateway.asks("Hi");
    let (asked, other) = first_asked(&mut a, &mut b).await;
    asked.refuse(400);
    let answer = asking.await.unwrap();
    assert_eq!((answer.status, answer.error_code().as_str()), (400, "no"));
    assert!(other.is_asked().is_none());
}

#[tokio::test]
async fn a_node_that_has_started_its_engine_again_is_asked_again() {
    let gateway = Gateway::start("").await;
    let mut a = gateway.node("a", 1).await;
    let asking = gateway.asks("Hi");
    a.asked().await.refuse(503);
    a.says(|s| s.state = NodeState::Restarting);
    a.says(|s| (s.state, s.engine_restarts) = (NodeState::Ready, 1));
    a.asked().await.answer("Hello");
    assert_eq!(asking.await.unwrap().content(), "Hello");
    gateway.is_idle().await;
}

#[tokio::test]
async fn where_all_nodes_have_failed_the_client_hears_why_and_soon() {
    let gateway = Gateway::start("").await;
    let mut a = gateway.node("a", 1).await;
    let asking = gateway.asks("Hi");
    a.asked().await.refuse(500);
    let answer = asking.await.unwrap();
    assert_eq!((answer.status, answer.error_code().as_str()), (503, "node_refused"));
    assert!(a.is_asked().is_none());
    gateway.is_idle().await;
}
