//! Serves HTTP connections, each from its first byte to its last.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::service::{Service, service_fn};
use hyper::{Request, Response, Version};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::monitor::{ConnectionMonitor, MonitoredStream};
use crate::request_head::{self, HEADER_BYTES_MAX, HEADERS_MAX};
use crate::response::Body;
use crate::response_body::TrackedBody;
use crate::streams::StreamExecutor;
use crate::timers::ConnectionTimeouts;
use crate::{CloseReason, SharedCloseCounter};

/// Headers that hyper parses in HTTP/1. Above our limit, so that a client over it gets a message.
const HEADERS_PARSED_MAX: usize = 2 * HEADERS_MAX;
/// Size of hyper's HTTP/1 buffers, in bytes. A request head must fit.
const BUFFER_BYTES_MAX: usize = 64 * 1024;
/// A client may open and reset this many streams before we handle them (rapid reset), and may cause
/// this many resets through protocol errors (made you reset). One more closes the connection.
const RESETS_MAX: usize = 64;
/// Response bytes that HTTP/2 buffers per stream while the client does not read.
const SEND_BYTES_MAX: usize = 64 * 1024;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Settings of HTTP/2 that depend on who connects.
#[derive(Debug, Clone, Copy)]
pub struct Http2Settings {
    /// Interval between pings.
    pub ping_interval: Duration,
    /// A ping without a reply for this long closes the connection.
    pub ping_timeout: Duration,
    /// Most concurrent requests per connection.
    pub streams_max: u32,
}

/// What all connections that are accepted under the same settings share.
pub struct HttpServer {
    http: auto::Builder<StreamExecutor>,
    timeouts: ConnectionTimeouts,
    counter: SharedCloseCounter,
    stop: CancellationToken,
}

impl HttpServer {
    /// Configures HTTP/1.1 and HTTP/2 with our limits. When `stop` is canceled, connections finish
    /// their requests in flight and close.
    pub fn new(
        timeouts: ConnectionTimeouts,
        http2: Http2Settings,
        counter: SharedCloseCounter,
        stop: CancellationToken,
    ) -> Arc<Self> {
        let http = builder(timeouts.write, http2, counter.clone());
        Arc::new(Self { http, timeouts, counter, stop })
    }

    /// Slow-read budget: how long the client may leave response bytes unread.
    pub(crate) fn write_timeout(&self) -> Duration {
        self.timeouts.write
    }

    pub(crate) fn record_close(&self, reason: CloseReason) {
        self.counter.record_close(reason);
    }

    /// Starts the timers of an accepted connection.
    pub fn open_connection(self: &Arc<Self>) -> HttpConnection {
        let monitor = Arc::new(ConnectionMonitor::new(self.counter.clone()));
        HttpConnection { server: self.clone(), monitor }
    }
}

/// These defaults of hyper and h2 were checked and stay: a `Content-Length` next to chunked
/// encoding closes the connection after the response, CONTINUATION frames are counted, a header
/// list that is too large closes the connection at four times the limit, empty and tiny DATA frames
/// have a budget, and h2 writes the reply to a PING or SETTINGS frame before it reads the next
/// frame, so a flood of them uses no memory.
fn builder(
    write: Duration,
    http2: Http2Settings,
    counter: SharedCloseCounter,
) -> auto::Builder<StreamExecutor> {
    let mut builder = auto::Builder::new(StreamExecutor::new(write, counter));
    // The connection timers enforce the head timeout. They tell a slow head from an idle
    // connection.
    builder
        .http1()
        .header_read_timeout(None)
        .max_headers(HEADERS_PARSED_MAX)
        .max_buf_size(BUFFER_BYTES_MAX);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(http2.ping_interval)
        .keep_alive_timeout(http2.ping_timeout)
        .max_concurrent_streams(http2.streams_max)
        .max_header_list_size(HEADER_BYTES_MAX as u32)
        .max_send_buf_size(SEND_BYTES_MAX)
        .max_local_error_reset_streams(RESETS_MAX)
        .max_pending_accept_reset_streams(RESETS_MAX);
    builder
}

/// One accepted connection.
pub struct HttpConnection {
    server: Arc<HttpServer>,
    monitor: Arc<ConnectionMonitor>,
}

impl HttpConnection {
    /// Counts a connection that is closed before [`Self::serve`].
    pub fn record_close(&self, reason: CloseReason) {
        self.monitor.record_close(reason);
    }

    /// Serves HTTP over `stream` until the connection ends, a timer expires, or an upgrade takes
    /// the stream over.
    ///
    /// # Errors
    /// The client broke the protocol, or its connection broke. Only this client is affected.
    pub async fn serve<S, H, F>(&self, stream: S, handler: H) -> Result<(), BoxError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        H: Fn(Request<Incoming>) -> F,
        F: Future<Output = Response<Body>> + Send + 'static,
    {
        let service = service_fn(|request: Request<Incoming>| {
            let in_flight = self.monitor.begin_request(request.version() == Version::HTTP_2);
            // Boxed: hyper reserves space for this future in every connection, idle or not.
            let handled = match request_head::refusal(&request) {
                Some(refusal) => Err(refusal),
                None => Ok(Box::pin(handler(request))),
            };
            async move {
                let response = match handled {
                    Ok(handled) => handled.await,
                    Err(refusal) => refusal,
                };
                Ok::<_, Infallible>(response.map(|body| TrackedBody::new(body, in_flight)))
            }
        });
        let ended = self.serve_until_timeout(stream, service).await;
        self.monitor.stop_timers();
        ended
    }

    async fn serve_until_timeout<S, A>(&self, stream: S, service: A) -> Result<(), BoxError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        A: Service<Request<Incoming>, Response = Response<TrackedBody<Body>>, Error = Infallible>,
        A::Future: Send + 'static,
    {
        let Self { server, monitor } = self;
        let write = server.timeouts.write;
        let stream = MonitoredStream::new(stream, monitor.clone(), write);
        let served = server.http.serve_connection_with_upgrades(TokioIo::new(stream), service);
        let mut served = pin!(served);
        tokio::select! {
            biased;
            ended = served.as_mut() => return ended,
            () = server.stop.cancelled() => served.as_mut().graceful_shutdown(),
            reason = monitor.wait_for_timeout(&server.timeouts) => {
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
}
