//! The listeners: accept loop, connection cap, TLS, HTTP/1.1 and HTTP/2.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::app::Gateway;
use crate::settings::{Door, Live, Settings};
use crate::tls::Acceptor;
use crate::{admin, api};

/// Connections of operators: Prometheus, a page or two, a command.
const ADMIN_CONNECTIONS_MAX: usize = 256;

/// A TLS handshake must be done after this.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
const PING_INTERVAL: Duration = Duration::from_secs(20);
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// Requests side by side on one HTTP/2 connection.
const STREAMS_MAX: u32 = 200;
/// Bytes of headers of one request.
const HEADER_BYTES_MAX: u32 = 32 * 1024;
/// Streams that a client may open and reset before we have answered (rapid reset).
const RESETS_MAX: usize = 64;
/// After a failed accept (out of file descriptors), before the next.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What is served on a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Service {
    /// The public API.
    Public,
    /// What operators look at and change.
    Admin,
}

impl Service {
    fn door(self, settings: &Live) -> &Door {
        match self {
            Self::Public => settings.public(),
            Self::Admin => settings.admin(),
        }
    }

    fn tls(self, settings: &Settings) -> Option<Acceptor> {
        match self {
            Self::Public => settings.config.tls.clone(),
            Self::Admin => settings.config.admin.as_ref()?.tls.clone(),
        }
    }

    fn connections_max(self, settings: &Settings) -> usize {
        match self {
            Self::Public => settings.config.limits.connections_max,
            Self::Admin => ADMIN_CONNECTIONS_MAX,
        }
    }
}

/// Serves until `stop`, then lets what is in flight finish, up to the configured time. In-flight
/// requests of connections that are done count no more.
pub async fn serve(service: Service, gateway: Gateway, stop: CancellationToken) {
    let graceful = GracefulShutdown::new();
    let door = service.door(&gateway.settings);
    let (mut listeners, mut settings) = (door.changes(), gateway.settings.changes());
    let mut room = Room::default();
    loop {
        let now = settings.borrow_and_update().clone();
        room.resize(service.connections_max(&now));
        let listener = listeners.borrow_and_update().clone();
        let (permit, accepted) = tokio::select! {
            accepted = accept(&room, listener.as_deref()) => accepted,
            _ = settings.changed() => continue,
            _ = listeners.changed() => continue,
            () = stop.cancelled() => break,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "accept failed");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        tune(&stream);
        let (tls, http) = (service.tls(&now), http(now.config.timeouts.header));
        let open = gateway.metrics.open_connection();
        let (gateway, watcher) = (gateway.clone(), graceful.watcher());
        gateway.tasks.clone().spawn(async move {
            Guest { service, gateway, http, watcher }.visits(stream, tls).await;
            drop((permit, open));
        });
    }
    // New connections are refused from here on.
    door.close();
    let shutdown = gateway.settings.now().config.timeouts.shutdown;
    if timeout(shutdown, graceful.shutdown()).await.is_err() {
        tracing::warn!("requests were cut off");
    }
}

/// The next connection. One over the limit waits in the kernel's queue. May be cancelled.
async fn accept(
    room: &Room,
    listener: Option<&TcpListener>,
) -> (Option<OwnedSemaphorePermit>, std::io::Result<(TcpStream, SocketAddr)>) {
    let Some(listener) = listener else { return std::future::pending().await };
    let permit = room.permits.clone().acquire_owned().await;
    (permit.ok(), listener.accept().await)
}

/// Room for connections.
#[derive(Debug)]
struct Room {
    permits: Arc<Semaphore>,
    size: usize,
}

impl Default for Room {
    fn default() -> Self {
        Self { permits: Arc::new(Semaphore::new(0)), size: 0 }
    }
}

impl Room {
    /// Makes room for so many. Where there are more connections now, it gets smaller as they end:
    /// with the next calls.
    fn resize(&mut self, size: usize) {
        match size.checked_sub(self.size) {
            Some(more) => {
                self.permits.add_permits(more);
                self.size = size;
            }
            None => self.size -= self.permits.forget_permits(self.size - size),
        }
    }
}

type Http = auto::Builder<TokioExecutor>;

fn http(header_timeout: Duration) -> Http {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(header_timeout);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT)
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(HEADER_BYTES_MAX)
        .max_pending_accept_reset_streams(RESETS_MAX);
    builder
}

/// Whoever is at the other end of a connection.
struct Guest {
    service: Service,
    gateway: Gateway,
    http: Http,
    watcher: Watcher,
}

impl Guest {
    async fn visits(self, stream: TcpStream, tls: Option<Acceptor>) {
        match tls {
            None => self.speaks_http(stream).await,
            Some(tls) => match timeout(HANDSHAKE_TIMEOUT, tls.accept(stream)).await {
                Ok(Ok(stream)) => self.speaks_http(stream).await,
                Ok(Err(error)) => tracing::debug!(%error, "TLS handshake failed"),
                Err(_) => tracing::debug!("TLS handshake took too long"),
            },
        }
    }

    async fn speaks_http<S>(self, stream: S)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let Self { service, gateway, http, watcher } = self;
        let answer = service_fn(move |request| {
            let gateway = gateway.clone();
            async move {
                Ok::<_, Infallible>(match service {
                    Service::Public => api::serve(gateway, request).await,
                    Service::Admin => admin::serve(&gateway, &request),
                })
            }
        });
        let connection = http.serve_connection_with_upgrades(TokioIo::new(stream), answer);
        // A broken connection concerns its client only.
        if let Err(error) = watcher.watch(connection.into_owned()).await {
            tracing::debug!(%error, "connection ended");
        }
    }
}

/// Small packets at once, and dead peers noticed.
pub fn tune(stream: &TcpStream) {
    let socket = SockRef::from(stream);
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(10))
        .with_interval(Duration::from_secs(5))
        .with_retries(3);
    // Missing support is no reason to refuse a connection.
    let _ = socket.set_tcp_nodelay(true);
    let _ = socket.set_tcp_keepalive(&keepalive);
    let _ = socket.set_tcp_user_timeout(Some(Duration::from_secs(20)));
}
