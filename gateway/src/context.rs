//! The handle that every stage and task receives: the parts of a running gateway. Contains no tasks
//! and no wiring.

use std::ops::Deref;
use std::sync::Arc;

use hyper::header::HeaderValue;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::access::quarantine::Quarantine;
use crate::access::responses::Responses;
use crate::config::Config;
use crate::config::store::StoreSettings;
use crate::context::settings::{LiveSettings, Settings};
use crate::dispatcher::Dispatcher;
use crate::observability::history::Recorder;
use crate::observability::metrics::Metrics;
use crate::observability::traces::Spans;
use crate::store::{Store, UsageBook};
use crate::types::error::Error;
use flotilla_listeners::socket::BindError;

mod allotments;
pub mod settings;
pub(crate) mod stored_keys;

/// Leaving nodes that hand over what they have saved at a time: it all goes through this machine.
const HAND_OVERS_MAX: usize = 4;

/// State shared by all requests. Clones share it.
#[derive(Debug, Clone)]
pub struct Gateway(Arc<Parts>);

impl Deref for Gateway {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.0
    }
}

impl Gateway {
    /// Creates the state from the initial settings.
    pub fn new(
        settings: LiveSettings,
        metrics: Metrics,
        spans: Spans,
        stop: CancellationToken,
    ) -> Self {
        let now = settings.now();
        let id = format!("{:032x}", crate::types::random::random());
        let store = now.config.store.clone();
        let store = store.map(|store| Store::new(store.place, &id, store.storage));
        Self(Arc::new(Parts {
            id: HeaderValue::from_str(&id).unwrap_or(HeaderValue::from_static("-")),
            store,
            dispatcher: Dispatcher::new(now.config.limits.queue, now.config.policy),
            metrics,
            history: Recorder::default(),
            spans,
            quarantine: Quarantine::default(),
            usage: UsageBook::default(),
            allotting: tokio::sync::Mutex::default(),
            sharing: tokio::sync::Mutex::default(),
            responses: Responses::new(now.config.limits.stored),
            hand_overs: Semaphore::new(HAND_OVERS_MAX),
            stop,
            links: CancellationToken::new(),
            tasks: TaskTracker::new(),
            settings,
        }))
    }

    /// Applies a new configuration.
    ///
    /// # Errors
    /// An address cannot be bound; then nothing changes.
    pub async fn apply(&self, config: Config) -> Result<(), BindError> {
        let (queue, policy) = (config.limits.queue, config.policy);
        let stored = config.limits.stored;
        let storage = config.store.as_ref().map(|store| store.storage);
        let place = config.store.as_ref().map(|store| &store.place);
        if place != self.store.as_ref().map(Store::place) {
            tracing::warn!(
                "the place of the store or its keys have changed: restart the gateway to apply that"
            );
        }
        self.settings.replace(config).await?;
        if let (Some(store), Some(storage)) = (&self.store, storage) {
            store.configure(storage);
        }
        self.responses.configure(stored);
        self.dispatcher.configure(queue, policy);
        Ok(())
    }
}

impl Parts {
    /// The store and its settings.
    ///
    /// # Errors
    /// None is configured.
    pub(crate) fn store_of<'a>(
        &'a self,
        settings: &'a Settings,
    ) -> Result<(&'a Store, &'a StoreSettings), Error> {
        self.store.as_ref().zip(settings.config.store.as_ref()).ok_or(Error::StoreOff)
    }
}

/// The parts of a [`Gateway`].
#[derive(Debug)]
pub struct Parts {
    /// Identifies this run of the gateway, so that nodes can tell which gateway they are linked to.
    pub id: HeaderValue,
    /// Current settings.
    pub settings: LiveSettings,
    /// The fleet and its queue.
    pub dispatcher: Dispatcher,
    /// The metrics.
    pub metrics: Metrics,
    /// History of the last minutes.
    pub history: Recorder,
    /// Queue of request spans for export.
    pub spans: Spans,
    /// Requests that killed engines.
    pub quarantine: Quarantine,
    /// Usage that is not in the store yet.
    pub usage: UsageBook,
    /// Held while the store is asked about allotments of budgets, so that its answers are applied
    /// in their order.
    pub allotting: tokio::sync::Mutex<()>,
    /// Held while a setting of the store is read and applied, so that the latest one stays.
    pub(crate) sharing: tokio::sync::Mutex<()>,
    /// Files and batches, if they are kept.
    pub store: Option<Store>,
    /// Stored responses of the Responses API.
    pub responses: Responses,
    /// Permits of leaving nodes to hand over what they have saved.
    pub(crate) hand_overs: Semaphore,
    /// Canceled when the gateway stops accepting work.
    pub stop: CancellationToken,
    /// Canceled when all requests are done. Links outlive the listeners, because requests in flight
    /// need them to finish.
    pub links: CancellationToken,
    /// All background tasks.
    pub tasks: TaskTracker,
}
