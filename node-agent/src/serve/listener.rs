//! The agent's own port: which limits apply, and how requests are handled.
//! [`flotilla_listeners`] holds the accept loop and limits what one connection may use, as in the
//! gateway.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use flotilla_listeners::accept::{Listener, accept_until};
use flotilla_listeners::connection::{Http2Settings, HttpServer};
use flotilla_listeners::hangup::serve_until_hangup;
use flotilla_listeners::panics::confine_panic;
use flotilla_listeners::socket::{self, BindError};
use flotilla_listeners::timers::ConnectionTimeouts;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use hyper_util::server::conn::auto;
use inference_translation::messages::models::VERSION_HEADER;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::engine::client::LinkId;
use crate::serve::node::{Link, Node};
use crate::serve::{api, request_id};
use crate::types::error::Error;
use crate::types::response::{self, Body};

/// Maximum number of connections.
const CONNECTIONS_MAX: usize = 1024;
/// A request's head must arrive within this time.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeouts for clients of the agent's port. A gateway that dials the agent waits for its own
/// clients that do not read, and by default disconnects those after half of `write`.
const TIMEOUTS: ConnectionTimeouts = ConnectionTimeouts {
    head: HEADER_TIMEOUT,
    idle: Duration::from_secs(75),
    write: Duration::from_secs(60),
};
/// Both ends of an HTTP/2 connection detect a dead peer within this time plus the next.
const PING_INTERVAL: Duration = Duration::from_secs(5);
const PING_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum concurrent requests on one HTTP/2 connection: slots, their queue, and the status.
const STREAMS_MAX: u32 = 1024;
/// Maximum size of a request's headers in bytes.
const HEADER_BYTES_MAX: u32 = 32 * 1024;
/// A gateway that dials the agent sends all its requests over one connection.
const HTTP2: Http2Settings = Http2Settings {
    ping_interval: PING_INTERVAL,
    ping_timeout: PING_TIMEOUT,
    streams_max: STREAMS_MAX,
};

static NEXT_LINK: AtomicU64 = AtomicU64::new(1);

/// Allocates the id of a new link.
pub(crate) fn next_link() -> LinkId {
    NEXT_LINK.fetch_add(1, Ordering::Relaxed)
}

/// Settings for connections that the agent dialed: their other end is a gateway that accepted the
/// node.
pub(crate) fn http() -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT)
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(HEADER_BYTES_MAX);
    builder
}

/// The agent's own port.
pub(crate) struct Port {
    node: Arc<Node>,
    socket: Arc<TcpListener>,
    server: Arc<HttpServer>,
    /// Maximum connections per address.
    per_address_max: usize,
    stop: CancellationToken,
}

impl Port {
    /// Creates the port of `node`, with at most `per_address_max` connections per address.
    pub(crate) fn new(
        node: Arc<Node>,
        socket: TcpListener,
        per_address_max: usize,
        stop: CancellationToken,
    ) -> Self {
        let counter = Arc::new(node.metrics.clone());
        let server = HttpServer::new(TIMEOUTS, HTTP2, counter, stop.clone());
        Self { node, socket: Arc::new(socket), server, per_address_max, stop }
    }

    /// Serves until `stop`, then lets requests in flight finish.
    pub(crate) async fn serve(mut self, tasks: TaskTracker) {
        let stop = self.stop.clone();
        let open = accept_until(&stop, &mut self, &tasks).await;
        // Closes the socket.
        drop(self);
        open.wait().await;
    }
}

impl Listener for Port {
    fn socket(&mut self) -> Option<Arc<TcpListener>> {
        Some(self.socket.clone())
    }

    async fn wait_for_change(&mut self) {
        std::future::pending().await
    }

    fn connections_max(&self) -> usize {
        CONNECTIONS_MAX
    }

    fn connections_per_address_max(&self, _: IpAddr) -> Option<usize> {
        Some(self.per_address_max)
    }

    fn server(&self) -> &HttpServer {
        &self.server
    }

    fn serve(&self, stream: TcpStream, _: IpAddr) -> impl Future<Output = ()> + Send + 'static {
        let (node, connection) = (self.node.clone(), self.server.open_connection());
        let link = Link { id: next_link(), trusted: false };
        serve_until_hangup(stream, async move |stream| {
            let handler = |request| respond(node.clone(), link, request);
            // A broken connection affects its client only.
            if let Err(error) = connection.serve(stream, handler).await {
                tracing::debug!(%error, "connection ended");
            }
        })
    }
}

/// The node's API as a hyper service for one link.
pub(crate) fn service(
    node: Arc<Node>,
    link: Link,
) -> impl hyper::service::Service<
    Request<Incoming>,
    Response = Response<Body>,
    Error = Infallible,
    Future = impl Future<Output = Result<Response<Body>, Infallible>> + Send,
> + Send {
    service_fn(move |request| {
        let node = node.clone();
        async move { Ok(respond(node, link, request).await) }
    })
}

/// Handles one request.
async fn respond(node: Arc<Node>, link: Link, request: Request<Incoming>) -> Response<Body> {
    let id = request_id::of(request.headers());
    let is_anthropic = request.headers().contains_key(VERSION_HEADER);
    let handled = confine_panic(api::serve(node, link, request), || {
        tracing::error!("request handler panicked");
        response::error(&Error::Internal)
    });
    let mut response = request_id::with_id(id.clone(), handled).await;
    request_id::mark(response.headers_mut(), &id, is_anthropic);
    response
}

/// Binds a port; the error names the address and what to do.
pub(crate) async fn bind(address: SocketAddr) -> Result<TcpListener, BindError> {
    socket::bind(address, "with --listen").await
}
