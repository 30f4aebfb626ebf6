//! The checked configuration. Code at run time sees no missing defaults and no invalid values.
//!
//! [`load`] reads the file; [`document`] walks it and reports all problems at once.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hyper::header::HeaderValue;

use crate::access::keys::{Aliases, ApiKey};
use crate::access::responses;
use crate::config::acme::Acme;
use crate::config::cors::Cors;
use crate::config::proxies::Proxies;
use crate::config::store::StoreSettings;
use crate::config::tls::{Acceptor, Authority, Dialer};
use crate::config::trace_export::TraceExport;
use crate::config::webhooks::Webhook;
use crate::scheduler::fleet::Terms;
use crate::scheduler::routing::Policy;
use crate::types::class::Class;
use crate::types::limits::QueueBounds;
use crate::types::secret::KeyDigest;
use crate::upstream::external::Client;

pub mod acme;
mod aliases;
pub(crate) mod api_keys;
pub(crate) mod cors;
pub mod document;
mod edge;
pub mod effective;
mod external;
pub mod files;
pub(crate) mod key_entries;
mod key_recorder;
pub mod load;
pub mod locate;
mod nodes;
pub(crate) mod proxies;
pub mod reference;
pub mod schema;
mod section;
pub mod store;
pub(crate) mod tls;
pub(crate) mod trace_export;
mod values;
pub(crate) mod webhooks;
pub mod yaml;

/// Connections on the admin listener: Prometheus, a page or two, a command.
pub(crate) const ADMIN_CONNECTIONS_MAX: usize = 256;

/// Default limit per address on the admin listener: few enough that one address cannot block the
/// others.
pub(crate) const ADMIN_CONNECTIONS_PER_IP: usize = 64;

/// The checked configuration.
#[derive(Debug)]
pub struct Config {
    /// The files it was read from.
    pub files: Vec<files::Named>,
    /// Address of the public listener.
    pub listen: SocketAddr,
    /// TLS of the public listener, if configured.
    pub tls: Option<Acceptor>,
    /// Automatic certificates of the public listener, if configured.
    pub acme: Option<Acme>,
    /// The admin listener, if configured.
    pub admin: Option<Admin>,
    /// Model aliases for all keys.
    pub aliases: Aliases,
    /// Proxies whose `X-Forwarded-For` is trusted.
    pub trusted_proxies: Proxies,
    /// Web pages that may call the API.
    pub cors: Cors,
    /// API keys.
    pub keys: Vec<ApiKey>,
    /// The file in which `flotilla-gateway key` keeps keys.
    pub keys_file: Option<PathBuf>,
    /// True if that file exists. It may be missing at startup, but must not vanish later.
    pub has_keys_file: bool,
    /// The file that keeps usage, spend, and cordons across restarts.
    pub state_file: Option<PathBuf>,
    /// Where files and batches are kept, if they are.
    pub store: Option<StoreSettings>,
    /// Who is told when stored work ends.
    pub webhooks: Vec<Webhook>,
    /// Accept requests without an API key.
    pub allow_anonymous: bool,
    /// Digest of the join key; `None` if nodes may not join.
    pub join_key: Option<KeyDigest>,
    /// File of the join key.
    pub join_key_file: Option<PathBuf>,
    /// The CA that must have issued the client certificates of joining nodes.
    pub node_authority: Option<Authority>,
    /// Nodes that the gateway dials.
    pub static_nodes: Vec<StaticNode>,
    /// Price of a node per hour.
    pub node_price_per_hour: f64,
    /// Leaving nodes hand their saved prefixes to others.
    pub hand_over: bool,
    /// External endpoints.
    pub externals: Vec<ExternalEndpoint>,
    /// Limits.
    pub limits: Limits,
    /// Timeouts.
    pub timeouts: Timeouts,
    /// Consecutive attempts that may fail before a request fails.
    pub retries_max: usize,
    /// Routing policy.
    pub policy: Policy,
    /// Hedge with a second node if the first token takes this long.
    pub hedge: Option<Duration>,
    /// Check the health of nodes that have answered nothing for this long.
    pub probe_interval: Option<Duration>,
    /// Trace export, if configured.
    pub traces: Option<TraceExport>,
}

