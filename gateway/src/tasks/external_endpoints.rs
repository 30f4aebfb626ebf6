//! Keeps the fleet in line with the configured external endpoints, and checks their health.

use std::time::Duration;

use inference_protocol::fleet::{ModelDetails, ModelStatus, NodeState, NodeStatus, VERSION};
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::config::ExternalEndpoint;
use crate::context::Gateway;
use crate::scheduler::fleet::EndpointId;
use crate::types::external::PREFIX;
use crate::upstream::Upstream;
use crate::upstream::external::check::{NotReady, Served};

/// Time between health checks.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// Runs one endpoint until it is removed from the configuration or the gateway stops.
pub(crate) async fn maintain(
    gateway: Gateway,
    endpoint: ExternalEndpoint,
    retired: CancellationToken,
) {
    let upstream = Upstream::external(endpoint.client.clone());
    let mut status = status(&endpoint);
    let id = gateway.dispatcher.add_external(upstream, status.clone(), endpoint.terms);
    let mut looks = interval(CHECK_INTERVAL);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut last_why, mut last_unlisted) = (None, Vec::new());
    loop {
        let look = async {
            looks.tick().await;
            endpoint.client.check().await
        };
        let checked = tokio::select! {
            checked = look => checked,
            () = retired.cancelled() => break,
            () = gateway.links.cancelled() => break,
        };
        let (served, why) = match checked {
            Ok(served) => (Some(served), None),
            Err(NotReady::Busy) if !status.models.is_empty() => (Some(Served::default()), None),
            Err(why) => (None, Some(why)),
        };
        status.state = if served.is_some() { NodeState::Ready } else { NodeState::Restarting };
        if let Some(Served { discovered, unlisted }) = served {
            status.models = discovered.map_or(status.models, |models| listed(&endpoint, &models));
            if unlisted != last_unlisted && !unlisted.is_empty() {
                let models = unlisted.join(", ");
                tracing::warn!(endpoint = endpoint.name, models, "models not listed by endpoint");
            }
            last_unlisted = unlisted;
        }
        if why != last_why {
            match &why {
                Some(why) => tracing::warn!(endpoint = endpoint.name, %why, "endpoint not ready"),
                None => tracing::info!(endpoint = endpoint.name, "endpoint ready"),
            }
            last_why = why;
        }
        if gateway.dispatcher.update_status(id, status.clone()).is_none() {
            return;
        }
    }
    finish(&gateway, id).await;
}

/// Drains the endpoint for up to the shutdown timeout, then removes it.
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

fn listed(endpoint: &ExternalEndpoint, models: &[String]) -> Vec<ModelStatus> {
    let model = |id: &String| ModelStatus {
        id: id.clone(),
        // A digest of its own: no response that began elsewhere continues here.
        digest: name(endpoint),
        context_tokens: u32::MAX,
        created: 0,
        details: ModelDetails::default(),
    };
    models.iter().map(model).collect()
}

fn name(endpoint: &ExternalEndpoint) -> String {
    format!("{PREFIX}{}", endpoint.name)
}

fn status(endpoint: &ExternalEndpoint) -> NodeStatus {
    NodeStatus {
        version: VERSION,
        models: listed(endpoint, &endpoint.models),
        node: name(endpoint),
        epoch: 0,
        state: NodeState::Loading,
        slots: endpoint.concurrent_max,
        slots_busy_elsewhere: 0,
        queued: 0,
        engine_restarts: 0,
        prefill_tokens_per_second: None,
        decode_tokens_per_second: None,
        vitals: None,
        prefixes: None,
    }
}
