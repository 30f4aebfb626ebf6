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

    /// Drives the connection until it ends. Returns the reason.
    pub(crate) async fn drive(self) -> String {
        let Self { connection, pings } = self;
        tokio::select! {
            ended = connection => ended.map_or_else(|e| e.to_string(), |()| "the node closed it".into()),
            why = keep_alive(pings) => why,
        }
    }
}

async fn keep_alive(pings: Option<PingPong>) -> String {
    let Some(mut pings) = pings else { return std::future::pending().await };
    loop {
        sleep(PING_INTERVAL).await;
        match timeout(PING_TIMEOUT, pings.ping(Ping::opaque())).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => return error.to_string(),
            Err(_) => return "it does not answer pings".into(),
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
