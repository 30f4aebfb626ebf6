//! Keeps the external endpoints of the configuration in the fleet, as it changes, and looks how they
//! are.

use std::time::Duration;

use inference_protocol::fleet::{ModelStatus, NodeState, NodeStatus, VERSION};
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::app::Gateway;
use crate::config::ExternalEndpoint;
use crate::fleet::EndpointId;
use crate::upstream::Upstream;

/// Between two looks.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
const HOUR: f64 = 3600.0;
const DAY_SECONDS: u64 = 24 * 60 * 60;

/// Before the names of external endpoints: no node can have such a name.
pub const PREFIX: &str = "external:";

/// The day now (UTC), counted from 1970.
pub fn today() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |d| d.as_secs() / DAY_SECONDS)
}

/// Keeps all of them until the gateway stops.
pub async fn keep_all(gateway: Gateway) {
    let mut changes = gateway.settings.changes();
    let mut kept: Vec<(ExternalEndpoint, CancellationToken)> = Vec::new();
    loop {
        let settings = changes.borrow_and_update().clone();
        let wanted = &settings.config.externals;
        kept.retain(|(endpoint, retired)| {
            let stays = wanted.contains(endpoint);
            if !stays {
                retired.cancel();
            }
            stays
        });
        for endpoint in wanted {
            if kept.iter().all(|(known, _)| known != endpoint) {
                let retired = CancellationToken::new();
                kept.push((endpoint.clone(), retired.clone()));
                gateway.tasks.spawn(keep(gateway.clone(), endpoint.clone(), retired));
            }
        }
        drop(settings);
        tokio::select! {
            _ = changes.changed() => {}
            () = gateway.links.cancelled() => return,
        }
    }
}

/// Keeps one until it is wanted no more, or the gateway stops.
async fn keep(gateway: Gateway, endpoint: ExternalEndpoint, retired: CancellationToken) {
    let upstream = Upstream::external(endpoint.client.clone());
    let mut status = status(&endpoint);
    let id = gateway.dispatcher.add_external(upstream, status.clone(), endpoint.terms);
    let mut looks = interval(CHECK_INTERVAL);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut paid_until, mut last_why) = (Instant::now(), None);
    loop {
        tokio::select! {
            _ = looks.tick() => {}
            () = retired.cancelled() => break,
            () = gateway.links.cancelled() => break,
        }
        let checked = endpoint.client.check().await;
        let hours = paid_until.elapsed().as_secs_f64() / HOUR;
        paid_until = Instant::now();
        gateway.metrics.spent(&status.node, "hours", endpoint.terms.prices.hour * hours);
        gateway.dispatcher.turn(today());
        status.state = if checked.is_ok() { NodeState::Ready } else { NodeState::Restarting };
        let why = checked.err();
        if why != last_why {
            match &why {
                Some(why) => tracing::warn!(endpoint = endpoint.name, why, "endpoint not ready"),
                None => tracing::info!(endpoint = endpoint.name, "endpoint ready"),
            }
            last_why = why;
        }
        if gateway.dispatcher.observe(id, status.clone()).is_none() {
            return;
        }
    }
    finish(&gateway, id).await;
}

/// Lets what runs there end, for as long as a stop would.
async fn finish(gateway: &Gateway, id: EndpointId) {
    gateway.dispatcher.retire(id);
    let until = Instant::now() + gateway.settings.now().config.timeouts.shutdown;
    let mut looks = interval(Duration::from_millis(200));
    while !gateway.dispatcher.is_idle(id) && Instant::now() < until {
        tokio::select! {
            _ = looks.tick() => {}
            () = gateway.links.cancelled() => break,
        }
    }
    gateway.dispatcher.remove(id);
}

fn status(endpoint: &ExternalEndpoint) -> NodeStatus {
    let name = format!("{PREFIX}{}", endpoint.name);
    let model = |id: &String| ModelStatus {
        id: id.clone(),
        // Nothing that began elsewhere goes on here.
        digest: name.clone(),
        context_tokens: u32::MAX,
        created: 0,
    };
    NodeStatus {
        version: VERSION,
        models: endpoint.models.iter().map(model).collect(),
        node: name,
        epoch: 0,
        state: NodeState::Loading,
        slots: endpoint.concurrent_max,
        slots_busy_elsewhere: 0,
        queued: 0,
        engine_restarts: 0,
        prefill_tokens_per_second: None,
        decode_tokens_per_second: None,
    }
}
