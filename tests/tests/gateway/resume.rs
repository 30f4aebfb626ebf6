//! Nodes fail in the middle of their answers: others go on, and clients do not notice.

use fleet_tests::mock_node::{Asked, MockNode, Streaming, healthy};
use fleet_tests::{chat, eventually, streamed};
use inference_protocol::fleet::NodeState;
use inference_protocol::resume::{Resume, ResumedChoice, Usage};

use super::Gateway;

const USAGE: Usage = Usage { prompt: 5, completion: 4, cached: 0 };

/// A stream on node a that has said "Hel", with tokens 1 and 2.
async fn begun(gateway: &Gateway, a: &mut MockNode) -> (Begun, Resume) {
    let client = gateway.client.clone();
    let asking = tokio::spawn(async move { client.stream(&streamed(chat("Hi"))).await });
    let asked = a.asked().await;
    let resume = asked.resume.clone();
    assert!(resume.choices.is_empty() && resume.id.len() == 32 && resume.created > 0);
    let stream = asked.stream();
    stream.say_marked(&[1, 2], "Hel").await;
    let mut reading = asking.await.unwrap();
    assert!(reading.next_chunk().await);
    (Begun { stream, reading }, resume)
}

struct Begun {
    stream: Streaming,
    reading: fleet_tests::client::Stream,
}

/// The rest of that, from whoever is asked for it.
async fn goes_on(asked: Asked, resume: &Resume) {
    assert_eq!((&asked.resume.id, asked.resume.seed), (&resume.id, resume.seed));
    assert_eq!(asked.resume.created, resume.created);
    let [ResumedChoice { tokens, events, bytes }] = &asked.resume.choices[..] else { panic!() };
    assert_eq!((&tokens[..], *events), (&[1, 2][..], 1));
    assert!(*bytes > 20, "those of the event without its mark");
    assert_eq!(asked.body["messages"][0]["content"], "Hi");
    let stream = asked.stream();
    stream.say_marked(&[3], "lo").await;
    stream.close_marked(USAGE, "[DONE]").await;
}

/// Fails an answer that has begun on a, and lets b go on.
async fn another_goes_on(fail: impl AsyncFnOnce(&MockNode, Streaming)) {
    let gateway = Gateway::start("").await;
    let mut a = gateway.node("a", 1).await;
    let (Begun { stream, reading }, resume) = begun(&gateway, &mut a).await;
    let mut b = gateway.node("b", 1).await;
    fail(&a, stream).await;
    goes_on(b.asked().await, &resume).await;
    let said = reading.finish().await;
    assert_eq!((said.text.as_str(), said.done, said.errors.len()), ("Hello", true, 0));
    let metrics = gateway.admin.get("/metrics").await.body;
    let metrics = String::from_utf8_lossy(&metrics).into_owned();
    let mut resumes = metrics.lines().filter(|line| line.starts_with("gateway_resumes_total{"));
    assert!(resumes.any(|line| !line.ends_with(" 0")), "{metrics}");
    gateway.is_idle().await;
}

#[tokio::test]
async fn a_stream_goes_on_when_its_nodes_connection_breaks() {
    another_goes_on(async |a, _stream| a.dies()).await;
}

#[tokio::test]
async fn a_stream_goes_on_when_it_ends_without_its_end() {
    another_goes_on(async |_, stream| drop(stream)).await;
    another_goes_on(async |_, stream| stream.send(": t 0 3\ndata: {\"choi").await).await;
}

#[tokio::test]
async fn a_stream_goes_on_when_its_node_says_that_it_failed() {
    for code in ["engine_lost", "engine_error", "node_draining", "resume_mismatch"] {
        another_goes_on(async |_, stream| stream.fails(code).await).await;
    }
}

#[tokio::test]
async fn a_stream_goes_on_when_its_node_falls_silent() {
    another_goes_on(async |a, stream| {
        a.falls_silent();
        stream.is_given_up().await;
    })
    .await;
}

#[tokio::test]
async fn a_stream_that_stands_still_goes_on_elsewhere() {
    let gateway = Gateway::start("timeouts: {idle_ms: 100}\n").await;
    let mut a = gateway.node("a", 1).await;
    let (begun, resume) = begun(&gateway, &mut a).await;
    let mut b = gateway.node("b", 1).await;
    goes_on(b.asked().await, &resume).await;
    assert_eq!(begun.reading.finish().await.text, "Hello");
    begun.stream.is_given_up().await;
    gateway.is_idle().await;
}

#[tokio::test]
async fn an_answer_that_is_not_streamed_goes_on_too() {
    let gateway = Gateway::start("").await;
    let mut a = gateway.node("a", 1).await;
    let asking = gateway.asks("Hi");
    let stream = a.asked().await.stream();
    stream.note(&[1, 2]).await;
    stream.note(&[3]).await;
    let mut b = gateway.node("b", 1).await;
    drop(stream);
    let asked = b.asked().await;
    assert_eq!(
        asked.resume.choices,
        [ResumedChoice { tokens: vec![1, 2, 3], events: 0, bytes: 0 }]
    );
    let stream = asked.stream();
    stream.note(&[4]).await;
    let whole = r#"{"choices":[{"message":{"content":"Hello"}}]}"#;
    stream.close_marked(USAGE, whole).await;
    let answer = asking.await.unwrap();
    assert_eq!((answer.status, answer.content().as_str()), (200, "Hello"));
    assert_eq!(answer.header("content-type").unwrap(), "application/json");
    gateway.is_idle().await;
}

