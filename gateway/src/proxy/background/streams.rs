//! Streams of any API that their clients may read on: made in the background, with ids of events.

use std::sync::Arc;

use hyper::Response;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use inference_protocol::ids::is_plain_id;

use super::super::deferral::Deferral;
use super::{live_events, refusal};
use crate::context::Gateway;
use crate::context::settings::Settings;
use crate::store::{BackgroundTask, TaskKind};
use crate::types::error::Error;
use crate::types::external::ExternalPolicy;
use crate::types::response::Body;
use crate::types::user::UserId;

/// Path of the streams.
pub(crate) const ROOT: &str = "/v1/streams";
/// Request header of the standard: the last event that the client has.
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
/// Response header with the id of a stream.
const STREAM: HeaderName = HeaderName::from_static("x-flotilla-stream");

/// The id of an event: that of its stream, and its number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EventId {
    /// The stream.
    pub stream: String,
    /// Its number, from 0.
    pub number: usize,
}

impl EventId {
    /// The id as it is written.
    pub(super) fn text(stream: &str, number: usize) -> String {
        format!("{stream}:{number}")
    }

    /// The last event of one of our streams that a client has, if it says so.
    pub(crate) fn last(headers: &HeaderMap) -> Option<Self> {
        let (stream, number) = headers.get(&LAST_EVENT_ID)?.to_str().ok()?.split_once(':')?;
        let is_ours = TaskKind::of(stream) == TaskKind::Stream && is_plain_id(stream);
        let number = number.parse::<u32>().ok().filter(|_| is_ours)?;
        Some(Self { stream: stream.into(), number: number as usize })
    }
}

/// Stores an admitted request, and returns the stream, which goes on without its client.
///
/// # Errors
/// Nobody serves the model, or the store cannot take the request.
pub(super) async fn defer(
    gateway: &Gateway,
    settings: &Settings,
    deferral: Deferral,
    (tenant, user, model): (&Arc<str>, Option<UserId>, String),
    external: ExternalPolicy,
) -> Result<Response<Body>, Error> {
    let (store, limits) = gateway.store_of(settings)?;
    gateway.dispatcher.check_available(&model, external)?;
    let Deferral { request, headers, origin, path, is_bound, .. } = deferral;
    let task = BackgroundTask {
        id: format!("stream_{:032x}", origin.random),
        tenant: (**tenant).into(),
        created_at: origin.now,
        is_active: true,
        has_begun: false,
        bytes: 0,
        path: path.into(),
        model,
        metadata: None,
        user: user.map(u64::from),
        headers,
        is_streamed: true,
        is_bound,
        is_canceled: false,
    };
    let (live, id) = (store.live(&task), task.id.clone());
    let max = limits.background.per_tenant_max;
    let inserted = store.insert_task(task, request.into(), super::make::NOTHING.into(), max).await;
    inserted.map_err(refusal)?;
    let mut response = live_events(gateway, settings, &id, live, (0, true));
    if let Ok(id) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(STREAM, id);
    }
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ids_of_our_events_are_read() {
        let last = |value: &str| {
            let value = HeaderValue::from_str(value).ok()?;
            EventId::last(&HeaderMap::from_iter([(LAST_EVENT_ID, value)]))
        };
        let id = EventId::text("stream_0a", 7);
        assert_eq!(last(&id), Some(EventId { stream: "stream_0a".into(), number: 7 }));
        for other in ["", "7", "resp_1:7", "stream_1", "stream_1:x", "stream_1:-1", "stream_../x:1"]
        {
            assert_eq!(last(other), None, "{other}");
        }
        assert_eq!(EventId::last(&HeaderMap::new()), None);
    }
}
