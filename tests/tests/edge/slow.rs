//! Clients that keep the gateway waiting, and clients that do not read.

use std::time::{Duration, Instant};

use fleet_tests::mock_node::MockNode;
use fleet_tests::process::{Fleet, Folder};
use fleet_tests::raw::{Raw, statuses};
use fleet_tests::{chat, eventually, frames, streamed};
use serde_json::json;

use super::{closed, join};

const HASTY: &str = "timeouts: {header_ms: 500, keep_alive_ms: 1500, write_ms: 1000}\n";
const ASK: &[u8] = b"GET /livez HTTP/1.1\r\nhost: flotilla\r\n\r\n";

/// What it says until its end, and how long that took.
async fn ends(raw: &mut Raw) -> (Vec<u8>, Duration) {
    let begun = Instant::now();
    (raw.rest().await, begun.elapsed())
}

fn is_about(took: Duration, limit_ms: u64) {
    let took = took.as_millis() as u64;
    assert!((limit_ms * 8 / 10..limit_ms * 4).contains(&took), "{took} ms, not {limit_ms}");
}

#[tokio::test]
async fn a_connection_that_asks_nothing_is_closed_after_header_ms() {
    let fleet = Fleet::start(HASTY).await;
    let preface = frames::hello(&[]);
    let beginnings: [&[u8]; 6] =
        [b"", b"P", b"PRI * HTTP/2.0\r\n", b"GET / HT", b"GET / HTTP/1.1\r\nhost: x\r\n", &preface];
    for (tried, begin) in beginnings.iter().enumerate() {
        let mut raw = Raw::connect(fleet.client.address()).await;
        assert!(raw.send(begin).await);
        let (said, took) = ends(&mut raw).await;
        assert!(statuses(&said).is_empty());
        is_about(took, 500);
        assert_eq!(closed(&fleet, "slow_head").await, (tried + 1) as f64);
    }
}

#[tokio::test]
async fn between_requests_a_connection_is_kept_for_keep_alive_ms() {
    let fleet = Fleet::start(HASTY).await;
    let mut raw = Raw::connect(fleet.client.address()).await;
    raw.send(ASK).await;
    raw.until(b"ok\n").await;
    let (_, took) = ends(&mut raw).await;
    is_about(took, 1500);
    assert_eq!(closed(&fleet, "idle").await, 1.0);
    // A next head that has begun is owed soon.
    let mut raw = Raw::connect(fleet.client.address()).await;
    raw.send(ASK).await;
    raw.until(b"ok\n").await;
    raw.send(b"GET /livez HT").await;
    let (_, took) = ends(&mut raw).await;
    is_about(took, 500);
    assert_eq!(closed(&fleet, "slow_head").await, 1.0);
}

#[tokio::test]
async fn an_idle_connection_of_http_2_is_told_to_go_and_closed() {
    let fleet = Fleet::start(HASTY).await;
    let mut raw = Raw::connect(fleet.client.address()).await;
    let ask = frames::request("GET", "/livez", "-");
    let flags = frames::END_STREAM | frames::END_HEADERS;
    raw.send(&frames::hello(&[])).await;
    raw.send(&frames::frame(frames::kind::HEADERS, flags, 1, &ask)).await;
    raw.until(b"ok\n").await;
    let (mut said, took) = ends(&mut raw).await;
    assert!(took >= Duration::from_millis(1200), "{took:?}");
    let told = std::iter::from_fn(|| frames::take(&mut said)).map(|(kind, ..)| kind);
    assert!(told.collect::<Vec<u8>>().contains(&frames::kind::GOAWAY));
    assert_eq!(closed(&fleet, "idle").await, 1.0);
}

#[tokio::test]
async fn a_connection_that_says_nothing_after_its_handshake_is_closed_too() {
    let folder = Folder::new();
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_string()]).unwrap();
    let certificate = folder.write("cert.pem", made.cert.pem());
    let key = folder.write("key.pem", made.signing_key.serialize_pem());
    let (certificate, key) = (certificate.display(), key.display());
    let tls = format!("tls: {{cert_file: {certificate}, key_file: {key}}}\n{HASTY}");
    let fleet = Fleet::start(&tls).await;
    let address = fleet.client.address().to_string();
    let shaken = tokio::task::spawn_blocking(move || {
        let begun = Instant::now();
        let mut client = std::process::Command::new("openssl")
            .args(["s_client", "-quiet", "-connect", &address])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .ok()?;
        client.wait().unwrap();
        Some(begun.elapsed())
    });
    match shaken.await.unwrap() {
        Some(took) => assert!(took < Duration::from_secs(5), "{took:?}"),
        None => return eprintln!("skipped: there is no openssl"),
    }
    assert_eq!(closed(&fleet, "slow_head").await, 1.0);
}

