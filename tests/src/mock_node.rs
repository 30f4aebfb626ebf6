//! A node that does what its test tells it: every request is handed to the test, which
//! answers it, now or later, right or wrong.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::unfold;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use inference_protocol::fleet::{
    EPOCH_HEADER, GATEWAY_HEADER, JOIN_PATH, JOIN_UPGRADE, ModelDetails, ModelStatus, NODE_HEADER,
    NodeState, NodeStatus, STATUS_PATH, TENANT_HEADER, VERSION, VERSION_HEADER,
};
use inference_protocol::openai::INVALID_REQUEST;
use inference_protocol::resume::{Mark, RESUME_HEADER, Resume, Usage};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use crate::SOON;
use crate::process::JOIN_KEY;

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// What the node says about itself; `None`: nothing any more.
type Status = Option<NodeStatus>;

/// A joined node.
pub struct MockNode {
    status: watch::Sender<Status>,
    asked: mpsc::Receiver<Asked>,
    link: JoinHandle<()>,
}

impl Drop for MockNode {
    fn drop(&mut self) {
        self.link.abort();
    }
}

/// A request that waits for the test.
pub struct Asked {
    /// Its method.
    pub method: String,
    /// Its path.
    pub path: String,
    /// Its body; null where it is no JSON.
    pub body: Value,
    /// The same as its bytes.
    pub raw: Bytes,
    /// What the gateway knows of the answer.
    pub resume: Resume,
    /// Whose it is.
    pub tenant: String,
    /// The key that came with it.
    pub authorization: Option<String>,
    /// All headers.
    pub headers: HeaderMap,
    reply: oneshot::Sender<Response<Body>>,
}

/// The deltas of a chat that reasons, speaks and calls a tool, and what each finishes by.
pub fn reasoning_text_and_call() -> Vec<(Value, Value)> {
    let call = |fields: Value| (json!({"tool_calls": [fields]}), Value::Null);
    let arguments = |text: &str| call(json!({"index": 0, "function": {"arguments": text}}));
    vec![
        (json!({"role": "assistant", "content": ""}), Value::Null),
        (json!({"reasoning_content": "Hm."}), Value::Null),
        (json!({"content": "I look "}), Value::Null),
        (json!({"content": "it up."}), Value::Null),
        call(json!({"index": 0, "id": "call_1", "type": "function",
            "function": {"name": "weather", "arguments": ""}})),
        arguments("{\"city\": "),
        arguments("\"Köln\"}"),
        (json!({}), json!("tool_calls")),
    ]
}

/// A stream that the test writes. Dropping it ends the stream, wherever it is.
pub struct Streaming(mpsc::Sender<Bytes>);

/// The status of a healthy node with one model.
pub fn healthy(name: &str, slots: u32) -> NodeStatus {
    let model = ModelStatus {
        id: "flotilla-demo".into(),
        digest: "d".into(),
        context_tokens: 1024,
        created: 1,
        details: ModelDetails::default(),
    };
    NodeStatus {
        version: VERSION,
        node: name.into(),
        epoch: 1,
        state: NodeState::Ready,
        models: vec![model],
        slots,
        slots_busy_elsewhere: 0,
        queued: 0,
        engine_restarts: 0,
        prefill_tokens_per_second: None,
        decode_tokens_per_second: None,
        vitals: None,
        prefixes: None,
    }
}

/// A join request with these headers changed; the status of its answer.
pub async fn join_status(gateway: SocketAddr, change: &[(&str, Option<&str>)]) -> u16 {
    let mut request = join_request("m", 1);
    for (name, value) in change {
        let name = hyper::header::HeaderName::from_bytes(name.as_bytes()).unwrap();
        match value {
            Some(value) => drop(request.headers_mut().insert(name, value.parse().unwrap())),
            None => drop(request.headers_mut().remove(name)),
        }
    }
    send(gateway, request).await.status().as_u16()
}

/// What a gateway calls itself when a node joins.
pub async fn join_id(gateway: SocketAddr) -> String {
    let response = send(gateway, join_request("m", 1)).await;
    response.headers()[GATEWAY_HEADER].to_str().unwrap().into()
}

/// The headers of the gateway's response to a join by a node that speaks these versions.
pub async fn join_headers(gateway: SocketAddr, name: &str, versions: &str) -> HeaderMap {
    let mut request = join_request(name, 1);
    request.headers_mut().insert(VERSION_HEADER, versions.parse().unwrap());
    send(gateway, request).await.headers().clone()
}

