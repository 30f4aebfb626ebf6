//! Wires the parts together and takes them down again. Imported by nobody but main, the
//! tests, and the stages that need the [`Gateway`] it makes.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use hyper::header::HeaderValue;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::Config;
use crate::dispatcher::Dispatcher;
use crate::external::keep;
use crate::fleet::static_nodes;
use crate::follow::follow;
use crate::metrics::Metrics;
use crate::quarantine::Quarantine;
use crate::recent::Recorder;
use crate::server::{self, Service};
use crate::settings::Live;
use crate::traces::{self, Spans};
use crate::{notify, prober, reload, rent, state};

/// After requests are done or cut, tasks have this long to end.
const JOIN_TIMEOUT: Duration = Duration::from_secs(2);

/// What all requests share. Cloning shares it.
#[derive(Debug, Clone)]
pub struct Gateway(Arc<Parts>);

impl Deref for Gateway {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.0
    }
}

/// The parts of a [`Gateway`].
#[derive(Debug)]
pub struct Parts {
    /// Tells this run of the gateway from all others: nodes learn whom they are linked to.
    pub id: HeaderValue,
    /// What it was told.
    pub settings: Live,
    /// The fleet and its queue.
    pub dispatcher: Dispatcher,
    /// The metrics.
    pub metrics: Metrics,
    /// What requests did in the last minutes.
    pub recent: Recorder,
    /// Takes spans of requests.
    pub spans: Spans,
    /// Requests that ended engines.
    pub quarantine: Quarantine,
    /// Cancelled when the gateway takes nothing new.
    pub stop: CancellationToken,
    /// Cancelled when requests are done: links outlive the listener, because requests in
    /// flight need them to finish.
    pub links: CancellationToken,
    /// Every task.
    pub tasks: TaskTracker,
}

impl Gateway {
    /// What requests share, at first.
    pub fn new(settings: Live, metrics: Metrics, spans: Spans, stop: CancellationToken) -> Self {
        let now = settings.now();
        Self(Arc::new(Parts {
            id: id(),
            dispatcher: Dispatcher::new(now.config.limits.queue, now.config.policy),
            metrics,
            recent: Recorder::default(),
            spans,
            quarantine: Quarantine::default(),
            stop,
            links: CancellationToken::new(),
            tasks: TaskTracker::new(),
            settings,
        }))
    }

    /// Another configuration takes the place of the one that is in force.
    ///
    /// # Errors
    /// An address cannot be listened on; then everything stays as it is.
    pub async fn apply(&self, config: Config) -> Result<(), String> {
        let (queue, policy) = (config.limits.queue, config.policy);
        self.settings.replace(config).await?;
        self.dispatcher.configure(queue, policy);
        Ok(())
    }
}

/// 32 random hex digits.
fn id() -> HeaderValue {
    let hex = format!("{:032x}", crate::random());
    HeaderValue::from_str(&hex).unwrap_or(HeaderValue::from_static("-"))
}

/// Serves until `stop`, finishes what is in flight, and joins every task. The configuration is
/// taken over from `source` whenever it changes there.
///
/// # Errors
/// Two metrics share a name.
pub async fn run(
    settings: Live,
    source: reload::Source,
    stop: CancellationToken,
) -> prometheus::Result<()> {
    let metrics = Metrics::new()?;
    let (spans, queue) = Spans::new(metrics.clone());
    let gateway = Gateway::new(settings, metrics, spans, stop);
    state::restore(&gateway);
    gateway.tasks.spawn(state::keep(gateway.clone()));
    let nodes = follow(gateway.clone(), |c| &c.static_nodes, static_nodes::keep_linked);
    gateway.tasks.spawn(nodes);
    gateway.tasks.spawn(follow(gateway.clone(), |c| &c.externals, keep::keep));
    gateway.tasks.spawn(rent::run(gateway.clone()));
    gateway.tasks.spawn(prober::run(gateway.clone()));
    gateway.tasks.spawn(traces::export::run(gateway.clone(), queue));
    gateway.tasks.spawn(server::serve(Service::Admin, gateway.clone(), gateway.links.clone()));
    gateway.tasks.spawn(reload::run(gateway.clone(), source));
    gateway.tasks.spawn(notify::run(gateway.clone()));
    // The listeners are bound already: who comes from here on is served.
    notify::ready("serving");
    server::serve(Service::Public, gateway.clone(), gateway.stop.clone()).await;
    gateway.links.cancel();
    gateway.tasks.close();
    // What is left are connections that were cut off; they end with the runtime.
    let _ = tokio::time::timeout(JOIN_TIMEOUT, gateway.tasks.wait()).await;
    Ok(())
}
