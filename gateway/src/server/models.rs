//! Lists of models, in the formats of OpenAI, Anthropic and Ollama.

use std::collections::BTreeMap;
use std::sync::Arc;

use flotilla_listeners::request_body::BodyLimits;
use hyper::body::Incoming;
use hyper::{Request, Response};
use inference_protocol::fleet::ModelStatus;
use inference_protocol::ids::MODEL_NAME_BYTES_MAX;
use inference_protocol::openai::{Model, ModelList, to_json};
use inference_translation::messages::models as anthropic;
use inference_translation::ollama;
use percent_encoding::percent_decode_str;

use crate::access::keys::Caller;
use crate::context::Gateway;
use crate::control::only;
use crate::proxy::admit::read_body;
use crate::types::error::Error;
use crate::types::response::{self, Body};
use crate::types::served_model::ServedModel;

/// A list of models.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Listing<'a> {
    /// `/v1/models`
    All,
    /// `/v1/models/{id}`, percent-encoded.
    One(&'a str),
    /// Ollama's `/api/tags`.
    Tags,
    /// Ollama's `/api/ps`.
    Running,
}

impl<'a> Listing<'a> {
    /// The list at `path`, if there is one.
    pub(crate) fn at(path: &'a str) -> Option<Self> {
        match path {
            "/v1/models" | "/models" => Some(Self::All),
            "/api/tags" => Some(Self::Tags),
            "/api/ps" => Some(Self::Running),
            _ => path.strip_prefix("/v1/models/").map(Self::One),
        }
    }
}

/// Handles a request for a list, with the models that the key may use.
pub(crate) fn list<B>(
    gateway: &Gateway,
    request: &Request<B>,
    listing: Listing<'_>,
) -> Result<Response<Body>, Error> {
    only(request, "GET, HEAD")?;
    let caller = gateway.settings.now().keys.authenticate(request.headers())?;
    let is_anthropic = request.headers().contains_key(anthropic::VERSION_HEADER);
    let models = served(gateway, &caller);
    let all = || models.iter().map(|(id, model)| (id.as_str(), *model));
    let named = || all().map(|(id, model)| (id, model.created));
    Ok(match listing {
        Listing::One(encoded) => {
            let id = percent_decode_str(encoded).decode_utf8_lossy();
            let model = find(&models, &id)?;
            response::json(match is_anthropic {
                true => anthropic::model(&id, model.created),
                false => to_json(&listing_of(&id, model)),
            })
        }
        Listing::All if is_anthropic => response::json(anthropic::model_list(named())),
        Listing::All => {
            let data = all().map(|(id, model)| listing_of(id, model)).collect();
            response::json(to_json(&ModelList::new(data)))
        }
        Listing::Tags | Listing::Running => {
            let files: Vec<_> = models.keys().map(|id| file(gateway, &caller, id)).collect();
            let each = all().zip(&files).map(|((id, model), file)| described(id, model, file));
            let each: Vec<_> = each.collect();
            let is_tags = listing == Listing::Tags;
            response::json(if is_tags { ollama::tags(&each) } else { ollama::ps(&each) })
        }
    })
}

/// What Ollama's clients learn of a model.
fn described<'a>(name: &'a str, model: ServedModel, file: &'a ModelStatus) -> ollama::Model<'a> {
    let is_digest = |text: &&str| text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit());
    let described = ollama::Model {
        name,
        digest: Some(file.digest.as_str()).filter(is_digest),
        modified: Some(model.created),
        context_tokens: context(model).map(u64::from),
        ..ollama::Model::default()
    };
    described.with_details(&file.details)
}

/// The model file that most endpoints of the model with this name or alias serve; nothing is known
/// of it if there is none.
fn file(gateway: &Gateway, caller: &Caller, name: &str) -> Arc<ModelStatus> {
    let named = |name| gateway.dispatcher.commonest_file(caller.model(name));
    let found = named(name).or_else(|| named(ollama::without_latest(name)));
    found.map_or_else(Arc::default, |(file, _)| file)
}

/// An external endpoint does not tell its context.
fn context(model: ServedModel) -> Option<u32> {
    Some(model.context_tokens).filter(|tokens| *tokens != u32::MAX)
}

fn listing_of(id: &str, model: ServedModel) -> Model {
    Model { max_model_len: context(model), ..Model::new(id.to_string(), model.created) }
}

/// Most bytes of a request that only names a model.
const SHOW_BYTES_MAX: usize = 64 * 1024;

/// Handles Ollama's `POST /api/show`. As a request with a body, it counts for the limits of its
/// key.
pub(crate) async fn show(
    gateway: &Gateway,
    request: Request<Incoming>,
) -> Result<Response<Body>, Error> {
    only(&request, "POST")?;
    let settings = gateway.settings.now();
    let caller = settings.keys.authenticate(request.headers())?;
    let _permit = caller.limiter.admit()?;
    let (queue, class) = (caller.key.limits.queue, caller.key.class_max);
    let mut room = gateway.dispatcher.body_reservation(&caller.tenant, queue, class);
    let limits = BodyLimits { bytes_max: SHOW_BYTES_MAX, time_max: settings.config.timeouts.body };
    let (head, mut body) = request.into_parts();
    let body = read_body(&head.headers, &mut body, limits, &mut room).await?;
    let name = ollama::requested_model(&body).map_err(Error::Invalid)?;
    let models = served(gateway, &caller);
    let model = find(&models, &name).or_else(|_| find(&models, ollama::without_latest(&name)))?;
    let file = file(gateway, &caller, &name);
    Ok(response::json(ollama::show(&described(&name, model, &file))))
}

/// Models that are served and that the key may use, by name and alias. The list of each key is
/// cached until the served models or the configuration change.
fn served(gateway: &Gateway, caller: &Caller) -> Arc<BTreeMap<String, ServedModel>> {
    let version = gateway.dispatcher.models_version();
    caller.models.get_or_build(version, || {
        let (version, served) = gateway.dispatcher.models();
        (version, listed(caller, served))
    })
}

fn listed(caller: &Caller, served: BTreeMap<String, ServedModel>) -> BTreeMap<String, ServedModel> {
    let others = caller.aliases();
    let others = others.filter_map(|(name, model)| Some((name.to_string(), *served.get(model)?)));
    let mut all: BTreeMap<String, ServedModel> = others.collect();
    all.extend(served.into_iter().filter(|(name, _)| caller.limiter.allows(name)));
    all
}

/// The model with this name.
fn find(models: &BTreeMap<String, ServedModel>, id: &str) -> Result<ServedModel, Error> {
    let unknown = || Error::UnknownModel(id.chars().take(MODEL_NAME_BYTES_MAX).collect());
    models.get(id).copied().ok_or_else(unknown)
}
