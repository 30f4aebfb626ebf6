//! Requests of HTTP/2, each a task of its own. A client that opens no window for an answer
//! stalls one stream only, and nothing of that is seen at its connection's bytes: the body is
//! simply not asked for more. So each task has a timer that runs from the moment when the body gave
//! something until it is asked again, and the task ends with it; hyper then resets the stream.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hyper::rt::Executor;
use tokio::time::sleep_until;

use super::Closed;
use crate::metrics::Metrics;

tokio::task_local! {
    static GIVEN: Arc<Given>;
}

/// When the body of a request's answer gave what the client has not taken yet.
#[derive(Debug, Default)]
struct Given(Mutex<Option<Instant>>);

impl Given {
    fn set(&self, at: Option<Instant>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = at;
    }

    /// Waits until something was given and not taken for this long.
    async fn is_left(&self, write: Duration) {
        loop {
            let now = Instant::now();
            let given = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let next = given.unwrap_or(now) + write;
            if next <= now {
                return;
            }
            sleep_until(next.into()).await;
        }
    }
}

/// The body of the current task's answer gave something, or has nothing to give. Of HTTP/1, where
/// the connection's bytes tell as much, nothing is noted.
pub fn gives(something: bool) {
    let _ = GIVEN.try_with(|given| given.set(something.then(Instant::now)));
}

/// Runs the requests of HTTP/2 connections.
#[derive(Debug, Clone)]
pub struct Streams {
    write: Duration,
    metrics: Metrics,
}

impl Streams {
    /// Answers may be left for so long.
    pub fn new(write: Duration, metrics: Metrics) -> Self {
        Self { write, metrics }
    }
}

impl<F> Executor<F> for Streams
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    fn execute(&self, request: F) {
        let Self { write, metrics } = self.clone();
        let given = Arc::new(Given::default());
        // Ends with its connection, which is tracked.
        tokio::spawn(async move {
            tokio::select! {
                _ = GIVEN.scope(given.clone(), request) => {}
                () = given.is_left(write) => metrics.connection_closed(Closed::Stalled),
            }
        });
    }
}
