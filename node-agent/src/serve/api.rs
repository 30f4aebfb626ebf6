//! Routes requests to handlers. The same service runs on the agent's port and on dialed links.

mod body;
mod chat;
mod completions;
mod constraint;
mod embeddings;
mod generate;
mod listing;
mod prediction;
mod prefixes;
mod reasoning;
mod sampling;
mod slots;
mod stored;
mod text;
mod tools;
mod translated;

use std::sync::Arc;

use flotilla_listeners::request_head::drop_trailing_slash;
use hyper::body::Incoming;
use hyper::header::{HeaderMap, HeaderValue};
use hyper::{Request, Response, StatusCode};
use inference_core::types::request::Tenant;
use inference_protocol::fleet::{self, DIGEST_HEADER};
use inference_protocol::openai::{self, to_json};
use inference_protocol::resume::{RESUME_HEADER, Resume};
use inference_translation::ClientApi;
use inference_translation::messages::models;
use inference_translation::ollama;
use inference_translation::rerank;
use inference_translation::store::Path;
use percent_encoding::percent_decode_str;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::engine::client::{EngineState, Via};
use crate::engine::model_files::digest::Fingerprint;
use crate::serve::metrics::Snapshot;
use crate::serve::metrics::compat::Names;
use crate::serve::node::{Link, Node};
use crate::serve::status;
use crate::types::error::Error;
use crate::types::response::{self, Body};

/// Handles one request, and renders errors.
pub(super) async fn serve(
    node: Arc<Node>,
    link: Link,
    mut request: Request<Incoming>,
) -> Response<Body> {
    drop_trailing_slash(&mut request);
    let path = request.uri().path();
    // Whose format of errors the client reads.
    let format = ClientApi::at(path)
        .or_else(|| path.starts_with("/api/").then_some(ClientApi::OllamaChat))
        .or_else(|| is_anthropic(&request).then_some(ClientApi::Messages));
    match (route(&node, link, request).await, format) {
        (Ok(response), _) => response,
        (Err(error), Some(api)) => response::error_for(api, &error),
        (Err(error), None) => response::error(&error),
    }
}

async fn route(
    node: &Arc<Node>,
    link: Link,
    request: Request<Incoming>,
) -> Result<Response<Body>, Error> {
    let path = request.uri().path();
    match path {
        "/livez" => {
            check_method(&request, "GET, HEAD").map(|()| response::text(StatusCode::OK, "ok\n"))
        }
        "/readyz" => check_method(&request, "GET, HEAD").map(|()| readyz(node)),
        "/health" => check_method(&request, "GET, HEAD").map(|()| health(node)),
        "/metrics" => check_method(&request, "GET, HEAD").map(|()| metrics(node, None)),
        _ if let Some(names) = node.compat.iter().find(|names| names.path() == path) => {
            check_method(&request, "GET, HEAD").map(|()| metrics(node, Some(*names)))
        }
        "/" => {
            // Some clients look here first.
            check_method(&request, "GET, HEAD")
                .map(|()| response::text(StatusCode::OK, "Flotilla is running\n"))
        }
        "/api/version" => {
            check_method(&request, "GET, HEAD").map(|()| response::json(ollama::version()))
        }
        "/api/tags" => {
            authenticate(node, link, &request)?;
            check_method(&request, "GET, HEAD").map(|()| listing::tags(node))
        }
        "/api/ps" => {
            authenticate(node, link, &request)?;
            check_method(&request, "GET, HEAD").map(|()| listing::running(node))
        }
        "/api/show" => {
            authenticate(node, link, &request)?;
            check_method(&request, "POST")?;
            listing::show(node, &body::read(request).await?)
        }
        "/slots" => {
            authenticate(node, link, &request)?;
            check_method(&request, "GET, HEAD").map(|()| listing::slots(node))
        }
        path if let Some(id) = path.strip_prefix("/slots/") => {
            authenticate(node, link, &request)?;
            check_method(&request, "POST")?;
            let (id, caller) = (id.to_string(), caller(node, link, &request)?);
            slots::act(node, caller, &id, request).await
        }
        "/props" if request.method() != "POST" => {
            authenticate(node, link, &request)?;
            check_method(&request, "GET, HEAD")?;
            text::props(node, caller(node, link, &request)?, None).await
        }
        "/v1/models" | "/models" => {
            authenticate(node, link, &request)?;
            check_method(&request, "GET, HEAD").map(|()| listing::all(node, is_anthropic(&request)))
        }
        path if let Some(stored) = Path::at(path).filter(|_| ClientApi::at(path).is_none()) => {
            authenticate(node, link, &request)?;
            let Caller { tenant, .. } = caller(node, link, &request)?;
            stored::serve(node, tenant, &request, stored)
        }
        fleet::STATUS_PATH => {
            authenticate(node, link, &request)?;
            check_method(&request, "GET")?;
            if link.trusted && request.headers().contains_key(fleet::HAND_OVER_HEADER) {
                node.hand_over.want();
            }
            Ok(status::stream(node.clone(), link.id))
        }
        path if path.starts_with(fleet::PREFIXES_PATH) => {
            prefixes::serve(node, link, request).await
        }
        _ => match (path.strip_prefix("/v1/models/"), Operation::for_path(path)) {
            (Some(id), _) => {
                authenticate(node, link, &request)?;
                check_method(&request, "GET, HEAD")?;
                check_model(node, Some(&percent_decode_str(id).decode_utf8_lossy()))?;
                Ok(listing::one(node, is_anthropic(&request)))
            }
            (None, Some(operation)) => {
                authenticate(node, link, &request)?;
                check_method(&request, "POST")?;
                let caller = caller(node, link, &request)?;
                let resume = request.headers().get(RESUME_HEADER).cloned();
                let body = body::read(request).await?;
                let (resume, body) = match &resume {
                    Some(length) => split_resume(length.as_bytes(), &body)?,
                    None => (None, &body[..]),
                };
                handle(node, caller, operation, resume, body).await
            }
            (None, None) => Err(Error::UnknownPath),
        },
    }
}

