//! Stage 4: wait for a slot on an endpoint.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use super::admit::Admitted;
use crate::dispatcher::{Dispatcher, Lease};
use crate::scheduler::fleet::RouteConstraints;
use crate::types::error::Error;

/// A request that waits for a slot. Dropping it gives up its place in the queue.
pub(crate) type Routing = Pin<Box<dyn Future<Output = Result<Lease, Error>> + Send>>;

/// Acquires a slot on an endpoint that meets `constraints`. `deadline` is on the dispatcher's
/// clock.
pub(crate) fn route(
    dispatcher: &Dispatcher,
    admitted: &Arc<Admitted>,
    constraints: RouteConstraints,
    deadline: Duration,
) -> Routing {
    let (dispatcher, admitted) = (dispatcher.clone(), admitted.clone());
    Box::pin(async move { dispatcher.acquire(admitted.slot_request(&constraints), deadline).await })
}
