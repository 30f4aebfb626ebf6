//! Tells receivers when stored work has ended. A message is stored with the end that it is about,
//! and sent until it is taken or given up, by whichever gateway finds it due.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use inference_protocol::time::unix_seconds;
use serde_json::json;
use tokio::task::{self, JoinSet};
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::config::webhooks::Webhook;
use crate::context::Gateway;
use crate::observability::metrics::WebhookOutcome;
use crate::store::{Delivery, Store, StoreError};
use crate::types::random::random;

/// How often to look for messages that are due.
const INTERVAL: Duration = Duration::from_secs(1);
/// The same without receivers.
const IDLE_INTERVAL: Duration = Duration::from_secs(60);
/// Messages that are being sent: to all receivers, and to one.
const SENDING_MAX: usize = 64;
const SENDING_TO_ONE_MAX: usize = 4;
/// Pauses after failed attempts, in seconds, as Standard Webhooks recommends: three days in all.
const PAUSES_S: [u64; 9] = [5, 300, 1800, 7200, 18_000, 36_000, 50_400, 72_000, 86_400];

/// Messages about the end of a tenant's work, to all who want to know.
pub(super) fn messages(
    gateway: &Gateway,
    tenant: &str,
    event: &str,
    object: &str,
) -> Vec<Delivery> {
    let settings = gateway.settings.now();
    let hooks = settings.config.webhooks.iter().filter(|hook| hook.wants(tenant, event));
    let now = unix_seconds(SystemTime::now());
    let id = format!("evt_{:032x}", random());
    let body = json!({"object": "event", "id": id, "type": event, "created_at": now,
        "data": {"id": object}});
    hooks.map(|hook| Delivery::new(id.clone(), hook.name.clone(), body.to_string())).collect()
}

/// Sends messages until the gateway stops.
pub(crate) async fn run(gateway: Gateway) {
    let Some(store) = gateway.store.clone() else { return };
    let mut sending: JoinSet<()> = JoinSet::new();
    let mut receivers: HashMap<task::Id, String> = HashMap::new();
    let mut ticks = interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut looked: Option<Instant> = None;
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            Some(ended) = sending.join_next_with_id() => {
                let task = ended.map_or_else(|panicked| panicked.id(), |(id, ())| id);
                receivers.remove(&task);
            }
            () = gateway.stop.cancelled() => break,
        }
        // Without receivers, only messages to those of before may be there, which are dropped.
        let has_receivers = !gateway.settings.now().config.webhooks.is_empty();
        if !has_receivers && looked.is_some_and(|looked| looked.elapsed() < IDLE_INTERVAL) {
            continue;
        }
        looked = Some(Instant::now());
        let Ok(claimed) = claim(&gateway, &store, &receivers).await else { continue };
        for (hook, delivery) in claimed {
            let (gateway, store, name) = (gateway.clone(), store.clone(), hook.name.clone());
            let task = sending.spawn(async move { send(&gateway, &store, &hook, delivery).await });
            receivers.insert(task.id(), name);
        }
    }
    // Each has a timeout. What is cut off is sent again.
    while sending.join_next().await.is_some() {}
}

/// Messages to send now, and to whom.
async fn claim(
    gateway: &Gateway,
    store: &Store,
    receivers: &HashMap<task::Id, String>,
) -> Result<Vec<(Webhook, Delivery)>, StoreError> {
    let settings = gateway.settings.now();
    settings.config.webhooks.iter().for_each(|hook| gateway.metrics.show_webhook(&hook.name));
    let mut claimed = Vec::new();
    for name in store.due_webhooks().await? {
        let Some(hook) = settings.config.webhooks.iter().find(|hook| hook.name == name) else {
            let count = store.forget_webhook(&name).await?;
            tracing::warn!(
                webhook = name,
                count,
                "webhooks dropped: no such receiver is configured"
            );
            continue;
        };
        let own = receivers.values().filter(|receiver| **receiver == name).count();
        let room = SENDING_MAX.saturating_sub(receivers.len() + claimed.len());
        let room = room.min(SENDING_TO_ONE_MAX.saturating_sub(own));
        if room > 0 {
            let deliveries = store.claim_deliveries(&name, room).await?;
            claimed.extend(deliveries.into_iter().map(|delivery| (hook.clone(), delivery)));
        }
    }
    gateway.metrics.set_webhooks_waiting(store.deliveries_waiting().await?);
    Ok(claimed)
}

/// Sends a message once, and stores what becomes of it. If that fails, it is sent again.
async fn send(gateway: &Gateway, store: &Store, hook: &Webhook, delivery: Delivery) {
    let now = unix_seconds(SystemTime::now());
    let (webhook, event) = (&hook.name, &delivery.id);
    let (outcome, stored) = match hook.receiver.send(event, now, &delivery.body).await {
        Ok(()) => (WebhookOutcome::Delivered, store.end_delivery(&delivery).await),
        Err(error) => {
            let pause = pause_s(delivery.attempts, random() as u16).filter(|_| !error.is_final);
            let (why, attempt) = (&error.why, delivery.attempts);
            match pause {
                Some(pause) => {
                    let asked = error.retry_after.map_or(0, |after| after.as_secs());
                    let pause_s = pause.max(asked);
                    tracing::warn!(webhook, event, attempt, why, pause_s, "webhook failed");
                    let delayed = store.delay_delivery(&delivery, pause_s).await;
                    (WebhookOutcome::Failed, delayed)
                }
                None => {
                    tracing::error!(webhook, event, attempt, why, "webhook given up");
                    (WebhookOutcome::Dropped, store.end_delivery(&delivery).await)
                }
            }
        }
    };
    gateway.metrics.record_webhook(webhook, outcome);
    if stored.is_err() {
        tracing::warn!(webhook, event, "it will be sent again: what became of it was not stored");
    }
}

/// The pause after so many attempts, up to a tenth longer so that not all come at once; `None`
/// after the last.
fn pause_s(attempts: u64, random: u16) -> Option<u64> {
    let pause = PAUSES_S.get(usize::try_from(attempts).ok()?.checked_sub(1)?)?;
    Some(pause + pause * u64::from(random) / (10 * u64::from(u16::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_end_after_three_days() {
        assert_eq!(pause_s(1, 0), Some(5));
        assert_eq!((pause_s(2, 0), pause_s(2, u16::MAX)), (Some(300), Some(330)));
        assert_eq!((pause_s(9, 0), pause_s(10, 0)), (Some(86_400), None));
        let days = PAUSES_S.iter().sum::<u64>() as f64 / 86_400.0;
        assert!((3.0..3.2).contains(&days), "{days}");
    }
}
