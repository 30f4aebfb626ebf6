//! Rules of HTTP that both programs keep: a gateway, and an agent's own port.

use std::net::SocketAddr;

use fleet_tests::chat;
use fleet_tests::frames::{END_HEADERS, END_STREAM, frame, hello, kind, literal, request, take};
use fleet_tests::process::{Agent, Fleet};
use fleet_tests::raw::{Raw, statuses};
use serde_json::Value;

/// A real gateway with a real node, and a client of each.
struct Both {
    fleet: Fleet,
    node: Agent,
}

impl Both {
    async fn start() -> Self {
        let fleet = Fleet::start("").await;
        let node = fleet.join("a", &[]).await;
        Self { fleet, node }
    }

    fn addresses(&self) -> [SocketAddr; 2] {
        [&self.fleet.client, &self.node.client].map(|client| client.address())
    }

    /// What each says to these bytes, until it closes the connection.
    async fn say(&self, bytes: &str) -> [String; 2] {
        let [gateway, node] = self.addresses().map(async |address| {
            let mut raw = Raw::connect(address).await;
            raw.send(bytes.as_bytes()).await;
            String::from_utf8(raw.rest().await).unwrap()
        });
        let said: (String, String) = tokio::join!(gateway, node);
        said.into()
    }

    /// Each says this status once, and each of the texts.
    async fn expect(&self, bytes: &str, status: u16, texts: &[&str]) {
        for said in self.say(bytes).await {
            assert_eq!(statuses(said.as_bytes()), [status], "{bytes:.300}\n{said}");
            for text in texts {
                assert!(said.contains(text), "no {text} in {said}");
            }
        }
    }

    /// A request whose connection ends after it. Agents without a key do not look at it.
    fn request(&self, line: &str, headers: &str, body: &str) -> String {
        let key = &self.fleet.key;
        format!("{line}\r\nauthorization: Bearer {key}\r\nconnection: close\r\n{headers}\r\n{body}")
    }

    fn get(&self, path: &str, headers: &str) -> String {
        self.request(&format!("GET {path} HTTP/1.1\r\nhost: x"), headers, "")
    }

    fn post(&self, path: &str, headers: &str, body: &str) -> String {
        let headers = format!("{headers}content-length: {}\r\n", body.len());
        self.request(&format!("POST {path} HTTP/1.1\r\nhost: x"), &headers, body)
    }
}

fn short() -> String {
    let mut short = chat("Hi");
    short["max_tokens"] = 1.into();
    short.to_string()
}

