//! Health checks: asks ejected nodes whether they may return, and idle nodes whether they still
//! respond. Each check is one token through the same slot, link, and engine as client requests,
//! which a heartbeat does not exercise.

use std::time::Duration;

use bytes::Bytes;
use hyper::header;
use hyper::{Request, Uri};
use inference_protocol::fleet::TENANT_HEADER;
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::context::Gateway;
use crate::dispatcher::Lease;
use crate::scheduler::fleet::AttemptOutcome;
use crate::types::error::Error;
use crate::upstream::external::check::NotReady;

/// How often nodes are considered for a check.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// Timeout of a health check on a node without other requests.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);
/// The tenant that nodes see.
const TENANT: &str = "flotilla-probe";

/// Runs health checks until the gateway stops.
pub(crate) async fn run(gateway: Gateway) {
    let mut ticks = interval(CHECK_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = gateway.links.cancelled() => return,
        }
        for lease in gateway.dispatcher.claim_probes(gateway.settings.now().config.probe_interval) {
            let stop = gateway.links.clone();
            gateway.tasks.spawn(async move {
                tokio::select! {
                    () = probe(lease) => {}
                    () = stop.cancelled() => {}
                }
            });
        }
    }
}

async fn probe(mut lease: Lease) {
    let lost = lease.upstream().lost();
    let outcome = tokio::select! {
        response = timeout(RESPONSE_TIMEOUT, send_probe(&lease)) => {
            outcome_of(response.ok(), lease.is_beyond_slots())
        }
        () = lost => AttemptOutcome::Unknown,
    };
    if outcome == AttemptOutcome::Failed {
        tracing::warn!(node = lease.node(), "node failed a health check");
    }
    lease.set_outcome(outcome);
}

/// What a health check shows about the node; `None` is a timeout. While other gateways use all
/// slots of the node, the check may wait behind their requests or be refused. That is no failure,
/// and another check follows soon.
fn outcome_of(response: Option<Result<(), Error>>, is_crowded: bool) -> AttemptOutcome {
    match response {
        Some(Ok(())) => AttemptOutcome::Alive,
        Some(Err(Error::NodeRefused(429) | Error::Internal)) => AttemptOutcome::Unknown,
        None if is_crowded => AttemptOutcome::Unknown,
        Some(Err(_)) | None => AttemptOutcome::Failed,
    }
}

/// Sends a health check. A refusal on its merits, as by a model without text generation, counts as
/// success.
async fn send_probe(lease: &Lease) -> Result<(), Error> {
    if let Some(client) = lease.upstream().client() {
        return match client.check().await {
            Ok(_) | Err(NotReady::Busy) => Ok(()),
            Err(_) => Err(Error::NodeLost),
        };
    }
    let body = serde_json::json!({"model": lease.model().id, "prompt": "a", "max_tokens": 1});
    let uri = Uri::from_static("http://node/v1/completions");
    let request = Request::post(uri)
        .header(header::CONTENT_TYPE, "application/json")
        .header(TENANT_HEADER, TENANT)
        .body(Bytes::from(body.to_string()))
        .map_err(Error::internal)?;
    let response = lease.upstream().send(request).await?;
    match response.status().as_u16() {
        status if status >= 500 || [401, 403, 429].contains(&status) => {
            Err(Error::NodeRefused(status))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_others_keep_busy_is_not_blamed_for_a_late_answer() {
        for is_crowded in [false, true] {
            assert_eq!(outcome_of(Some(Ok(())), is_crowded), AttemptOutcome::Alive);
            assert_eq!(
                outcome_of(Some(Err(Error::NodeRefused(500))), is_crowded),
                AttemptOutcome::Failed
            );
            assert_eq!(
                outcome_of(Some(Err(Error::NodeRefused(429))), is_crowded),
                AttemptOutcome::Unknown
            );
        }
        assert_eq!(outcome_of(None, true), AttemptOutcome::Unknown);
        assert_eq!(outcome_of(None, false), AttemptOutcome::Failed);
    }
}
