//! Stage 4: the request waits for a slot and is bound to a node.

use tokio::time::Instant;

use super::admit::Admitted;
use crate::dispatcher::{Dispatcher, Lease};
use crate::scheduler::fleet::RouteConstraints;
use crate::types::error::Error;

/// Claims a slot for a request on a node that suits it, until a deadline.
pub async fn route(
    dispatcher: &Dispatcher,
    admitted: &Admitted,
    constraints: &RouteConstraints,
    deadline: Instant,
) -> Result<Lease, Error> {
    dispatcher.acquire(admitted.want(constraints), deadline).await
}
