//! What browsers are told.

use bytes::Bytes;
use fleet_tests::chat;
use fleet_tests::client::{Answer, Client};
use hyper::Method;

use super::Answered;

const APP: &str = "https://app.example.com";
const ALLOW_ORIGIN: &str = "access-control-allow-origin";

fn listed() -> String {
    format!("cors: {{allowed_origins: [{APP}, 'http://localhost:3000']}}\n")
}

async fn preflight(client: &Client, path: &str, origin: &str) -> Answer {
    let client = client
        .with_header("origin", origin)
        .with_header("access-control-request-method", "POST")
        .with_header("access-control-request-headers", "authorization, x-stainless-os");
    client.try_send(Method::OPTIONS, path, Bytes::new()).await.unwrap()
}

/// No header says anything about pages.
fn is_silent(answer: &Answer) {
    let about = answer.headers.keys().find(|name| name.as_str().starts_with("access-control-"));
    assert_eq!(about, None, "{:?}", answer.headers);
}

#[tokio::test]
async fn a_listed_page_may_ask_and_read_what_it_needs() {
    let gateway = Answered::start(&listed()).await;
    // Browsers send no key with their first question.
    let stranger = gateway.fleet.client.with_key(None);
    for path in ["/v1/chat/completions", "/v1/completions", "/v1/models"] {
        let answer = preflight(&stranger, path, APP).await;
        assert_eq!((answer.status, answer.header(ALLOW_ORIGIN)), (204, Some(APP)));
        let said = |name| answer.header(name).unwrap().to_string();
        assert!(said("access-control-allow-methods").contains("POST"));
        assert_eq!(said("access-control-allow-headers"), "authorization, x-stainless-os");
        assert_eq!(said("vary"), "origin");
    }
    let page = gateway.fleet.client.with_header("origin", APP);
    for (answer, status) in [
        (page.chat(&chat("Hi")).await, 200),
        (page.post("/v1/chat/completions", "{").await, 400),
        (page.get("/v1/models").await, 200),
        (page.get("/v1/nothing").await, 404),
        (page.get("/v1/completions").await, 405),
        (stranger.with_header("origin", APP).chat(&chat("Hi")).await, 401),
    ] {
        assert_eq!((answer.status, answer.header(ALLOW_ORIGIN)), (status, Some(APP)));
        assert_eq!(answer.header("vary"), Some("origin"));
        let exposed = answer.header("access-control-expose-headers").unwrap();
        for name in ["x-request-id", "retry-after", "x-flotilla-endpoint"] {
            assert!(exposed.contains(name), "{exposed}");
        }
    }
}

#[tokio::test]
async fn other_pages_and_other_paths_are_told_nothing() {
    let gateway = Answered::start(&listed()).await;
    let client = &gateway.fleet.client;
    for origin in ["https://evil.example", "null", "https://app.example.com.evil.example"] {
        let answer = preflight(client, "/v1/models", origin).await;
        assert_eq!(answer.status, 405);
        is_silent(&answer);
        let answer = client.with_header("origin", origin).chat(&chat("Hi")).await;
        assert_eq!((answer.status, answer.header("vary")), (200, Some("origin")));
        is_silent(&answer);
    }
    for path in ["/metrics", "/health", "/fleet/v1/join"] {
        is_silent(&preflight(client, path, APP).await);
    }
}

#[tokio::test]
async fn any_page_may_ask_where_that_is_said_and_none_where_nothing_is() {
    let open = Answered::start("cors: {allowed_origins: ['*']}\n").await;
    let answer = preflight(&open.fleet.client, "/v1/models", "https://x.example").await;
    assert_eq!((answer.status, answer.header(ALLOW_ORIGIN)), (204, Some("*")));
    let answer = open.fleet.client.with_header("origin", "null").get("/v1/models").await;
    assert_eq!((answer.header(ALLOW_ORIGIN), answer.header("vary")), (Some("*"), None));
    let silent = Answered::start("").await;
    let answer = preflight(&silent.fleet.client, "/v1/models", APP).await;
    assert_eq!(answer.status, 405);
    is_silent(&answer);
    is_silent(&silent.fleet.client.with_header("origin", APP).get("/v1/models").await);
}
