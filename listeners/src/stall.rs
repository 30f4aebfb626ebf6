//! Wraps the byte stream of a connection. It reports received bytes to the connection's [`Watch`]
//! and disconnects a client that reads its responses too slowly or not at all. The resulting error
//! ends the client's requests and frees their slots.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep_until};

use super::slow_read::SlowReadBudget;
use super::timers::{ConnectionTimeouts, ConnectionTimers};
use super::{Closed, Closings};

/// State that the byte stream, the requests, and the timers of one connection share.
#[derive(Debug)]
pub struct Watch {
    timers: Mutex<ConnectionTimers>,
    closings: Closings,
}

impl Watch {
    /// For a new connection.
    pub fn new(closings: Closings) -> Self {
        Self { timers: Mutex::new(ConnectionTimers::new(Instant::now())), closings }
    }

    fn timers(&self) -> MutexGuard<'_, ConnectionTimers> {
        self.timers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a new request. Dropping the result ends it.
    pub fn begins(self: &Arc<Self>, is_multiplexed: bool) -> InFlight {
        self.timers().begins(is_multiplexed);
        InFlight(self.clone())
    }

    /// Waits until a connection timer expires. Checks again every so often, because every request
    /// changes the deadline.
    pub async fn expires(&self, patience: &ConnectionTimeouts) -> Closed {
        loop {
            let now = Instant::now();
            let next = match self.timers().deadline(patience) {
                Some((at, why)) if at <= now => return why,
                Some((at, _)) => at.min(now + patience.shortest()),
                None => now + patience.shortest(),
            };
            sleep_until(next.into()).await;
        }
    }

    /// Stops the timers: the bytes are no longer HTTP but a node link, which has its own deadlines.
    pub fn retires(&self) {
        self.timers().retires();
    }

    /// Counts why the connection ended.
    pub fn closed(&self, why: Closed) {
        self.closings.connection_closed(why);
    }

    fn reads(&self, bytes: usize) -> io::Result<()> {
        let mut timers = self.timers();
        timers.reads(bytes, Instant::now());
        if timers.is_noisy() {
            self.closed(Closed::Noise);
            return Err(io::Error::other("it sends much and asks nothing"));
        }
        Ok(())
    }
}

/// A request in flight. Dropping it ends the request.
#[derive(Debug)]
pub struct InFlight(Arc<Watch>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.timers().ends(Instant::now());
    }
}

/// The byte stream of a connection.
#[derive(Debug)]
pub struct Watched<S> {
    inner: S,
    watch: Arc<Watch>,
    write: Duration,
    budget: SlowReadBudget,
    /// Runs while the client reads nothing.
    stalled: Option<Pin<Box<Sleep>>>,
    is_cut: bool,
}

impl<S> Watched<S> {
    /// Wraps `inner` with a slow-read budget of `write`.
    pub fn new(inner: S, watch: Arc<Watch>, write: Duration) -> Self {
        Self {
            inner,
            watch,
            write,
            budget: SlowReadBudget::default(),
            stalled: None,
            is_cut: false,
        }
    }

    /// Passes on the result of a write and credits the bytes that the client read. Returns an error
    /// if a pending write has used up the slow-read budget.
    fn within<T>(
        &mut self,
        written: Poll<io::Result<T>>,
        bytes: impl Fn(&T) -> usize,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        if let Poll::Ready(done) = &written {
            self.stalled = None;
            if !self.budget.is_clear() {
                self.budget.takes(done.as_ref().map_or(0, bytes), Instant::now());
            }
            return written;
        }
        let Self { stalled, budget, write, .. } = self;
        let stalled = stalled.get_or_insert_with(|| {
            let now = Instant::now();
            budget.begins(now);
            Box::pin(sleep_until(budget.due(*write).unwrap_or(now).into()))
        });
        if stalled.as_mut().poll(context).is_pending() {
            return Poll::Pending;
        }
        if !std::mem::replace(&mut self.is_cut, true) {
            self.watch.closed(Closed::Stalled);
        }
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client reads nothing")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.inner).poll_read(context, buffer);
        match (&read, buffer.filled().len() - before) {
            (Poll::Ready(Ok(())), bytes @ 1..) => Poll::Ready(self.watch.reads(bytes)),
            _ => read,
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write(context, bytes);
        self.within(written, |bytes| *bytes, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write_vectored(context, parts);
        self.within(written, |bytes| *bytes, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.inner).poll_flush(context);
        self.within(flushed, |()| 0, context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.inner).poll_shutdown(context);
        self.within(shut, |()| 0, context)
    }
}
