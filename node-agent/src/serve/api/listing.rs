//! The model of this node, in the formats of OpenAI, Anthropic and Ollama.

use std::collections::BTreeMap;

use hyper::Response;
use inference_core::types::request::ModelTexts;
use inference_protocol::fleet::ModelDetails;
use inference_protocol::openai::{Model, ModelList, ModelMeta, to_json};
use inference_translation::messages::models as anthropic;
use inference_translation::ollama;
use serde_json::json;

use super::is_ready;
use crate::engine::client::EngineState;
use crate::serve::node::Node;
use crate::serve::status;
use crate::types::error::Error;
use crate::types::response::{self, Body};

/// `/v1/models`
pub(super) fn all(node: &Node, is_anthropic: bool) -> Response<Body> {
    if is_anthropic {
        let served = is_ready(node).then_some((node.model.as_str(), node.created));
        return response::json(anthropic::model_list(served.into_iter()));
    }
    let served = is_ready(node).then(|| model(node));
    response::json(to_json(&ModelList::new(served.into_iter().collect())))
}

/// `/v1/models/{id}`
pub(super) fn one(node: &Node, is_anthropic: bool) -> Response<Body> {
    response::json(match is_anthropic {
        true => anthropic::model(&node.model, node.created),
        false => to_json(&model(node)),
    })
}

fn model(node: &Node) -> Model {
    let recommended = node.sampling_defaults();
    let sampling_defaults = recommended.set().map(|(name, value)| (name.into(), value)).collect();
    let facts = match node.engine.state() {
        EngineState::Ready(facts) => Some(facts),
        _ => None,
    };
    let max_model_len = facts.as_ref().map(|facts| facts.context_tokens);
    let meta = facts.as_ref().map(|facts| ModelMeta {
        n_vocab: facts.sizes.vocabulary,
        n_ctx: facts.context_tokens,
        n_ctx_train: facts.sizes.context_trained,
        n_embd: facts.sizes.embedding_width,
        n_params: facts.sizes.parameters,
        size: facts.sizes.bytes,
    });
    let model = Model::new(node.model.clone(), node.created);
    Model { sampling_defaults, max_model_len, meta, ..model }
}

/// llama-server's `/slots`, read-only.
pub(super) fn slots(node: &Node) -> Response<Body> {
    let EngineState::Ready(facts) = node.engine.state() else {
        return response::json("[]");
    };
    let busy = node.engine.figures().stats.slots_busy;
    let slot = |id| {
        json!({
            "id": id,
            "n_ctx": facts.context_tokens,
            "speculative": facts.speculates,
            "is_processing": id < busy,
        })
    };
    response::json(to_json(&(0..facts.slots).map(slot).collect::<Vec<_>>()))
}

/// llama-server's `/props`, read-only.
pub(super) fn props(node: &Node, texts: &ModelTexts) -> Response<Body> {
    let facts = match node.engine.state() {
        EngineState::Ready(facts) => Some((facts.context_tokens, facts.slots, facts.speculates)),
        _ => None,
    };
    let (n_ctx, slots, speculates) = facts.unwrap_or_default();
    let recommended: BTreeMap<_, _> = node.sampling_defaults().set().collect();
    response::json(to_json(&json!({
        "default_generation_settings": {
            "id": 0,
            "n_ctx": n_ctx,
            "speculative": speculates,
            "is_processing": false,
            "params": recommended,
        },
        "total_slots": slots,
        // The name: where the file is concerns nobody else.
        "model_path": node.model,
        "model_alias": node.model,
        "modalities": {"vision": false, "audio": false},
        "chat_template": texts.template.as_deref().unwrap_or_default(),
        "bos_token": texts.beginning,
        "eos_token": texts.end,
        "build_info": concat!("flotilla ", env!("CARGO_PKG_VERSION")),
        "is_sleeping": false,
    })))
}

/// Ollama's `/api/tags`.
pub(super) fn tags(node: &Node) -> Response<Body> {
    let known = Known::of(node);
    let served = is_ready(node).then(|| described(node, &known));
    response::json(ollama::tags(served.as_slice()))
}

/// Ollama's `/api/ps`.
pub(super) fn running(node: &Node) -> Response<Body> {
    let known = Known::of(node);
    let served = is_ready(node).then(|| described(node, &known));
    response::json(ollama::ps(served.as_slice()))
}

/// Ollama's `/api/show`.
pub(super) fn show(node: &Node, body: &[u8]) -> Result<Response<Body>, Error> {
    let name = ollama::requested_model(body).map_err(Error::Translation)?;
    super::check_model(node, Some(&name))?;
    Ok(response::json(ollama::show(&described(node, &Known::of(node)))))
}

/// What Ollama's clients learn of the model.
fn described<'a>(node: &'a Node, known: &'a Known) -> ollama::Model<'a> {
    let model = ollama::Model {
        name: &node.model,
        digest: Some(&known.digest),
        modified: Some(node.created),
        context_tokens: known.context_tokens,
        ..ollama::Model::default()
    };
    model.with_details(&known.details)
}

/// What the engine says of the model, if it is ready.
#[derive(Default)]
struct Known {
    digest: String,
    context_tokens: Option<u64>,
    details: ModelDetails,
}

impl Known {
    fn of(node: &Node) -> Self {
        let EngineState::Ready(facts) = node.engine.state() else { return Self::default() };
        Self {
            digest: facts.digest.to_string(),
            context_tokens: Some(facts.context_tokens.into()),
            details: status::details(&facts),
        }
    }
}
