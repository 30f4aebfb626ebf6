//! APIs that are served by chat completions; see [`inference_translation`].

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use bytes::Bytes;
use http_body::Frame;
use http_body_util::BodyExt;
use hyper::{Response, header};
use inference_protocol::time::unix_seconds;
use inference_translation::{ClientApi, Origin, ResponseWriter, Service, Translated};

use super::{Caller, chat, embeddings, text};
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
    if let Some(reply) = inference_translation::reply(api, body, origin) {
        return Ok(response::json(reply));
    }
    let Translated { body, writer } =
        inference_translation::translate(api, body, origin).map_err(Error::Translation)?;
    let begun = Instant::now();
    let response = match api.service() {
        Service::ChatCompletions => chat::complete(node, caller, None, &body).await?,
        Service::InputTokens => text::count(node, caller, None, &body).await?,
        Service::Embeddings => embeddings::embed(node, caller, None, &body).await?,
    };
    let content_type = response.headers().get(header::CONTENT_TYPE);
    match content_type.is_some_and(|kind| kind == "text/event-stream") {
        true => Ok(stream(response, writer, begun)),
        false => whole(response, writer, begun).await,
    }
}

async fn whole(
    response: Response<Body>,
    mut writer: ResponseWriter,
    begun: Instant,
) -> Result<Response<Body>, Error> {
    let Ok(body) = response.into_body().collect().await;
    writer.set_elapsed(begun.elapsed());
    let written = writer.whole(&body.to_bytes()).map_err(|_| Error::Internal)?;
    Ok(response::json(written))
}

/// Each frame of our streams has whole events.
fn stream(response: Response<Body>, mut writer: ResponseWriter, begun: Instant) -> Response<Body> {
    let format = writer.stream_format();
    let translate = move |frame: Frame<Bytes>| {
        writer.set_elapsed(begun.elapsed());
        frame.map_data(|events| Bytes::from(writer.events(&events).unwrap_or_default()))
    };
    response::stream(
        format.content_type(),
        response.into_body().map_frame(translate).boxed_unsync(),
    )
}
