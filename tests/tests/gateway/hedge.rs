//! A first token that is late is asked of a second node.

use fleet_tests::mock_node::{Asked, MockNode};
use fleet_tests::process::metric;
use fleet_tests::{chat, eventually, streamed};
use inference_protocol::resume::prefill_event;
use serde_json::json;

use super::Gateway;

const LATE: &str = "routing: {hedge_ms: 50}\n";

/// Two nodes with a slot each, both of them asked the same.
async fn both_asked(gateway: &Gateway, streams: bool) -> ([MockNode; 2], Running, [Asked; 2]) {
    let (mut a, mut b) = (gateway.node("a", 1).await, gateway.node("b", 1).await);
    let running = match streams {
        true => Running::Stream(gateway.streams("Hi")),
        false => Running::Whole(gateway.asks("Hi")),
    };
    let asked = tokio::join!(a.asked(), b.asked());
    assert_eq!(asked.0.resume.id, asked.1.resume.id, "whoever answers, it is one answer");
    ([a, b], running, [asked.0, asked.1])
}

enum Running {
    Whole(tokio::task::JoinHandle<fleet_tests::client::Answer>),
    Stream(tokio::task::JoinHandle<fleet_tests::client::Transcript>),
}

impl Running {
    async fn says(self) -> String {
        match self {
            Self::Whole(asking) => asking.await.unwrap().content(),
            Self::Stream(asking) => asking.await.unwrap().text,
        }
    }
}

