//! Stage 4: get a slot on an endpoint, at once or after waiting in the queue.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use super::admit::Admitted;
use crate::dispatcher::{Acquisition, Dispatcher, Lease};
use crate::scheduler::fleet::RouteConstraints;
use crate::types::error::Error;

/// A request that waits for a slot. Dropping it gives up its place in the queue.
pub(crate) type Routing = Pin<Box<dyn Future<Output = Result<Lease, Error>> + Send>>;

/// What became of a request for a slot.
#[expect(clippy::large_enum_variant, reason = "it is moved once, and most requests get a slot")]
pub(crate) enum Routed {
    Leased(Lease),
    Waiting(Routing),
}

/// Acquires a slot on an endpoint that meets `constraints`. `deadline` is on the dispatcher's
/// clock.
///
/// # Errors
/// The request cannot be queued.
pub(crate) fn route(
    dispatcher: &Dispatcher,
    admitted: &Arc<Admitted>,
    constraints: RouteConstraints,
    deadline: Duration,
) -> Result<Routed, Error> {
    let request = admitted.slot_request(&constraints);
    if admitted.api.is_text_query()
        && let Some(lease) = dispatcher.acquire_query(&request)
    {
        return Ok(Routed::Leased(lease));
    }
    let queued = match dispatcher.acquire(&request, deadline)? {
        Acquisition::Leased(lease) => return Ok(Routed::Leased(lease)),
        Acquisition::Queued(queued) => queued,
    };
    let (dispatcher, admitted) = (dispatcher.clone(), admitted.clone());
    Ok(Routed::Waiting(Box::pin(async move {
        dispatcher.wait(queued, admitted.slot_request(&constraints), deadline).await
    })))
}