impl Config {
    /// Continues to use the certificate of `old`, which a task renews, if the settings of automatic
    /// certificates are the same. With other settings, it is used until there is another one.
    pub(crate) fn keep_certificate(&mut self, old: &Self) {
        let (Some(acme), Some(old)) = (&mut self.acme, &old.acme) else { return };
        if acme == old {
            acme.certificate = old.certificate.clone();
            self.tls.iter_mut().for_each(|tls| tls.share_live_certificate(&old.certificate));
        } else if acme.certificate.get().is_none()
            && let Some(served) = old.certificate.get()
        {
            acme.certificate.set(served);
        }
    }
}

/// The admin listener.
#[derive(Debug)]
pub struct Admin {
    /// Its address.
    pub listen: SocketAddr,
    /// Digest of the admin key; `None` disables actions and details.
    pub key: Option<KeyDigest>,
    /// File of the admin key.
    pub key_file: Option<PathBuf>,
    /// TLS, if configured.
    pub tls: Option<Acceptor>,
    /// File of its TLS certificate.
    pub cert_file: Option<PathBuf>,
    /// Concurrent connections per address.
    pub connections_per_ip_max: usize,
}

/// A node that the gateway dials.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StaticNode {
    /// URL as written, for messages.
    pub url: String,
    /// Hostname or address.
    pub host: String,
    /// Port.
    pub port: u16,
    /// TLS, for https URLs.
    pub tls: Option<Dialer>,
    /// `Authorization` header with the key of the node's port.
    pub authorization: Option<HeaderValue>,
}

/// An external endpoint.
#[derive(Debug, Clone)]
pub struct ExternalEndpoint {
    /// Its name.
    pub name: String,
    /// Its HTTP client.
    pub client: Arc<Client>,
    /// Its models, by our names; empty: those that it lists.
    pub models: Vec<String>,
    /// Most concurrent requests.
    pub concurrent_max: u32,
    /// Weight and prices.
    pub terms: Terms,
    /// Digest of its whole configuration, including its files.
    written: KeyDigest,
}

impl PartialEq for ExternalEndpoint {
    fn eq(&self, other: &Self) -> bool {
        self.written == other.written
    }
}

/// Limits on everything that can grow.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Bytes of a request body.
    pub body_bytes_max: usize,
    /// Concurrent client connections.
    pub connections_max: usize,
    /// Concurrent client connections per address.
    pub connections_per_ip_max: usize,
    /// Queue limits.
    pub queue: QueueBounds,
    /// Bytes of a response in one piece.
    pub response_bytes_max: usize,
    /// Bytes of an event in a stream.
    pub event_bytes_max: usize,
    /// Responses of the Responses API.
    pub stored: responses::Limits,
}

/// How long requests without their own deadline may wait for a slot.
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
    /// The timeout of a class.
    pub fn of(&self, class: Class) -> Duration {
        match class {
            Class::Interactive => self.interactive,
            Class::Standard => self.standard,
            Class::Batch => self.batch,
        }
    }
}

/// Timeouts.
#[derive(Debug, Clone, Copy)]
pub struct Timeouts {
    /// For a request head.
    pub header: Duration,
    /// For a request body.
    pub body: Duration,
    /// For an idle connection between two requests.
    pub keep_alive: Duration,
    /// Slow-read budget: how long a client may stop reading.
    pub write: Duration,
    /// For connecting to a static node.
    pub connect: Duration,
    /// For a slot, by class.
    pub queue: QueueTimeouts,
    /// From slot to first token, or to a whole response.
    pub first_token: Duration,
    /// Between two events of a stream.
    pub idle: Duration,
    /// Until a stream gets its head and a comment while the response has not begun.
    pub comment: Duration,
    /// From the loss of a node to a slot on another node that continues the response.
    pub resume: Duration,
    /// For finishing requests after SIGTERM.
    pub shutdown: Duration,
}
