//! Drives the HTTP/2 connection to a node.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use h2::client::Connection;
use h2::{Ping, PingPong};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{sleep, timeout};

use super::gather::Gather;

/// A dead peer is detected within the sum of these, or by its overdue status.
const PING_INTERVAL: Duration = Duration::from_secs(5);
const PING_TIMEOUT: Duration = Duration::from_secs(5);

/// Why a connection ended.
#[derive(Debug)]
pub(crate) enum ConnectionEnd {
    /// The node closed it.
    Closed,
    /// It broke.
    Broken(h2::Error),
    /// A ping timed out.
    PingTimeout,
}

impl std::fmt::Display for ConnectionEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Closed => f.write_str("the node closed the connection"),
            Self::Broken(error) => error.fmt(f),
            Self::PingTimeout => f.write_str("the node does not respond to pings"),
        }
    }
}

/// A connection and its keep-alive pings.
pub(crate) struct Driver<T> {
    connection: Late<Connection<Gather<T>, Bytes>>,
    pings: Option<PingPong>,
}

impl<T: AsyncRead + AsyncWrite + Unpin> Driver<T> {
    pub(super) fn new(mut connection: Connection<Gather<T>, Bytes>) -> Self {
        let pings = connection.ping_pong();
        Self { connection: Late { inner: connection, is_due: false }, pings }
    }

    /// Drives the connection until it ends.
    pub(crate) async fn drive(self) -> ConnectionEnd {
        let Self { connection, pings } = self;
        tokio::select! {
            ended = connection => ended.map_or_else(ConnectionEnd::Broken, |()| ConnectionEnd::Closed),
            why = keep_alive(pings) => why,
        }
    }
}

async fn keep_alive(pings: Option<PingPong>) -> ConnectionEnd {
    let Some(mut pings) = pings else { return std::future::pending().await };
    loop {
        sleep(PING_INTERVAL).await;
        match timeout(PING_TIMEOUT, pings.ping(Ping::opaque())).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => return ConnectionEnd::Broken(error),
            Err(_) => return ConnectionEnd::PingTimeout,
        }
    }
}

/// Polls the inner future only after all other ready tasks have run. Requests made in the meantime
/// are then written together instead of with a system call each.
struct Late<F> {
    inner: F,
    is_due: bool,
}

impl<F: Future + Unpin> Future for Late<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        self.is_due = !self.is_due;
        if self.is_due {
            // A task that wakes itself goes to the end of the run queue.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Pin::new(&mut self.inner).poll(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_late_still_comes() {
        let late = Late { inner: std::future::ready(7), is_due: false };
        assert_eq!(late.await, 7);
    }
}