async fn send(gateway: SocketAddr, request: Request<Empty<Bytes>>) -> Response<Incoming> {
    let stream = TcpStream::connect(gateway).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    let connection = tokio::spawn(connection.with_upgrades());
    let response = sender.send_request(request).await.unwrap();
    connection.abort();
    response
}

fn join_request(name: &str, epoch: u64) -> Request<Empty<Bytes>> {
    Request::post(JOIN_PATH)
        .header("host", "gateway")
        .header("authorization", format!("Bearer {JOIN_KEY}"))
        .header("connection", "upgrade")
        .header("upgrade", JOIN_UPGRADE)
        .header(VERSION_HEADER, VERSION.to_string())
        .header(NODE_HEADER, name)
        .header(EPOCH_HEADER, epoch.to_string())
        .body(Empty::new())
        .unwrap()
}

impl MockNode {
    /// Joins under the name and epoch of its first status.
    pub async fn join(gateway: SocketAddr, status: NodeStatus) -> Self {
        let (name, epoch) = (status.node.clone(), status.epoch);
        Self::join_as(gateway, &name, epoch, status).await
    }

    /// Joins as one node, and then says that it is whatever it says.
    pub async fn join_as(gateway: SocketAddr, name: &str, epoch: u64, status: NodeStatus) -> Self {
        let stream = TcpStream::connect(gateway).await.unwrap();
        // As agents do.
        stream.set_nodelay(true).unwrap();
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        let driver = tokio::spawn(connection.with_upgrades());
        let response = sender.send_request(join_request(name, epoch)).await.unwrap();
        assert_eq!(response.status(), 101);
        let upgraded = hyper::upgrade::on(response).await.unwrap();
        driver.await.unwrap().unwrap();
        Self::serve(status, || std::future::ready(upgraded))
    }

    /// Waits to be dialled, once; its address.
    pub async fn listen(status: NodeStatus) -> (SocketAddr, Self) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let accept = async move { TokioIo::new(listener.accept().await.unwrap().0) };
        let node = Self::serve(status, || accept);
        (address, node)
    }

    /// An external endpoint: HTTP/1.1, and nothing of a node. Its address with `/v1`. When it falls
    /// silent, its list of models is an error.
    pub async fn external() -> (String, Self) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/v1", listener.local_addr().unwrap());
        let (status, told) = watch::channel(Some(healthy("external", 1)));
        let (sender, asked) = mpsc::channel(64);
        let link = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (told, sender) = (told.clone(), sender.clone());
                let service = service_fn(move |r| serve(told.clone(), sender.clone(), r));
                let server = hyper::server::conn::http1::Builder::new();
                tokio::spawn(server.serve_connection(TokioIo::new(stream), service));
            }
        });
        (url, Self { status, asked, link })
    }

    fn serve<T, F>(status: NodeStatus, connect: impl FnOnce() -> F + Send + 'static) -> Self
    where
        T: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
        F: Future<Output = T> + Send,
    {
        let (status, told) = watch::channel(Some(status));
        let (sender, asked) = mpsc::channel(64);
        let service = service_fn(move |request| serve(told.clone(), sender.clone(), request));
        let link = tokio::spawn(async move {
            let io = connect().await;
            let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            let _ = server.serve_connection(io, service).await;
        });
        Self { status, asked, link }
    }

    /// The next request.
    pub async fn asked(&mut self) -> Asked {
        let next = tokio::time::timeout(SOON, self.asked.recv()).await;
        next.expect("the node is asked nothing").expect("the link is gone")
    }

    /// The next request, whenever it comes; `None` once the link is gone.
    pub async fn next(&mut self) -> Option<Asked> {
        self.asked.recv().await
    }

    /// Whether a request is here now.
    pub fn is_asked(&mut self) -> Option<Asked> {
        self.asked.try_recv().ok()
    }

    /// Says something else about itself from now on.
    pub fn says(&self, change: impl FnOnce(&mut NodeStatus)) {
        self.status.send_modify(|status| status.as_mut().into_iter().for_each(change_once(change)));
    }

    /// Says nothing any more; the connection stays.
    pub fn falls_silent(&self) {
        self.status.send_replace(None);
    }

    /// The connection is gone.
    pub fn dies(&self) {
        self.link.abort();
    }

    /// Waits until the gateway ends the link.
    pub async fn is_put_out(&mut self) {
        let link = &mut self.link;
        let _ = tokio::time::timeout(SOON, link).await.expect("the link stays");
    }
}