/// Kinds of requests to the engine.
#[derive(Debug, Clone, Copy)]
enum Operation {
    Chat,
    Completion,
    InputTokens,
    Embeddings,
    Rerank,
    Tokenize,
    Detokenize,
    ApplyTemplate,
    Props,
    Translated(ClientApi),
}

impl Operation {
    fn for_path(path: &str) -> Option<Self> {
        Some(match path {
            "/v1/chat/completions" | "/chat/completions" => Self::Chat,
            "/v1/completions" | "/completions" => Self::Completion,
            "/v1/chat/completions/input_tokens" => Self::InputTokens,
            "/v1/embeddings" | "/embeddings" => Self::Embeddings,
            "/v1/rerank" | "/v2/rerank" | "/rerank" | "/v1/reranking" | "/reranking" => {
                Self::Rerank
            }
            "/tokenize" => Self::Tokenize,
            "/detokenize" => Self::Detokenize,
            "/apply-template" => Self::ApplyTemplate,
            "/props" => Self::Props,
            _ => return ClientApi::at(path).map(Self::Translated),
        })
    }
}

async fn handle(
    node: &Arc<Node>,
    caller: Caller,
    operation: Operation,
    resume: Option<Resume>,
    body: &[u8],
) -> Result<Response<Body>, Error> {
    match operation {
        Operation::Chat => chat::complete(node, caller, resume, body).await,
        Operation::Completion => completions::complete(node, caller, resume, body).await,
        Operation::InputTokens => text::count(node, caller, resume, body).await,
        Operation::Embeddings => embeddings::embed(node, caller, resume, body).await,
        Operation::Rerank if rerank::has_texts(body) => {
            translated::complete(node, caller, ClientApi::RerankTexts, body).await
        }
        Operation::Rerank => embeddings::rerank(node, caller, resume, body).await,
        Operation::Tokenize => text::tokenize(node, caller, resume, body).await,
        Operation::Detokenize => text::detokenize(node, caller, body).await,
        Operation::ApplyTemplate => text::apply_template(node, caller, resume, body).await,
        Operation::Props => text::props(node, caller, Some((body, resume))).await,
        Operation::Translated(api) => translated::complete(node, caller, api, body).await,
    }
}

/// Splits the gateway's resume state from the client's body.
fn split_resume<'a>(length: &[u8], body: &'a [u8]) -> Result<(Option<Resume>, &'a [u8]), Error> {
    let length = std::str::from_utf8(length).ok().and_then(|text| text.parse().ok());
    let parts = length.and_then(|length| body.split_at_checked(length));
    let (resume, body) = parts.ok_or_else(|| Error::Invalid {
        param: RESUME_HEADER,
        message: format!("{RESUME_HEADER}: expected how many bytes of the body it has"),
    })?;
    Ok((Some(openai::parse(resume)?), body))
}

fn check_method<B>(request: &Request<B>, allowed: &'static str) -> Result<(), Error> {
    let method = request.method().as_str();
    match allowed.split(", ").any(|m| m == method) {
        true => Ok(()),
        false => Err(Error::Method(allowed)),
    }
}

fn authenticate<B>(node: &Node, link: Link, request: &Request<B>) -> Result<(), Error> {
    let Some(expected) = node.key.filter(|_| !link.trusted) else { return Ok(()) };
    let header = |name: &str| request.headers().get(name).map(HeaderValue::as_bytes);
    let bearer = header("authorization").and_then(|value| value.strip_prefix(b"Bearer "));
    // Anthropic's clients send it in a header of its own.
    let sent = bearer.or_else(|| header("x-api-key")).unwrap_or_default();
    let digest: [u8; 32] = Sha256::digest(sent).into();
    if bool::from(digest.ct_eq(&expected)) { Ok(()) } else { Err(Error::Unauthenticated) }
}

