//! Socket options of every connection, accepted or dialed.

use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;

/// The kernel gives up a peer that acknowledges nothing for so long.
pub const DEAD_AFTER: Duration = Duration::from_secs(20);

/// Sends small packets immediately, and detects dead peers within [`DEAD_AFTER`].
pub fn tune(stream: &TcpStream) {
    let socket = SockRef::from(stream);
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(10))
        .with_interval(Duration::from_secs(5))
        .with_retries(3);
    // Missing support is no reason to refuse a connection.
    let _ = socket.set_tcp_nodelay(true);
    let _ = socket.set_tcp_keepalive(&keepalive);
    let _ = socket.set_tcp_user_timeout(Some(DEAD_AFTER));
}
