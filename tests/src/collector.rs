//! A collector of traces: takes OTLP over HTTP, and hands every span to its test.

use std::convert::Infallible;
use std::net::SocketAddr;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::SOON;

/// A collector on a port of its own.
pub struct Collector {
    /// Where it listens.
    pub address: SocketAddr,
    told: mpsc::Receiver<Told>,
    serving: JoinHandle<()>,
}

/// A span, and everything that came with it.
#[derive(Debug)]
pub struct Told {
    /// The span.
    pub span: Span,
    /// Attributes of who made it.
    pub resource: Vec<KeyValue>,
    /// The whole message that it was in.
    pub bytes: Bytes,
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Collector {
    /// Starts one.
    pub async fn start() -> Self {
        Self::start_at("127.0.0.1:0".parse().unwrap()).await
    }

    /// The same on an address that was in use before.
    pub async fn start_at(address: SocketAddr) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, told) = mpsc::channel(1024);
        let serving = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let sender = sender.clone();
                let service = service_fn(move |request| take(sender.clone(), request));
                let server = hyper::server::conn::http1::Builder::new();
                tokio::spawn(server.serve_connection(TokioIo::new(stream), service));
            }
        });
        Self { address, told, serving }
    }

    /// The configuration that sends traces here.
    pub fn traces(&self, more: &str) -> String {
        format!("traces: {{otlp_endpoint: 'http://{}'{more}}}\n", self.address)
    }

    /// The next span.
    pub async fn next(&mut self) -> Told {
        let next = timeout(SOON, self.told.recv()).await;
        next.expect("no span comes").expect("the collector runs")
    }

    /// Whether a span is here now.
    pub fn has_more(&mut self) -> bool {
        self.told.try_recv().is_ok()
    }
}

impl Told {
    /// An attribute as text; empty: there is none.
    pub fn text(&self, key: &str) -> String {
        text(&self.span.attributes, key)
    }
}

/// An attribute as text; empty: there is none.
pub fn text(attributes: &[KeyValue], key: &str) -> String {
    let found = attributes.iter().find(|a| a.key == key);
    match found.and_then(|a| a.value.as_ref()) {
        Some(AnyValue { value: Some(Value::StringValue(text)) }) => text.clone(),
        Some(AnyValue { value: Some(Value::IntValue(number)) }) => number.to_string(),
        Some(other) => panic!("{key} is {other:?}"),
        None => String::new(),
    }
}

async fn take(
    sender: mpsc::Sender<Told>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    assert_eq!((request.method().as_str(), request.uri().path()), ("POST", "/v1/traces"));
    assert_eq!(request.headers()["content-type"], "application/x-protobuf");
    #[expect(clippy::disallowed_methods, reason = "our own gateway sends it")]
    let bytes = request.into_body().collect().await.unwrap().to_bytes();
    let message = ExportTraceServiceRequest::decode(bytes.clone()).unwrap();
    for of in message.resource_spans {
        let resource = of.resource.unwrap_or_default().attributes;
        for span in of.scope_spans.into_iter().flat_map(|scope| scope.spans) {
            let told = Told { span, resource: resource.clone(), bytes: bytes.clone() };
            let _ = sender.send(told).await;
        }
    }
    let response = Response::builder().header("content-type", "application/x-protobuf");
    Ok(response.body(Full::default()).unwrap())
}
