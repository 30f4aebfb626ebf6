//! Stage 4: the request waits for a slot and is bound to a node.

use super::admit::Admitted;
use crate::dispatcher::{Dispatcher, Lease, Want};
use crate::error::Error;
use crate::fleet::Attempt;

/// Claims a slot for a request on a node that has not failed it.
pub async fn route(
    dispatcher: &Dispatcher,
    admitted: &Admitted,
    tried: &[Attempt],
) -> Result<Lease, Error> {
    let Admitted { model, tenant, class, work, deadline, prefix, body, .. } = admitted;
    let (class, work, deadline) = (*class, *work, *deadline);
    let want = Want { model, tenant, class, work, bytes: body.len(), deadline, prefix, tried };
    dispatcher.acquire(want).await
}
