//! The admin listener: metrics, health, nodes, and the fleet page. Requests that change something
//! or show individual nodes need the admin key.

use std::sync::Arc;

use hyper::body::Incoming;
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::{Request, Response, StatusCode};
use inference_protocol::openai::to_json;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::access::keys::bearer;
use crate::context::Gateway;
use crate::control::health::status;
use crate::control::keys;
use crate::control::only;
use crate::dispatcher::views::{NodeAction, NodeView};
use crate::proxy;
use crate::proxy::authenticate::Known;
use crate::types::api::{Api, RequestedApi};
use crate::types::error::Error;
use crate::types::request_context::RequestContext;
use crate::types::response::{self, Body};

use crate::control::overview::{OVERVIEW_PATH, RECENT_PATH, history, overview};
use crate::control::usage::{self, USAGE_PATH};
use crate::control::work::{self, WorkPath};

/// Path of the node list; each node's actions are below it.
pub(crate) const NODES_PATH: &str = "/admin/v1/nodes";

/// Chat endpoint for operators, to see which node responds and how fast. Like
/// `/v1/chat/completions` on the public listener, but with the admin key.
pub(crate) const CHAT_PATH: &str = "/admin/v1/chat";

/// All nodes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NodeList {
    /// By name.
    pub nodes: Vec<NodeView>,
}

/// Handles a request on the admin listener.
pub(crate) async fn serve(
    gateway: &Gateway,
    context: Arc<RequestContext>,
    request: Request<Incoming>,
) -> Response<Body> {
    let answered = match request.uri().path() {
        CHAT_PATH => match check_chat(gateway, &request) {
            Ok(()) => {
                let caller = gateway.settings.now().keys.admin_caller().clone();
                let operators = Known { caller, again: None };
                let (gateway, api) = (gateway.clone(), RequestedApi::Native(Api::ChatCompletions));
                return proxy::serve(gateway, context, api, request, Some(operators)).await;
            }
            Err(error) => Err(error),
        },
        USAGE_PATH => used(gateway, &request).await,
        path if keys::below(path).is_some() => match authorize(gateway, request.headers()) {
            Ok(()) => keys::serve(gateway, request).await.map(private),
            Err(error) => Err(error),
        },
        path => match WorkPath::at(path) {
            Some(work) => stored_work(gateway, &request, work).await,
            None => answer(gateway, &request),
        },
    };
    answered.unwrap_or_else(|error| response::error(&error))
}

fn check_chat<B>(gateway: &Gateway, request: &Request<B>) -> Result<(), Error> {
    authorize(gateway, request.headers())?;
    only(request, "POST")
}

async fn used<B>(gateway: &Gateway, request: &Request<B>) -> Result<Response<Body>, Error> {
    authorize(gateway, request.headers())?;
    usage::serve(gateway, request).await.map(private)
}

async fn stored_work<B>(
    gateway: &Gateway,
    request: &Request<B>,
    path: WorkPath<'_>,
) -> Result<Response<Body>, Error> {
    authorize(gateway, request.headers())?;
    work::serve(gateway, request, path).await.map(private)
}

fn answer<B>(gateway: &Gateway, request: &Request<B>) -> Result<Response<Body>, Error> {
    let path = request.uri().path();
    if path == "/metrics" {
        only(request, "GET, HEAD")?;
        let (stored, bytes) = gateway.responses.size();
        gateway.metrics.set_stored(stored, bytes);
        if let Some(store) = &gateway.store {
            gateway.metrics.set_store(store.is_available(), store.bytes());
        }
        let text = gateway.metrics.render(&gateway.dispatcher.cached_snapshot())?;
        let kind = "text/plain; version=0.0.4; charset=utf-8";
        return Ok(response::with_type(StatusCode::OK, kind, text));
    }
    if let Some(file) = crate::control::page::file(path) {
        return only(request, "GET, HEAD").map(|()| file);
    }
    if [OVERVIEW_PATH, RECENT_PATH].contains(&path) {
        authorize(gateway, request.headers())?;
        only(request, "GET, HEAD")?;
        return Ok(private(response::json(match path == OVERVIEW_PATH {
            true => to_json(&overview(gateway)),
            false => to_json(&history(gateway)),
        })));
    }
    if let Some(below) = path.strip_prefix(NODES_PATH) {
        authorize(gateway, request.headers())?;
        return nodes(gateway, request, below);
    }
    status(gateway, request)
}

/// Keeps browsers from caching a response.
fn private(mut response: Response<Body>) -> Response<Body> {
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

fn authorize(gateway: &Gateway, headers: &HeaderMap) -> Result<(), Error> {
    let settings = gateway.settings.now();
    let key = settings.config.admin.as_ref().and_then(|admin| admin.key.as_ref());
    let key = key.ok_or(Error::AdminOff)?;
    match bearer(headers).is_some_and(|sent| key.matches(sent)) {
        true => Ok(()),
        false => Err(Error::AdminKeyWrong),
    }
}

/// Handles paths below [`NODES_PATH`]: `""` is the list, `/NODE/ACTION` an action.
fn nodes<B>(gateway: &Gateway, request: &Request<B>, below: &str) -> Result<Response<Body>, Error> {
    if below.is_empty() {
        only(request, "GET, HEAD")?;
        return Ok(list(gateway));
    }
    let (node, action) = below
        .strip_prefix('/')
        .and_then(|below| below.split_once('/'))
        .and_then(|(node, action)| {
            Some((node, NodeAction::ALL.into_iter().find(|a| a.name() == action)?))
        })
        .ok_or(Error::UnknownPath)?;
    only(request, "POST")?;
    if !gateway.dispatcher.apply_action(node, action) {
        return Err(Error::UnknownNode(node.chars().take(64).collect()));
    }
    tracing::info!(node, action = action.name(), "operator action on node");
    Ok(list(gateway))
}

fn list(gateway: &Gateway) -> Response<Body> {
    let mut nodes = gateway.dispatcher.nodes();
    nodes.sort_by(|a, b| a.name.cmp(&b.name));
    response::json(to_json(&NodeList { nodes }))
}
