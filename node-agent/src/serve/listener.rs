//! The agent's own port: accept loop and limits. [`flotilla_listeners`] limits what one connection
//! may use, as in the gateway.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use flotilla_listeners::connection::{self, Http, Terms, speak};
use flotilla_listeners::hangup::ClientSocket;
use flotilla_listeners::monitor::ConnectionMonitor;
use flotilla_listeners::per_address::{AddressPermit, PerAddressLimit};
use flotilla_listeners::response_body::TrackedBody;
use flotilla_listeners::socket::tune;
use flotilla_listeners::timers::ConnectionTimeouts;
use flotilla_listeners::{CloseReason, SharedCloseCounter};
use futures_util::FutureExt;
use hyper::body::Incoming;
use hyper::service::{Service, service_fn};
use hyper::{Request, Version};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use hyper_util::server::conn::auto;
use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument;

use crate::engine::client::LinkId;
use crate::serve::node::{Link, Node};
use crate::serve::{api, request_id};
use crate::types::error::Error;
use crate::types::response;

/// Maximum number of connections.
const CONNECTIONS_MAX: usize = 1024;
/// A request's head must arrive within this time.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// Read timeouts for clients of the agent's port.
const PATIENCE: ConnectionTimeouts =
    ConnectionTimeouts { head: HEADER_TIMEOUT, idle: Duration::from_secs(75) };
/// Write timeout for clients that do not read. A gateway that dials the agent waits for its own
/// clients, and by default disconnects those after half of this.
const WRITE_TIMEOUT: Duration = Duration::from_secs(60);
/// Both ends of an HTTP/2 connection detect a dead peer within this time plus the next.
const PING_INTERVAL: Duration = Duration::from_secs(5);
const PING_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum concurrent requests on one HTTP/2 connection: slots, their queue, and the status.
const STREAMS_MAX: u32 = 1024;
/// Maximum size of a request's headers in bytes.
const HEADER_BYTES_MAX: u32 = 32 * 1024;
/// How long after our write timeout the kernel drops a client that does not read.
const KERNEL_GRACE: Duration = Duration::from_secs(5);
/// Pause after a failed accept (out of file descriptors).
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

static NEXT_LINK: AtomicU64 = AtomicU64::new(1);

/// Allocates the id of a new link.
pub fn next_link() -> LinkId {
    NEXT_LINK.fetch_add(1, Ordering::Relaxed)
}

/// Settings for connections that the agent dialed: their other end is a gateway that accepted the
/// node.
pub fn http() -> auto::Builder<TokioExecutor> {
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
pub struct Port {
    node: Arc<Node>,
    http: Http,
    per_address: Arc<PerAddressLimit>,
    /// Maximum connections per address.
    per_address_max: usize,
    counter: SharedCloseCounter,
    /// Canceled when connections should finish what is in flight and close.
    stop: CancellationToken,
}

impl Port {
    /// Creates the port of `node`, with at most `per_address_max` connections per address.
    pub fn new(node: Arc<Node>, per_address_max: usize, stop: CancellationToken) -> Arc<Self> {
        let counter: SharedCloseCounter = Arc::new(node.metrics.clone());
        let mut http = connection::http(WRITE_TIMEOUT, counter.clone());
        // A gateway that dials the agent sends all its requests over one connection.
        http.http2()
            .keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_TIMEOUT)
            .max_concurrent_streams(STREAMS_MAX);
        let per_address = Arc::new(PerAddressLimit::default());
        Arc::new(Self { node, http, per_address, per_address_max, counter, stop })
    }

    /// Serves `listener` until `stop`, then lets requests in flight finish.
    pub async fn serve(self: Arc<Self>, listener: TcpListener, tasks: TaskTracker) {
        let (room, open) = (Arc::new(Semaphore::new(CONNECTIONS_MAX)), TaskTracker::new());
        loop {
            // A connection over the limit waits in the kernel's queue.
            let permit = tokio::select! {
                permit = room.clone().acquire_owned() => permit,
                () = self.stop.cancelled() => break,
            };
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = self.stop.cancelled() => break,
            };
            let (stream, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "accept failed");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let Some(address_permit) = self.enter(peer) else { continue };
            tune(&stream);
            // The agent, not the kernel, should disconnect a client that does not read.
            let _ = SockRef::from(&stream).set_tcp_user_timeout(Some(WRITE_TIMEOUT + KERNEL_GRACE));
            let port = self.clone();
            tasks.spawn(open.track_future(async move {
                port.converse(stream).await;
                drop((permit, address_permit));
            }));
        }
        drop(listener);
        open.close();
        open.wait().await;
    }

    /// Returns `None` if the address has its maximum of connections, so that this one is refused.
    fn enter(&self, peer: SocketAddr) -> Option<AddressPermit> {
        let address_permit = self.per_address.acquire(peer.ip(), self.per_address_max);
        if address_permit.is_none() {
            self.counter.record_close(CloseReason::AddressLimit);
        }
        address_permit
    }

    async fn converse(&self, stream: TcpStream) {
        let monitor = Arc::new(ConnectionMonitor::new(self.counter.clone()));
        let answering = service(self.node.clone(), Link { id: next_link(), trusted: false });
        let noting = monitor.clone();
        let service = service_fn(move |request: Request<Incoming>| {
            let in_flight = noting.begin_request(request.version() == Version::HTTP_2);
            let answer = Box::pin(answering.call(request));
            async move { answer.await.map(|said| said.map(|body| TrackedBody::new(body, in_flight))) }
        });
        let Self { http, stop, .. } = self;
        let terms = Terms { http, patience: PATIENCE, write: WRITE_TIMEOUT, stop };
        let stream = ClientSocket::new(stream);
        let watched = stream.clone();
        tokio::select! {
            biased;
            ended = speak(stream, service, &monitor, terms) => {
                // A broken connection affects its client only.
                if let Err(error) = ended {
                    tracing::debug!(%error, "connection ended");
                }
            }
            () = watched.wait_for_hangup() => {}
        }
    }
}

/// The node's API as a hyper service for one link.
pub fn service(
    node: Arc<Node>,
    link: Link,
) -> impl hyper::service::Service<
    Request<Incoming>,
    Response = hyper::Response<crate::types::response::Body>,
    Error = Infallible,
    Future = impl Future<Output = Result<hyper::Response<crate::types::response::Body>, Infallible>>
             + Send,
> + Send {
    service_fn(move |request| {
        let node = node.clone();
        async move {
            let id = request_id::of(request.headers());
            // Every line that is logged for the request carries the id from its gateway.
            let span = tracing::error_span!("request", request_id = id);
            // A handler that panics fails only its own request.
            let answering = AssertUnwindSafe(api::serve(node, link, request)).catch_unwind();
            let answered = answering.instrument(span.clone()).await;
            let mut response = answered.unwrap_or_else(|_| {
                span.in_scope(|| tracing::error!("request handler panicked"));
                response::error(&Error::Internal)
            });
            request_id::mark(response.headers_mut(), &id);
            Ok(response)
        }
    })
}

/// Binds a port; the error names the address and what to do.
pub async fn bind(address: SocketAddr) -> Result<TcpListener, String> {
    TcpListener::bind(address).await.map_err(|e| match e.kind() {
        std::io::ErrorKind::AddrInUse => {
            format!("cannot listen on {address}: another program uses this port; choose another with --listen")
        }
        _ => format!("cannot listen on {address}: {e}"),
    })
}
