//! The accept loop: accepts connections within the limits of a listener and serves each in a task.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::CloseReason;
use crate::connection::HttpServer;
use crate::connection_limit::ConnectionLimit;
use crate::log::with_peer;
use crate::per_address::{AddressPermit, PerAddressLimit};
use crate::socket;

/// Pause after a failed accept, for example when file descriptors run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The program's side of a listener: its socket, its settings, and how it serves a connection.
pub trait Listener {
    /// The socket to accept from. Without one, no connection is accepted until
    /// [`Self::wait_for_change`] returns.
    fn socket(&mut self) -> Option<Arc<TcpListener>>;

    /// Waits until the socket or a setting has changed. Cancel-safe.
    fn wait_for_change(&mut self) -> impl Future<Output = ()> + Send;

    /// Most open connections.
    fn connections_max(&self) -> usize;

    /// Most open connections of this address; `None` for as many as [`Self::connections_max`].
    fn connections_per_address_max(&self, address: IpAddr) -> Option<usize>;

    /// Settings for the connections that are accepted from now on.
    fn server(&self) -> &HttpServer;

    /// Serves an accepted connection until it ends.
    fn serve(&self, stream: TcpStream, peer: IpAddr) -> impl Future<Output = ()> + Send + 'static;
}

/// Accepts connections until `stop`. Serves each one in a task of `tasks`, and returns those that
/// are still open: await `wait` until they have closed. The caller closes the socket.
pub async fn accept_until(
    stop: &CancellationToken,
    listener: &mut impl Listener,
    tasks: &TaskTracker,
) -> TaskTracker {
    let mut limit = ConnectionLimit::default();
    let per_address = Arc::new(PerAddressLimit::default());
    let open = TaskTracker::new();
    loop {
        limit.resize(listener.connections_max());
        let socket = listener.socket();
        let accepted = tokio::select! {
            accepted = accept(&limit, socket.as_deref()) => accepted,
            () = listener.wait_for_change() => continue,
            () = stop.cancelled() => break,
        };
        let Some((permit, stream, peer)) = accepted else { continue };
        let Ok(address_permit) = check_address(listener, &per_address, peer.ip()) else { continue };
        socket::tune_accepted(&stream, listener.server().write_timeout());
        // Boxed: otherwise the task would have room for it twice.
        let served = Box::pin(with_peer(peer.ip(), listener.serve(stream, peer.ip())));
        tasks.spawn(open.track_future(async move {
            served.await;
            drop((permit, address_permit));
        }));
    }
    open.close();
    open
}

/// Accepts the next connection. While the limit is reached, connections wait in the kernel's queue.
/// Cancel-safe.
async fn accept(
    limit: &ConnectionLimit,
    socket: Option<&TcpListener>,
) -> Option<(Option<OwnedSemaphorePermit>, TcpStream, SocketAddr)> {
    let Some(socket) = socket else { return std::future::pending().await };
    let permit = limit.acquire().await;
    match socket.accept().await {
        Ok((stream, peer)) => Some((permit, stream, peer)),
        Err(error) => {
            tracing::warn!(%error, "accept failed");
            tokio::time::sleep(ACCEPT_PAUSE).await;
            None
        }
    }
}

/// The address has as many connections as it may have.
struct AddressLimitReached;

/// Applies the per-address limit. Each listener counts separately, so that a crowd on one does not
/// block the other.
fn check_address(
    listener: &impl Listener,
    per_address: &Arc<PerAddressLimit>,
    address: IpAddr,
) -> Result<Option<AddressPermit>, AddressLimitReached> {
    let Some(max) = listener.connections_per_address_max(address) else { return Ok(None) };
    match per_address.acquire(address, max) {
        Some(permit) => Ok(Some(permit)),
        None => {
            listener.server().record_close(CloseReason::AddressLimit);
            Err(AddressLimitReached)
        }
    }
}