fn change_once(change: impl FnOnce(&mut NodeStatus)) -> impl FnMut(&mut NodeStatus) {
    let mut change = Some(change);
    move |status| change.take().into_iter().for_each(|c| c(status))
}

async fn serve(
    status: watch::Receiver<Status>,
    asked: mpsc::Sender<Asked>,
    request: Request<Incoming>,
) -> Result<Response<Body>, &'static str> {
    if request.uri().path().ends_with("/models") {
        let status = if status.borrow().is_some() { 200 } else { 500 };
        let body = Full::from("{}").boxed_unsync();
        return Response::builder().status(status).body(body).map_err(|_| "no status");
    }
    if request.uri().path().ends_with("/health") {
        let none = Full::default().boxed_unsync();
        return Response::builder().status(404).body(none).map_err(|_| "no status");
    }
    if request.uri().path() == STATUS_PATH {
        return Ok(Response::new(status_lines(status)));
    }
    let tenant = request.headers().get(TENANT_HEADER).and_then(|t| t.to_str().ok());
    let tenant = tenant.unwrap_or_default().to_string();
    let authorization = request.headers().get("authorization").and_then(|a| a.to_str().ok());
    let authorization = authorization.map(Into::into);
    let resume = request.headers().get(RESUME_HEADER).and_then(|t| t.to_str().ok()?.parse().ok());
    // Requests of the gateway's own have none.
    let resume: usize = resume.unwrap_or(0);
    let (path, headers) = (request.uri().path().to_string(), request.headers().clone());
    let method = request.method().to_string();
    #[expect(clippy::disallowed_methods, reason = "our own gateway sends it")]
    let body = request.into_body().collect().await.map_err(|_| "the request broke off")?;
    let body = body.to_bytes();
    let (resume, raw) = body.split_at_checked(resume).ok_or("the body is too short")?;
    let resume = serde_json::from_slice(resume).unwrap_or_default();
    let (raw, body) = (body.slice_ref(raw), serde_json::from_slice(raw).unwrap_or_default());
    let (reply, answer) = oneshot::channel();
    asked
        .send(Asked { method, path, body, raw, resume, tenant, authorization, headers, reply })
        .await
        .map_err(|_| "the test is over")?;
    answer.await.map_err(|_| "the test resets the stream")
}

fn status_lines(status: watch::Receiver<Status>) -> Body {
    let lines = unfold((status, true), |(mut status, first)| async move {
        if !first {
            let heartbeat = Duration::from_millis(500);
            let _ = tokio::time::timeout(heartbeat, status.changed()).await;
        }
        let line = status.borrow_and_update().as_ref().map(|status| {
            let mut line = json!(status);
            // A node of a later release says more.
            line["invented_later"] = json!({"mood": "sunny"});
            line.to_string() + "\n"
        });
        match line {
            Some(line) => Some((Ok(Frame::data(Bytes::from(line))), (status, false))),
            None => std::future::pending().await,
        }
    });
    StreamBody::new(lines).boxed_unsync()
}

impl Asked {
    /// Answers in full.
    pub fn answer(self, text: &str) {
        let message = json!({"role": "assistant", "content": text});
        let choice = json!({"index": 0, "message": message, "finish_reason": "stop"});
        self.reply(200, "application/json", json!({"choices": [choice]}).to_string());
    }

    /// Any whole answer.
    pub fn reply(self, status: u16, content_type: &str, body: String) {
        let response = Response::builder().status(status).header("content-type", content_type);
        let _ = self.reply.send(response.body(Full::from(body).boxed_unsync()).unwrap());
    }

    /// An error of the node.
    pub fn refuse(self, status: u16) {
        let error = json!({"message": "no", "type": "server_error", "param": null, "code": "no"});
        self.reply(status, "application/json", json!({ "error": error }).to_string());
    }

    /// Resets the request's stream.
    pub fn reset(self) {}

    /// Begins a stream.
    pub fn stream(self) -> Streaming {
        let (sender, receiver) = mpsc::channel(64);
        let frames = unfold(receiver, |mut receiver: mpsc::Receiver<Bytes>| async move {
            receiver.recv().await.map(|bytes| (Ok(Frame::data(bytes)), receiver))
        });
        let response = Response::builder().header("content-type", "text/event-stream");
        let body = StreamBody::new(frames).boxed_unsync();
        let _ = self.reply.send(response.body(body).unwrap());
        Streaming(sender)
    }
}

