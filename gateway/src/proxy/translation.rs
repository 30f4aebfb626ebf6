//! Requests and responses of APIs that are served by chat completions; see
//! [`inference_translation`].

use std::time::{Instant, SystemTime};

use bytes::Bytes;
use hyper::StatusCode;
use inference_protocol::openai::{ErrorBody, ErrorDetail, RawObject};
use inference_protocol::time::unix_seconds;
use inference_translation::store::Stored;
use inference_translation::{
    Background, ClientApi, Lookup, Origin, ResponseWriter, StreamFormat, Unreadable, rerank,
};
use serde_json::Value;

use crate::types::api::{Api, RequestedApi};
use crate::types::error::Error;
use crate::types::random::random;
use crate::types::response;

/// The translation of one request's response.
#[derive(Debug)]
pub(crate) struct Translation {
    api: ClientApi,
    writer: ResponseWriter,
    /// When the request arrived.
    arrived: Instant,
    /// Where ids and times of the response come from.
    pub origin: Origin,
    /// Set if the response is to be made in the background.
    pub background: Option<Background>,
}

/// What becomes of a request.
#[derive(Debug)]
pub(crate) enum Translated {
    /// An endpoint gets this body; its response is translated if need be.
    Request(Bytes, Option<Translation>),
    /// It needs no endpoint: the model that it names, and the response.
    Reply(Option<String>, Vec<u8>),
}

/// What a translation needs to know.
pub(crate) struct Sources<'a> {
    /// The origin of a response that is made again.
    pub origin: Option<Origin>,
    /// Finds stored responses.
    pub stored: Lookup<'a>,
    /// The model of a fleet that serves only one.
    pub only_model: &'a dyn Fn() -> Option<String>,
}

/// The body of the request that endpoints get, and the translation of their response.
///
/// # Errors
/// The body asks for what cannot be translated, or becomes longer than `bytes_max`.
pub(crate) fn translate(
    api: RequestedApi,
    body: Bytes,
    bytes_max: usize,
    arrived: Instant,
    sources: &Sources<'_>,
) -> Result<Translated, Error> {
    let api = match api {
        RequestedApi::Translated(api) => api,
        RequestedApi::Native(Api::Rerank) if rerank::has_texts(&body) => ClientApi::RerankTexts,
        RequestedApi::Native(api) => {
            let is_llamas = matches!(api, Api::Tokenize | Api::Detokenize | Api::ApplyTemplate);
            let body = if is_llamas { with_model(body, sources.only_model) } else { body };
            return Ok(Translated::Request(body, None));
        }
    };
    let new = || Origin { random: random(), now: unix_seconds(SystemTime::now()) };
    let origin = sources.origin.unwrap_or_else(new);
    let translated = inference_translation::translate(api, &body, origin, sources.stored);
    let translated = match translated.map_err(Error::Invalid)? {
        inference_translation::Translation::Request(translated) => translated,
        inference_translation::Translation::Reply { model, body } => {
            return Ok(Translated::Reply(model, body));
        }
    };
    let body = if names_no_model(api) {
        with_model(translated.body.into(), sources.only_model)
    } else {
        translated.body.into()
    };
    if body.len() > bytes_max {
        return Err(Error::TooLarge(bytes_max));
    }
    let (writer, background) = (translated.writer, translated.background);
    let translation = Translation { api, writer, arrived, origin, background };
    Ok(Translated::Request(body, Some(translation)))
}

/// True for APIs of servers that have only one model.
fn names_no_model(api: ClientApi) -> bool {
    matches!(
        api,
        ClientApi::RerankTexts
            | ClientApi::LlamaCompletion
            | ClientApi::LlamaInfill
            | ClientApi::LlamaEmbedding
    )
}

/// The body with a model, for clients of servers that have only one.
fn with_model(body: Bytes, only_model: impl Fn() -> Option<String>) -> Bytes {
    // Nothing is missing from an object without fields but everything.
    let lacks_model = |object: RawObject<'_>| {
        let mut fields = object.fields().peekable();
        fields.peek().is_some() && fields.all(|field| field.name != "model")
    };
    let start = body.iter().position(|byte| *byte == b'{');
    if RawObject::parse(&body).is_ok_and(lacks_model)
        && let (Some(start), Some(model)) = (start, only_model())
    {
        let model = format!("{{\"model\":{},", Value::from(model));
        return [model.as_bytes(), body.get(start + 1..).unwrap_or_default()].concat().into();
    }
    body
}

const UNREADABLE: Error = Error::NodeAnswer("it is not a chat completion");

impl Translation {
    /// Translates events of a stream.
    pub(crate) fn events(&mut self, events: &[u8]) -> Result<Bytes, Error> {
        self.writer.set_elapsed(self.arrived.elapsed());
        self.writer.events(events).map(Bytes::from).map_err(|Unreadable| UNREADABLE)
    }

    /// Translates a whole response.
    pub(crate) fn whole(&mut self, response: &[u8]) -> Result<Bytes, Error> {
        self.writer.set_elapsed(self.arrived.elapsed());
        self.writer.whole(response).map(Bytes::from).map_err(|Unreadable| UNREADABLE)
    }

    /// Begins a response in the background: its first events, and the response as it is then.
    pub(crate) fn enqueue(&mut self) -> Option<(Bytes, Stored)> {
        self.writer.enqueue().map(|(events, stored)| (events.into(), stored))
    }

    /// What to store of the response, once it has ended.
    pub(crate) fn stored(&mut self) -> Option<Stored> {
        self.writer.stored()
    }

    /// How the response is streamed.
    pub(crate) fn stream_format(&self) -> StreamFormat {
        self.writer.stream_format()
    }

    /// The body of an endpoint's refusal in the client's API.
    pub(crate) fn refusal(&self, status: StatusCode, body: &[u8], request_id: &str) -> String {
        self.api.error_body(status.as_u16(), &detail(status, body), Some(request_id))
    }

    /// The end of a stream that an endpoint refused after its head was sent.
    pub(crate) fn refusal_event(&mut self, status: StatusCode, body: &[u8]) -> Bytes {
        self.writer.fail(status.as_u16(), &detail(status, body)).into()
    }

    /// The end of a stream that failed.
    pub(crate) fn error_event(&mut self, error: &Error) -> Bytes {
        self.writer.fail(error.status(), &response::error_detail(error)).into()
    }
}

/// What an endpoint's refusal says.
fn detail(status: StatusCode, body: &[u8]) -> ErrorDetail {
    let unknown = || response::error_detail(&Error::NodeRefused(status.as_u16()));
    serde_json::from_slice(body).map_or_else(|_| unknown(), |ErrorBody { error }| error)
}
