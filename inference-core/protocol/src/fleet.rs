//! The node link: how a node joins a gateway, and the status it pushes.
//!
//! The gateway reaches a node over HTTP/2, whichever side dialed. A link dialed by the node starts
//! as an HTTP/1.1 request `POST /fleet/v1/join` with `Upgrade: flotilla-node`; after the 101 the
//! roles flip and the gateway is the HTTP/2 client. On any link the gateway then opens `GET
//! /fleet/v1/status`, whose body has one JSON [`NodeStatus`] per line. The node pushes a line at
//! every change and at least every [`STATUS_INTERVAL_MS`], until it leaves.
//!
//! ```
//! use inference_protocol::fleet::{NodeState, NodeStatus};
//!
//! let line = r#"{"version":3,"node":"node-1","epoch":7,"state":"loading","models":[],"slots":4,
//!     "slots_busy_elsewhere":0,"queued":0,"engine_restarts":0}"#;
//! let status: NodeStatus = serde_json::from_str(line).unwrap();
//! assert_eq!(status.state, NodeState::Loading);
//! ```

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Path on the gateway where a node joins.
pub const JOIN_PATH: &str = "/fleet/v1/join";
/// Path on the node where the gateway reads its status.
pub const STATUS_PATH: &str = "/fleet/v1/status";
/// The `Upgrade` protocol of a link that the node dialed.
pub const JOIN_UPGRADE: &str = "flotilla-node";
/// Header: the node's name, a plain id.
pub const NODE_HEADER: &str = "x-flotilla-node";
/// Header: the node's epoch, decimal. A restarted agent has a new one. A node that joins again with
/// the same epoch replaces its old link; the gateway refuses another node of that name with 423.
pub const EPOCH_HEADER: &str = "x-flotilla-epoch";
/// Header of the gateway's response to a join: its id, which changes with each start.
pub const GATEWAY_HEADER: &str = "x-flotilla-gateway";
/// Header of a join: the ids of the gateways that the node is already linked to, comma-separated.
/// Such a gateway refuses with 409: several addresses may lead to one gateway, and each gateway has
/// one link.
pub const LINKED_HEADER: &str = "x-flotilla-linked";
/// Header: the versions of this protocol that the sender speaks, comma-separated ([`VERSION`]). A
/// node sends it when it joins; the gateway refuses with 426 if none is its own, and otherwise
/// names the one that the link then speaks. The gateway also sends it when it opens a status
/// stream. Within one version, new fields are optional and unknown fields are ignored.
pub const VERSION_HEADER: &str = "x-flotilla-version";
/// Header of a request from the gateway: its tenant. Nodes separate the caches of tenants and let
/// tenants take turns.
pub const TENANT_HEADER: &str = "x-flotilla-tenant";
/// Header of a request from the gateway: the group of tenants that share cached prefixes with its
/// tenant. Without it, its tenant shares them with no other.
pub const PREFIX_GROUP_HEADER: &str = "x-flotilla-prefix-group";
/// Header of a request from the gateway: the digest of the intended weights, as the node last
/// reported it. A node whose engine has loaded other weights refuses with 503.
pub const DIGEST_HEADER: &str = "x-flotilla-digest";
/// Path on the node of its saved prefixes, for the gateway. A leaving node offers them in its
/// status ([`PrefixStatus`]). `POST` claims them for the node in [`HEIR_HEADER`] and lists them as
/// [`OfferedPrefix`]es; a gateway that is not the first gets 409. So does one that claims those of
/// a node which works, or has to write them first, which it then does. `GET` of one of their files,
/// by its number as another segment, returns it, `PUT` sends it to the other node, and `DELETE`
/// says to the first one that it may leave.
pub const PREFIXES_PATH: &str = "/fleet/v1/prefixes";
/// Header of a claim: the name of the node that shall have the prefixes.
pub const HEIR_HEADER: &str = "x-flotilla-heir";
/// Header of the request that opens a status stream: the gateway wants what a leaving node offers.
pub const HAND_OVER_HEADER: &str = "x-flotilla-hand-over";
/// Version of the node link protocol.
pub const VERSION: u32 = 3;
/// Maximum time between two status lines of a node, in milliseconds.
pub const STATUS_INTERVAL_MS: u64 = 1_000;
/// A node whose last status is older than this is offline, in milliseconds.
pub const STATUS_DEADLINE_MS: u64 = 3_000;
/// Maximum length of a status line in bytes.
pub const STATUS_LINE_BYTES_MAX: usize = 64 * 1024;

/// True if a [`VERSION_HEADER`] contains our version.
pub fn speaks_our_version(header: &str) -> bool {
    header.split(',').any(|version| version.trim().parse() == Ok(VERSION))
}

/// State of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum NodeState {
    /// The engine is loading its model.
    Loading,
    /// Requests can be served.
    Ready,
    /// The engine died and restarts.
    Restarting,
    /// The node finishes its requests and accepts no new ones.
    Draining,
}

