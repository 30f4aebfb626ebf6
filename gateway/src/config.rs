//! The configuration after checking: runtime code never meets a default or a bad value.
//!
//! [`load`] reads the file, [`raw`] walks it and reports every problem at once.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hyper::header::HeaderValue;

use crate::access::keys::ApiKey;
use crate::config::cors::Cors;
use crate::config::proxies::Proxies;
use crate::config::tls::{Acceptor, Authority, Dialler};
use crate::config::traces::Traces;
use crate::scheduler::fleet::Terms;
use crate::scheduler::routing::Policy;
use crate::types::class::Class;
use crate::types::limits::Bounds;
use crate::types::secret::KeyDigest;
use crate::upstream::external::Client;

pub mod cors;
pub mod document;
mod edge;
pub mod effective;
mod external;
pub mod files;
pub mod keys;
pub mod load;
mod nodes;
pub mod proxies;
pub mod reference;
pub mod schema;
mod section;
pub mod tls;
mod trace;
pub mod traces;
mod values;
pub mod yaml;

/// Connections of operators: Prometheus, a page or two, a command.
pub const ADMIN_CONNECTIONS_MAX: usize = 256;

/// Of those, of one address, unless the configuration says otherwise: few enough that one address
/// cannot keep the others out.
pub const ADMIN_CONNECTIONS_PER_IP: usize = 64;

/// Everything that the gateway is told.
#[derive(Debug)]
pub struct Config {
    /// The files that it was read from.
    pub files: Vec<files::Named>,
    /// Address of the public listener.
    pub listen: SocketAddr,
    /// Set when the public listener speaks TLS.
    pub tls: Option<Acceptor>,
    /// The listener for operators, where there is one.
    pub admin: Option<Admin>,
    /// Other names of models, for everybody.
    pub aliases: BTreeMap<String, String>,
    /// Proxies whose X-Forwarded-For is believed.
    pub trusted_proxies: Proxies,
    /// Pages that may ask from browsers.
    pub cors: Cors,
    /// API keys.
    pub keys: Vec<ApiKey>,
    /// Where `flotilla-gateway key` keeps some of them.
    pub keys_file: Option<PathBuf>,
    /// Whether that file exists. It need not at the start; one that vanishes later is a mistake.
    pub has_keys_file: bool,
    /// Where what was used and spent outlives the gateway.
    pub state_file: Option<PathBuf>,
    /// Whether anybody may ask, without a key.
    pub allow_anonymous: bool,
    /// The key that nodes join with; absent where none may.
    pub join_key: Option<KeyDigest>,
    /// Who must vouch for nodes that join, where somebody must.
    pub node_authority: Option<Authority>,
    /// Nodes that we dial.
    pub static_nodes: Vec<StaticNode>,
    /// What a node costs in an hour.
    pub node_price_per_hour: f64,
    /// Endpoints that are no nodes of ours.
    pub externals: Vec<ExternalEndpoint>,
    /// Limits.
    pub limits: Limits,
    /// Timeouts.
    pub timeouts: Timeouts,
    /// Attempts in a row that may fail before a request does.
    pub retries_max: usize,
    /// How endpoints are chosen.
    pub policy: Policy,
    /// A first token that is this late is asked of a second node.
    pub hedge: Option<Duration>,
    /// Nodes that have answered nothing for so long are asked something.
    pub probe_interval: Option<Duration>,
    /// Where traces go, if they do.
    pub traces: Option<Traces>,
}

/// The listener for operators.
#[derive(Debug)]
pub struct Admin {
    /// Its address.
    pub listen: SocketAddr,
    /// What changes something wants this key; absent where nothing can be changed.
    pub key: Option<KeyDigest>,
    /// The file of that key.
    pub key_file: Option<PathBuf>,
    /// Set when it speaks TLS.
    pub tls: Option<Acceptor>,
    /// The file of its certificate, then.
    pub cert_file: Option<PathBuf>,
    /// Connections of one address at one time.
    pub connections_per_ip_max: usize,
}

/// A node with a port that we dial.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StaticNode {
    /// As it was written, for messages.
    pub url: String,
    /// Name or address.
    pub host: String,
    /// Port.
    pub port: u16,
    /// Set for https.
    pub tls: Option<Dialler>,
    /// The key that its port wants.
    pub authorization: Option<HeaderValue>,
}

/// An endpoint that is no node of ours.
#[derive(Debug, Clone)]
pub struct ExternalEndpoint {
    /// Its name.
    pub name: String,
    /// How it is reached.
    pub client: Arc<Client>,
    /// Our names of its models.
    pub models: Vec<String>,
    /// Requests side by side.
    pub concurrent_max: u32,
    /// On which terms it serves.
    pub terms: Terms,
    /// Digest of everything that is written of it, its files included.
    written: KeyDigest,
}

impl PartialEq for ExternalEndpoint {
    fn eq(&self, other: &Self) -> bool {
        self.written == other.written
    }
}

/// Limits on everything that grows.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Bytes of one request body.
    pub body_bytes_max: usize,
    /// Client connections at one time.
    pub connections_max: usize,
    /// Client connections of one address at one time.
    pub connections_per_ip_max: usize,
    /// Waiting requests, in count and bytes.
    pub queue: Bounds,
    /// Bytes of one whole answer.
    pub response_bytes_max: usize,
    /// Bytes of one event of a stream.
    pub event_bytes_max: usize,
}

/// How long requests without a deadline of their own may wait for a slot.
#[derive(Debug, Clone, Copy)]
pub struct QueueTimeouts {
    /// Class interactive.
    pub interactive: Duration,
    /// Class standard.
    pub standard: Duration,
    /// Class batch.
    pub batch: Duration,
}

impl QueueTimeouts {
    /// Of a class.
    pub fn of(&self, class: Class) -> Duration {
        match class {
            Class::Interactive => self.interactive,
            Class::Standard => self.standard,
            Class::Batch => self.batch,
        }
    }
}

/// How long anything may take.
#[derive(Debug, Clone, Copy)]
pub struct Timeouts {
    /// A request's head.
    pub header: Duration,
    /// A request's body.
    pub body: Duration,
    /// A connection between two requests.
    pub keep_alive: Duration,
    /// A client that reads nothing of what we have for it.
    pub write: Duration,
    /// Connecting to a static node.
    pub connect: Duration,
    /// Waiting for a slot, for each class.
    pub queue: QueueTimeouts,
    /// From a slot to the first token, or to a whole answer.
    pub first_token: Duration,
    /// Between two events of a stream.
    pub idle: Duration,
    /// From a request to the head of its stream with a comment, while there is nothing of the
    /// answer.
    pub comment: Duration,
    /// From the loss of a node to a slot of another one that goes on.
    pub resume: Duration,
    /// Finishing requests after SIGTERM.
    pub shutdown: Duration,
}
