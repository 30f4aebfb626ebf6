//! The status that a node pushes: facts about itself, one JSON line at every change.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use hyper::{Response, StatusCode};
use inference_protocol::fleet::{
    ModelDetails, ModelStatus, NodeState, NodeStatus, STATUS_INTERVAL_MS, VERSION, Vitals,
};
use inference_protocol::openai::to_json;
use tokio::sync::watch;

use crate::engine::client::{EngineState, Figures, LinkId};
use crate::engine::ipc::EngineFacts;
use crate::serve::node::Node;
use crate::types::response::{self, Body};

/// Changes within this time are reported together.
const COALESCE: Duration = Duration::from_millis(20);

/// What clients learn of the model.
pub(crate) fn details(engine: &EngineFacts) -> ModelDetails {
    ModelDetails {
        family: engine.model.family.clone(),
        bytes: engine.sizes.bytes,
        parameters: engine.sizes.parameters,
        embedding_width: engine.sizes.embedding_width,
        embeds: engine.model.embeds,
        reasons: engine.format.reasons(),
        fills: engine.model.fills,
    }
}

/// The node's status from the point of view of `link`.
pub(crate) fn facts(node: &Node, link: LinkId) -> NodeStatus {
    let figures = node.engine.figures();
    let (state, engine) = match node.engine.state() {
        EngineState::Loading => (NodeState::Loading, None),
        EngineState::Ready(facts) => (NodeState::Ready, Some(facts)),
        EngineState::Restarting => (NodeState::Restarting, None),
        EngineState::Draining => (NodeState::Draining, None),
    };
    let model = engine.as_ref().map(|e| ModelStatus {
        id: node.model.clone(),
        digest: e.digest.to_string(),
        context_tokens: e.context_tokens,
        created: node.created,
        details: details(e),
    });
    let prefix_key = engine.as_ref().and_then(|engine| engine.prefix_key.as_deref().copied());
    NodeStatus {
        version: VERSION,
        node: node.name.clone(),
        epoch: node.epoch,
        state,
        models: model.into_iter().collect(),
        slots: engine.map_or(0, |e| e.slots),
        slots_busy_elsewhere: node.engine.in_flight_elsewhere(link) as u32,
        queued: figures.stats.queued,
        engine_restarts: figures.restarts,
        prefill_tokens_per_second: measured(figures.stats.prefill_tokens_per_second),
        decode_tokens_per_second: measured(figures.stats.decode_tokens_per_second),
        vitals: Some(vitals(node, &figures)),
        prefixes: node.hand_over.status(prefix_key, &node.engine),
    }
}

fn vitals(node: &Node, figures: &Figures) -> Vitals {
    let sample = node.resources.sample(node.engine.pid());
    Vitals {
        memory_resident_bytes: sample.resident_bytes,
        memory_available_bytes: sample.available_bytes,
        kv_cells: figures.stats.kv_cells,
        kv_cells_in_use: figures.stats.kv_cells_in_use,
        kv_cells_cached: figures.stats.kv_cells_cached,
        pressure_cpu: sample.pressure.cpu,
        pressure_memory: sample.pressure.memory,
        pressure_io: sample.pressure.io,
    }
}

fn measured(speed: f32) -> Option<f32> {
    (speed > 0.0).then_some(speed)
}

/// A response that never ends by itself: the current status, then one at every change, and at
/// intervals as a heartbeat.
pub(crate) fn stream(node: Arc<Node>, link: LinkId) -> Response<Body> {
    let changes = node.engine.watch_changes();
    let lines = futures_util::stream::unfold(
        (node, changes, true),
        move |(node, mut changes, first)| async move {
            if !first {
                tokio::select! {
                    () = wait_for_change(&mut changes) => {}
                    () = node.stop.cancelled() => return None,
                }
            }
            changes.mark_unchanged();
            let line = format!("{}\n", to_json(&facts(&node, link)));
            Some((Ok::<_, Infallible>(Frame::data(Bytes::from(line))), (node, changes, false)))
        },
    );
    let body = StreamBody::new(lines).boxed_unsync();
    response::with_type_and_body(StatusCode::OK, "application/x-ndjson", body)
}

async fn wait_for_change(changes: &mut watch::Receiver<u64>) {
    let interval = Duration::from_millis(STATUS_INTERVAL_MS);
    // The sender lives as long as the node, which this stream holds.
    if tokio::time::timeout(interval, changes.changed()).await.is_ok() {
        tokio::time::sleep(COALESCE).await;
    }
}
