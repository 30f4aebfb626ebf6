//! `flotilla-agent serve`: creates the parts of the agent, starts them, and stops them again.

pub mod options;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use flotilla_listeners::systemd::notify_stopping;
use inference_protocol::time::unix_seconds;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::commands::serve::options::ServeOptions;
use crate::engine::client::EngineClient;
use crate::engine::{supervisor, systemd};
use crate::serve::join::{Held, Joining};
use crate::serve::listener::Port;
use crate::serve::metrics::Metrics;
use crate::serve::node::Node;
use crate::serve::vitals::Vitals;
use crate::serve::{join, listener};
use crate::types::exit::{EXIT_DATA, EXIT_NO_PERMISSION, EXIT_SOFTWARE, EXIT_UNAVAILABLE, Failed};

fn failed(code: u8) -> impl Fn(String) -> Failed {
    move |message| Failed { code, message }
}

/// Runs the agent until a signal or a fatal error.
pub async fn serve(options: ServeOptions) -> Result<(), Failed> {
    let mut terminate = Signals::new().map_err(|e| failed(EXIT_SOFTWARE)(e.to_string()))?;
    let listener = match options.listen {
        Some(address) => Some(listener::bind(address).await.map_err(failed(EXIT_UNAVAILABLE))?),
        None => None,
    };
    let node = new_node(&options).map_err(failed(EXIT_SOFTWARE))?;
    let stop = node.stop.clone();
    let engine_stop = CancellationToken::new();
    let tasks = TaskTracker::new();
    let mut parts: JoinSet<Result<(), Failed>> = JoinSet::new();
    if let Some(listener) = listener {
        let bound = listener.local_addr().map_err(|e| failed(EXIT_SOFTWARE)(e.to_string()))?;
        tracing::info!("listening on http://{bound}");
        let per_address_max = options.connections_per_address;
        let port = Port::new(node.clone(), listener, per_address_max, stop.clone());
        let serving = port.serve(tasks.clone());
        parts.spawn(async move {
            serving.await;
            Ok(())
        });
    }
    let joining = Joining { node: node.clone(), held: Held::default(), stop: stop.clone() };
    for gateway in options.gateways.clone() {
        let joined = join::keep_joined(gateway, joining.clone());
        parts.spawn(async move { joined.await.map_err(failed(EXIT_NO_PERMISSION)) });
    }
    let supervised = supervisor::supervise(
        options.launch.clone(),
        node.engine.clone(),
        engine_stop.clone(),
        crate::types::random::random() as u64,
    );
    parts.spawn(async move { supervised.await.map_err(|e| failed(EXIT_DATA)(e.0)) });
    tasks.spawn(systemd::report_state(node.engine.clone(), node.model.clone(), stop.clone()));
    let outcome = tokio::select! {
        () = terminate.first() => Ok(()),
        Some(ended) = parts.join_next() => flatten(ended),
    };
    tracing::info!("stopping");
    notify_stopping();
    node.engine.drain();
    tokio::select! {
        () = wait_idle(&node.engine) => {}
        () = tokio::time::sleep(options.shutdown) => tracing::warn!("requests were cut off"),
        () = terminate.first() => tracing::warn!("requests were cut off"),
    }
    stop.cancel();
    tasks.close();
    let drained = async {
        tasks.wait().await;
        engine_stop.cancel();
        while parts.join_next().await.is_some() {}
    };
    // Do not wait for clients that hold idle connections open.
    let _ = tokio::time::timeout(Duration::from_secs(2), drained).await;
    engine_stop.cancel();
    outcome
}

fn flatten(ended: Result<Result<(), Failed>, tokio::task::JoinError>) -> Result<(), Failed> {
    ended.unwrap_or_else(|e| Err(failed(EXIT_SOFTWARE)(e.to_string())))
}

fn new_node(options: &ServeOptions) -> Result<Arc<Node>, String> {
    let loopback = options.listen.is_none_or(|a| a.ip().is_loopback());
    if options.key.is_none() && !loopback {
        tracing::warn!("the port is open to the network without a key: see --key-file");
    }
    Ok(Arc::new(Node {
        name: options.name.clone(),
        epoch: crate::types::random::random() as u64,
        model: options.model_name.clone(),
        created: unix_seconds(SystemTime::now()),
        key: options.key,
        engine: EngineClient::default(),
        metrics: Metrics::new().map_err(|e| e.to_string())?,
        compat: options.compat.clone(),
        vitals: Vitals::default(),
        stop: CancellationToken::new(),
    }))
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
