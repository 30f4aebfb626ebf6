//! HTTP heads and bodies, as anybody can send them to the gateway: through the whole stack of a
//! connection, from its bytes to the pipeline.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use flotilla_gateway::config::files::Files;
use flotilla_gateway::config::{document, yaml};
use flotilla_gateway::context::Gateway;
use flotilla_gateway::context::settings::LiveSettings;
use flotilla_gateway::observability::metrics::Metrics;
use flotilla_gateway::observability::traces::Spans;
use flotilla_gateway::server::Service;
use flotilla_gateway::server::connection::Connection;
use flotilla_gateway::server::guards::ConnectionSettings;
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex, split};
use tokio::runtime::{Builder, Runtime};
use tokio::task::yield_now;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::input::expand;

/// Small limits, so that small inputs reach them; nobody waits.
const CONFIG: &str = "listen: 127.0.0.1:0\nallow_anonymous: true\n\
    nodes: {static: [{url: 'http://127.0.0.1:1'}]}\n\
    limits: {body_bytes_max: 16384, queue_depth_max: 4, queue_bytes_max: 65536}\n\
    timeouts: {queue_ms: 1, queue_interactive_ms: 1, queue_batch_ms: 1}\n";
/// What a connection may cost beside its input.
const MEMORY_MAX: u64 = 4 << 20;
/// Bytes of memory for each byte of the input: JSON as a tree.
const BYTES_PER_BYTE_MAX: u64 = 64;
/// Bytes on their way between client and gateway.
const PIPE_BYTES: usize = 64 * 1024;
/// A connection whose client has left is over after this, on a busy machine too.
const END: Duration = Duration::from_secs(60);
/// How often the client looks whether its requests are answered, a millisecond apart.
const LOOKS: usize = 5;
/// Exchanges until one is as expected.
const TRIES: usize = 5;

/// Whatever a client sends, it gets whole responses, of which none is a fault of ours, or the end
/// of the connection; in pieces the same as at once, or the end earlier. Nothing stays in flight,
/// and memory is bounded.
pub fn http(data: &[u8]) {
    let Some((size, rest)) = data.split_first() else { return };
    let bytes = expand(rest);
    thread_local! {
        static SERVER: Server = Server::start();
    }
    SERVER.with(|server| {
        let mut responses = Vec::new();
        let memory = allocation_counter::measure(|| {
            responses = server.exchange(&bytes, bytes.len());
        });
        let allowed = MEMORY_MAX + BYTES_PER_BYTE_MAX * bytes.len() as u64;
        assert!(memory.bytes_max <= allowed, "{} bytes for {}", memory.bytes_max, bytes.len());
        if bytes.starts_with(b"PRI ") {
            return;
        }
        let statuses = statuses(&responses);
        assert!(!statuses.contains(&500), "{}", String::from_utf8_lossy(&responses));
        if *size > 0 {
            let mut apart = Vec::new();
            // A body that is not read ends the connection, unless it is there already. On a machine
            // that is too busy to respond before the client leaves, nothing comes: try again.
            let begins_alike = (0..TRIES).any(|_| {
                apart = self::statuses(&server.exchange(&bytes, usize::from(*size)));
                statuses.starts_with(&apart) && apart.first() == statuses.first()
            });
            assert!(begins_alike, "{apart:?} in pieces of {size} bytes, not {statuses:?}");
        }
    });
}

/// A gateway without sockets.
struct Server {
    runtime: Runtime,
    gateway: Gateway,
    settings: Arc<ConnectionSettings>,
}

