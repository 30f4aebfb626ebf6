//! Maps paths and methods to handlers.

use std::sync::Arc;

use flotilla_listeners::request_head::drop_trailing_slash;
use hyper::body::Incoming;
use hyper::{Method, Request, Response, StatusCode};
use inference_protocol::fleet::JOIN_PATH;
use inference_translation::messages::models as anthropic;
use inference_translation::store::Path;
use inference_translation::{ClientApi, ollama};

use super::models::{self, Listing};
use super::{batches, files, jobs, message_batches, responses, streams};
use crate::config::tls::Authority;
use crate::context::Gateway;
use crate::control::health::status;
use crate::control::{join, only};
use crate::proxy;
use crate::proxy::background::EventId;
use crate::types::api::{Api, RequestedApi};
use crate::types::error::Error;
use crate::types::request_context::RequestContext;
use crate::types::response::{self, Body};

/// Handles a client request. `authority` is the CA that issued the client's verified certificate.
/// Errors are rendered here and in the pipeline.
pub(crate) async fn serve(
    gateway: Gateway,
    authority: Option<&Authority>,
    context: Arc<RequestContext>,
    mut request: Request<Incoming>,
) -> Response<Body> {
    drop_trailing_slash(&mut request);
    let path = request.uri().path();
    let api = RequestedApi::at(path);
    if let Some(api) = api.filter(|_| request.method() == Method::POST) {
        if let Some(last) = EventId::last(request.headers()) {
            let (head, body) = request.into_parts();
            // The request is known; the connection may be used again.
            let (settings, headers) = (gateway.settings.now(), head.headers.clone());
            proxy::discard_later(&gateway, &settings, headers, body.into());
            let request = Request::from_parts(head, ());
            let events = streams::read_on(&gateway, &request, &last.stream, last.number + 1).await;
            let id = context.id().as_str();
            return events.unwrap_or_else(|error| response::error_for(api, &error, id));
        }
        return proxy::serve(gateway, context, api, request, None).await;
    }
    if path == "/props" && request.method() == Method::GET {
        return proxy::serve(gateway, context, RequestedApi::PROPS, request, None).await;
    }
    let format = error_format(api, &request);
    let answered = match path {
        _ if api.is_some() => Err(Error::Method("POST")),
        path if path == JOIN_PATH => {
            only(&request, "POST").and_then(|()| join::join(&gateway, authority, request))
        }
        "/props" => Err(Error::Method("GET")),
        "/api/show" => models::show(&gateway, request).await,
        path if files::path(path).is_some() => files::serve(&gateway, request).await,
        path if batches::path(path).is_some() => batches::serve(&gateway, request).await,
        path if message_batches::path(path).is_some() => {
            message_batches::serve(&gateway, request).await
        }
        path if streams::path(path).is_some() => streams::serve(&gateway, &request).await,
        path if jobs::path(path).is_some() => jobs::serve(&gateway, context.clone(), request).await,
        path if let Some(path) = Path::at(path) => responses::serve(&gateway, &request, path).await,
        _ => look(&gateway, &request),
    };
    answered.unwrap_or_else(|error| response::error_for(format, &error, context.id().as_str()))
}

/// Handles read-only requests.
fn look(gateway: &Gateway, request: &Request<Incoming>) -> Result<Response<Body>, Error> {
    let path = request.uri().path();
    if let Some(listing) = Listing::at(path) {
        return models::list(gateway, request, listing);
    }
    match path {
        // Some clients look here first.
        "/" => only(request, "GET, HEAD")
            .map(|()| response::text(StatusCode::OK, "Flotilla is running\n")),
        "/api/version" => only(request, "GET, HEAD").map(|()| response::json(ollama::version())),
        _ => status(gateway, request),
    }
}

/// The API in whose format the client of a request reads errors.
fn error_format<B>(api: Option<RequestedApi>, request: &Request<B>) -> RequestedApi {
    let is_anthropic = request.headers().contains_key(anthropic::VERSION_HEADER)
        || request.uri().path().starts_with("/v1/messages/");
    match api {
        Some(api) => api,
        None if request.uri().path().starts_with("/api/") => {
            RequestedApi::Translated(ClientApi::OllamaChat)
        }
        None if is_anthropic => RequestedApi::Translated(ClientApi::Messages),
        None => RequestedApi::Native(Api::ChatCompletions),
    }
}