#[tokio::test]
async fn an_answer_that_is_not_streamed_has_the_limit_of_answers_and_not_of_events() {
    let gateway =
        Gateway::start("limits: {event_bytes_max: 1000, response_bytes_max: 40000}\n").await;
    let mut a = gateway.node("a", 1).await;
    for (bytes, status) in [(30_000, 200), (50_000, 422)] {
        let asking = gateway.asks("Hi");
        let stream = a.asked().await.stream();
        let text = "x".repeat(bytes);
        let whole =
            format!("data: {{\"choices\":[{{\"message\":{{\"content\":\"{text}\"}}}}]}}\n\n");
        // In two pieces, so that it is held.
        let (first, last) = whole.split_at(whole.len() - 10);
        stream.send(format!(": u 1 1 0\n{first}")).await;
        stream.send(last.to_string()).await;
        assert_eq!(asking.await.unwrap().status, status);
    }
    gateway.is_idle().await;
}

#[tokio::test]
async fn an_answer_goes_on_with_the_same_model_file_only_and_waits_for_it() {
    let gateway = Gateway::start("").await;
    let mut a = gateway.node("a", 1).await;
    let (begun, resume) = begun(&gateway, &mut a).await;
    let mut other = healthy("b", 1);
    other.models[0].digest = "another file".into();
    let mut b = gateway.node_with(other).await;
    a.dies();
    eventually("the answer to wait", async || {
        (gateway.health("/queue_depth").await == 1).then_some(())
    })
    .await;
    let mut again = gateway.node("a", 1).await;
    goes_on(again.asked().await, &resume).await;
    assert_eq!(begun.reading.finish().await.text, "Hello");
    assert!(b.is_asked().is_none());
    gateway.is_idle().await;
}

#[tokio::test]
async fn an_answer_that_nobody_goes_on_with_ends_with_one_error() {
    let gateway = Gateway::start("timeouts: {resume_ms: 100, queue_ms: 100}\n").await;
    let mut a = gateway.node("a", 1).await;
    let (begun, _) = begun(&gateway, &mut a).await;
    a.dies();
    let said = begun.reading.finish().await;
    assert_eq!((said.text.as_str(), said.done), ("Hel", false));
    assert_eq!(said.errors, ["node_lost"]);
    gateway.is_idle().await;
}

#[tokio::test]
async fn an_answer_that_gets_on_may_lose_any_number_of_nodes() {
    let gateway = Gateway::start("retries_max: 1\n").await;
    let mut nodes = vec![gateway.node("n0", 1).await];
    let (begun, _) = begun(&gateway, &mut nodes[0]).await;
    let (mut stream, mut reading) = (begun.stream, begun.reading);
    for number in 1..6 {
        nodes.push(gateway.node(&format!("n{number}"), 1).await);
        drop(stream);
        let asked = nodes[number].asked().await;
        assert_eq!(asked.resume.choices[0].tokens.len(), 1 + number);
        stream = asked.stream();
        stream.say_marked(&[7], "+").await;
        assert!(reading.next_chunk().await);
    }
    stream.close_marked(USAGE, "[DONE]").await;
    let said = reading.finish().await;
    assert_eq!((said.text.as_str(), said.done), ("Hel+++++", true));
    gateway.is_idle().await;
}

#[tokio::test]
async fn what_ends_two_engines_is_not_tried_again() {
    let gateway = Gateway::start("retries_max: 5\n").await;
    let (mut a, mut b) = (gateway.node("a", 1).await, gateway.node("b", 1).await);
    let mut c = gateway.node("c", 1).await;
    let client = gateway.client.clone();
    let asking = tokio::spawn(async move { client.chat(&streamed(chat("Hi"))).await });
    for _ in 0..2 {
        let asked = tokio::select! {
            asked = a.asked() => asked,
            asked = b.asked() => asked,
            asked = c.asked() => asked,
        };
        asked.stream().fails("engine_lost").await;
    }
    assert_eq!(asking.await.unwrap().error_code(), "request_quarantined");
    // Sent again, it gets no further than here.
    let again = gateway.client.chat(&streamed(chat("Hi"))).await;
    assert_eq!((again.status, again.error_code().as_str()), (422, "request_quarantined"));
    assert!([&mut a, &mut b, &mut c].into_iter().all(|node| node.is_asked().is_none()));
    // Another one is served.
    let asking = gateway.asks("Hello?");
    let asked = tokio::select! {
        asked = a.asked() => asked,
        asked = b.asked() => asked,
        asked = c.asked() => asked,
    };
    asked.answer("Hello");
    assert_eq!(asking.await.unwrap().status, 200);
    gateway.is_idle().await;
}

#[tokio::test]
async fn a_node_that_leaves_keeps_its_answers_while_there_is_no_other() {
    let gateway = Gateway::start("timeouts: {resume_ms: 50}\n").await;
    let mut a = gateway.node("a", 1).await;
    let (begun, _) = begun(&gateway, &mut a).await;
    a.says(|s| s.state = NodeState::Draining);
    // It has waited for another in vain.
    for depth in [1, 0] {
        eventually("the queue", async || {
            (gateway.health("/queue_depth").await == depth).then_some(())
        })
        .await;
    }
    begun.stream.say_marked(&[3], "lo").await;
    begun.stream.close_marked(USAGE, "[DONE]").await;
    assert_eq!(begun.reading.finish().await.text, "Hello");
    gateway.is_idle().await;
}

#[tokio::test]
async fn the_answers_of_a_node_that_leaves_go_on_elsewhere_at_once() {
    let gateway = Gateway::start("").await;
    let mut a = gateway.node("a", 1).await;
    let (begun, resume) = begun(&gateway, &mut a).await;
    let mut b = gateway.node("b", 1).await;
    a.says(|s| s.state = NodeState::Draining);
    goes_on(b.asked().await, &resume).await;
    begun.stream.is_given_up().await;
    assert_eq!(begun.reading.finish().await.text, "Hello");
    gateway.is_idle().await;
}
