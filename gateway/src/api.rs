//! Paths and methods -> what is done about them.

use std::sync::LazyLock;

use hyper::body::Incoming;
use hyper::{Request, Response, StatusCode, Uri};
use inference_protocol::fleet::JOIN_PATH;
use inference_protocol::openai::{Model, ModelList, to_json};

use crate::app::Gateway;
use crate::error::Error;
use crate::fleet::join;
use crate::pipeline::authenticate::Caller;
use crate::pipeline::{self, authenticate};
use crate::respond::{self, Body};

/// An endpoint that generates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Api {
    /// `/v1/chat/completions`
    ChatCompletions,
    /// `/v1/completions`
    Completions,
}

impl Api {
    /// Where it is at a node.
    pub fn uri(self) -> Uri {
        static CHAT: LazyLock<Uri> =
            LazyLock::new(|| Uri::from_static("http://node/v1/chat/completions"));
        static TEXT: LazyLock<Uri> =
            LazyLock::new(|| Uri::from_static("http://node/v1/completions"));
        match self {
            Self::ChatCompletions => CHAT.clone(),
            Self::Completions => TEXT.clone(),
        }
    }

    /// Its label in metrics and logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::ChatCompletions => "chat_completions",
            Self::Completions => "completions",
        }
    }
}

/// Answers one request; errors are rendered here and in the pipeline.
pub async fn serve(gateway: Gateway, request: Request<Incoming>) -> Response<Body> {
    match request.uri().path() {
        "/v1/chat/completions" => generate(gateway, Api::ChatCompletions, request).await,
        "/v1/completions" => generate(gateway, Api::Completions, request).await,
        path if path == JOIN_PATH => {
            render(only(&request, "POST").and_then(|()| join::join(&gateway, request)))
        }
        _ => render(look(&gateway, &request)),
    }
}

async fn generate(gateway: Gateway, api: Api, request: Request<Incoming>) -> Response<Body> {
    match only(&request, "POST") {
        Ok(()) => pipeline::serve(gateway, api, request).await,
        Err(error) => respond::error(&error),
    }
}

fn render(result: Result<Response<Body>, Error>) -> Response<Body> {
    result.unwrap_or_else(|error| respond::error(&error))
}

/// Everything that only looks.
fn look(gateway: &Gateway, request: &Request<Incoming>) -> Result<Response<Body>, Error> {
    let path = request.uri().path();
    let model = path.strip_prefix("/v1/models/");
    if !matches!(path, "/livez" | "/readyz" | "/health" | "/metrics" | "/v1/models")
        && model.is_none()
    {
        return Err(Error::UnknownPath);
    }
    only(request, "GET, HEAD")?;
    match (path, model) {
        (_, Some(id)) => {
            let caller = authenticate::caller(&gateway.keys, request.headers())?;
            find_model(gateway, &caller, id)
        }
        ("/v1/models", _) => {
            let caller = authenticate::caller(&gateway.keys, request.headers())?;
            let models = gateway.dispatcher.models().into_iter();
            let models = models.filter(|(id, _)| caller.limiter.allows(id));
            let data = models.map(|(id, created)| Model::new(id, created)).collect();
            Ok(respond::json(to_json(&ModelList::new(data))))
        }
        ("/readyz", _) if is_ready(gateway) => Ok(respond::text(StatusCode::OK, "ready\n")),
        ("/readyz", _) => Ok(respond::text(StatusCode::SERVICE_UNAVAILABLE, "not ready\n")),
        ("/health", _) => Ok(health(gateway)),
        ("/metrics", _) => Ok(metrics(gateway)),
        _ => Ok(respond::text(StatusCode::OK, "ok\n")),
    }
}

fn only<B>(request: &Request<B>, allowed: &'static str) -> Result<(), Error> {
    let method = request.method().as_str();
    match allowed.split(", ").any(|m| m == method) {
        true => Ok(()),
        false => Err(Error::Method(allowed)),
    }
}

fn find_model(gateway: &Gateway, caller: &Caller, id: &str) -> Result<Response<Body>, Error> {
    let mut models = gateway.dispatcher.models().into_iter();
    let found = models.find(|(name, _)| name == id && caller.limiter.allows(id));
    let (id, created) = found.ok_or_else(|| Error::UnknownModel(id.chars().take(128).collect()))?;
    Ok(respond::json(to_json(&Model::new(id, created))))
}

/// Whether a request could be routed now.
fn is_ready(gateway: &Gateway) -> bool {
    !gateway.stop.is_cancelled() && gateway.dispatcher.totals().ready > 0
}

fn health(gateway: &Gateway) -> Response<Body> {
    let overview = gateway.dispatcher.overview();
    let totals = overview.totals;
    let ready = is_ready(gateway);
    let body = serde_json::json!({
        "status": if ready { "ok" } else { "unavailable" },
        "nodes": { "linked": totals.nodes, "ready": totals.ready, "ejected": totals.ejected },
        "slots": { "total": totals.slots, "busy": totals.busy, "leased": totals.leases },
        "queue_depth": overview.queue_depth,
        "requests_in_flight": gateway.metrics.requests_in_flight(),
    });
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    respond::with_type(status, "application/json", body.to_string())
}

fn metrics(gateway: &Gateway) -> Response<Body> {
    let text = gateway.metrics.render(&gateway.dispatcher.overview());
    respond::with_type(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", text)
}
