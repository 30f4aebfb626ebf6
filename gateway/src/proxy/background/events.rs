//! Streams of the events of responses in the background.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::unfold;
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use hyper::Response;
use inference_translation::StreamFormat;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::super::stream::COMMENT;
use crate::context::Gateway;
use crate::context::settings::Settings;
use crate::store::{Live, Read};
use crate::types::response::{self, Body};

/// A reader of the events.
struct Reader {
    live: Arc<Live>,
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
    live: Arc<Live>,
    next: usize,
) -> Response<Body> {
    let (patience, stop) = (settings.config.timeouts.comment, gateway.stop.clone());
    let reader = Reader { live, next, patience, stop };
    let body = StreamBody::new(unfold(reader, async |mut reader| {
        let events = reader.read().await?;
        Some((Ok(Frame::data(events)), reader))
    }));
    response::stream(StreamFormat::Events.content_type(), body.boxed_unsync())
}

impl Reader {
    /// `None` at the end.
    async fn read(&mut self) -> Option<Bytes> {
        tokio::select! {
            read = timeout(self.patience, self.live.read(&mut self.next)) => match read {
                Ok(Read::Events(events)) => Some(events),
                Ok(Read::End) => None,
                Err(_) => Some(Bytes::from_static(COMMENT.as_bytes())),
            },
            () = self.stop.cancelled() => None,
        }
    }
}