/// Where a request came from, and its tenant.
#[derive(Debug, Clone, Copy)]
struct Caller {
    via: Via,
    tenant: Tenant,
    /// The group of tenants that share cached prefixes with it.
    prefix_group: Option<Tenant>,
}

fn caller<B>(node: &Node, link: Link, request: &Request<B>) -> Result<Caller, Error> {
    let via = Via { link: link.id, digest: intended_digest(request)? };
    let (tenant, prefix_group) = tenants(request.headers(), link.trusted || node.key.is_some());
    Ok(Caller { via, tenant, prefix_group })
}

/// Digest of the weights that a gateway intends, if given.
fn intended_digest<B>(request: &Request<B>) -> Result<Option<Fingerprint>, Error> {
    let Some(value) = request.headers().get(DIGEST_HEADER) else { return Ok(None) };
    let read = value.to_str().map_err(|e| e.to_string()).and_then(|text| text.parse());
    let invalid =
        |why| Error::Invalid { param: DIGEST_HEADER, message: format!("{DIGEST_HEADER}: {why}") };
    read.map(Some).map_err(invalid)
}

/// The tenant of a request, and its group. Their headers count only from callers that presented a
/// key: gateways.
fn tenants(headers: &HeaderMap, shown_key: bool) -> (Tenant, Option<Tenant>) {
    let named = |name| headers.get(name).filter(|_| shown_key);
    let tenant = named(fleet::TENANT_HEADER).map_or(Tenant::default(), |name| number("", name));
    (tenant, named(fleet::PREFIX_GROUP_HEADER).map(|name| number("group ", name)))
}

/// The number of a tenant, or of a group of tenants: the names of groups have a prefix that no name
/// of a tenant has.
fn number(prefix: &str, name: &HeaderValue) -> Tenant {
    let digest = Sha256::new().chain_update(prefix).chain_update(name.as_bytes()).finalize();
    let mut number = [0; 8];
    number.copy_from_slice(&digest[..8]);
    Tenant(u64::from_le_bytes(number))
}

/// A node serves one model and needs no name for it, but rejects another name.
fn check_model(node: &Node, requested: Option<&str>) -> Result<(), Error> {
    let is_other =
        |asked: &&str| *asked != node.model && ollama::without_latest(asked) != node.model;
    let Some(asked) = requested.filter(is_other) else { return Ok(()) };
    Err(Error::UnknownModel {
        asked: asked.chars().take(128).collect(),
        served: node.model.clone(),
    })
}

fn is_ready(node: &Node) -> bool {
    matches!(node.engine.state(), EngineState::Ready(_))
}

fn readyz(node: &Node) -> Response<Body> {
    match is_ready(node) {
        true => response::text(StatusCode::OK, "ready\n"),
        false => response::text(StatusCode::SERVICE_UNAVAILABLE, "not ready\n"),
    }
}

fn health(node: &Node) -> Response<Body> {
    let status = if is_ready(node) { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let facts = status::facts(node, 0);
    response::json_with_status(status, to_json(&facts))
}

fn metrics(node: &Node, names: Option<Names>) -> Response<Body> {
    let (engine, figures) = (&node.engine, node.engine.figures());
    let sample = node.resources.sample(engine.pid());
    let snapshot = Snapshot { node: &node.name, model: &node.model, engine, figures, sample };
    let text = match names {
        None => node.metrics.render(&snapshot),
        Some(names) => node.metrics.render_as(names, &snapshot),
    };
    response::with_type(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", text)
}

/// True for Anthropic's clients, which expect another format.
fn is_anthropic<B>(request: &Request<B>) -> bool {
    request.headers().contains_key(models::VERSION_HEADER)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant_of(name: Option<&str>, shown_key: bool) -> Tenant {
        let mut headers = HeaderMap::new();
        if let Some(name) = name {
            headers.insert(fleet::TENANT_HEADER, name.parse().unwrap());
        }
        tenants(&headers, shown_key).0
    }

    #[test]
    fn a_group_is_no_tenant_and_believed_to_those_who_have_shown_a_key() {
        let mut headers = HeaderMap::new();
        headers.insert(fleet::TENANT_HEADER, "ada".parse().unwrap());
        assert_eq!(tenants(&headers, true).1, None);
        headers.insert(fleet::PREFIX_GROUP_HEADER, "ada".parse().unwrap());
        let (tenant, group) = tenants(&headers, true);
        assert!(group.is_some_and(|group| group != tenant));
        assert_eq!(tenants(&headers, false), (Tenant::default(), None));
    }

    #[test]
    fn a_tenant_is_believed_to_those_who_have_shown_a_key() {
        assert_eq!(tenant_of(None, true), Tenant::default());
        assert_eq!(tenant_of(Some("ada"), false), Tenant::default());
        assert_ne!(tenant_of(Some("ada"), true), Tenant::default());
        assert_ne!(tenant_of(Some("ada"), true), tenant_of(Some("bob"), true));
    }
}
