//! A small HTTP/1.1 client: one connection for each request, closed when dropped.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::HeaderMap;
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use inference_protocol::sse::{Splitter, payloads};
use serde_json::Value;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

/// No answer of a test takes longer.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Where to ask, and with which key.
#[derive(Debug, Clone)]
pub struct Client {
    address: SocketAddr,
    key: Option<String>,
    headers: Vec<(String, String)>,
}

/// A whole answer.
#[derive(Debug)]
pub struct Answer {
    /// Its status.
    pub status: u16,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body.
    pub body: Bytes,
}

impl Answer {
    /// The body as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&self.body)))
    }

    /// The text of a chat's answer.
    pub fn content(&self) -> String {
        let json = self.json();
        let content = json.pointer("/choices/0/message/content").and_then(Value::as_str);
        content.unwrap_or_else(|| panic!("no answer: {json}")).to_string()
    }

    /// A chat's answer as the demo model wrote it: text, or a call in its notation.
    pub fn written(&self) -> String {
        let json = self.json();
        let Some(calls) = json.pointer("/choices/0/message/tool_calls") else {
            return self.content();
        };
        assert_eq!(json["choices"][0]["finish_reason"], "tool_calls", "{json}");
        let call = |call: &Value| {
            let (name, arguments) = (&call["function"]["name"], &call["function"]["arguments"]);
            let arguments = arguments.as_str().unwrap_or_else(|| panic!("no arguments: {json}"));
            format!("<tool_call>\n{{\"name\": {name}, \"arguments\": {arguments}}}\n</tool_call>")
        };
        calls.as_array().into_iter().flatten().map(call).collect()
    }

    /// The code of an error.
    pub fn error_code(&self) -> String {
        let json = self.json();
        for key in ["message", "type", "param", "code"] {
            assert!(json["error"].get(key).is_some(), "an error without {key}: {json}");
        }
        json["error"]["code"].as_str().unwrap_or_default().to_string()
    }

    /// A header's text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|v| v.to_str().unwrap())
    }
}

/// What a stream said.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Transcript {
    /// The text of all chunks.
    pub text: String,
    /// `finish_reason`, once it was told.
    pub finish: Option<String>,
    /// Codes of error events.
    pub errors: Vec<String>,
    /// Those events.
    pub error_events: Vec<Value>,
    /// Whether `[DONE]` came.
    pub done: bool,
    /// Events with text.
    pub chunks: usize,
    /// `usage`, where it was asked for.
    pub usage: Option<Value>,
}

/// A running stream. Dropping it closes the connection.
pub struct Stream {
    /// Status of the response.
    pub status: u16,
    /// Headers of the response.
    pub headers: HeaderMap,
    body: Incoming,
    splitter: Splitter,
    /// What was said so far.
    pub transcript: Transcript,
    connection: JoinHandle<()>,
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

impl Client {
    /// Asks `address` with a key.
    pub fn new(address: SocketAddr, key: Option<&str>) -> Self {
        Self { address, key: key.map(Into::into), headers: Vec::new() }
    }

    /// Where it asks.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The same address with another key.
    pub fn with_key(&self, key: Option<&str>) -> Self {
        Self::new(self.address, key)
    }

    /// The same address and key, with one more header on every request.
    pub fn with_header(&self, name: &str, value: &str) -> Self {
        let mut client = self.clone();
        client.headers.push((name.into(), value.into()));
        client
    }

    /// GET
    pub async fn get(&self, path: &str) -> Answer {
        self.try_send(Method::GET, path, Bytes::new()).await.unwrap()
    }

    /// POST of any bytes.
    pub async fn post(&self, path: &str, body: impl Into<Bytes>) -> Answer {
        self.try_send(Method::POST, path, body.into()).await.unwrap()
    }

    /// A chat, answered whole.
    pub async fn chat(&self, request: &Value) -> Answer {
        self.post("/v1/chat/completions", request.to_string()).await
    }

