//! The edge: what stands between the network and the pipeline, so that no client can take more
//! than its share before anything is known of it.
//!
//! What both programs do is [`flotilla_listeners`]: connections per address, how long a connection
//! may keep us waiting, clients that do not read or hang up. [`address`] says whose address a
//! request really has. [`cors`] (pure) answers browsers, [`files`] lets as many connections be as
//! are configured. [`guard`] keeps a panic to its own request. [`connection`] puts all of it around
//! one connection.

pub mod body;
pub mod cors;
pub mod panics;

pub use flotilla_listeners::{Closed, Closings, debt, door, hangup, pulse, stall, streams};

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::config::cors::Cors;
use crate::config::proxies::Proxies;
use crate::observability::metrics::Metrics;
use flotilla_listeners::connection::{Http, http};
use pulse::Patience;

/// What all connections share that were accepted under the same settings.
pub struct Edge {
    /// Whose word about addresses is believed.
    pub proxies: Proxies,
    /// What browsers are told.
    pub cors: Cors,
    /// How long a client may keep us waiting.
    pub patience: Patience,
    /// How long a client may leave what we have for it.
    pub write: Duration,
    /// What speaks HTTP.
    pub http: Http,
    /// Counts connections that are refused or cut.
    pub closings: Closings,
    /// Cancelled when connections end with what is in flight.
    pub stop: CancellationToken,
}

impl Edge {
    /// The edge of a configuration.
    pub fn new(config: &Config, metrics: &Metrics, stop: CancellationToken) -> Self {
        let timeouts = &config.timeouts;
        let closings: Closings = Arc::new(metrics.clone());
        Self {
            proxies: config.trusted_proxies.clone(),
            cors: config.cors.clone(),
            patience: Patience { head: timeouts.header, idle: timeouts.keep_alive },
            write: timeouts.write,
            http: http(timeouts.write, closings.clone()),
            closings,
            stop,
        }
    }
}
