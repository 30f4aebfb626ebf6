//! Binds sockets, and sets the options of accepted and dialed connections.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream};

/// The kernel drops a connection whose peer has acknowledged nothing for this long.
pub const DEAD_AFTER: Duration = Duration::from_secs(20);

/// Extra time before the kernel drops a client that does not read, so that our own timeout comes
/// first.
const KERNEL_GRACE: Duration = Duration::from_secs(5);

/// Binds a port. `option` completes the advice for a port that is in use: "choose another ...".
///
/// # Errors
/// The address cannot be bound.
pub async fn bind(address: SocketAddr, option: &'static str) -> Result<TcpListener, BindError> {
    let bound = TcpListener::bind(address).await;
    bound.map_err(|error| BindError { address, option, error })
}

/// A port cannot be bound. The text names its address and says what to do.
#[derive(Debug)]
pub struct BindError {
    address: SocketAddr,
    option: &'static str,
    error: io::Error,
}

impl std::error::Error for BindError {}

impl fmt::Display for BindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, option, error } = self;
        write!(f, "cannot listen on {address}: ")?;
        match error.kind() {
            io::ErrorKind::AddrInUse => {
                write!(f, "another program uses this port; choose another {option}")
            }
            _ => write!(f, "{error}"),
        }
    }
}

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

/// Like [`tune`], for an accepted connection. The kernel treats a client that does not read as
/// dead, and must not drop it before `write` is over.
pub(crate) fn tune_accepted(stream: &TcpStream, write: Duration) {
    tune(stream);
    let user_timeout = DEAD_AFTER.max(write + KERNEL_GRACE);
    let _ = SockRef::from(stream).set_tcp_user_timeout(Some(user_timeout));
}

/// Limits the unsent bytes that the kernel buffers for a connection.
pub fn limit_unsent(stream: &TcpStream, bytes_max: u32) {
    let _ = SockRef::from(stream).set_tcp_notsent_lowat(bytes_max);
}
