//! Runs the handler of a request: its log lines name the request, and its panic is rendered.

use std::sync::Arc;

use flotilla_listeners::panics::confine_panic;
use futures_util::FutureExt;
use hyper::Response;

use crate::types::error::Error;
use crate::types::request_context::RequestContext;
use crate::types::request_id::mark;
use crate::types::response::{self, Body};

/// Runs a handler. If it panics, returns 500 `internal_error`. Every response has the request id.
pub(crate) fn confine(
    context: Arc<RequestContext>,
    handler: impl Future<Output = Response<Body>>,
) -> impl Future<Output = Response<Body>> {
    let handled = confine_panic(handler, || {
        response::error(&Error::internal("the handler of a request panicked"))
    });
    context.clone().run(handled).map(move |mut response| {
        mark(&mut response, context.id());
        response
    })
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use hyper::Request;
    use hyper::body::Incoming;
    use hyper::service::service_fn;
    use hyper_util::rt::TokioIo;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    async fn answer(request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
        let context = RequestContext::open([127, 0, 0, 1].into(), request.headers());
        let handler = async {
            assert_ne!(request.uri().path(), "/panics", "this is what happens");
            response::json("\"fine\"")
        };
        Ok(confine(context, handler).await)
    }

    /// Sends a request and reads until `end`.
    async fn exchange(client: &mut TcpStream, path: &str, end: &str) -> String {
        let head = format!("GET {path} HTTP/1.1\r\nhost: a\r\nx-request-id: mine\r\n\r\n");
        client.write_all(head.as_bytes()).await.unwrap();
        let mut said = String::new();
        while !said.ends_with(end) {
            let mut buffer = [0; 4096];
            let read = client.read(&mut buffer).await.unwrap();
            assert!(read > 0, "the connection ended after {said}");
            said.push_str(std::str::from_utf8(&buffer[..read]).unwrap());
        }
        said
    }

    #[tokio::test]
    async fn a_handler_that_panics_gets_500_with_its_request_id_and_its_connection_stays() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serving = tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            let http = hyper::server::conn::http1::Builder::new();
            http.serve_connection(TokioIo::new(stream), service_fn(answer)).await
        });
        let mut client = TcpStream::connect(address).await.unwrap();
        let failed = exchange(&mut client, "/panics", "}}").await;
        assert!(failed.starts_with("HTTP/1.1 500"), "{failed}");
        assert!(failed.contains("x-request-id: mine"), "{failed}");
        assert!(failed.contains("\"code\":\"internal_error\""), "{failed}");
        assert!(!failed.contains("this is what happens"), "{failed}");
        let next = exchange(&mut client, "/works", "\"fine\"").await;
        assert!(next.starts_with("HTTP/1.1 200"), "{next}");
        drop(client);
        serving.await.unwrap().unwrap();
    }
}
