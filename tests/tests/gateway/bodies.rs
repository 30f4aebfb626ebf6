//! Bodies that are being read: what is claimed before their first byte, and the room they take.

use fleet_tests::mock_node::MockNode;
use fleet_tests::process::metric;
use fleet_tests::raw::{Raw, statuses};
use fleet_tests::{chat, eventually};

use super::Gateway;

const ADA: &str = "5532e44183f47ed1fc146851b96d585c24da5bd5fe31a885cebc357261ed8f7f";
const BOB: &str = "808a1d81b5de08d72083995df738947d519d230a20c236003268f0f4b65ee475";
const READING: &str = "gateway_queue_bytes{state=\"reading\"}";

/// A gateway with two keys; `ada` is what the first one's entry says more.
async fn two_tenants(ada: &str, more: &str) -> Gateway {
    let keys = format!("keys: [{{name: ada, sha256: {ADA}{ada}}}, {{name: bob, sha256: {BOB}}}]\n");
    Gateway::start_with_keys(&keys, more).await
}

/// The head of a chat whose body has so many bytes.
fn head(tenant: &str, length: &str) -> String {
    format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: flotilla\r\n\
         authorization: Bearer key-of-{tenant}\r\n{length}\r\n\r\n"
    )
}

/// A request whose body has begun.
async fn begins(gateway: &Gateway, tenant: &str, bytes: usize) -> Raw {
    let mut raw = Raw::connect(gateway.address).await;
    let head = head(tenant, &format!("content-length: {bytes}"));
    assert!(raw.send(format!("{head}{{").as_bytes()).await);
    raw
}

/// Waits until so many bytes are counted for bodies that are being read.
async fn is_reading(gateway: &Gateway, bytes: f64) {
    eventually("bodies to be counted", async || {
        (metric(&gateway.admin, READING).await == bytes).then_some(())
    })
    .await;
}

/// What a connection says: one refusal of this status and code.
async fn is_refused(raw: &mut Raw, status: u16, code: &str) -> String {
    let said = raw.until(b"}}").await;
    assert_eq!(statuses(&said), [status]);
    let said = String::from_utf8(said).unwrap();
    assert!(said.contains(code) && said.contains("retry-after"), "{said}");
    said
}

async fn running(gateway: &Gateway, tenant: &str) -> u64 {
    let overview = gateway.admin.get("/admin/v1/overview").await.json();
    let tenants = overview["tenants"].as_array().unwrap();
    let found = tenants.iter().find(|view| view["name"] == tenant).unwrap();
    found["running"].as_u64().unwrap()
}

/// The rest of a body of so many bytes that has begun as [`begins`] does.
fn rest(bytes: usize) -> String {
    let text = chat("Hi").to_string();
    format!("{}{}", &text[1..], " ".repeat(bytes - text.len()))
}

async fn is_answered(gateway: &Gateway, node: &mut MockNode, tenant: &str, text: &str) {
    let client = gateway.client.with_key(Some(&format!("key-of-{tenant}")));
    let request = chat(text);
    let asking = tokio::spawn(async move { client.chat(&request).await });
    node.asked().await.answer("Hello");
    assert_eq!(asking.await.unwrap().status, 200);
}

#[tokio::test]
async fn a_key_with_one_request_side_by_side_holds_one_body_and_others_get_429_at_once() {
    let gateway = two_tenants(", concurrent_max: 1", "").await;
    let mut a = gateway.node("a", 4).await;
    let mut first = begins(&gateway, "ada", 5_000).await;
    eventually("the first to be let in", async || {
        (running(&gateway, "ada").await == 1).then_some(())
    })
    .await;
    let mut refused = Vec::new();
    for _ in 0..5 {
        let mut raw = begins(&gateway, "ada", 100_000).await;
        is_refused(&mut raw, 429, "rate_limit_exceeded").await;
        refused.push(raw);
    }
    assert_eq!(metric(&gateway.admin, READING).await, 5_000.0, "one body is held");
    is_answered(&gateway, &mut a, "bob", "Hi").await;
    // A client that sends the rest all the same goes on with its connection.
    for raw in &mut refused {
        assert!(raw.send(rest(100_000).as_bytes()).await);
        assert!(raw.send(b"GET /livez HTTP/1.1\r\nhost: flotilla\r\n\r\n").await);
        assert_eq!(statuses(&raw.until(b"ok\n").await), [200]);
    }
    assert!(first.send(rest(5_000).as_bytes()).await);
    a.asked().await.answer("Hello");
    assert_eq!(statuses(&first.until(b"Hello").await), [200]);
    gateway.is_idle().await;
    is_answered(&gateway, &mut a, "ada", "Hi").await;
    assert_eq!(metric(&gateway.admin, READING).await, 0.0);
}

#[tokio::test]
async fn requests_a_minute_are_claimed_before_the_body() {
    let gateway = two_tenants(", requests_per_minute: 1", "").await;
    let mut a = gateway.node("a", 4).await;
    is_answered(&gateway, &mut a, "ada", "Hi").await;
    let mut raw = begins(&gateway, "ada", 5_000).await;
    let said = is_refused(&mut raw, 429, "rate_limit_exceeded").await;
    assert!(said.contains("x-ratelimit-remaining-requests: 0"), "{said}");
}