impl NodeState {
    /// All states.
    pub const ALL: [Self; 4] = [Self::Loading, Self::Ready, Self::Restarting, Self::Draining];

    /// The name in metrics and lists.
    pub fn name(self) -> &'static str {
        match self {
            Self::Loading => "loading",
            Self::Ready => "ready",
            Self::Restarting => "restarting",
            Self::Draining => "draining",
        }
    }
}

/// One model that a node serves.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ModelStatus {
    /// The name that clients use.
    pub id: String,
    /// Fingerprint of the model file: equal digests generate equal tokens.
    pub digest: String,
    /// Prompt and completion tokens that one request may hold together.
    pub context_tokens: u32,
    /// Unix time in seconds when the model was loaded.
    pub created: u64,
    /// What it is and can do.
    #[serde(default)]
    pub details: ModelDetails,
}

/// What a model is and can do, for lists of models. Absent parts are unknown.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ModelDetails {
    /// Its architecture, such as `llama`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub family: String,
    /// Size of its weights in bytes.
    pub bytes: u64,
    /// Number of its parameters.
    pub parameters: u64,
    /// Dimensions of its embeddings.
    pub embedding_width: u32,
    /// It embeds or ranks texts and generates none.
    pub embeds: bool,
    /// It can reason before it responds.
    pub reasons: bool,
    /// It can fill gaps in a text.
    pub fills: bool,
}

/// Facts about a node, never commands. One line of the status stream, and the agent's `/health`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NodeStatus {
    /// Version of the node link that it speaks.
    #[serde(default)]
    pub version: u32,
    /// The node's name.
    pub node: String,
    /// Random number of this run of the agent; counters restart with it.
    pub epoch: u64,
    /// State of the node.
    pub state: NodeState,
    /// Models it serves; empty while none is loaded.
    pub models: Vec<ModelStatus>,
    /// Sequences that decode in parallel.
    pub slots: u32,
    /// Slots taken by requests that did not come over this link.
    pub slots_busy_elsewhere: u32,
    /// Requests that wait inside the node.
    pub queued: u32,
    /// Restarts of the engine process since the agent started.
    pub engine_restarts: u64,
    /// Prompt tokens per second, as last measured; absent until measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefill_tokens_per_second: Option<f32>,
    /// Generated tokens per second over all slots, as last measured; absent until measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decode_tokens_per_second: Option<f32>,
    /// How engine and machine are; older agents say nothing of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vitals: Option<Vitals>,
    /// Prefixes that its engine keeps on its disk, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefixes: Option<PrefixStatus>,
}

/// What a node says of the prefixes on its disk.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct PrefixStatus {
    /// Identifies weights, program and settings of its engine, in hexadecimal digits: engines with
    /// equal keys can use each other's prefixes.
    pub key: String,
    /// Prefixes that the leaving node offers.
    #[serde(skip_serializing_if = "is_zero")]
    pub offered: u32,
    /// True if all that a running engine would keep is in files, so that a gateway which has
    /// drained the node may claim them.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub written: bool,
    /// The node that shall have them, once a gateway has claimed them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub heir: Option<String>,
}

fn is_zero(count: &u32) -> bool {
    *count == 0
}

/// A prefix that a leaving node offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct OfferedPrefix {
    /// Number of its file.
    pub file: u64,
    /// Tokens that it covers.
    pub tokens: u32,
    /// Size of the file in bytes.
    pub bytes: u64,
}

/// State of a node's engine and machine, for operators; the gateway decides nothing by it. Unknown
/// values are absent or 0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Vitals {
    /// Bytes of memory that agent and engine hold, the mapped model included.
    pub memory_resident_bytes: u64,
    /// Bytes that the machine, or the agent's control group, could still give.
    pub memory_available_bytes: u64,
    /// Cells of the KV pool.
    pub kv_cells: u32,
    /// Of those, of requests in slots.
    pub kv_cells_in_use: u32,
    /// Of those, in the prefix cache.
    pub kv_cells_cached: u32,
    /// Share of the last ten seconds in which something waited for a CPU, 0 to 1; this and the next
    /// two are the kernel's pressure (PSI), where it measures that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pressure_cpu: Option<f32>,
    /// The same for memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pressure_memory: Option<f32>,
    /// The same for disks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pressure_io: Option<f32>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_from_a_newer_node_is_still_read() {
        let line = r#"{"node":"a","epoch":7,"state":"ready","models":[],"slots":4,
            "slots_busy_elsewhere":0,"queued":0,"engine_restarts":0,"invented_later":1}"#;
        let status: NodeStatus = serde_json::from_str(line).unwrap();
        assert_eq!(status.state, NodeState::Ready);
        assert_eq!(status.decode_tokens_per_second, None);
        assert_eq!(status.version, 0, "one that is older than versions");
        assert_eq!(status.vitals, None, "and than these");
        assert_eq!(status.prefixes, None);
    }
}
