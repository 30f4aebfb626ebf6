//! Watches one connection: its timers, and a client that does not read its responses.
//!
//! [`MonitoredStream`] wraps the byte stream. It reports received bytes to the connection's
//! [`ConnectionMonitor`], and disconnects a client that reads its responses too slowly or not at
//! all. The resulting error ends the client's requests and frees their slots.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep_until};

use super::slow_read::SlowReadBudget;
use super::timers::{ConnectionTimeouts, ConnectionTimers};
use super::{CloseReason, SharedCloseCounter};

/// State that the byte stream, the requests, and the timers of one connection share.
#[derive(Debug)]
pub(crate) struct ConnectionMonitor {
    timers: Mutex<ConnectionTimers>,
    counter: SharedCloseCounter,
}

impl ConnectionMonitor {
    /// For a new connection.
    pub(crate) fn new(counter: SharedCloseCounter) -> Self {
        Self { timers: Mutex::new(ConnectionTimers::new(Instant::now())), counter }
    }

    fn timers(&self) -> MutexGuard<'_, ConnectionTimers> {
        self.timers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a new request. Dropping the result ends it.
    pub(crate) fn begin_request(self: &Arc<Self>, is_multiplexed: bool) -> InFlight {
        self.timers().begin_request(is_multiplexed);
        InFlight(self.clone())
    }

    /// Waits until a connection timer expires. Checks again every so often, because every request
    /// changes the deadline.
    pub(crate) async fn wait_for_timeout(&self, timeouts: &ConnectionTimeouts) -> CloseReason {
        loop {
            let now = Instant::now();
            let next = match self.timers().deadline(timeouts) {
                Some((at, reason)) if at <= now => return reason,
                Some((at, _)) => at.min(now + timeouts.shortest()),
                None => now + timeouts.shortest(),
            };
            sleep_until(next.into()).await;
        }
    }

    /// Stops the timers: the bytes are no longer HTTP but a node link, which has its own deadlines.
    pub(crate) fn stop_timers(&self) {
        self.timers().stop();
    }

    /// Counts a closed connection.
    pub(crate) fn record_close(&self, reason: CloseReason) {
        self.counter.record_close(reason);
    }

    fn record_bytes(&self, bytes: usize) -> io::Result<()> {
        let mut timers = self.timers();
        timers.record_bytes(bytes, Instant::now());
        if timers.is_noisy() {
            self.record_close(CloseReason::Noise);
            return Err(io::Error::other("the client sends bytes but no request"));
        }
        Ok(())
    }
}

/// A request in flight. Dropping it ends the request.
#[derive(Debug)]
pub(crate) struct InFlight(Arc<ConnectionMonitor>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.timers().end_request(Instant::now());
    }
}

/// The byte stream of a connection.
#[derive(Debug)]
pub(crate) struct MonitoredStream<S> {
    inner: S,
    monitor: Arc<ConnectionMonitor>,
    write: Duration,
    budget: SlowReadBudget,
    /// Runs while the client reads nothing.
    stall_timer: Option<Pin<Box<Sleep>>>,
    is_disconnected: bool,
}

impl<S> MonitoredStream<S> {
    /// Wraps `inner` with a slow-read budget of `write`.
    pub(crate) fn new(inner: S, monitor: Arc<ConnectionMonitor>, write: Duration) -> Self {
        Self {
            inner,
            monitor,
            write,
            budget: SlowReadBudget::default(),
            stall_timer: None,
            is_disconnected: false,
        }
    }

    /// Passes on the result of a write and credits the bytes that the client read. Returns an error
    /// if a pending write has used up the slow-read budget.
    fn apply_budget<T>(
        &mut self,
        written: Poll<io::Result<T>>,
        bytes: impl Fn(&T) -> usize,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        if let Poll::Ready(done) = &written {
            self.stall_timer = None;
            if !self.budget.is_unused() {
                self.budget.record_read(done.as_ref().map_or(0, bytes), Instant::now());
            }
            return written;
        }
        let Self { stall_timer, budget, write, .. } = self;
        let stall_timer = stall_timer.get_or_insert_with(|| {
            let now = Instant::now();
            budget.start(now);
            Box::pin(sleep_until(budget.deadline(*write).unwrap_or(now).into()))
        });
        if stall_timer.as_mut().poll(context).is_pending() {
            return Poll::Pending;
        }
        if !std::mem::replace(&mut self.is_disconnected, true) {
            self.monitor.record_close(CloseReason::Stalled);
        }
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client reads nothing")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for MonitoredStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.inner).poll_read(context, buffer);
        match (&read, buffer.filled().len() - before) {
            (Poll::Ready(Ok(())), bytes @ 1..) => Poll::Ready(self.monitor.record_bytes(bytes)),
            _ => read,
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for MonitoredStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write(context, bytes);
        self.apply_budget(written, |bytes| *bytes, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write_vectored(context, parts);
        self.apply_budget(written, |bytes| *bytes, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.inner).poll_flush(context);
        self.apply_budget(flushed, |()| 0, context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.inner).poll_shutdown(context);
        self.apply_budget(shut, |()| 0, context)
    }
}
