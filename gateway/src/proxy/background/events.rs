//! Streams of the events of responses in the background.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::unfold;
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use hyper::Response;
use inference_protocol::sse;
use inference_translation::StreamFormat;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::super::stream::COMMENT;
use super::streams::EventId;
use crate::context::Gateway;
use crate::context::settings::Settings;
use crate::store::{FOLLOW_INTERVAL, Live, Read, Store};
use crate::types::response::{self, Body};

/// A reader of the events.
struct Reader {
    /// The id of the response.
    id: String,
    live: Arc<Live>,
    /// The store, if another gateway may be making it.
    shared: Option<Store>,
    next: usize,
    /// True if each event has its id.
    has_ids: bool,
    /// A comment follows after this silence.
    patience: Duration,
    stop: CancellationToken,
}

/// The events of a response that is being made, from the number `next` on, with ids if `has_ids`.
/// The stream breaks off
/// when the gateway stops: the client continues at the next one.
pub(crate) fn live_events(
    gateway: &Gateway,
    settings: &Settings,
    id: &str,
    live: Arc<Live>,
    (next, has_ids): (usize, bool),
) -> Response<Body> {
    let (patience, stop) = (settings.config.timeouts.comment, gateway.stop.clone());
    let shared = gateway.store.clone().filter(Store::is_shared);
    let reader = Reader { id: id.into(), live, shared, next, has_ids, patience, stop };
    let body = StreamBody::new(unfold(reader, async |mut reader| {
        let events = reader.read().await?;
        Some((Ok(Frame::data(events)), reader))
    }));
    response::stream(StreamFormat::Events.content_type(), body.boxed_unsync())
}

impl Reader {
    /// `None` at the end.
    async fn read(&mut self) -> Option<Bytes> {
        let followed = follow(self.shared.as_ref(), &self.id, &self.live);
        let first = self.next;
        tokio::select! {
            read = timeout(self.patience, self.live.read(&mut self.next)) => match read {
                Ok(Read::Events(events)) if self.has_ids => Some(with_ids(&self.id, first, &events)),
                Ok(Read::Events(events)) => Some(events),
                Ok(Read::End) => None,
                Err(_) => Some(Bytes::from_static(COMMENT.as_bytes())),
            },
            () = followed => None,
            () = self.stop.cancelled() => None,
        }
    }
}

/// The events of one that has ended, from the number `next` on.
pub(crate) fn past_events(
    id: &str,
    events: Vec<u8>,
    (next, has_ids): (usize, bool),
) -> Response<Body> {
    let skipped: usize = sse::events(&events).take(next).map(<[u8]>::len).sum();
    let rest = Bytes::from(events).slice(skipped..);
    let rest = if has_ids { with_ids(id, next, &rest) } else { rest };
    response::stream(StreamFormat::Events.content_type(), response::whole(rest))
}

/// Events with their ids; the first has the number `first`.
fn with_ids(stream: &str, first: usize, events: &[u8]) -> Bytes {
    let mut text = Vec::with_capacity(events.len() * 2);
    for (event, number) in sse::events(events).zip(first..) {
        text.extend_from_slice(format!("id: {}\n", EventId::text(stream, number)).as_bytes());
        text.extend_from_slice(event);
    }
    text.into()
}

/// Reads on what another gateway makes. While the store fails, there is nothing new.
async fn follow(store: Option<&Store>, id: &str, live: &Live) {
    let Some(store) = store else { return std::future::pending().await };
    loop {
        let _ = store.follow(id, live).await;
        sleep(FOLLOW_INTERVAL).await;
    }
}
