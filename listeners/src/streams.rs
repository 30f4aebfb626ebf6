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

use super::slow_read::SlowReadBudget;
use super::{Closed, Closings};

tokio::task_local! {
    static GIVEN: Arc<Given>;
}

/// The slow-read budget of one response.
#[derive(Debug, Default)]
struct Given(Mutex<Open>);

#[derive(Debug, Default)]
struct Open {
    budget: SlowReadBudget,
    /// Size of the last data frame, in bytes.
    bytes: usize,
}

impl Given {
    fn open(&self) -> MutexGuard<'_, Open> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn asked(&self) {
        let mut open = self.open();
        if !open.budget.is_clear() {
            let bytes = std::mem::take(&mut open.bytes);
            open.budget.takes(bytes, Instant::now());
        }
    }

    fn gave(&self, bytes: usize) {
        let mut open = self.open();
        open.bytes = bytes;
        open.budget.begins(Instant::now());
    }

    /// Waits until the client has used up the slow-read budget `write`.
    async fn is_left(&self, write: Duration) {
        loop {
            let now = Instant::now();
            let next = self.open().budget.due(write).unwrap_or(now + write);
            if next <= now {
                return;
            }
            sleep_until(next.into()).await;
        }
    }
}

/// Records that hyper polls the body of the current task, so the client has read the last frame.
/// Does nothing for HTTP/1, where the byte stream of the connection shows as much.
pub fn is_asked() {
    let _ = GIVEN.try_with(|given| given.asked());
}

/// Records that the body gave a frame of `bytes` bytes.
pub fn gives(bytes: usize) {
    let _ = GIVEN.try_with(|given| given.gave(bytes));
}

/// Executor for the requests of HTTP/2 connections.
#[derive(Debug, Clone)]
pub struct Streams {
    write: Duration,
    closings: Closings,
}

impl Streams {
    /// `write` is the slow-read budget of a response.
    pub fn new(write: Duration, closings: Closings) -> Self {
        Self { write, closings }
    }
}

impl<F> Executor<F> for Streams
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    fn execute(&self, request: F) {
        let Self { write, closings } = self.clone();
        let given = Arc::new(Given::default());
        // The task ends with its connection, which is tracked.
        tokio::spawn(async move {
            tokio::select! {
                _ = GIVEN.scope(given.clone(), request) => {}
                () = given.is_left(write) => closings.connection_closed(Closed::Stalled),
            }
        });
    }
}
