//! Maps paths and methods to handlers.

use std::collections::BTreeMap;
use std::sync::Arc;

use hyper::body::Incoming;
use hyper::{Method, Request, Response, StatusCode};
use inference_protocol::fleet::JOIN_PATH;
use inference_protocol::ids::MODEL_NAME_BYTES_MAX;
use inference_protocol::openai::{Model, ModelList, to_json};
use inference_translation::messages::models;

use crate::access::keys::Caller;
use crate::config::tls::Authority;
use crate::context::Gateway;
use crate::control::health::status;
use crate::control::{join, only};
use crate::proxy;
use crate::types::api::RequestedApi;
use crate::types::error::Error;
use crate::types::request_context::RequestContext;
use crate::types::response::{self, Body};

/// Handles a client request. `authority` is the CA that issued the client's verified certificate.
/// Errors are rendered here and in the pipeline.
pub(crate) async fn serve(
    gateway: Gateway,
    authority: Option<&Authority>,
    context: Arc<RequestContext>,
    request: Request<Incoming>,
) -> Response<Body> {
    let path = request.uri().path();
    let api = RequestedApi::at(path).filter(|_| request.method() == Method::POST);
    if let Some(api) = api {
        return proxy::serve(gateway, context, api, request, None).await;
    }
    let answered = match path {
        path if RequestedApi::at(path).is_some() => Err(Error::Method("POST")),
        path if path == JOIN_PATH => {
            only(&request, "POST").and_then(|()| join::join(&gateway, authority, request))
        }
        _ => look(&gateway, &request),
    };
    answered.unwrap_or_else(|error| response::error(&error))
}

/// Handles read-only requests.
fn look(gateway: &Gateway, request: &Request<Incoming>) -> Result<Response<Body>, Error> {
    let path = request.uri().path();
    if path == "/" {
        // Some clients look here first.
        return only(request, "GET, HEAD").map(|()| response::text(StatusCode::OK, "Flotilla\n"));
    }
    let model = path.strip_prefix("/v1/models/");
    if path != "/v1/models" && model.is_none() {
        return status(gateway, request);
    }
    only(request, "GET, HEAD")?;
    let settings = gateway.settings.now();
    let caller = settings.keys.authenticate(request.headers())?;
    let is_anthropic = request.headers().contains_key(models::VERSION_HEADER);
    match model {
        Some(id) => {
            let created = find_model(gateway, &caller, id)?;
            Ok(response::json(match is_anthropic {
                true => models::model(id, created),
                false => to_json(&Model::new(id.to_string(), created)),
            }))
        }
        None if is_anthropic => {
            let models = served(gateway, &caller);
            let all = models.iter().map(|(id, created)| (id.as_str(), *created));
            Ok(response::json(models::model_list(all)))
        }
        None => {
            let models = served(gateway, &caller);
            let model = |(id, created): (&String, &u64)| Model::new(id.clone(), *created);
            let data = models.iter().map(model).collect();
            Ok(response::json(to_json(&ModelList::new(data))))
        }
    }
}

/// Models that are served and that the key may use, by name and alias. The list of each key is
/// cached until the served models or the configuration change.
fn served(gateway: &Gateway, caller: &Caller) -> Arc<BTreeMap<String, u64>> {
    let version = gateway.dispatcher.models_version();
    caller.models.get_or_build(version, || {
        let (version, served) = gateway.dispatcher.models();
        (version, listed(caller, served))
    })
}

fn listed(caller: &Caller, served: BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let others = caller.aliases();
    let others = others.filter_map(|(name, model)| Some((name.to_string(), *served.get(model)?)));
    let mut all: BTreeMap<String, u64> = others.collect();
    all.extend(served.into_iter().filter(|(name, _)| caller.limiter.allows(name)));
    all
}

/// When the model was created.
fn find_model(gateway: &Gateway, caller: &Caller, id: &str) -> Result<u64, Error> {
    let created = served(gateway, caller).get(id).copied();
    created.ok_or_else(|| Error::UnknownModel(id.chars().take(MODEL_NAME_BYTES_MAX).collect()))
}