impl Server {
    fn start() -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        let root = yaml::parse(CONFIG).expect("YAML");
        let config = document::check(root, Files::default()).expect("a good configuration");
        let settings = runtime.block_on(LiveSettings::new(config)).expect("a free port");
        let metrics = Metrics::new().expect("names of metrics");
        let (spans, _) = Spans::new(metrics.clone());
        let stop = CancellationToken::new();
        let shared = ConnectionSettings::new(&settings.now().config, &metrics, stop.clone());
        let gateway = Gateway::new(settings, metrics, spans, stop);
        Self { runtime, gateway, settings: Arc::new(shared) }
    }

    /// All that a client reads that sends `bytes` in pieces, waits a little and leaves.
    fn exchange(&self, bytes: &[u8], size: usize) -> Vec<u8> {
        let (client, server) = duplex(PIPE_BYTES);
        let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let connection =
            Connection::new(Service::Public, self.gateway.clone(), self.settings.clone(), address);
        let (mut reader, mut writer) = split(client);
        let mut responses = Vec::new();
        let send = async {
            for piece in bytes.chunks(size.max(1)) {
                // The gateway may have closed the connection.
                if writer.write_all(piece).await.is_err() {
                    return;
                }
                yield_now().await;
            }
            self.settle().await;
            let _ = writer.shutdown().await;
        };
        let talk = async {
            tokio::join!(
                Box::pin(connection.serve_http(server)),
                send,
                reader.read_to_end(&mut responses)
            )
        };
        let ended = self.runtime.block_on(async { timeout(END, talk).await });
        assert!(ended.is_ok(), "the connection outlives its client");
        // Requests of HTTP/2 are tasks, which end a moment after their connection.
        let over = self.runtime.block_on(async { timeout(END, self.idle()).await });
        assert!(over.is_ok(), "a request outlives its connection");
        responses
    }

    async fn idle(&self) {
        while self.gateway.metrics.requests_in_flight() > 0 {
            sleep(Duration::from_millis(1)).await;
        }
    }

    async fn settle(&self) {
        for _ in 0..LOOKS {
            for _ in 0..16 {
                yield_now().await;
            }
            if self.gateway.metrics.requests_in_flight() == 0 {
                return;
            }
            sleep(Duration::from_millis(1)).await;
        }
    }
}

/// The final statuses of our responses of HTTP/1, which must be whole. Without those that hyper
/// gives to a broken head: when it sees that depends on the pieces, and the connection ends there.
fn statuses(bytes: &[u8]) -> Vec<u16> {
    let (mut found, mut rest) = (Vec::new(), bytes);
    while !rest.is_empty() {
        let head = rest.windows(4).position(|w| w == b"\r\n\r\n").expect("a whole head");
        let (head, body) = rest.split_at(head + 4);
        let head = std::str::from_utf8(head).expect("a head of ASCII");
        let status = head.strip_prefix("HTTP/1.").and_then(|line| line.get(2..5));
        let status: u16 = status.and_then(|digits| digits.parse().ok()).expect("a status line");
        let is_hypers = matches!(status, 400 | 414 | 431) && header(head, "x-request-id").is_none();
        // Whether "100 Continue" is sent depends on whether the body is there already.
        if status >= 200 && !is_hypers {
            found.push(status);
        }
        rest = behind(head, body, status);
    }
    found
}

fn header<'h>(head: &'h str, name: &str) -> Option<&'h str> {
    let mut lines = head.lines().filter_map(|line| line.split_once(": "));
    lines.find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value)
}

/// What follows a body. The response to HEAD has none.
fn behind<'b>(head: &str, body: &'b [u8], status: u16) -> &'b [u8] {
    if status < 200 || body.is_empty() || body.starts_with(b"HTTP/1.") {
        return body;
    }
    assert_eq!(header(head, "transfer-encoding"), None, "nothing is streamed without nodes");
    let length: usize = header(head, "content-length").map_or(0, |n| n.parse().expect("a number"));
    assert!(length <= body.len(), "{length} of {} bytes", body.len());
    let (body, rest) = body.split_at(length);
    if status >= 400 && header(head, "content-type") == Some("application/json") {
        let error: serde_json::Value = serde_json::from_slice(body).expect("JSON");
        let is_health = error["status"] == "unavailable";
        // Under /api/ errors have Ollama's shape.
        let is_shaped = error["error"].is_string() || error["error"]["message"].is_string();
        assert!(is_health || is_shaped, "{error}");
    }
    rest
}
