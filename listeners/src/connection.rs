//! Serves one HTTP connection from the first byte to the last.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Incoming};
use hyper::service::Service;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::monitor::{ConnectionMonitor, MonitoredStream};
use super::streams::StreamExecutor;
use super::timers::ConnectionTimeouts;
use super::{CloseReason, SharedCloseCounter};

const PING_INTERVAL: Duration = Duration::from_secs(20);
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// Concurrent requests per HTTP/2 connection.
const STREAMS_MAX: u32 = 200;
/// Header bytes per request. In HTTP/2, each header counts 32 bytes more than its length.
const HEADER_BYTES_MAX: u32 = 32 * 1024;
/// Headers per request.
const HEADERS_MAX: usize = 100;
/// Size of hyper's HTTP/1 buffers, in bytes. A request head must fit.
const BUFFER_BYTES_MAX: usize = 64 * 1024;
/// A client may open and reset this many streams before we handle them (rapid reset), and may cause
/// this many resets through protocol errors (made you reset). One more closes the connection.
const RESETS_MAX: usize = 64;
/// Response bytes that HTTP/2 buffers per stream while the client does not read.
const SEND_BYTES_MAX: usize = 64 * 1024;

/// The HTTP server that all connections share.
pub type Http = auto::Builder<StreamExecutor>;

/// Configures HTTP/1.1 and HTTP/2 with our limits. These defaults of hyper and h2 were checked and
/// stay: a `Content-Length` next to chunked encoding closes the connection after the response,
/// CONTINUATION frames are counted, a header list that is too large closes the connection at four
/// times the limit, empty and tiny DATA frames have a budget, and h2 writes the reply to a PING or
/// SETTINGS frame before it reads the next frame, so a flood of them uses no memory.
pub fn http(write: Duration, counter: SharedCloseCounter) -> Http {
    let mut builder = auto::Builder::new(StreamExecutor::new(write, counter));
    // The connection timers enforce the head timeout. They tell a slow head from an idle
    // connection.
    builder
        .http1()
        .header_read_timeout(None)
        .max_headers(HEADERS_MAX)
        .max_buf_size(BUFFER_BYTES_MAX);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT)
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(HEADER_BYTES_MAX)
        .max_send_buf_size(SEND_BYTES_MAX)
        .max_local_error_reset_streams(RESETS_MAX)
        .max_pending_accept_reset_streams(RESETS_MAX);
    builder
}

/// Timeouts and shutdown of a connection.
#[derive(Clone, Copy)]
pub struct Terms<'a> {
    /// The HTTP server.
    pub http: &'a Http,
    /// Head and idle timeouts.
    pub patience: ConnectionTimeouts,
    /// Slow-read budget: how long the client may leave response bytes unread.
    pub write: Duration,
    /// When canceled, the connection finishes its requests in flight and closes.
    pub stop: &'a CancellationToken,
}

/// Serves a connection until it closes or a connection timer expires. Errors are protocol errors;
/// they affect only this client.
pub async fn speak<S, A, B>(
    stream: S,
    service: A,
    monitor: &Arc<ConnectionMonitor>,
    terms: Terms<'_>,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    A: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>,
    A::Future: Send + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let Terms { http, patience, write, stop } = terms;
    let stream = MonitoredStream::new(stream, monitor.clone(), write);
    let mut served = pin!(http.serve_connection_with_upgrades(TokioIo::new(stream), service));
    tokio::select! {
        biased;
        ended = served.as_mut() => return ended,
        () = stop.cancelled() => served.as_mut().graceful_shutdown(),
        reason = monitor.wait_for_timeout(&patience) => {
            monitor.record_close(reason);
            if reason == CloseReason::Idle {
                served.as_mut().graceful_shutdown();
                // A request that arrives at this very moment still gets its response.
                let _ = timeout(write, served).await;
            }
            return Ok(());
        }
    }
    served.await
}
