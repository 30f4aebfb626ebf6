//! The node that gives an answer now.

use std::pin::Pin;
use std::time::Instant;

use bytes::Bytes;
use tokio_util::sync::WaitForCancellationFutureOwned;

use super::super::account::bill::Metered;
use super::super::forward::Source;
use crate::dispatcher::Lease;
use crate::scheduler::attempt::At;
use crate::scheduler::fleet::Outcome;
use crate::types::error::Error;

/// A request that waits for a slot.
pub type Routing = Pin<Box<dyn Future<Output = Result<Lease, Error>> + Send>>;

/// How long tokens are counted before the node's pace is told.
const PACE_SECONDS: f64 = 1.0;

/// What happens at the node that gives an answer.
pub enum Happening {
    /// It says something, or fails.
    Said(Result<Bytes, Error>),
    /// It is about to leave.
    Leaves,
    /// There is a slot elsewhere, or none in time.
    Elsewhere(Result<Box<Lease>, Error>),
}

/// The node that gives an answer now. Dropping it gives the slot back.
pub struct Current {
    /// Its events.
    pub source: Source,
    /// Its slot.
    pub lease: Metered,
    /// Whether it has said anything of the answer.
    pub has_spoken: bool,
    /// Until it is about to leave.
    leaving: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    /// A slot elsewhere, then.
    elsewhere: Option<Routing>,
    /// Whether it has given the answer from its beginning.
    pub is_first: bool,
    pace: Meter,
}

/// Measures how fast tokens come while we wait for them. A client that reads slowly holds us up,
/// and that says nothing of the node.
#[derive(Debug)]
struct Meter {
    since: Instant,
    waited: f64,
    tokens: u64,
}

impl Current {
    /// A node whose events begin.
    pub fn new(source: Source, lease: Metered, is_first: bool) -> Self {
        let leaving = Some(Box::pin(lease.upstream().leaving()));
        let pace = Meter { since: Instant::now(), waited: 0.0, tokens: 0 };
        Self { source, lease, has_spoken: false, leaving, elsewhere: None, is_first, pace }
    }

    /// What happens next; may be cancelled.
    pub async fn happens(&mut self) -> Happening {
        let begun = Instant::now();
        let Self { source, leaving, elsewhere, pace, .. } = self;
        tokio::select! {
            biased;
            said = source.next() => {
                pace.waited += begun.elapsed().as_secs_f64();
                Happening::Said(said)
            }
            () = some(leaving) => {
                *leaving = None;
                Happening::Leaves
            }
            lease = some(elsewhere) => {
                *elsewhere = None;
                Happening::Elsewhere(lease.map(Box::new))
            }
        }
    }

    /// It is about to leave: a slot elsewhere is looked for meanwhile.
    pub fn look_elsewhere(&mut self, routing: Routing) {
        self.elsewhere = Some(routing);
    }

    /// It has generated more tokens, for so many choices.
    pub fn generated(&mut self, tokens: u64, choices: usize) {
        let pace = &mut self.pace;
        if !self.has_spoken {
            // Before the first token it reads the prompt.
            self.lease.speaks();
            (self.has_spoken, pace.since, pace.waited) = (true, Instant::now(), 0.0);
            return;
        }
        pace.tokens += tokens;
        let passed = pace.since.elapsed().as_secs_f64();
        if passed < PACE_SECONDS || pace.tokens == 0 {
            return;
        }
        if pace.waited > passed / 2.0 {
            self.lease.paced(pace.waited * choices.max(1) as f64 / pace.tokens as f64);
        }
        *pace = Meter { since: Instant::now(), waited: 0.0, tokens: 0 };
    }

    /// Where it is.
    pub fn at(&self) -> At {
        at(&self.lease, self.has_spoken)
    }

    /// It is done.
    pub fn ends(mut self, outcome: Outcome) {
        self.lease.ends(outcome);
    }
}

/// Where a lease is.
pub fn at(lease: &Lease, has_spoken: bool) -> At {
    At { attempt: lease.attempt(), model: lease.model().clone(), has_spoken }
}

/// Waits for what may not be there: for ever, then.
async fn some<F: Future + Unpin>(future: &mut Option<F>) -> F::Output {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}