/// The node says more and more until the gateway gives its answer up; then its slot is free.
async fn is_cut(fleet: &Fleet, node: &mut MockNode) {
    let stream = node.asked().await.stream();
    let choice = json!({"index": 0, "delta": {"content": "x".repeat(60_000)}});
    let event = format!("data: {}\n\n", json!({ "choices": [choice] }));
    let mut events = 0;
    while stream.offer(event.clone()).await {
        events += 1;
        assert!(events < 2000, "somebody reads all of it");
    }
    eventually("the slot to be free", async || (fleet.in_flight().await == [0; 4]).then_some(()))
        .await;
    assert_eq!(closed(fleet, "stalled").await, 1.0);
    let (client, asking) = (fleet.client.clone(), chat("Hi"));
    let answered = tokio::spawn(async move { client.chat(&asking).await });
    node.asked().await.answer("Hello");
    assert_eq!(answered.await.unwrap().content(), "Hello");
}

#[tokio::test]
async fn a_reader_that_stops_is_cut_and_its_slot_is_free() {
    let fleet = Fleet::start(HASTY).await;
    let mut node = join(&fleet, 1).await;
    let mut raw = Raw::connect_narrow(fleet.client.address()).await;
    let body = streamed(chat("Hi")).to_string();
    let (key, bytes) = (&fleet.key, body.len());
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n\
         content-length: {bytes}\r\n\r\n{body}"
    );
    raw.send(head.as_bytes()).await;
    is_cut(&fleet, &mut node).await;
    drop(raw);
}

/// Asks for a stream over HTTP/2, with room for 20 bytes of it.
async fn asks_without_a_window(fleet: &Fleet) -> Raw {
    let mut raw = Raw::connect(fleet.client.address()).await;
    let body = streamed(chat("Hi")).to_string();
    let ask = frames::request("POST", "/v1/chat/completions", &fleet.key);
    raw.send(&frames::hello(&[(frames::INITIAL_WINDOW_SIZE, 20)])).await;
    raw.send(&frames::frame(frames::kind::HEADERS, frames::END_HEADERS, 1, &ask)).await;
    raw.send(&frames::frame(frames::kind::DATA, frames::END_STREAM, 1, body.as_bytes())).await;
    raw
}

#[tokio::test]
async fn a_reader_of_http_2_that_opens_no_window_loses_that_stream_only() {
    let fleet = Fleet::start(HASTY).await;
    let mut node = join(&fleet, 1).await;
    let mut raw = asks_without_a_window(&fleet).await;
    is_cut(&fleet, &mut node).await;
    let ask = frames::request("GET", "/livez", "-");
    let flags = frames::END_STREAM | frames::END_HEADERS;
    raw.send(&frames::frame(frames::kind::HEADERS, flags, 3, &ask)).await;
    let mut said = raw.until(b"ok\n").await;
    let told = std::iter::from_fn(|| frames::take(&mut said)).map(|(kind, _, at, _)| (kind, at));
    assert!(told.collect::<Vec<_>>().contains(&(frames::kind::RST_STREAM, 1)));
}

#[tokio::test]
async fn a_reader_of_http_2_that_takes_a_little_now_and_then_is_cut_too() {
    let fleet = Fleet::start(HASTY).await;
    let mut node = join(&fleet, 1).await;
    let mut raw = asks_without_a_window(&fleet).await;
    let stream = node.asked().await.stream();
    // Each time the window for one thing that was said, soon enough for the limit, while others
    // wait: too little on the whole.
    let event = format!("data: {}\n\n", json!({"choices": [], "x": "x".repeat(40)}));
    assert!(stream.offer(event.clone()).await && stream.offer(event.clone()).await);
    let mut rounds = 0;
    while stream.offer(event.clone()).await {
        let pause = Duration::from_millis(700);
        if tokio::time::timeout(pause, stream.is_given_up()).await.is_ok() {
            break;
        }
        raw.send(&frames::window(1, event.len() as u32)).await;
        rounds += 1;
        assert!(rounds < 20, "it may hold its slot for ever");
    }
    assert!(rounds > 0);
    eventually("the slot to be free", async || (fleet.in_flight().await == [0; 4]).then_some(()))
        .await;
    assert_eq!(closed(&fleet, "stalled").await, 1.0);
}

/// A reader that takes little at a time, but takes it, is nobody to be cut.
#[tokio::test]
async fn a_reader_that_is_only_slow_gets_everything() {
    let fleet = Fleet::start(HASTY).await;
    let mut node = join(&fleet, 1).await;
    let client = fleet.client.clone();
    let reading =
        tokio::spawn(async move { client.stream(&streamed(chat("Hi"))).await.finish().await });
    let stream = node.asked().await.stream();
    // Longer than every limit between two events: it is the node that is waited for.
    for word in ["a ", "slow ", "node"] {
        let pause = tokio::time::timeout(Duration::from_millis(1600), stream.is_given_up()).await;
        assert!(pause.is_err(), "the stream was given up");
        stream.say(word).await;
    }
    stream.done().await;
    let said = reading.await.unwrap();
    assert_eq!((said.text.as_str(), said.done), ("a slow node", true));
    assert_eq!(closed(&fleet, "stalled").await, 0.0);
}