#[tokio::test]
async fn encoded_bodies_are_refused_with_what_is_allowed() {
    let both = Both::start().await;
    for coding in ["gzip", "deflate", "br", "zstd", "identity, gzip"] {
        let headers = format!("content-encoding: {coding}\r\n");
        for path in ["/v1/chat/completions", "/v1/messages", "/v1/responses", "/api/show"] {
            let sent = both.post(path, &headers, "\x1f compressed");
            let texts = ["accept-encoding: identity", "send the request body uncompressed"];
            both.expect(&sent, 415, &texts).await;
        }
        let sent = both.post("/v1/embeddings", &headers, "{}");
        both.expect(&sent, 415, &[r#""code":"unsupported_encoding""#]).await;
    }
    let plain = both.post("/v1/chat/completions", "content-encoding: identity\r\n", &short());
    both.expect(&plain, 200, &[]).await;
}

#[tokio::test]
async fn chunks_that_are_none_are_a_bad_request() {
    let both = Both::start().await;
    let chunked = |body: &str| {
        let line = "POST /v1/chat/completions HTTP/1.1\r\nhost: x";
        both.request(line, "transfer-encoding: chunked\r\n", body)
    };
    let sizes = ["zz", "-2", "0x2", "", "1 2", "ffffffffffffffff1", "2\n{}", "2;a=\nb"];
    for size in sizes {
        let sent = chunked(&format!("{size}\r\n{{}}\r\n0\r\n\r\n"));
        both.expect(&sent, 400, &[r#""code":"invalid_chunks""#]).await;
    }
    let body = short();
    let (first, second) = body.split_at(7);
    let pieces = format!("7\r\n{first}\r\n{:x};a=b\r\n{second}\r\n0\r\n\r\n", second.len());
    both.expect(&chunked(&pieces), 200, &[]).await;
}

#[tokio::test]
async fn http_1_1_needs_one_host_and_http_1_0_none() {
    let both = Both::start().await;
    let line = |line: &str| both.request(line, "", "");
    for wrong in ["GET /livez HTTP/1.1", "GET http://x/livez HTTP/1.1"] {
        both.expect(&line(wrong), 400, &[r#""code":"invalid_host""#]).await;
    }
    let two = line("GET /livez HTTP/1.1\r\nhost: x\r\nhost: y");
    both.expect(&two, 400, &[r#""code":"invalid_host""#, "connection: close"]).await;
    let good =
        ["GET /livez HTTP/1.0", "GET /livez HTTP/1.1\r\nhost:", "GET /livez HTTP/1.1\r\nHost: x"];
    for good in good {
        both.expect(&line(good), 200, &["ok"]).await;
    }
}

#[tokio::test]
async fn headers_are_served_up_to_their_limits_and_refused_above() {
    let both = Both::start().await;
    // Host, authorization and connection are there already.
    let many = |count: usize| both.get("/livez", &"a: b\r\n".repeat(count - 3));
    both.expect(&many(100), 200, &[]).await;
    both.expect(&many(101), 431, &[r#""code":"headers_too_large""#, "100 headers"]).await;
    both.expect(&many(1000), 431, &[]).await;

    let key = format!("Bearer {}", both.fleet.key);
    let own = [("host", "x"), ("authorization", key.as_str()), ("connection", "close"), ("a", "")];
    let used: usize = own.iter().map(|(name, value)| name.len() + value.len() + 32).sum();
    let long = |bytes: usize| {
        let value = "x".repeat(bytes - used);
        both.get("/livez", &format!("a: {value}\r\n"))
    };
    both.expect(&long(32 * 1024), 200, &[]).await;
    both.expect(&long(32 * 1024 + 1), 431, &[r#""code":"headers_too_large""#, "32768"]).await;
    both.expect(&long(70 * 1024), 431, &[]).await;
}

/// The status of the response to `GET /livez` over HTTP/2 with so many further headers.
async fn status_over_http_2(address: SocketAddr, count: usize) -> String {
    let headers = [request("GET", "/livez", "k"), literal("a", "b").repeat(count)].concat();
    let flags = END_HEADERS | END_STREAM;
    let mut raw = Raw::connect(address).await;
    raw.send(&[hello(&[]), frame(kind::HEADERS, flags, 1, &headers)].concat()).await;
    let mut read = Vec::new();
    loop {
        read.extend(raw.next().await);
        while let Some((kind, _, stream, payload)) = take(&mut read) {
            // An indexed 200, or a literal status.
            if (kind, stream) == (kind::HEADERS, 1) {
                let is_ok = payload.first() == Some(&0x88);
                return if is_ok {
                    "200".into()
                } else {
                    String::from_utf8_lossy(&payload[..5]).into()
                };
            }
        }
    }
}

#[tokio::test]
async fn the_number_of_headers_is_limited_over_http_2_too() {
    let both = Both::start().await;
    for address in both.addresses() {
        assert_eq!(status_over_http_2(address, 90).await, "200");
        assert_ne!(status_over_http_2(address, 101).await, "200");
    }
}

#[tokio::test]
async fn a_slash_at_the_end_of_a_path_is_ignored() {
    let both = Both::start().await;
    for path in ["/v1/models/", "/models/", "/livez/", "/health/", "/v1/models/flotilla-demo/"] {
        both.expect(&both.get(path, ""), 200, &[]).await;
    }
    for path in ["/v1/chat/completions/", "/chat/completions/", "/v1/messages/", "/v1/responses/"] {
        let body = match path.contains("responses") {
            true => r#"{"model": "flotilla-demo", "input": "Hi", "max_output_tokens": 16}"#.into(),
            false => short(),
        };
        both.expect(&both.post(path, "", &body), 200, &[]).await;
    }
    both.expect(&both.get("/v1/models//", ""), 404, &[]).await;
    both.expect(&both.get("/v1/nothing/", ""), 404, &["unknown_url"]).await;
}

#[tokio::test]
async fn names_of_models_in_paths_may_be_percent_encoded() {
    let fleet = Fleet::start("").await;
    let node = fleet.join("a", &["--model-name", "org/model ü"]).await;
    for client in [&node.client, &fleet.client] {
        for path in ["/v1/models/org%2Fmodel%20%C3%BC", "/v1/models/org/model%20%c3%bc"] {
            let found = client.get(path).await;
            assert_eq!(
                (found.status, &found.json()["id"]),
                (200, &Value::from("org/model ü")),
                "{path}"
            );
        }
        for path in ["/v1/models/org%2Fmodel", "/v1/models/%FF", "/v1/models/%"] {
            let unknown = client.get(path).await;
            assert_eq!((unknown.status, unknown.error_code()), (404, "model_not_found".into()));
        }
    }
}

#[tokio::test]
async fn a_byte_order_mark_before_json_is_ignored() {
    let both = Both::start().await;
    let marked = format!("\u{feff}{}", short());
    for path in ["/v1/chat/completions", "/v1/messages", "/api/chat"] {
        both.expect(&both.post(path, "", &marked), 200, &[]).await;
    }
    let twice = both.post("/v1/chat/completions", "", &format!("\u{feff}{marked}"));
    both.expect(&twice, 400, &["not valid JSON"]).await;
}

#[tokio::test]
async fn a_body_that_is_announced_too_large_is_refused_before_it_is_asked_for() {
    let both = Both::start().await;
    let expect = "expect: 100-continue\r\ncontent-length:";
    let line = "POST /v1/chat/completions HTTP/1.1\r\nhost: x";
    let sent = both.request(line, &format!("{expect} 999999999\r\n"), "");
    for said in both.say(&sent).await {
        assert_eq!(statuses(said.as_bytes()), [413], "{said}");
    }
    let body = short();
    let good = both.request(line, &format!("{expect} {}\r\n", body.len()), "");
    for address in both.addresses() {
        let mut raw = Raw::connect(address).await;
        raw.send(good.as_bytes()).await;
        raw.until(b"HTTP/1.1 100 Continue\r\n\r\n").await;
        raw.send(body.as_bytes()).await;
        assert_eq!(statuses(&raw.rest().await), [200]);
    }
}
