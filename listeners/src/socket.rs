//! Socket options for accepted and dialed connections.

use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;

/// The kernel drops a connection whose peer has acknowledged nothing for this long.
pub const DEAD_AFTER: Duration = Duration::from_secs(20);

/// Disables Nagle's algorithm and detects dead peers within [`DEAD_AFTER`].
pub fn tune(stream: &TcpStream) {
    let socket = SockRef::from(stream);
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(10))
        .with_interval(Duration::from_secs(5))
        .with_retries(3);
    // A kernel without these options still gets its connection.
    let _ = socket.set_tcp_nodelay(true);
    let _ = socket.set_tcp_keepalive(&keepalive);
    let _ = socket.set_tcp_user_timeout(Some(DEAD_AFTER));
}
