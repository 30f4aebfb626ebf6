//! The handle that every stage and task receives: the parts of a running gateway. No tasks, no
//! wiring.

use std::ops::Deref;
use std::sync::Arc;

use hyper::header::HeaderValue;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::access::quarantine::Quarantine;
use crate::config::Config;
use crate::context::settings::Live;
use crate::dispatcher::Dispatcher;
use crate::observability::history::Recorder;
use crate::observability::metrics::Metrics;
use crate::observability::traces::Spans;

pub mod peer;
pub mod settings;

/// What all requests share. Cloning shares it.
#[derive(Debug, Clone)]
pub struct Gateway(Arc<Parts>);

impl Deref for Gateway {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.0
    }
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

/// 32 random hex digits.
fn id() -> HeaderValue {
    let hex = format!("{:032x}", crate::types::random::random());
    HeaderValue::from_str(&hex).unwrap_or(HeaderValue::from_static("-"))
}