async fn hedges(gateway: &Gateway) -> f64 {
    let text = String::from_utf8(gateway.admin.get("/metrics").await.body.to_vec()).unwrap();
    let lines = text.lines().filter(|line| line.starts_with("gateway_hedges_total{"));
    lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

#[tokio::test]
async fn whichever_node_says_something_first_answers_and_the_other_is_told_to_stop() {
    for streams in [false, true] {
        let gateway = Gateway::start(LATE).await;
        let (_nodes, running, [slow, fast]) = both_asked(&gateway, streams).await;
        let slow = slow.stream();
        let fast = fast.stream();
        if streams {
            fast.say_marked(&[7], "Hello").await;
            fast.done().await;
        } else {
            let whole = r#"{"choices":[{"message":{"role":"assistant","content":"Hello"}}]}"#;
            fast.send(format!(": t 0 7\n\n: u 1 1 0\ndata: {whole}\n\n")).await;
        }
        assert_eq!(running.says().await, "Hello");
        eventually("the other to be told", async || (!slow.offer(": x\n\n").await).then_some(()))
            .await;
        assert_eq!(hedges(&gateway).await, 1.0);
        gateway.is_idle().await;
    }
}

#[tokio::test]
async fn a_node_that_fails_has_not_won() {
    let gateway = Gateway::start(LATE).await;
    let (_nodes, running, [first, second]) = both_asked(&gateway, true).await;
    first.refuse(500);
    let stream = second.stream();
    stream.say_marked(&[7], "Hello").await;
    stream.done().await;
    assert_eq!(running.says().await, "Hello");
    gateway.is_idle().await;
}

#[tokio::test]
async fn a_node_that_says_nothing_is_found_out_although_another_always_answers_for_it() {
    // As long as a silence must be to count.
    let gateway =
        Gateway::start("routing: {hedge_ms: 1000}\nhealth: {probe_interval_ms: 0}\n").await;
    let (mut hangs, mut works) = (gateway.node("a", 1).await, gateway.node("b", 1).await);
    while gateway.health("/nodes/ejected").await == 0 {
        let running = gateway.asks("Hi");
        let mut silent = Vec::new();
        let answered = loop {
            tokio::select! {
                asked = hangs.asked() => silent.push(asked),
                asked = works.asked() => break asked,
            }
        };
        answered.answer("Hello");
        assert_eq!(running.await.unwrap().content(), "Hello");
    }
    let ejected = "gateway_node_ejected{node=\"a\"}";
    assert_eq!(metric(&gateway.admin, ejected).await, 1.0);
    gateway.is_idle().await;
}

#[tokio::test]
async fn a_node_that_failed_beside_another_is_not_asked_again() {
    let gateway = Gateway::start(LATE).await;
    let (mut nodes, running, asked) = both_asked(&gateway, false).await;
    asked.into_iter().for_each(|asked| asked.refuse(500));
    let Running::Whole(asking) = running else { unreachable!("it is no stream") };
    let mut again = 0;
    while !asking.is_finished() {
        for request in nodes.iter_mut().filter_map(MockNode::is_asked) {
            again += 1;
            request.refuse(500);
        }
        tokio::task::yield_now().await;
    }
    assert_eq!((again, asking.await.unwrap().error_code().as_str()), (0, "node_refused"));
    gateway.is_idle().await;
}

#[tokio::test]
async fn only_a_slot_that_idles_is_taken_for_it() {
    let gateway = Gateway::start(LATE).await;
    let mut a = gateway.node("a", 1).await;
    let first = gateway.streams("one");
    let one = a.asked().await.stream();
    let mut b = gateway.node("b", 1).await;
    let second = gateway.streams("two");
    let two = b.asked().await.stream();
    let third = gateway.streams("three");
    one.say_marked(&[7], "first").await;
    one.done().await;
    // The slot goes to whoever waits, and not to the second one for another try.
    let three = a.asked().await;
    assert_eq!(three.body["messages"][0]["content"], "three");
    let three = three.stream();
    for (stream, text) in [(two, "second"), (three, "third")] {
        stream.say_marked(&[7], text).await;
        stream.done().await;
    }
    let said = [first.await.unwrap().text, second.await.unwrap().text, third.await.unwrap().text];
    assert_eq!(said, ["first", "second", "third"]);
    gateway.is_idle().await;
}

#[tokio::test]
async fn one_request_in_ten_is_asked_twice_and_a_few_more() {
    let gateway = Gateway::start("routing: {hedge_ms: 1}\n").await;
    let (mut a, mut b) = (gateway.node("a", 1).await, gateway.node("b", 1).await);
    let (begun, requests, mut asked) = (std::time::Instant::now(), 60, 0);
    for _ in 0..requests {
        let running = gateway.asks("Hi");
        let (first, other) = tokio::select! {
            asked = a.asked() => (asked, &mut b),
            asked = b.asked() => (asked, &mut a),
        };
        let until = tokio::time::Instant::now() + std::time::Duration::from_millis(20);
        let second = tokio::time::timeout_at(until, other.asked()).await;
        asked += 1 + usize::from(second.is_ok());
        first.answer("Hello");
        running.await.unwrap();
        gateway.is_idle().await;
    }
    let seconds = begun.elapsed().as_secs() as usize;
    let most = requests + requests / 10 + 10 + seconds + 1;
    assert!((requests + 1..=most).contains(&asked), "asked {asked} times, at most {most}");
    assert!(metric(&gateway.admin, "gateway_hedges_total{first=\"first\"}").await >= 1.0);
}

#[tokio::test]
async fn the_progress_of_a_prefill_reaches_the_client_and_is_no_first_token() {
    let gateway = Gateway::start(LATE).await;
    let (mut a, mut b) = (gateway.node("a", 1).await, gateway.node("b", 1).await);
    let asking = tokio::spawn({
        let client = gateway.client.clone();
        async move { client.stream(&streamed(chat("Hi"))).await }
    });
    let (slow, mut other) = tokio::select! {
        asked = a.asked() => (asked, b),
        asked = b.asked() => (asked, a),
    };
    let slow = slow.stream();
    let report = |n: u32| format!(r#"{{"choices":[],"prompt_progress":{{"processed":{n}}}}}"#);
    slow.send(prefill_event(&report(1))).await;
    let mut reading = asking.await.unwrap();
    // The head is sent, and yet the token is late: another node is asked, and wins.
    let fast = other.asked().await;
    assert_eq!(fast.resume.choices.len(), 0, "nothing of the response exists");
    let fast = fast.stream();
    fast.send(prefill_event(&report(2))).await;
    fast.say_marked(&[7], "Hello").await;
    assert!(reading.next_chunk().await);
    slow.is_given_up().await;
    assert_eq!(hedges(&gateway).await, 1.0);
    fast.done().await;
    assert_eq!(reading.finish().await.text, "Hello");
    gateway.is_idle().await;
}

#[tokio::test]
async fn a_node_that_dies_in_its_prefill_is_replaced_although_its_progress_was_told() {
    let gateway = Gateway::start("").await;
    let mut a = gateway.node("a", 1).await;
    let asking = tokio::spawn({
        let client = gateway.client.clone();
        async move { client.stream(&streamed(chat("Hi"))).await }
    });
    let stream = a.asked().await.stream();
    stream.send(prefill_event("{}")).await;
    let reading = asking.await.unwrap();
    let mut b = gateway.node("b", 1).await;
    drop(stream);
    let asked = b.asked().await;
    asked.reply(400, "application/json", json!({"error": {"code": "no"}}).to_string());
    let said = reading.finish().await;
    assert_eq!((said.errors.as_slice(), said.done), (&["no".to_string()][..], false));
    gateway.is_idle().await;
}
