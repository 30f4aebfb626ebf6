//! Stage 4: get a slot on an endpoint, at once or after waiting in the queue.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use super::admit::Admitted;
use crate::context::Gateway;
use crate::dispatcher::{Acquisition, Dispatcher, Lease};
use crate::scheduler::SlotRequest;
use crate::scheduler::fleet::RouteConstraints;
use crate::types::error::Error;
use crate::types::external::ExternalPolicy;

/// How often a request asks: others may take what it was allotted.
const ASKS_MAX: usize = 3;

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
    gateway: &Gateway,
    admitted: &Arc<Admitted>,
    constraints: RouteConstraints,
    deadline: Duration,
) -> Result<Routed, Error> {
    let request = admitted.slot_request(&constraints);
    let dispatcher = &gateway.dispatcher;
    if admitted.api.is_text_query()
        && let Some(lease) = dispatcher.acquire_query(&request)
    {
        return Ok(Routed::Leased(lease));
    }
    let may_pay = gateway.store.is_some() && constraints.external != ExternalPolicy::Never;
    if may_pay && !dispatcher.unallotted(&request, false).is_empty() {
        return Ok(Routed::Waiting(route_paid(gateway, admitted, constraints, deadline, None)));
    }
    let queued = match dispatcher.acquire(&request, deadline) {
        Ok(Acquisition::Leased(lease)) => return Ok(Routed::Leased(lease)),
        Ok(Acquisition::Queued(queued)) => queued,
        Err(error) if may_pay && error.is_overload() => {
            let routing = route_paid(gateway, admitted, constraints, deadline, Some(error));
            return Ok(Routed::Waiting(routing));
        }
        Err(error) => return Err(error),
    };
    let (gateway, admitted) = (gateway.clone(), admitted.clone());
    Ok(Routed::Waiting(Box::pin(async move {
        let request = admitted.slot_request(&constraints);
        match gateway.dispatcher.wait(queued, request, deadline).await {
            Err(error) if may_pay && error.is_overload() => {
                route_paid(&gateway, &admitted, constraints, deadline, Some(error)).await
            }
            waited => waited,
        }
    })))
}

/// Asks for what the gateway lacks of budgets so that the request can go to an external endpoint,
/// at once or instead of being `refused`, and acquires a slot.
fn route_paid(
    gateway: &Gateway,
    admitted: &Arc<Admitted>,
    constraints: RouteConstraints,
    deadline: Duration,
    mut refused: Option<Error>,
) -> Routing {
    let (gateway, admitted) = (gateway.clone(), admitted.clone());
    Box::pin(async move {
        let request = admitted.slot_request(&constraints);
        let dispatcher = &gateway.dispatcher;
        for _ in 0..ASKS_MAX {
            let is_refused = refused.is_some();
            let lacks = || dispatcher.unallotted(&request, is_refused);
            if is_refused && lacks().is_empty() {
                break;
            }
            // If the store fails, the endpoint cannot be paid.
            let _ = gateway.allot(lacks).await;
            match acquire(dispatcher, request, deadline).await {
                Err(error) if error.is_overload() => refused = refused.or(Some(error)),
                acquired => return acquired,
            }
        }
        Err(refused.unwrap_or(Error::NoNode))
    })
}

async fn acquire(
    dispatcher: &Dispatcher,
    request: SlotRequest<'_>,
    deadline: Duration,
) -> Result<Lease, Error> {
    match dispatcher.acquire(&request, deadline)? {
        Acquisition::Leased(lease) => Ok(lease),
        Acquisition::Queued(queued) => dispatcher.wait(queued, request, deadline).await,
    }
}