    /// Any request; the error says why there was no answer.
    pub async fn try_send(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<Answer, String> {
        let exchange = async {
            let (response, connection) = self.begin(method, path, body).await?;
            let (head, body) = response.into_parts();
            #[expect(clippy::disallowed_methods, reason = "our own servers bound their answers")]
            let body = body.collect().await.map_err(|e| e.to_string())?.to_bytes();
            connection.abort();
            Ok(Answer { status: head.status.as_u16(), headers: head.headers, body })
        };
        tokio::time::timeout(TIMEOUT, exchange)
            .await
            .map_err(|_| "no answer in time".to_string())?
    }

    /// A streamed chat, from its head on.
    pub async fn stream(&self, request: &Value) -> Stream {
        self.try_stream(request).await.unwrap()
    }

    /// As [`Client::stream`]; the error says why there was no head.
    pub async fn try_stream(&self, request: &Value) -> Result<Stream, String> {
        let body = Bytes::from(request.to_string());
        let begin = self.begin(Method::POST, "/v1/chat/completions", body);
        let (response, connection) =
            tokio::time::timeout(TIMEOUT, begin).await.map_err(|_| "no head in time")??;
        let (head, body) = response.into_parts();
        Ok(Stream {
            status: head.status.as_u16(),
            headers: head.headers,
            body,
            splitter: Splitter::new(1 << 20),
            transcript: Transcript::default(),
            connection,
        })
    }

    /// Sends a streamed chat and closes the connection without reading a byte of the
    /// answer.
    pub async fn send_and_leave(&self, request: &Value) {
        let body = request.to_string();
        let key = self.key.as_deref().unwrap_or_default();
        let head = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: flotilla\r\nauthorization: Bearer {key}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(body.as_bytes()).await.unwrap();
        stream.flush().await.unwrap();
    }

    pub(crate) async fn begin(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<(hyper::Response<Incoming>, JoinHandle<()>), String> {
        let stream = TcpStream::connect(self.address).await.map_err(|e| e.to_string())?;
        stream.set_nodelay(true).map_err(|e| e.to_string())?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|e| e.to_string())?;
        let connection = tokio::spawn(async move {
            let _ = connection.await;
        });
        let mut request = Request::builder().method(method).uri(path);
        let has = |wanted: &str| self.headers.iter().any(|(name, _)| name == wanted);
        if !has("content-type") {
            request = request.header("content-type", "application/json");
        }
        if !has("host") {
            request = request.header("host", self.address.to_string());
        }
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        let request = request.body(Full::new(body)).map_err(|e| e.to_string())?;
        let response = sender.send_request(request).await.map_err(|e| e.to_string())?;
        Ok((response, connection))
    }
}

impl Stream {
    /// Reads until more text has come. False: the stream is over.
    pub async fn next_chunk(&mut self) -> bool {
        let chunks = self.transcript.chunks;
        while self.transcript.chunks == chunks {
            let frame = tokio::time::timeout(TIMEOUT, self.body.frame()).await;
            let Some(Ok(frame)) = frame.expect("the stream stands still") else { return false };
            if let Some(bytes) = frame.data_ref() {
                let events = self.splitter.push(bytes).expect("an event is too large");
                self.transcript.take(&events);
            }
        }
        true
    }

    /// Reads to the end.
    pub async fn finish(mut self) -> Transcript {
        while self.next_chunk().await {}
        assert!(!self.splitter.is_mid_event(), "the stream ended inside an event");
        std::mem::take(&mut self.transcript)
    }

    /// What was read so far.
    pub fn into_transcript(mut self) -> Transcript {
        std::mem::take(&mut self.transcript)
    }

    /// The node that answers.
    pub fn node(&self) -> String {
        self.headers["x-flotilla-endpoint"].to_str().unwrap().to_string()
    }
}

impl Transcript {
    fn take(&mut self, events: &[u8]) {
        for payload in payloads(events) {
            assert!(!self.done, "something follows [DONE]");
            if payload == b"[DONE]" {
                self.done = true;
                continue;
            }
            // from_slice refuses anything that is not UTF-8.
            let event: Value = serde_json::from_slice(payload).expect("an event that is not JSON");
            if let Some(error) = event.get("error") {
                self.errors.push(error["code"].as_str().unwrap_or_default().into());
                self.error_events.push(event.clone());
            }
            if let Some(text) = event.pointer("/choices/0/delta/content").and_then(Value::as_str) {
                self.text.push_str(text);
                self.chunks += usize::from(!text.is_empty());
            }
            if let Some(reason) = event.pointer("/choices/0/finish_reason").and_then(Value::as_str)
            {
                self.finish = Some(reason.into());
            }
            if let Some(usage) = event.get("usage").filter(|u| !u.is_null()) {
                self.usage = Some(usage.clone());
            }
        }
    }
}
