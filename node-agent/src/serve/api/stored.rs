//! Stored responses of the Responses API: `/v1/responses/{id}` and what is below it.

use hyper::{Method, Request, Response};
use inference_core::types::request::Tenant;
use inference_protocol::ids::ID_BYTES_MAX;
use inference_translation::responses;
use inference_translation::store::Path;

use super::check_method;
use crate::serve::node::Node;
use crate::types::error::Error;
use crate::types::response::{self, Body};

/// Handles a request for a stored response.
pub(super) fn serve<B>(
    node: &Node,
    tenant: Tenant,
    request: &Request<B>,
    path: Path<'_>,
) -> Result<Response<Body>, Error> {
    check_method(request, path.methods())?;
    let id = path.id();
    let unknown = || Error::UnknownResponse(id.chars().take(ID_BYTES_MAX).collect());
    if request.method() == Method::DELETE {
        let is_deleted = node.responses.delete(tenant, id);
        return is_deleted.then(|| response::json(responses::deleted(id))).ok_or_else(unknown);
    }
    let found = node.responses.get(tenant, id).ok_or_else(unknown)?;
    path.read(&found, request.uri().query()).map(response::json).map_err(Error::Translation)
}
