//! Traces: what a collector is told of requests, and that nobody waits for it.

use std::net::SocketAddr;

use fleet_tests::collector::{Collector, text};
use fleet_tests::mock_node::{Asked, MockNode, healthy};
use fleet_tests::process::{Fleet, metric};
use fleet_tests::{chat, eventually, streamed};
use flotilla_gateway::types::secret::KeyDigest;
use inference_protocol::resume::Usage;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use rustix::process::Signal;
use serde_json::json;
use tokio::net::TcpListener;

use super::Gateway;

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";
const SECRET: &str = "my secret question";
const SAID: &str = "my secret answer";

fn traceparent(flags: &str) -> String {
    format!("00-{TRACE}-{PARENT}-{flags}")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// A whole answer with its usage.
fn answer(asked: Asked) {
    let message = json!({"role": "assistant", "content": SAID});
    let choice = json!({"index": 0, "message": message, "finish_reason": "stop"});
    let usage = json!({"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10});
    asked.reply(200, "application/json", json!({"choices": [choice], "usage": usage}).to_string());
}

#[tokio::test]
async fn a_request_becomes_a_span_of_its_clients_trace() {
    let mut collector = Collector::start().await;
    let gateway = Gateway::start(&collector.traces("")).await;
    let mut node = gateway.node("a", 1).await;
    let client = gateway.client.with_header("traceparent", &traceparent("01"));
    let client =
        client.with_header("x-request-id", "mine").with_header("x-flotilla-class", "batch");
    let asking = tokio::spawn(async move { client.chat(&chat(SECRET)).await });
    answer(node.asked().await);
    assert_eq!(asking.await.unwrap().content(), SAID);

    let told = collector.next().await;
    let span = &told.span;
    assert_eq!(span.name, "chat flotilla-demo");
    assert_eq!(span.kind, SpanKind::Server as i32);
    assert_eq!((hex(&span.trace_id), hex(&span.parent_span_id)), (TRACE.into(), PARENT.into()));
    assert!(span.span_id.len() == 8 && hex(&span.span_id) != PARENT);
    assert!(span.start_time_unix_nano > 0);
    assert!(span.end_time_unix_nano >= span.start_time_unix_nano);
    assert_eq!(span.status.as_ref().unwrap().code, StatusCode::Unset as i32);
    for (key, value) in [
        ("gen_ai.operation.name", "chat"),
        ("gen_ai.provider.name", "flotilla"),
        ("gen_ai.request.model", "flotilla-demo"),
        ("gen_ai.usage.input_tokens", "7"),
        ("gen_ai.usage.output_tokens", "3"),
        ("flotilla.request_id", "mine"),
        ("flotilla.tenant", "anonymous"),
        ("flotilla.class", "batch"),
        ("flotilla.node", "a"),
        ("flotilla.outcome", "ok"),
        ("flotilla.retries", "0"),
        ("error.type", ""),
    ] {
        assert_eq!(told.text(key), value, "{key}");
    }
    for key in ["flotilla.queue_wait_ms", "flotilla.time_to_first_token_ms", "server.address"] {
        assert_ne!(told.text(key), "", "{key}");
    }
    assert_eq!(text(&told.resource, "service.name"), "flotilla-gateway");
    let bytes = String::from_utf8_lossy(&told.bytes);
    assert!(bytes.contains("flotilla-demo") && !bytes.contains("secret"), "{bytes}");
}

#[tokio::test]
async fn a_stream_that_goes_on_elsewhere_is_one_span() {
    let mut collector = Collector::start().await;
    let gateway = Gateway::start(&collector.traces("")).await;
    let mut a = gateway.node("a", 1).await;
    let running = gateway.streams(SECRET);
    let stream = a.asked().await.stream();
    stream.say_marked(&[1], SAID).await;
    let mut b = gateway.node("b", 1).await;
    a.dies();
    let stream = b.asked().await.stream();
    stream.say_marked(&[2], "!").await;
    stream.close_marked(Usage { prompt: 5, completion: 2, cached: 1 }, "[DONE]").await;
    assert!(running.await.unwrap().done);
    let told = collector.next().await;
    let seen = ["node", "outcome", "retries"].map(|key| told.text(&format!("flotilla.{key}")));
    assert_eq!(seen, ["b", "ok", "1"]);
    assert_eq!(told.text("gen_ai.usage.input_tokens"), "5");
    assert_eq!(told.text("gen_ai.usage.output_tokens"), "2");
    assert!(told.span.parent_span_id.is_empty() && told.span.trace_id.len() == 16);
    assert!(!String::from_utf8_lossy(&told.bytes).contains("secret"));
}

#[tokio::test]
async fn what_fails_says_why() {
    let mut collector = Collector::start().await;
    let gateway = Gateway::start(&format!("{}retries_max: 0\n", collector.traces(""))).await;
    let mut node = gateway.node("a", 1).await;
    let running = gateway.asks(SECRET);
    node.asked().await.refuse(500);
    assert_eq!(running.await.unwrap().status, 503);
    let told = collector.next().await;
    assert_eq!(told.span.status.as_ref().unwrap().code, StatusCode::Error as i32);
    assert_eq!((told.text("error.type"), told.text("flotilla.outcome")), {
        ("node_refused".into(), "node_refused".into())
    });
    // What its client did wrong is no fault of ours.
    let unknown = json!({"model": "nobody-has-this", "messages": []});
    assert_eq!(gateway.client.chat(&unknown).await.status, 404);
    let told = collector.next().await;
    assert_eq!(told.span.name, "chat");
    assert_eq!(told.span.status.as_ref().unwrap().code, StatusCode::Unset as i32);
    assert_eq!(told.text("flotilla.outcome"), "model_not_found");
    assert!(!String::from_utf8_lossy(&told.bytes).contains("nobody-has-this"));
}

/// Keys of two tenants, one of whom decides what is traced; with more of the configuration.
fn keys(more: &str) -> String {
    let entry = |name: &str, flags: &str| {
        let digest = KeyDigest::of(format!("key-of-{name}")).to_hex();
        format!("{{name: {name}, sha256: {digest}{flags}}}")
    };
    let (ada, bob) = (entry("ada", ", force_trace: true"), entry("bob", ""));
    format!("keys: [{ada}, {bob}]\n{more}")
}

#[tokio::test]
async fn the_ratio_says_what_is_traced_and_clients_only_where_their_key_may() {
    let mut collector = Collector::start().await;
    let gateway = Gateway::start_with_keys(&keys(&collector.traces("")), "").await;
    let mut node = gateway.node("a", 1).await;
    let mut ask = async |tenant: &str, id: &str, flags: Option<&str>| {
        let client = gateway.client.with_key(Some(&format!("key-of-{tenant}")));
        let mut client = client.with_header("x-request-id", id);
        if let Some(flags) = flags {
            client = client.with_header("traceparent", &traceparent(flags));
        }
        let asking = tokio::spawn(async move { client.chat(&chat(SECRET)).await });
        answer(node.asked().await);
        assert_eq!(asking.await.unwrap().status, 200);
    };
    // Spans come in the order in which requests end.
    ask("ada", "unsampled", Some("00")).await;
    ask("ada", "sampled", Some("01")).await;
    assert_eq!(collector.next().await.text("flotilla.request_id"), "sampled");
    ask("bob", "by-ratio", Some("00")).await;
    let told = collector.next().await;
    assert_eq!(told.text("flotilla.request_id"), "by-ratio");
    assert_eq!(hex(&told.span.trace_id), TRACE, "it keeps its trace");
    gateway.reconfigure(&keys(&collector.traces(", sample_ratio: 0.0"))).await;
    ask("ada", "none", None).await;
    ask("bob", "not-forced", Some("01")).await;
    ask("ada", "forced", Some("01")).await;
    assert_eq!(collector.next().await.text("flotilla.request_id"), "forced");
    gateway.reconfigure(&keys("")).await;
    ask("ada", "off", Some("01")).await;
    gateway.reconfigure(&keys(&collector.traces(", sample_ratio: 1"))).await;
    ask("bob", "on", None).await;
    assert_eq!(collector.next().await.text("flotilla.request_id"), "on");
    assert!(!collector.has_more());
}

#[tokio::test]
async fn a_request_without_a_key_leaves_no_span() {
    let mut collector = Collector::start().await;
    let fleet = Fleet::start(&collector.traces("")).await;
    let stranger = fleet.client.with_key(Some("wrong"));
    assert_eq!(stranger.chat(&chat(SECRET)).await.status, 401);
    assert_eq!(fleet.client.chat(&chat(SECRET)).await.status, 503);
    let told = collector.next().await;
    assert_eq!((told.text("flotilla.tenant"), told.text("flotilla.outcome")), {
        ("test".into(), "no_node".into())
    });
    assert!(!collector.has_more());
}

/// A gateway of its own process whose node answers at once.
async fn fleet(collector: SocketAddr) -> (Fleet, MockNode) {
    let fleet = Fleet::start(&format!("traces: {{otlp_endpoint: 'http://{collector}'}}\n")).await;
    let node = MockNode::join(fleet.client.address(), healthy("m", 4)).await;
    fleet.wait_for_slots("m").await;
    (fleet, node)
}

async fn ask(fleet: &Fleet, node: &mut MockNode) {
    let client = fleet.client.clone();
    let asking = tokio::spawn(async move { client.chat(&chat(SECRET)).await });
    answer(node.asked().await);
    assert_eq!(asking.await.unwrap().status, 200);
}

const REFUSED: &str = "gateway_traces_dropped_total{reason=\"refused\"}";

async fn refused(fleet: &Fleet) -> f64 {
    let text = String::from_utf8(fleet.admin.get("/metrics").await.body.to_vec()).unwrap();
    if text.contains(REFUSED) { metric(&fleet.admin, REFUSED).await } else { 0.0 }
}

#[tokio::test]
async fn a_collector_that_is_down_costs_its_spans_and_no_answer() {
    // Nobody listens there, until somebody does.
    let address = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let (fleet, mut node) = fleet(address).await;
    for lost in [1.0, 2.0] {
        ask(&fleet, &mut node).await;
        eventually("a span to be lost", async || (refused(&fleet).await == lost).then_some(()))
            .await;
    }
    let mut collector = Collector::start_at(address).await;
    ask(&fleet, &mut node).await;
    assert_eq!(collector.next().await.text("flotilla.outcome"), "ok");
    fleet.server.wait_for_line("trace export recovered");
    assert_eq!(fleet.server.log().matches("trace export failed").count(), 1);
    assert_eq!(refused(&fleet).await, 2.0);
}

#[tokio::test]
async fn a_collector_that_says_nothing_holds_up_neither_answers_nor_the_end() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (mut fleet, mut node) = fleet(silent.local_addr().unwrap()).await;
    ask(&fleet, &mut node).await;
    let _held = silent.accept().await.unwrap();
    // The export stands; requests do not.
    for _ in 0..3 {
        ask(&fleet, &mut node).await;
    }
    let stopped = std::time::Instant::now();
    fleet.server.signal(Signal::TERM);
    assert_eq!(fleet.server.ended().await, Some(0));
    assert!(stopped.elapsed().as_secs() < 10, "it waited for the collector");
    fleet.server.wait_for_line("unexported traces dropped at shutdown");
}

#[tokio::test]
async fn what_is_not_sent_yet_is_sent_at_the_end() {
    let mut collector = Collector::start().await;
    let (mut fleet, mut node) = fleet(collector.address).await;
    for _ in 0..5 {
        ask(&fleet, &mut node).await;
    }
    fleet.server.signal(Signal::TERM);
    assert_eq!(fleet.server.ended().await, Some(0));
    for _ in 0..5 {
        assert_eq!(collector.next().await.span.name, "chat flotilla-demo");
    }
}

#[tokio::test]
async fn a_client_that_leaves_ends_its_span() {
    let mut collector = Collector::start().await;
    let gateway = Gateway::start(&collector.traces("")).await;
    let mut node = gateway.node("a", 1).await;
    let (client, request) = (gateway.client.clone(), streamed(chat(SECRET)));
    let asking = tokio::spawn(async move { client.stream(&request).await });
    let stream = node.asked().await.stream();
    stream.say_marked(&[1], SAID).await;
    drop(asking.await.unwrap());
    stream.is_given_up().await;
    let told = collector.next().await;
    assert_eq!((told.text("flotilla.outcome"), told.text("gen_ai.usage.output_tokens")), {
        ("client_gone".into(), "1".into())
    });
}