#[tokio::test]
async fn a_body_that_does_not_come_gives_its_place_back() {
    let gateway = two_tenants(", concurrent_max: 1", "timeouts: {body_ms: 200}\n").await;
    let mut a = gateway.node("a", 4).await;
    let mut slow = begins(&gateway, "ada", 5_000).await;
    assert_eq!(statuses(&slow.until(b"}}").await), [408]);
    eventually("the place to be free", async || {
        (running(&gateway, "ada").await == 0).then_some(())
    })
    .await;
    is_answered(&gateway, &mut a, "ada", "Hi").await;
    is_reading(&gateway, 0.0).await;
}

#[tokio::test]
async fn bodies_that_are_being_read_count_in_the_queue_until_they_are_gone() {
    let limits = "limits: {queue_bytes_max: 100000, body_bytes_max: 90000}\n";
    let gateway =
        Gateway::start_with_keys(&format!("keys: [{{name: ada, sha256: {ADA}}}]\n"), limits).await;
    let mut a = gateway.node("a", 4).await;
    let first = begins(&gateway, "ada", 80_000).await;
    is_reading(&gateway, 80_000.0).await;
    let mut second = begins(&gateway, "ada", 30_000).await;
    is_refused(&mut second, 503, "queue_full").await;
    is_answered(&gateway, &mut a, "ada", "Hi").await;
    drop(first);
    is_reading(&gateway, 0.0).await;
    // Without a length it takes room as it comes.
    let mut third = Raw::connect(gateway.address).await;
    assert!(third.send(head("ada", "transfer-encoding: chunked").as_bytes()).await);
    assert!(third.send(b"2\r\n{\n\r\n").await);
    is_reading(&gateway, 65_536.0).await;
    let chunk = format!("11170\r\n{}\r\n", " ".repeat(70_000));
    assert!(third.send(chunk.as_bytes()).await);
    is_reading(&gateway, 90_000.0).await;
    is_answered(&gateway, &mut a, "ada", &"x".repeat(5_000)).await;
    let body = chat("Hi").to_string();
    let last = format!("{:x}\r\n{}\r\n0\r\n\r\n", body.len() - 1, &body[1..]);
    assert!(third.send(last.as_bytes()).await);
    a.asked().await.answer("Hello");
    assert_eq!(statuses(&third.until(b"Hello").await), [200]);
    gateway.is_idle().await;
    is_reading(&gateway, 0.0).await;
}

#[tokio::test]
async fn a_tenants_bodies_leave_room_for_those_of_others() {
    let limits = "limits: {queue_bytes_per_tenant_max: 50000}\n";
    let gateway = two_tenants("", limits).await;
    let _ada = begins(&gateway, "ada", 40_000).await;
    is_reading(&gateway, 40_000.0).await;
    let mut more = begins(&gateway, "ada", 20_000).await;
    is_refused(&mut more, 429, "queue_full").await;
    let _bob = begins(&gateway, "bob", 40_000).await;
    is_reading(&gateway, 80_000.0).await;
    let bytes = "gateway_queue_tenant_bytes{tenant=\"bob\"}";
    assert_eq!(metric(&gateway.admin, bytes).await, 40_000.0);
}

#[tokio::test]
async fn a_request_that_only_names_a_model_counts_like_any_other_with_a_body() {
    let gateway = two_tenants(", concurrent_max: 1", "").await;
    let _a = gateway.node("a", 4).await;
    let head = head("ada", "content-length: 5000").replacen("/v1/chat/completions", "/api/show", 1);
    let mut first = Raw::connect(gateway.address).await;
    assert!(first.send(format!("{head}{{").as_bytes()).await);
    eventually("the first to be let in", async || {
        (running(&gateway, "ada").await == 1).then_some(())
    })
    .await;
    assert_eq!(metric(&gateway.admin, READING).await, 5_000.0);
    let mut second = Raw::connect(gateway.address).await;
    assert!(second.send(format!("{head}{{").as_bytes()).await);
    let said = second.until(b"concurrent requests\"}").await;
    assert_eq!(statuses(&said), [429]);
}

#[tokio::test]
async fn a_client_with_a_wrong_key_sees_why_and_may_use_the_connection_again() {
    let gateway = two_tenants("", "").await;
    let mut a = gateway.node("a", 1).await;
    let body = chat("Hi").to_string();
    let length = format!("content-length: {}", body.len());
    let mut raw = Raw::connect(gateway.address).await;
    assert!(raw.send(head("nobody", &length).as_bytes()).await);
    // The body comes after the refusal.
    assert_eq!(statuses(&raw.until(b"invalid_api_key\"}}").await), [401]);
    assert!(raw.send(body.as_bytes()).await);
    assert!(raw.send(format!("{}{body}", head("ada", &length)).as_bytes()).await);
    a.asked().await.answer("Hello");
    assert_eq!(statuses(&raw.until(b"Hello").await), [200]);
}
