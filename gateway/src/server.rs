//! The public listener: accept loop, connection cap, TLS, HTTP/1.1 and HTTP/2.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::api;
use crate::app::Gateway;
use crate::config::Config;
use crate::tls::Acceptor;

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

/// Serves until `gateway.stop`, then lets what is in flight finish, up to the configured
/// time. In-flight requests of connections that are done count no more.
pub async fn serve(listener: TcpListener, gateway: Gateway, config: &Config) {
    let connections = Arc::new(Semaphore::new(config.limits.connections_max));
    let graceful = GracefulShutdown::new();
    let http = Arc::new(http(config.timeouts.header));
    loop {
        // A connection over the limit waits in the kernel's queue.
        let permit = tokio::select! {
            permit = connections.clone().acquire_owned() => permit,
            () = gateway.stop.cancelled() => break,
        };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = gateway.stop.cancelled() => break,
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
        let (gateway, http, watcher) = (gateway.clone(), http.clone(), graceful.watcher());
        let (tls, open) = (config.tls.clone(), gateway.metrics.open_connection());
        gateway.tasks.clone().spawn(async move {
            connection(stream, tls, &http, gateway, watcher).await;
            drop((permit, open));
        });
    }
    // New connections are refused from here on.
    drop(listener);
    if timeout(config.timeouts.shutdown, graceful.shutdown()).await.is_err() {
        tracing::warn!("requests were cut off");
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

async fn connection(
    stream: TcpStream,
    tls: Option<Acceptor>,
    http: &Http,
    gateway: Gateway,
    watcher: Watcher,
) {
    match tls {
        None => speak_http(stream, http, gateway, watcher).await,
        Some(tls) => match timeout(HANDSHAKE_TIMEOUT, tls.accept(stream)).await {
            Ok(Ok(stream)) => speak_http(stream, http, gateway, watcher).await,
            Ok(Err(error)) => tracing::debug!(%error, "TLS handshake failed"),
            Err(_) => tracing::debug!("TLS handshake took too long"),
        },
    }
}

async fn speak_http<S>(stream: S, http: &Http, gateway: Gateway, watcher: Watcher)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(move |request| {
        let gateway = gateway.clone();
        async move { Ok::<_, Infallible>(api::serve(gateway, request).await) }
    });
    let connection = http.serve_connection_with_upgrades(TokioIo::new(stream), service);
    // A broken connection concerns its client only.
    if let Err(error) = watcher.watch(connection.into_owned()).await {
        tracing::debug!(%error, "connection ended");
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
