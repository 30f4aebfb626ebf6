//! APIs that are served by chat completions; see [`inference_translation`].

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use bytes::Bytes;
use http_body::Frame;
use http_body_util::BodyExt;
use hyper::{Response, header};
use inference_core::types::request::Tenant;
use inference_protocol::openai::ParseError;
use inference_protocol::time::unix_seconds;
use inference_translation::{ClientApi, Origin, ResponseWriter, Service, Translated};

use super::{Caller, chat, check_model, completions, embeddings, text};
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
    let lookup = |id: &str| node.responses.get(caller.tenant, id);
    let translation = inference_translation::translate(api, body, origin, &lookup);
    let Translated { body, writer, background } = match translation.map_err(Error::Translation)? {
        inference_translation::Translation::Request(translated) => translated,
        inference_translation::Translation::Reply { model, body } => {
            check_model(node, model.as_deref())?;
            return Ok(response::json(body));
        }
    };
    if background.is_some() {
        let message = "responses in the background need a gateway; use stream".into();
        return Err(Error::Translation(ParseError { message, param: Some("background".into()) }));
    }
    let begun = Instant::now();
    let response = match api.service() {
        Service::ChatCompletions => chat::complete(node, caller, None, &body).await?,
        Service::Completions => completions::complete(node, caller, None, &body).await?,
        Service::InputTokens => text::count(node, caller, None, &body).await?,
        Service::Embeddings => embeddings::embed(node, caller, None, &body).await?,
        Service::Rerank => embeddings::rerank(node, caller, None, &body).await?,
        Service::Props => text::props(node, caller, Some((&body, None))).await?,
    };
    let translation = Translation { node: node.clone(), tenant: caller.tenant, writer, begun };
    let content_type = response.headers().get(header::CONTENT_TYPE);
    match content_type.is_some_and(|kind| kind == "text/event-stream") {
        true => Ok(translation.stream(response)),
        false => translation.whole(response).await,
    }
}

/// The translation of one response.
struct Translation {
    node: Arc<Node>,
    tenant: Tenant,
    writer: ResponseWriter,
    begun: Instant,
}

impl Translation {
    async fn whole(mut self, response: Response<Body>) -> Result<Response<Body>, Error> {
        #[expect(clippy::disallowed_methods, reason = "our own response, which is in memory")]
        let Ok(body) = response.into_body().collect().await;
        self.writer.set_elapsed(self.begun.elapsed());
        let written = self.writer.whole(&body.to_bytes()).map_err(|_| Error::Internal)?;
        self.store();
        Ok(response::json(written))
    }

    /// Each frame of our streams has whole events.
    fn stream(mut self, response: Response<Body>) -> Response<Body> {
        let format = self.writer.stream_format();
        let translate = move |frame: Frame<Bytes>| frame.map_data(|events| self.events(&events));
        let body = response.into_body().map_frame(translate).boxed_unsync();
        response::stream(format.content_type(), body)
    }

    fn events(&mut self, events: &[u8]) -> Bytes {
        self.writer.set_elapsed(self.begun.elapsed());
        let written = self.writer.events(events).unwrap_or_default();
        self.store();
        written.into()
    }

    /// Stores the response, if it has ended and the request wants that.
    fn store(&mut self) {
        if let Some(stored) = self.writer.stored() {
            self.node.responses.insert(self.tenant, stored);
        }
    }
}
