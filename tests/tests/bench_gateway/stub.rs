//! An upstream that answers at once: an OpenAI server over HTTP/1.1, a node over HTTP/2.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use fleet_tests::mock_node::healthy;
use futures_util::stream::{self, StreamExt};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use inference_protocol::fleet::STATUS_PATH;
use inference_protocol::resume::RESUME_HEADER;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::time::{Interval, MissedTickBehavior, interval};

use crate::{EVENTS, EVENTS_PER_SECOND};

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// Serves for as long as the process runs, on a thread of its own: among several, HTTP/2 would
/// pay for waking them, and HTTP/1.1 would not.
pub fn start() -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    listener.set_nonblocking(true).unwrap();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(serve(listener));
    });
    address
}

async fn serve(listener: std::net::TcpListener) {
    let listener = TcpListener::from_std(listener).unwrap();
    let mut http = auto::Builder::new(TokioExecutor::new());
    http.http2().max_concurrent_streams(100_000);
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        stream.set_nodelay(true).unwrap();
        let http = http.clone();
        tokio::spawn(async move {
            let _ = http.serve_connection(TokioIo::new(stream), service_fn(answer)).await;
        });
    }
}

async fn answer(request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
    if request.uri().path() == STATUS_PATH {
        return Ok(events("application/x-ndjson", status()));
    }
    let is_node = request.headers().contains_key(RESUME_HEADER);
    #[expect(clippy::disallowed_methods, reason = "our own clients send it")]
    let body = request.into_body().collect().await.unwrap().to_bytes();
    let is_streamed = body.windows(13).any(|w| w == b"\"stream\":true");
    Ok(match (is_streamed, is_node) {
        (true, _) => events("text/event-stream", tokens(is_node)),
        (false, true) => whole("text/event-stream", marked_whole()),
        (false, false) => whole("application/json", chat().to_string()),
    })
}

fn chat() -> serde_json::Value {
    let message = json!({"role": "assistant", "content": "Paris is the capital. ".repeat(12)});
    json!({"id": "chatcmpl-0123456789abcdef0123456789abcdef", "object": "chat.completion",
        "created": 1_700_000_000, "model": "flotilla-demo",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 150, "completion_tokens": 60, "total_tokens": 210}})
}

fn marked_whole() -> String {
    format!(": t 0 1,2,3\n\n: u 150 60 0\ndata: {}\n\n", chat())
}

fn whole(content_type: &str, text: String) -> Response<Body> {
    let response = Response::builder().header("content-type", content_type);
    response.body(Full::from(text).boxed_unsync()).unwrap()
}

fn events(
    content_type: &str,
    items: impl stream::Stream<Item = String> + Send + 'static,
) -> Response<Body> {
    let frames = items.map(|text| Ok(Frame::data(Bytes::from(text))));
    let response = Response::builder().header("content-type", content_type);
    response.body(StreamBody::new(frames).boxed_unsync()).unwrap()
}

fn status() -> impl stream::Stream<Item = String> {
    let line = json!(healthy("stub", 4_096)).to_string() + "\n";
    ticking(interval(Duration::from_millis(500))).map(move |()| line.clone())
}

fn ticking(ticks: Interval) -> impl stream::Stream<Item = ()> {
    stream::unfold(ticks, |mut ticks| async move {
        ticks.tick().await;
        Some(((), ticks))
    })
}

/// One token after the other, and the end.
fn tokens(is_marked: bool) -> impl stream::Stream<Item = String> {
    let mut ticks = interval(Duration::from_micros(1_000_000 / EVENTS_PER_SECOND));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let chunk = json!({"id": "chatcmpl-0123456789abcdef0123456789abcdef",
        "object": "chat.completion.chunk", "created": 1_700_000_000, "model": "flotilla-demo",
        "choices": [{"index": 0, "delta": {"content": " token"}, "finish_reason": null}]});
    let event = format!("data: {chunk}\n\n");
    let event = if is_marked { format!(": t 0 12345\n{event}") } else { event };
    let all = ticking(ticks).take(EVENTS as usize).map(move |()| event.clone());
    let usage = if is_marked { ": u 150 300 0\n" } else { "" };
    all.chain(stream::iter([format!("{usage}data: [DONE]\n\n")]))
}
