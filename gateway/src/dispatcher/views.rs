//! The fleet as the admin API shows it.

use inference_protocol::fleet::Vitals;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One node, as operators see it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NodeView {
    /// Its name.
    pub name: String,
    /// What it says: `loading`, `ready`, `restarting` or `draining`.
    pub state: String,
    /// Whether it gets nothing new, because an operator said so.
    pub cordoned: bool,
    /// Whether it gets nothing new, because it failed.
    pub ejected: bool,
    /// Requests that it answers side by side.
    pub slots: u32,
    /// Slots that are taken.
    pub busy: u32,
    /// Of those, by requests of this gateway.
    pub leased: u32,
    /// Models that it serves.
    pub models: Vec<String>,
    /// Times that its engine was started again.
    pub engine_restarts: u64,
    /// Tokens of prompts that it reads in a second, as measured.
    pub prefill_tokens_per_second: Option<f32>,
    /// Tokens that it generates in a second, as measured.
    pub decode_tokens_per_second: Option<f32>,
    /// How long its link has held, in seconds.
    pub linked_seconds: u64,
    /// Where its address comes from: it `joined`, is `configured`, or is `external`.
    pub address: String,
    /// How its engine and machine are, where it says so.
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
    /// What it has in common with nodes; its slots are what it may do side by side.
    #[serde(flatten)]
    pub node: NodeView,
    /// What it was paid for tokens today (UTC).
    pub spent_today: f64,
    /// Most that it may be paid in a day, where there is a limit.
    pub spend_day_max: Option<f64>,
}

/// A class of the queue.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct QueueView {
    /// Its name.
    pub class: String,
    /// Requests that wait for their first slot.
    pub waiting: usize,
    /// How long the first of them has waited.
    pub longest_wait_seconds: Option<f64>,
}
