//! The accept loop and the limits on connections. [`crate::server::guards`] handles each
//! connection.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use flotilla_listeners::socket::{DEAD_AFTER, tune};
use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::Service;
use crate::context::Gateway;
use crate::server::connection::Connection;
use crate::server::file_limit;
use crate::server::guards::{CloseReason, Edge};
use flotilla_listeners::per_address::{AddressPermit, PerAddressLimit};

/// Pause after a failed accept, for example when file descriptors run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Extra time before the kernel drops a client that does not read, so that our own timeout comes
/// first.
const KERNEL_GRACE: Duration = Duration::from_secs(5);
/// Unsent bytes that the kernel buffers: enough to keep a network link busy, few enough to notice
/// soon that a client has stopped reading.
const UNSENT_BYTES_MAX: u32 = 256 * 1024;

/// Serves until `stop`, then waits up to the shutdown timeout for requests in flight. Requests of
/// closed connections no longer count.
pub(crate) async fn serve(service: Service, gateway: Gateway, stop: CancellationToken) {
    let socket = service.socket(&gateway.settings);
    let (mut listeners, mut settings) = (socket.changes(), gateway.settings.changes());
    let (mut room, per_address, open) =
        (Room::default(), Arc::new(PerAddressLimit::default()), TaskTracker::new());
    let mut now = settings.borrow_and_update().clone();
    file_limit::allow(service.connections_max(&now));
    let mut edge = Arc::new(Edge::new(&now.config, &gateway.metrics, stop.clone()));
    loop {
        room.resize(service.connections_max(&now));
        let listener = listeners.borrow_and_update().clone();
        let (permit, accepted) = tokio::select! {
            accepted = accept(&room, listener.as_deref()) => accepted,
            _ = settings.changed() => {
                now = settings.borrow_and_update().clone();
                edge = Arc::new(Edge::new(&now.config, &gateway.metrics, stop.clone()));
                continue;
            }
            _ = listeners.changed() => continue,
            () = stop.cancelled() => break,
        };
        let Some((stream, peer)) = accepted else { continue };
        let per_ip_max = service.connections_per_ip_max(&now, peer.ip());
        let Some(address_permit) = enter(&per_address, per_ip_max, &edge, peer) else { continue };
        tune_client(&stream, edge.write);
        let connection = Connection::new(service, gateway.clone(), edge.clone(), peer.ip());
        let (tls, counted) = (service.tls(&now), gateway.metrics.open_connection());
        gateway.tasks.spawn(open.track_future(async move {
            connection.serve(stream, tls).await;
            drop((permit, address_permit, counted));
        }));
    }
    // From here on, new connections are refused.
    socket.close();
    open.close();
    let shutdown = gateway.settings.now().config.timeouts.shutdown;
    if timeout(shutdown, open.wait()).await.is_err() {
        tracing::warn!("shutdown timeout reached: requests in flight canceled");
    }
}

/// Accepts the next connection. While the limit is reached, connections wait in the kernel's queue.
/// Cancel-safe.
async fn accept(
    room: &Room,
    listener: Option<&TcpListener>,
) -> (Option<OwnedSemaphorePermit>, Option<(TcpStream, SocketAddr)>) {
    let Some(listener) = listener else { return std::future::pending().await };
    let permit = room.permits.clone().acquire_owned().await.ok();
    match listener.accept().await {
        Ok(accepted) => (permit, Some(accepted)),
        Err(error) => {
            tracing::warn!(%error, "accept failed");
            tokio::time::sleep(ACCEPT_PAUSE).await;
            (permit, None)
        }
    }
}

/// Capacity for connections.
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
    /// Changes the capacity. If more connections are open, it shrinks as they close, with later
    /// calls.
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

/// Applies the per-address limit. `None` refuses the connection. Each listener counts separately,
/// so that a crowd on one does not block the other.
fn enter(
    per_address: &Arc<PerAddressLimit>,
    per_ip_max: Option<usize>,
    edge: &Edge,
    peer: SocketAddr,
) -> Option<Option<AddressPermit>> {
    let Some(max) = per_ip_max else { return Some(None) };
    let address_permit = per_address.acquire(peer.ip(), max);
    if address_permit.is_none() {
        edge.counter.record_close(CloseReason::AddressLimit);
    }
    address_permit.map(Some)
}

/// Sets the socket options of a client connection. The kernel treats a client that does not read as
/// dead, and must not drop it before `write` is over.
fn tune_client(stream: &TcpStream, write: Duration) {
    tune(stream);
    let socket = SockRef::from(stream);
    let _ = socket.set_tcp_user_timeout(Some(DEAD_AFTER.max(write + KERNEL_GRACE)));
    let _ = socket.set_tcp_notsent_lowat(UNSENT_BYTES_MAX);
}
