//! Wires the parts together and takes them down again. Imported by nobody but main, the
//! tests, and the stages that need the [`Gateway`] it makes.

use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::{Config, Limits, Timeouts};
use crate::dispatcher::Dispatcher;
use crate::fleet::static_nodes;
use crate::metrics::Metrics;
use crate::pipeline::authenticate::Key;
use crate::quarantine::Quarantine;
use crate::secret::KeyDigest;
use crate::{prober, server};

/// After requests are done or cut, tasks have this long to end.
const JOIN_TIMEOUT: Duration = Duration::from_secs(2);

/// What all requests share. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Gateway {
    /// API keys.
    pub keys: Arc<[Key]>,
    /// The key that nodes join with.
    pub join_key: Option<KeyDigest>,
    /// The fleet and its queue.
    pub dispatcher: Dispatcher,
    /// The metrics.
    pub metrics: Metrics,
    /// Limits.
    pub limits: Limits,
    /// Timeouts.
    pub timeouts: Timeouts,
    /// Requests that ended engines.
    pub quarantine: Arc<Quarantine>,
    /// Nodes that have answered nothing for so long are asked something.
    pub probe_interval: Option<Duration>,
    /// Attempts in a row that may fail before a request does.
    pub retries_max: usize,
    /// Cancelled when the gateway takes nothing new.
    pub stop: CancellationToken,
    /// Cancelled when requests are done: links outlive the listener, because requests in
    /// flight need them to finish.
    pub links: CancellationToken,
    /// Every task.
    pub tasks: TaskTracker,
}

impl Gateway {
    /// The shared parts of a configuration.
    pub fn new(config: &Config, stop: CancellationToken) -> prometheus::Result<Self> {
        Ok(Self {
            keys: config.keys.iter().cloned().map(Key::new).collect(),
            join_key: config.join_key.clone(),
            dispatcher: Dispatcher::new(config.limits.queue, config.policy),
            metrics: Metrics::new()?,
            limits: config.limits,
            timeouts: config.timeouts,
            quarantine: Arc::default(),
            probe_interval: config.probe_interval,
            retries_max: config.retries_max,
            stop,
            links: CancellationToken::new(),
            tasks: TaskTracker::new(),
        })
    }
}

/// Serves on `listener` until `stop`, finishes what is in flight, and joins every task.
pub async fn run(
    config: Config,
    listener: TcpListener,
    stop: CancellationToken,
) -> prometheus::Result<()> {
    let gateway = Gateway::new(&config, stop)?;
    for node in config.static_nodes.clone() {
        gateway.tasks.spawn(static_nodes::keep_linked(gateway.clone(), node));
    }
    gateway.tasks.spawn(prober::run(gateway.clone()));
    server::serve(listener, gateway.clone(), &config).await;
    gateway.links.cancel();
    gateway.tasks.close();
    // What is left are connections that were cut off; they end with the runtime.
    let _ = tokio::time::timeout(JOIN_TIMEOUT, gateway.tasks.wait()).await;
    Ok(())
}
