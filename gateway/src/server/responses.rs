//! Stored responses of the Responses API: `/v1/responses/{id}` and what is below it.

use hyper::{Method, Request, Response};
use inference_protocol::ids::ID_BYTES_MAX;
use inference_translation::responses;
use inference_translation::store::Path;

use crate::context::Gateway;
use crate::control::only;
use crate::types::error::Error;
use crate::types::response::{self, Body};

/// Handles a request for a stored response of the caller's tenant.
pub(crate) fn serve<B>(
    gateway: &Gateway,
    request: &Request<B>,
    path: Path<'_>,
) -> Result<Response<Body>, Error> {
    only(request, path.methods())?;
    let caller = gateway.settings.now().keys.authenticate(request.headers())?;
    let (tenant, id) = (&*caller.tenant, path.id());
    let unknown = || Error::UnknownResponse(id.chars().take(ID_BYTES_MAX).collect());
    if request.method() == Method::DELETE {
        let is_deleted = gateway.responses.delete(tenant, id);
        return is_deleted.then(|| response::json(responses::deleted(id))).ok_or_else(unknown);
    }
    let found = gateway.responses.get(tenant, id).ok_or_else(unknown)?;
    path.read(&found, request.uri().query()).map(response::json).map_err(Error::Invalid)
}
