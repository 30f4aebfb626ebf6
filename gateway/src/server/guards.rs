//! The edge between the network and the request pipeline: no client can take more than its share
//! before we know who it is.
//!
//! [`flotilla_listeners`] holds what gateway and agent share: per-address limits, connection
//! timers, and detection of clients that stop reading or hang up. [`cors`] (pure) handles CORS,
//! [`panics`] confines a panic to its request, and [`super::file_limit`] allows as many connections
//! as configured. [`super::connection`] applies all of this to one connection.

pub(crate) mod body;
pub(crate) mod cors;
pub(crate) mod panics;

pub use flotilla_listeners::{CloseReason, SharedCloseCounter};

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::config::cors::Cors;
use crate::config::proxies::Proxies;
use crate::observability::metrics::Metrics;
use flotilla_listeners::connection::{Http, http};
use flotilla_listeners::timers::ConnectionTimeouts;

/// State that all connections accepted under the same settings share.
pub struct Edge {
    /// Trusted proxies.
    pub proxies: Proxies,
    /// CORS settings.
    pub cors: Cors,
    /// Head and idle timeouts.
    pub patience: ConnectionTimeouts,
    /// Slow-read budget.
    pub write: Duration,
    /// The HTTP server.
    pub http: Http,
    /// Counts connections that we refuse or close.
    pub counter: SharedCloseCounter,
    /// When canceled, connections finish their requests in flight and close.
    pub stop: CancellationToken,
}

impl Edge {
    /// Creates the edge for a configuration.
    pub fn new(config: &Config, metrics: &Metrics, stop: CancellationToken) -> Self {
        let timeouts = &config.timeouts;
        let counter: SharedCloseCounter = Arc::new(metrics.clone());
        Self {
            proxies: config.trusted_proxies.clone(),
            cors: config.cors.clone(),
            patience: ConnectionTimeouts { head: timeouts.header, idle: timeouts.keep_alive },
            write: timeouts.write,
            http: http(timeouts.write, counter.clone()),
            counter,
            stop,
        }
    }
}
