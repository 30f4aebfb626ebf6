//! Stored responses of the Responses API: `/v1/responses/{id}` and what is below it.

use hyper::{Method, Request, Response};
use inference_protocol::ids::ID_BYTES_MAX;
use inference_translation::responses;
use inference_translation::store::Path;

use crate::access::responses::Reader;
use crate::access::users::UserSource;
use crate::context::Gateway;
use crate::control::only;
use crate::types::error::Error;
use crate::types::response::{self, Body};

/// Handles a request for a stored response of the caller's tenant. It has no body: if the key's
/// requests name their users there, the response may be any user's.
pub(crate) fn serve<B>(
    gateway: &Gateway,
    request: &Request<B>,
    path: Path<'_>,
) -> Result<Response<Body>, Error> {
    only(request, path.methods())?;
    let caller = gateway.settings.now().keys.authenticate(request.headers())?;
    let (tenant, id) = (&*caller.tenant, path.id());
    let reader = match caller.key.users.source {
        UserSource::Field => Reader::Unnamed,
        _ => Reader::User(caller.user_of_head(request.headers())?),
    };
    let unknown = || Error::UnknownResponse(id.chars().take(ID_BYTES_MAX).collect());
    if request.method() == Method::DELETE {
        let is_deleted = gateway.responses.delete(tenant, reader, id);
        return is_deleted.then(|| response::json(responses::deleted(id))).ok_or_else(unknown);
    }
    let found = gateway.responses.get(tenant, reader, id).ok_or_else(unknown)?;
    path.read(&found, request.uri().query()).map(response::json).map_err(Error::Invalid)
}
