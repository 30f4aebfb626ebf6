//! Streams that their clients read on: `/v1/streams/{id}`, and `Last-Event-ID` at any API.

use hyper::{Method, Request, Response};

use crate::access::responses::Reader;
use crate::context::Gateway;
use crate::control::only;
use crate::proxy::background::{EventId, ROOT, live_events, past_events};
use crate::store::{BackgroundTask, Store, TaskKind};
use crate::types::error::Error;
use crate::types::response::{self, Body};

/// The id in the path of a stream.
pub(crate) fn path(path: &str) -> Option<&str> {
    let id = path.strip_prefix(ROOT)?.strip_prefix('/')?;
    (!id.is_empty() && !id.contains('/')).then_some(id)
}

/// Handles a request for a stream of the caller's tenant.
pub(crate) async fn serve<B>(
    gateway: &Gateway,
    request: &Request<B>,
) -> Result<Response<Body>, Error> {
    let id = path(request.uri().path()).ok_or(Error::UnknownPath)?;
    only(request, "GET, DELETE")?;
    if request.method() == Method::DELETE {
        let (store, task) = find(gateway, request, id).await?;
        let live = store.live(&task);
        store.delete_task(&task.tenant, id).await.map_err(|error| error.of(id))?;
        live.cancel();
        return Ok(response::json(format!("{{\"id\":\"{id}\",\"deleted\":true}}").into_bytes()));
    }
    let last = EventId::last(request.headers()).filter(|last| last.stream == id);
    read_on(gateway, request, id, last.map_or(0, |last| last.number + 1)).await
}

/// The events of a stream from a number on, live or afterwards.
pub(crate) async fn read_on<B>(
    gateway: &Gateway,
    request: &Request<B>,
    id: &str,
    from: usize,
) -> Result<Response<Body>, Error> {
    let (store, task) = find(gateway, request, id).await?;
    let live = store.live(&task);
    // Read again: if it has ended before it was entered, nobody else is in it.
    let (_, task) = find(gateway, request, id).await?;
    if task.is_active {
        let settings = gateway.settings.now();
        return Ok(live_events(gateway, &settings, id, live, (from, true)));
    }
    let events = store.task_events(id).await.map_err(|error| error.of(id))?;
    Ok(past_events(id, events, (from, true)))
}

/// The stream, if the caller may see it.
async fn find<'a, B>(
    gateway: &'a Gateway,
    request: &Request<B>,
    id: &str,
) -> Result<(&'a Store, BackgroundTask), Error> {
    let settings = gateway.settings.now();
    let caller = settings.keys.authenticate(request.headers())?;
    let reader = Reader::of(&caller, request.headers())?;
    let store = gateway.store.as_ref().ok_or(Error::StoreOff)?;
    let (task, _) = store.task(&caller.tenant, id).await.map_err(|error| error.of(id))?;
    match task.kind() == TaskKind::Stream && reader.sees_those_of(task.user) {
        true => Ok((store, task)),
        false => Err(crate::store::StoreError::Unknown.of(id)),
    }
}
