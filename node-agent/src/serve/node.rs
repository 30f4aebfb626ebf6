//! The node, shared by every request, link, and status.

use inference_core::types::request::SamplingDefaults;
use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;

use crate::engine::client::{EngineClient, EngineState, LinkId};
use crate::engine::prefix_disk::PrefixDiskOptions;
use crate::serve::hand_over::HandOver;
use crate::serve::metrics::Metrics;
use crate::serve::metrics::compat::Names;
use crate::serve::resources::ResourceSampler;
use crate::serve::responses::Responses;

/// State that all requests share.
#[derive(Debug)]
pub(crate) struct Node {
    /// The node's name in the fleet.
    pub name: String,
    /// Random number chosen when the agent started.
    pub epoch: u64,
    pub model: String,
    /// When the model file was opened, Unix seconds.
    pub created: u64,
    /// Digest of the key that clients of the agent's port must send.
    pub key: Option<[u8; 32]>,
    pub engine: EngineClient,
    pub metrics: Metrics,
    /// Other servers' names under which metrics are served as well.
    pub compat: Vec<Names>,
    /// True if requests may replace the chat template.
    pub allows_chat_template: bool,
    /// Memory and pressure of engine and machine.
    pub resources: ResourceSampler,
    /// Where the engine keeps prefixes on disk, if it does.
    pub prefix_disk: Option<PrefixDiskOptions>,
    /// True if it saves what slots hold.
    pub saves_slots: bool,
    /// Saved prefixes on their way to another node, or from one.
    pub hand_over: HandOver,
    /// Stored responses of the Responses API.
    pub responses: Responses,
    /// Canceled when all requests are done, to end responses that never end by themselves.
    pub stop: CancellationToken,
}

impl Node {
    /// Sampling parameters that the loaded model recommends. An engine that is not ready accepts no
    /// requests.
    pub(crate) fn sampling_defaults(&self) -> SamplingDefaults {
        match self.engine.state() {
            EngineState::Ready(facts) => *facts.sampling,
            _ => SamplingDefaults::default(),
        }
    }

    /// Short hash of the loaded weights and of this program's version: always 13 bytes.
    pub(crate) fn fingerprint(&self) -> String {
        let digest = match self.engine.state() {
            EngineState::Ready(facts) => facts.digest.to_string(),
            _ => String::new(),
        };
        let hash = Sha256::digest(format!("{digest} {}", env!("CARGO_PKG_VERSION")));
        let hex: String = hash[..5].iter().map(|byte| format!("{byte:02x}")).collect();
        format!("fp_{hex}")
    }
}

/// Where a request came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Link {
    pub id: LinkId,
    /// True if the other end has proven that it may use this node: the gateway on a link that the
    /// agent dialed.
    pub trusted: bool,
}
