//! Streams of the events of responses in the background.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::unfold;
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use hyper::Response;
use inference_translation::StreamFormat;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::super::stream::COMMENT;
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
    /// A comment follows after this silence.
    patience: Duration,
    stop: CancellationToken,
}

/// The events of a response that is being made, from the number `next` on. The stream breaks off
/// when the gateway stops: the client continues at the next one.
pub(crate) fn live_events(
    gateway: &Gateway,
    settings: &Settings,
    id: &str,
    live: Arc<Live>,
    next: usize,
) -> Response<Body> {
    let (patience, stop) = (settings.config.timeouts.comment, gateway.stop.clone());
    let shared = gateway.store.clone().filter(Store::is_shared);
    let reader = Reader { id: id.into(), live, shared, next, patience, stop };
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
        tokio::select! {
            read = timeout(self.patience, self.live.read(&mut self.next)) => match read {
                Ok(Read::Events(events)) => Some(events),
                Ok(Read::End) => None,
                Err(_) => Some(Bytes::from_static(COMMENT.as_bytes())),
            },
            () = followed => None,
            () = self.stop.cancelled() => None,
        }
    }
}

/// Reads on what another gateway makes. While the store fails, there is nothing new.
async fn follow(store: Option<&Store>, id: &str, live: &Live) {
    let Some(store) = store else { return std::future::pending().await };
    loop {
        let _ = store.follow(id, live).await;
        sleep(FOLLOW_INTERVAL).await;
    }
}
