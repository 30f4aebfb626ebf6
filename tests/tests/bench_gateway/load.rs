//! Clients.

use std::future::pending;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64;
use serde_json::json;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::EVENTS;
use crate::proxies::Proxy;

/// An API that clients call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    Chat,
    Messages,
    Responses,
}

impl Call {
    fn path(self) -> &'static str {
        match self {
            Self::Chat => "/v1/chat/completions",
            Self::Messages => "/v1/messages",
            Self::Responses => "/v1/responses",
        }
    }

    /// A chat of 700 bytes.
    fn body(self, streams: bool) -> Bytes {
        let text = "What is the capital of France? ".repeat(18);
        let messages = json!([{"role": "user", "content": text}]);
        let mut request = json!({"model": "flotilla-demo", "stream": streams});
        match self {
            Self::Chat => request["messages"] = messages,
            Self::Messages => {
                request["messages"] = messages;
                request["max_tokens"] = 1000.into();
            }
            Self::Responses => request["input"] = messages,
        }
        Bytes::from(request.to_string())
    }
}

fn request(proxy: &Proxy, call: Call, body: &Bytes) -> Request<Full<Bytes>> {
    let key = proxy.key.as_deref().unwrap_or("none");
    Request::post(call.path())
        .header("host", "bench")
        .header("content-type", "application/json")
        .header("authorization", format!("Bearer {key}"))
        .body(Full::new(body.clone()))
        .unwrap()
}

async fn connect(proxy: &Proxy) -> SendRequest<Full<Bytes>> {
    let stream = TcpStream::connect(proxy.address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let (sender, connection) = handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    sender
}

/// Sends one and reads all of its answer; its bytes.
async fn ask(sender: &mut SendRequest<Full<Bytes>>, request: Request<Full<Bytes>>) -> usize {
    sender.ready().await.unwrap();
    let response = sender.send_request(request).await.unwrap();
    assert_eq!(response.status(), 200);
    let (mut body, mut bytes) = (response.into_body(), 0);
    while let Some(frame) = body.frame().await {
        bytes += frame.unwrap().data_ref().map_or(0, Bytes::len);
    }
    bytes
}

/// Requests one after the other on so many connections; how many were answered.
pub async fn requests(proxy: &Proxy, call: Call, connections: usize, time: Duration) -> usize {
    let (body, until) = (call.body(false), Instant::now() + time);
    let mut clients = JoinSet::new();
    for _ in 0..connections {
        let mut sender = connect(proxy).await;
        let first = request(proxy, call, &body);
        clients.spawn(async move {
            let mut count = 0;
            while Instant::now() < until {
                assert!(ask(&mut sender, first.clone()).await > 300);
                count += 1;
            }
            count
        });
    }
    clients.join_all().await.into_iter().sum()
}

/// So many streams side by side, to their ends; how many tokens they had.
pub async fn streams(proxy: &Proxy, call: Call, count: usize) -> u64 {
    let body = call.body(true);
    let mut clients = JoinSet::new();
    for _ in 0..count {
        let mut sender = connect(proxy).await;
        let first = request(proxy, call, &body);
        clients.spawn(async move { ask(&mut sender, first).await });
    }
    let bytes = clients.join_all().await;
    assert!(bytes.iter().all(|bytes| *bytes > 100 * EVENTS as usize), "{bytes:?}");
    EVENTS * count as u64
}

/// Half and 99 of 100 requests take no longer than this, in microseconds. 800 a second, at random
/// times: in step with each other, clients would measure how long they wait for each other.
pub async fn latencies(proxy: &Proxy, time: Duration) -> [f64; 2] {
    let (body, until) = (Call::Chat.body(false), Instant::now() + time);
    let mut clients = JoinSet::new();
    for number in 0..8 {
        let mut sender = connect(proxy).await;
        let first = request(proxy, Call::Chat, &body);
        clients.spawn(async move {
            let (mut random, mut took) = (Pcg64::seed_from_u64(number), Vec::new());
            while Instant::now() < until {
                let pause = Duration::from_millis(u64::from(random.next_u32() % 19));
                let _ = timeout(pause, pending::<()>()).await;
                let begun = Instant::now();
                ask(&mut sender, first.clone()).await;
                took.push(begun.elapsed().as_secs_f64() * 1e6);
            }
            took
        });
    }
    let mut all: Vec<f64> = clients.join_all().await.into_iter().flatten().collect();
    all.sort_by(f64::total_cmp);
    [all[all.len() / 2], all[all.len() * 99 / 100]]
}