impl Streaming {
    /// Any bytes.
    pub async fn send(&self, bytes: impl Into<Bytes>) {
        self.0.send(bytes.into()).await.expect("the stream is closed");
    }

    /// Any bytes; false: the gateway has given the stream up.
    pub async fn offer(&self, bytes: impl Into<Bytes>) -> bool {
        let sent = tokio::time::timeout(SOON, self.0.send(bytes.into())).await;
        sent.expect("nobody reads the stream, and nobody ends it").is_ok()
    }

    /// Bytes after all choices have ended. A gateway that collects an answer may have given the
    /// stream up: it has all that it needs.
    pub async fn close(&self, bytes: impl Into<Bytes>) {
        self.offer(bytes).await;
    }

    /// One event with a piece of the answer.
    pub async fn say(&self, text: &str) {
        let choice = json!({"index": 0, "delta": {"content": text}, "finish_reason": null});
        self.send(format!("data: {}\n\n", json!({"choices": [choice]}))).await;
    }

    /// One event with a piece of the answer and the tokens that led to it.
    pub async fn say_marked(&self, tokens: &[u32], text: &str) {
        let mut event = String::new();
        Mark::Tokens { choice: 0, tokens: tokens.to_vec() }.write(&mut event);
        let choice = json!({"index": 0, "delta": {"content": text}, "finish_reason": null});
        self.send(format!("{event}data: {}\n\n", json!({"choices": [choice]}))).await;
    }

    /// One event with any delta of a chat, and the token that led to it.
    pub async fn say_delta(&self, token: u32, delta: &Value, finish: &Value) {
        let mut event = String::new();
        Mark::Tokens { choice: 0, tokens: vec![token] }.write(&mut event);
        let choice = json!({"index": 0, "delta": delta, "finish_reason": finish});
        self.send(format!("{event}data: {}\n\n", json!({"choices": [choice]}))).await;
    }

    /// These deltas, each with what it finishes by, and the end of a chat that tells its usage.
    pub async fn say_all(self, deltas: &[(Value, Value)], usage: Usage) {
        for (token, (delta, finish)) in deltas.iter().enumerate() {
            self.say_delta(token as u32, delta, finish).await;
        }
        let (prompt, completion) = (usage.prompt, usage.completion);
        let told = json!({"prompt_tokens": prompt, "completion_tokens": completion});
        let mut event = String::new();
        Mark::Usage(usage).write(&mut event);
        let told = json!({"choices": [], "usage": told});
        self.close(format!("{event}data: {told}\n\ndata: [DONE]\n\n")).await;
    }

    /// The tokens of an answer that is not streamed.
    pub async fn note(&self, tokens: &[u32]) {
        let mut event = String::new();
        Mark::Tokens { choice: 0, tokens: tokens.to_vec() }.write(&mut event);
        self.send(format!("{event}\n")).await;
    }

    /// The end of an answer with marks, with this last payload.
    pub async fn close_marked(self, usage: Usage, payload: &str) {
        let mut event = String::new();
        Mark::Usage(usage).write(&mut event);
        self.send(format!("{event}data: {payload}\n\n")).await;
    }

    /// An error of the node in the middle.
    pub async fn fails(self, code: &str) {
        self.ends_with("server_error", None, code).await;
    }

    /// The request is found to be at fault in the middle.
    pub async fn objects(self, param: &str, code: &str) {
        self.ends_with(INVALID_REQUEST, Some(param), code).await;
    }

    async fn ends_with(self, kind: &str, param: Option<&str>, code: &str) {
        let error = json!({"message": "no", "type": kind, "param": param, "code": code});
        self.send(format!("data: {}\n\n", json!({ "error": error }))).await;
    }

    /// The last two events.
    pub async fn done(self) {
        let choice = json!({"index": 0, "delta": {}, "finish_reason": "stop"});
        self.send(format!("data: {}\n\n", json!({"choices": [choice]}))).await;
        self.close("data: [DONE]\n\n").await;
    }

    /// Waits until the gateway has given the stream up.
    pub async fn is_given_up(&self) {
        tokio::time::timeout(SOON, self.0.closed()).await.expect("the stream is still wanted");
    }
}
