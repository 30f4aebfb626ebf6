//! Runs each HTTP/2 request as a task with a slow-read timer.
//!
//! A client that opens no window for a response stalls only that stream. The byte stream of the
//! connection does not show this: hyper just stops polling the body. So each task times how long
//! the body waits between giving data and being polled again, and adds what was used of the
//! slow-read budget before. When the budget runs out the task ends, and hyper resets the stream.

use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hyper::rt::Executor;
use tokio::time::sleep_until;

use super::log::inherit_peer;
use super::slow_read::SlowReadBudget;
use super::{CloseReason, SharedCloseCounter};

tokio::task_local! {
    static PROGRESS: Arc<ResponseProgress>;
}

/// The slow-read budget of one response.
#[derive(Debug, Default)]
struct ResponseProgress(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    budget: SlowReadBudget,
    /// Size of the last data frame, in bytes.
    bytes: usize,
}

impl ResponseProgress {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn record_poll(&self) {
        let mut state = self.state();
        if !state.budget.is_unused() {
            let bytes = std::mem::take(&mut state.bytes);
            state.budget.record_read(bytes, Instant::now());
        }
    }

    fn record_frame(&self, bytes: usize) {
        let mut state = self.state();
        state.bytes = bytes;
        state.budget.start(Instant::now());
    }

    /// Waits until the client has used up the slow-read budget `write`.
    async fn wait_until_stalled(&self, write: Duration) {
        loop {
            let now = Instant::now();
            let next = self.state().budget.deadline(write).unwrap_or(now + write);
            if next <= now {
                return;
            }
            sleep_until(next.into()).await;
        }
    }
}

/// Records that hyper polls the body of the current task, so the client has read the last frame.
/// Does nothing for HTTP/1, where the byte stream of the connection shows as much.
pub(crate) fn record_poll() {
    let _ = PROGRESS.try_with(|progress| progress.record_poll());
}

/// Records that the body gave a frame of `bytes` bytes.
pub(crate) fn record_frame(bytes: usize) {
    let _ = PROGRESS.try_with(|progress| progress.record_frame(bytes));
}

/// Executor for the requests of HTTP/2 connections.
#[derive(Debug, Clone)]
pub(crate) struct StreamExecutor {
    write: Duration,
    counter: SharedCloseCounter,
}

impl StreamExecutor {
    /// `write` is the slow-read budget of a response.
    pub(crate) fn new(write: Duration, counter: SharedCloseCounter) -> Self {
        Self { write, counter }
    }
}

impl<F> Executor<F> for StreamExecutor
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    fn execute(&self, request: F) {
        let Self { write, counter } = self.clone();
        let progress = Arc::new(ResponseProgress::default());
        // The task ends with its connection, which is tracked.
        tokio::spawn(inherit_peer(async move {
            tokio::select! {
                _ = PROGRESS.scope(progress.clone(), request) => {}
                () = progress.wait_until_stalled(write) => {
                    counter.record_close(CloseReason::Stalled);
                }
            }
        }));
    }
}
