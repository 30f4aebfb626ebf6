//! APIs that are served by chat completions; see [`inference_translation`].

use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use http_body::Frame;
use http_body_util::BodyExt;
use hyper::{Response, header};
use inference_protocol::time::unix_seconds;
use inference_translation::{ClientApi, Origin, ResponseWriter, Translated, translate};

use super::{Caller, chat, text};
use crate::serve::node::Node;
use crate::types::error::Error;
use crate::types::random::random;
use crate::types::response::{self, Body};

/// Handles a request of another API.
pub(super) async fn complete(
    node: &Arc<Node>,
    caller: Caller,
    api: ClientApi,
    body: &[u8],
) -> Result<Response<Body>, Error> {
    let origin = Origin { random: random(), now: unix_seconds(SystemTime::now()) };
    let Translated { body, writer } = translate(api, body, origin).map_err(Error::Translation)?;
    let response = match api.counts_tokens() {
        true => text::count(node, caller, None, &body).await?,
        false => chat::complete(node, caller, None, &body).await?,
    };
    let content_type = response.headers().get(header::CONTENT_TYPE);
    match content_type.is_some_and(|kind| kind == "text/event-stream") {
        true => Ok(response.map(|body| stream(body, writer))),
        false => whole(response, writer).await,
    }
}

async fn whole(
    response: Response<Body>,
    mut writer: ResponseWriter,
) -> Result<Response<Body>, Error> {
    let Ok(body) = response.into_body().collect().await;
    let written = writer.whole(&body.to_bytes()).map_err(|_| Error::Internal)?;
    Ok(response::json(written))
}

/// Each frame of our streams has whole events.
fn stream(body: Body, mut writer: ResponseWriter) -> Body {
    let translate = move |frame: Frame<Bytes>| {
        frame.map_data(|events| Bytes::from(writer.events(&events).unwrap_or_default()))
    };
    body.map_frame(translate).boxed_unsync()
}
