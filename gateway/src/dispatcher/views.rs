//! The fleet as the admin API shows it.

use inference_protocol::fleet::Vitals;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One node, as operators see it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NodeView {
    /// Its name.
    pub name: String,
    /// Reported state: `loading`, `ready`, `restarting` or `draining`.
    pub state: String,
    /// True if an operator has cordoned it: it gets no new requests.
    pub cordoned: bool,
    /// True if it is ejected because it failed: it gets no new requests for a while.
    pub ejected: bool,
    /// Number of slots: most concurrent requests.
    pub slots: u32,
    /// Busy slots.
    pub busy: u32,
    /// Busy slots that this gateway uses.
    pub leased: u32,
    /// Names of the models that it serves.
    pub models: Vec<String>,
    /// Engine restarts since the agent started.
    pub engine_restarts: u64,
    /// Measured prefill speed, in prompt tokens per second.
    pub prefill_tokens_per_second: Option<f32>,
    /// Measured decode speed over all slots, in tokens per second.
    pub decode_tokens_per_second: Option<f32>,
    /// Age of its link, in seconds.
    pub linked_seconds: u64,
    /// How the gateway found it: `joined`, `configured` or `external`.
    pub address: String,
    /// Memory, KV cells and pressure, if the node reports them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vitals: Option<Vitals>,
}

/// An operator's action on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeAction {
    /// Send no new requests.
    Cordon,
    /// Cordon the node and move its requests elsewhere.
    Drain,
    /// Send requests again.
    Uncordon,
}

impl NodeAction {
    /// All actions.
    pub const ALL: [Self; 3] = [Self::Cordon, Self::Drain, Self::Uncordon];

    /// Name in URL paths.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cordon => "cordon",
            Self::Drain => "drain",
            Self::Uncordon => "uncordon",
        }
    }
}

/// An external endpoint, as operators see it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ExternalView {
    /// Fields in common with nodes. Its slots are its most concurrent requests.
    #[serde(flatten)]
    pub node: NodeView,
    /// Spend on tokens today (UTC).
    pub spent_today: f64,
    /// Daily limit of spend on tokens; null if there is none.
    pub spend_day_max: Option<f64>,
}

/// A class of the queue.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct QueueView {
    /// Its name.
    pub class: String,
    /// Queued requests that wait for their first slot.
    pub waiting: usize,
    /// Longest current wait, in seconds.
    pub longest_wait_seconds: Option<f64>,
}
