//! What a drive waits for, which may not be there.

use std::pin::Pin;

use tokio::time::Sleep;

use super::super::route::Routing;
use super::exchange::{Event, Exchange};
use crate::dispatcher::Lease;
use crate::scheduler::attempts::{AttemptId, Purpose};
use crate::types::error::Error;

/// The next event of an exchange; without one, never.
pub(super) async fn next_of(exchange: Option<&mut Exchange>) -> Event {
    match exchange {
        Some(exchange) => exchange.next().await,
        None => std::future::pending().await,
    }
}

/// The slot that is being acquired; without one, never.
pub(super) async fn acquired(
    acquiring: &mut Option<(Purpose, Routing)>,
) -> (Purpose, Result<Lease, Error>) {
    match acquiring {
        Some((purpose, routing)) => (*purpose, routing.await),
        None => std::future::pending().await,
    }
}

/// The attempt whose first token is late; without a timer, never.
pub(super) async fn late(hedge: &mut Option<(AttemptId, Pin<Box<Sleep>>)>) -> AttemptId {
    match hedge {
        Some((attempt, timer)) => {
            timer.as_mut().await;
            *attempt
        }
        None => std::future::pending().await,
    }
}
