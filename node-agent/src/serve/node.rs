//! The node, as every request, link, and status sees it.

use tokio_util::sync::CancellationToken;

use crate::engine::client::{EngineClient, LinkId};
use crate::serve::metrics::Metrics;
use crate::serve::metrics::compat::Names;
use crate::serve::vitals::Vitals;

/// What all requests share.
#[derive(Debug)]
pub struct Node {
    /// The node's name in the fleet.
    pub name: String,
    /// Chosen at random when the agent started.
    pub epoch: u64,
    /// The model's name.
    pub model: String,
    /// When the model file was opened, Unix seconds.
    pub created: u64,
    /// Digest of the key that clients of the agent's port must send.
    pub key: Option<[u8; 32]>,
    /// The engine.
    pub engine: EngineClient,
    /// The metrics.
    pub metrics: Metrics,
    /// Whose names they are told by too.
    pub compat: Vec<Names>,
    /// How engine and machine are.
    pub vitals: Vitals,
    /// Cancelled when requests are done: what never ends by itself must end now.
    pub stop: CancellationToken,
}

/// Where a request came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Link {
    /// Which link.
    pub id: LinkId,
    /// Whether its other end has shown that it may use this node: the gateway on a link
    /// that we dialed.
    pub trusted: bool,
}
