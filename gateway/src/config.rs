//! The configuration after checking: runtime code never meets a default or a bad value.
//!
//! [`load`] reads the file, [`raw`] walks it and reports every problem at once.

use std::net::SocketAddr;
use std::time::Duration;

use hyper::header::HeaderValue;

use crate::admission::{Bounds, Class};
use crate::limiter::KeyLimits;
use crate::routing::Policy;
use crate::secret::KeyDigest;
use crate::tls::{Acceptor, Dialler};

pub mod load;
pub mod raw;
mod section;

/// Everything that the gateway is told.
#[derive(Debug)]
pub struct Config {
    /// Address of the public listener.
    pub listen: SocketAddr,
    /// Set when the public listener speaks TLS.
    pub tls: Option<Acceptor>,
    /// API keys; empty where anybody may ask.
    pub keys: Vec<ApiKey>,
    /// The key that nodes join with; absent where none may.
    pub join_key: Option<KeyDigest>,
    /// Nodes that we dial.
    pub static_nodes: Vec<StaticNode>,
    /// Limits.
    pub limits: Limits,
    /// Timeouts.
    pub timeouts: Timeouts,
    /// Attempts in a row that may fail before a request does.
    pub retries_max: usize,
    /// How endpoints are chosen.
    pub policy: Policy,
    /// Nodes that have answered nothing for so long are asked something.
    pub probe_interval: Option<Duration>,
}

/// A key of the public API.
#[derive(Debug, Clone)]
pub struct ApiKey {
    /// The tenant's name.
    pub name: String,
    /// The key's digest.
    pub digest: KeyDigest,
    /// The most urgent class that it may ask for.
    pub class_max: Class,
    /// What it may use.
    pub limits: KeyLimits,
}

/// A node with a port that we dial.
#[derive(Debug, Clone)]
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

/// Limits on everything that grows.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Bytes of one request body.
    pub body_bytes_max: usize,
    /// Client connections at one time.
    pub connections_max: usize,
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
    /// Connecting to a static node.
    pub connect: Duration,
    /// Waiting for a slot, for each class.
    pub queue: QueueTimeouts,
    /// From a slot to the first token, or to a whole answer.
    pub first_token: Duration,
    /// Between two events of a stream.
    pub idle: Duration,
    /// From the loss of a node to a slot of another one that goes on.
    pub resume: Duration,
    /// Finishing requests after SIGTERM.
    pub shutdown: Duration,
}
