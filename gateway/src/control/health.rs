//! Health endpoints for monitoring, on both listeners, without a key.

use hyper::{Request, Response, StatusCode};
use inference_protocol::openai::to_json;
use schemars::JsonSchema;
use serde::Serialize;

use super::only;
use crate::context::Gateway;
use crate::scheduler::fleet::Totals;
use crate::types::error::Error;
use crate::types::response::{self, Body};

/// The fleet in numbers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct FleetHealth {
    /// Whether the gateway can serve requests.
    pub status: HealthStatus,
    /// Nodes.
    pub nodes: NodeCounts,
    /// Slots.
    pub slots: SlotCounts,
    /// External endpoints.
    pub external: ExternalCounts,
    /// Queued requests.
    pub queue_depth: usize,
    /// Requests whose response is not finished, including queued ones.
    pub requests_in_flight: i64,
}

/// Status of the gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum HealthStatus {
    /// A node or an external endpoint is ready.
    Ok,
    /// Neither is ready, or the gateway is stopping.
    Unavailable,
}

/// Number of nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub struct NodeCounts {
    /// Linked nodes.
    pub linked: usize,
    /// Ready nodes.
    pub ready: usize,
    /// Ejected nodes.
    pub ejected: usize,
}

/// Number of slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub struct SlotCounts {
    /// Slots of ready nodes.
    pub total: u32,
    /// Busy slots of ready nodes, including those that other gateways use.
    pub busy: u32,
    /// Slots that this gateway holds on all endpoints.
    pub leased: u32,
}

/// Number of external endpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ExternalCounts {
    /// Ready external endpoints.
    pub ready: usize,
}

/// True if a request could be routed now.
fn is_ready(gateway: &Gateway, totals: &Totals) -> bool {
    !gateway.stop.is_cancelled() && totals.ready + totals.externals > 0
}

/// `/readyz`: 200 if a request could be routed now, otherwise 503.
pub(crate) fn readiness(gateway: &Gateway) -> Response<Body> {
    match is_ready(gateway, &gateway.dispatcher.totals()) {
        true => response::text(StatusCode::OK, "ready\n"),
        false => response::text(StatusCode::SERVICE_UNAVAILABLE, "not ready\n"),
    }
}

/// `/health`: fleet counts as JSON.
pub fn numbers(gateway: &Gateway) -> Response<Body> {
    let (totals, queue_depth) = gateway.dispatcher.summary();
    let (code, status) = match is_ready(gateway, &totals) {
        true => (StatusCode::OK, HealthStatus::Ok),
        false => (StatusCode::SERVICE_UNAVAILABLE, HealthStatus::Unavailable),
    };
    let health = FleetHealth {
        status,
        nodes: NodeCounts { linked: totals.nodes, ready: totals.ready, ejected: totals.ejected },
        slots: SlotCounts { total: totals.slots, busy: totals.busy, leased: totals.leases },
        external: ExternalCounts { ready: totals.externals },
        queue_depth,
        requests_in_flight: gateway.metrics.requests_in_flight(),
    };
    response::with_type(code, "application/json", to_json(&health))
}

/// Handles `/livez`, `/readyz`, `/health`, and `/openapi.json` on both listeners.
pub fn status<B>(gateway: &Gateway, request: &Request<B>) -> Result<Response<Body>, Error> {
    let answer = match request.uri().path() {
        "/livez" => response::text(StatusCode::OK, "ok\n"),
        "/readyz" => readiness(gateway),
        "/health" => numbers(gateway),
        "/openapi.json" => response::json(DESCRIPTION),
        _ => return Err(Error::UnknownPath),
    };
    only(request, "GET, HEAD").map(|()| answer)
}

/// The OpenAPI description.
const DESCRIPTION: &str = include_str!("../../../docs/openapi.json");
