//! `flotilla-agent serve`: creates the parts of the agent, starts them, and stops them again.

pub(crate) mod llama_flags;
pub(crate) mod options;
pub(crate) mod remote;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use flotilla_listeners::systemd::notify_stopping;
use inference_core::scheduler::prefix_disk::Key;
use inference_protocol::time::unix_seconds;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::commands::serve::options::ServeOptions;
use crate::engine::client::{EngineClient, EngineState};
use crate::engine::prefix_disk::FINISH_LIMIT;
use crate::engine::{supervisor, systemd};
use crate::serve::hand_over::HandOver;
use crate::serve::join::{JoinContext, LinkedGateways};
use crate::serve::listener::Port;
use crate::serve::metrics::Metrics;
use crate::serve::node::Node;
use crate::serve::resources::ResourceSampler;
use crate::serve::responses::Responses;
use crate::serve::{join, listener};
use crate::types::exit::{EXIT_NO_PERMISSION, EXIT_UNAVAILABLE, Failed};

/// Runs the agent until a signal or a fatal error.
pub(crate) async fn serve(options: ServeOptions) -> Result<(), Failed> {
    let mut terminate = Signals::new().map_err(Failed::software)?;
    let listener = match options.listen {
        Some(address) => {
            let bound = listener::bind(address).await;
            Some(bound.map_err(|why| Failed::new(EXIT_UNAVAILABLE, why))?)
        }
        None => None,
    };
    let node = new_node(&options).map_err(Failed::software)?;
    let stop = node.stop.clone();
    let engine_stop = CancellationToken::new();
    let tasks = TaskTracker::new();
    let mut parts: JoinSet<Result<(), Failed>> = JoinSet::new();
    if let Some(listener) = listener {
        let bound = listener.local_addr().map_err(Failed::software)?;
        tracing::info!("listening on http://{bound}");
        let per_address_max = options.connections_per_address;
        let port = Port::new(node.clone(), listener, per_address_max, stop.clone());
        let serving = port.serve(tasks.clone());
        parts.spawn(async move {
            serving.await;
            Ok(())
        });
    }
    let joining =
        JoinContext { node: node.clone(), linked: LinkedGateways::default(), stop: stop.clone() };
    for gateway in options.gateways.clone() {
        let joined = join::maintain_links(gateway, joining.clone());
        parts.spawn(async move { joined.await.map_err(|e| Failed::new(EXIT_NO_PERMISSION, e)) });
    }
    let supervised = supervisor::supervise(
        options.launch.clone(),
        node.engine.clone(),
        engine_stop.clone(),
        crate::types::random::random() as u64,
    );
    let engine_gone = CancellationToken::new();
    let gone = engine_gone.clone().drop_guard();
    parts.spawn(async move {
        let _gone = gone;
        supervised.await.map_err(Failed::data)
    });
    tasks.spawn(systemd::report_state(node.engine.clone(), node.model.clone(), stop.clone()));
    let outcome = tokio::select! {
        () = terminate.first() => Ok(()),
        Some(ended) = parts.join_next() => flatten(ended),
    };
    tracing::info!("stopping");
    notify_stopping();
    let until = Instant::now() + options.shutdown;
    let leaving = Leaving::new(&node);
    node.engine.drain();
    tokio::select! {
        () = wait_idle(&node.engine) => {}
        () = tokio::time::sleep_until(until) => tracing::warn!("shutdown timed out: requests aborted"),
        () = terminate.first() => tracing::warn!("second signal received: requests aborted"),
    }
    if let Some(leaving) = leaving {
        engine_stop.cancel();
        tokio::select! {
            () = leaving.hand_over(&node, &engine_gone, until) => {}
            () = terminate.first() => tracing::warn!("second signal received: prefixes stay"),
        }
    }
    stop.cancel();
    tasks.close();
    // Do not wait for clients that hold idle connections open.
    let deadline = Instant::now() + Duration::from_secs(2);
    let _ = tokio::time::timeout_at(deadline, tasks.wait()).await;
    engine_stop.cancel();
    let writes_files = options.launch.options.prefix_disk.is_some();
    let more = if writes_files { 2 * FINISH_LIMIT } else { Duration::ZERO };
    let ended = async { while parts.join_next().await.is_some() {} };
    let _ = tokio::time::timeout_at(deadline + more, ended).await;
    outcome
}

fn flatten(ended: Result<Result<(), Failed>, tokio::task::JoinError>) -> Result<(), Failed> {
    ended.unwrap_or_else(|e| Err(Failed::software(e)))
}

fn new_node(options: &ServeOptions) -> prometheus::Result<Arc<Node>> {
    let loopback = options.listen.is_none_or(|a| a.ip().is_loopback());
    if options.key.is_none() && !loopback {
        tracing::warn!(
            "the port is reachable from the network without authentication: see --key-file"
        );
    }
    Ok(Arc::new(Node {
        name: options.name.clone(),
        epoch: crate::types::random::random() as u64,
        model: options.model_name.clone(),
        created: unix_seconds(SystemTime::now()),
        key: options.key,
        engine: EngineClient::default(),
        metrics: Metrics::new()?,
        compat: options.compat.clone(),
        allows_chat_template: options.allows_chat_template,
        resources: ResourceSampler::default(),
        prefix_disk: options.launch.options.prefix_disk.clone(),
        saves_slots: options.launch.options.slot_files.is_some(),
        hand_over: HandOver::default(),
        responses: Responses::default(),
        stop: CancellationToken::new(),
    }))
}

/// What a node hands over when it leaves: the files of its engine.
struct Leaving {
    folder: PathBuf,
    key: Key,
}

impl Leaving {
    /// `None` if there are none, or nobody wants them.
    fn new(node: &Node) -> Option<Self> {
        let EngineState::Ready(facts) = node.engine.state() else { return None };
        let (disk, key) = node.prefix_disk.as_ref().zip(facts.prefix_key.as_deref().copied())?;
        node.hand_over.is_wanted().then(|| Self { folder: disk.folder.clone(), key })
    }

    /// Waits until the engine has written its files, and hands them over.
    async fn hand_over(self, node: &Node, engine_gone: &CancellationToken, until: Instant) {
        if tokio::time::timeout_at(until, engine_gone.cancelled()).await.is_ok() {
            node.hand_over.offer(&node.engine, (self.folder, self.key), until).await;
        }
    }
}

async fn wait_idle(engine: &EngineClient) {
    let mut changes = engine.watch_changes();
    while engine.figures().in_flight > 0 {
        if changes.changed().await.is_err() {
            return;
        }
    }
}

/// Handlers of SIGTERM and SIGINT.
struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    async fn first(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
