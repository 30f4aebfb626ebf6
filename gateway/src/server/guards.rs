//! The gateway's guards between the network and the request pipeline.
//!
//! [`flotilla_listeners`] holds what gateway and agent share: limits, timers, and detection of
//! clients that stop reading or hang up. [`cors`] (pure) handles CORS, [`panics`] renders a panic,
//! and [`super::file_limit`] allows as many connections as configured. [`super::connection`]
//! applies all of this to one connection.

pub(crate) mod cors;
pub(crate) mod panics;

pub use flotilla_listeners::CloseReason;

use std::sync::Arc;
use std::time::Duration;

use flotilla_listeners::connection::{Http2Settings, HttpServer};
use flotilla_listeners::timers::ConnectionTimeouts;
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::config::cors::Cors;
use crate::config::proxies::Proxies;
use crate::observability::metrics::Metrics;

const HTTP2: Http2Settings = Http2Settings {
    ping_interval: Duration::from_secs(20),
    ping_timeout: Duration::from_secs(20),
    streams_max: 200,
};

/// State that all connections accepted under the same settings share.
pub struct ConnectionSettings {
    pub(crate) proxies: Proxies,
    pub(crate) cors: Cors,
    pub(crate) server: Arc<HttpServer>,
}

impl ConnectionSettings {
    /// When `stop` is canceled, connections finish their requests in flight and close.
    pub fn new(config: &Config, metrics: &Metrics, stop: CancellationToken) -> Self {
        let timeouts = &config.timeouts;
        let timeouts = ConnectionTimeouts {
            head: timeouts.header,
            idle: timeouts.keep_alive,
            write: timeouts.write,
        };
        Self {
            proxies: config.trusted_proxies.clone(),
            cors: config.cors.clone(),
            server: HttpServer::new(timeouts, HTTP2, Arc::new(metrics.clone()), stop),
        }
    }
}
