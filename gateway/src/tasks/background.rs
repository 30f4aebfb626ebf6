//! Makes responses in the background. Each has a task. What it knows is in the store, so that
//! another gateway process continues where this one was killed.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use inference_protocol::openai::ErrorDetail;
use inference_translation::store::{Ended, Stored};
use tokio::task::{self, JoinSet};
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::room::Room;
use crate::config::store::BackgroundLimits;
use crate::context::Gateway;
use crate::observability::metrics::BackgroundOutcome;
use crate::proxy::background::make::{Failure, Made, Making};
use crate::proxy::deferral::Checkpoint;
use crate::store::{BackgroundResponse, Live, Store, StoreError, Task};
use crate::types::random::random;

/// How often to look for responses whose task has failed.
const INTERVAL: Duration = Duration::from_secs(10);
/// Pauses between attempts double from the first to the last.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// Pause between attempts to store the end of a response.
const STORE_PAUSE: Duration = Duration::from_secs(1);
/// Attempts that may fail at an endpoint. Those that find none are not counted.
const FAILURES_MAX: u32 = 5;

/// Makes responses until the gateway stops.
pub(crate) async fn run(gateway: Gateway) {
    let settings = gateway.settings.now().config.store.clone();
    let (Some(store), Some(settings)) = (gateway.store.clone(), settings) else { return };
    let BackgroundLimits { concurrent_max, tenant_concurrent_max, .. } = settings.background;
    let room = Arc::new(Room::new(concurrent_max, tenant_concurrent_max));
    let mut running: JoinSet<()> = JoinSet::new();
    let mut known: HashMap<String, Known> = HashMap::new();
    let mut tasks: HashMap<task::Id, String> = HashMap::new();
    let mut ticks = interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut changes = store.changes();
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            _ = changes.changed() => {}
            Some(ended) = running.join_next_with_id() => {
                let task = ended.map_or_else(|panicked| panicked.id(), |(id, ())| id);
                if let Some(id) = tasks.remove(&task) {
                    known.remove(&id);
                }
                report(&gateway, &known);
                continue;
            }
            () = gateway.stop.cancelled() => break,
        }
        let active = store.active_responses().await.unwrap_or_default();
        for response in active {
            if let Some(Known { live, .. }) = known.get(&response.id) {
                if response.is_canceled {
                    live.cancel();
                }
                continue;
            }
            let (id, live) = (response.id.clone(), store.live(&response));
            let (gateway, store, room) = (gateway.clone(), store.clone(), room.clone());
            known.insert(id.clone(), Known { live: live.clone(), since: response.created_at });
            let one = One { gateway, store, room, response, live };
            tasks.insert(running.spawn(one.run()).id(), id);
        }
        report(&gateway, &known);
    }
    // They store how far they are.
    while running.join_next().await.is_some() {}
}

/// A response with a task, and when it was asked for, in seconds since 1970.
struct Known {
    live: Arc<Live>,
    since: u64,
}

fn report(gateway: &Gateway, known: &HashMap<String, Known>) {
    let oldest = known.values().map(|known| known.since).min();
    gateway.metrics.set_active_responses(known.len(), oldest.unwrap_or_default());
}

/// One response.
struct One {
    gateway: Gateway,
    store: Store,
    room: Arc<Room>,
    response: BackgroundResponse,
    live: Arc<Live>,
}

impl One {
    /// Makes it, or what is left of it, unless the gateway stops or the store fails; then another
    /// task continues.
    async fn run(self) {
        if self.response.is_canceled {
            self.live.cancel();
        }
        let own = self.room.of(&self.response.tenant);
        let stop = self.gateway.stop.clone();
        let _permits = tokio::select! {
            // Read below, so that those that wait take no memory.
            permits = self.room.enter(&own, 0) => Some(permits),
            () = self.live.canceled() => None,
            () = stop.cancelled() => return,
        };
        let task = match self.store.response_task(&self.response.id).await {
            Ok((_, task)) => task,
            // It was deleted.
            Err(StoreError::Unknown) => return,
            Err(error) => return self.interrupt(error),
        };
        let Some(queued) = Stored::from_json(&task.conversation) else {
            return self.interrupt(StoreError::Unavailable);
        };
        self.live.push(0, &queued.first_events().into());
        let (outcome, conversation) = match self.make(task, &queued).await {
            Made::Interrupted => return,
            Made::Complete(conversation) => (BackgroundOutcome::Completed, conversation),
            Made::Canceled => self.end_early(&queued, Ended::Canceled),
            Made::Failed(Failure { detail, status, .. }) => {
                self.end_early(&queued, Ended::Failed(&detail, status))
            }
        };
        self.finish(conversation).await;
        self.gateway.metrics.record_response(outcome);
        tracing::info!(
            response = self.response.id,
            tenant = self.response.tenant,
            outcome = outcome.name(),
            "response in the background ended"
        );
    }

    /// Tries until it is complete, or no attempt would help.
    async fn make(&self, task: Task, queued: &Stored) -> Made {
        let Task { request, progress, .. } = task;
        let known = progress.and_then(|progress| serde_json::from_slice(&progress).ok());
        let checkpoint = known.unwrap_or_else(|| Checkpoint::first(&self.response));
        let mut making = Making {
            gateway: &self.gateway,
            store: &self.store,
            response: &self.response,
            request: request.into(),
            live: &self.live,
            checkpoint,
            previous: queued.previous().map(Arc::new),
        };
        let ((mut pause, pause_max), mut failures) = (PAUSES, 0);
        loop {
            let failure = match making.run().await {
                Made::Failed(failure) => failure,
                made => return made,
            };
            failures += u32::from(failure.is_of_endpoint);
            let Some(least) = failure.retry_after.filter(|_| failures < FAILURES_MAX) else {
                return Made::Failed(failure);
            };
            if making.is_too_old() {
                return Made::Failed(failure);
            }
            self.gateway.metrics.record_response_retry();
            // Half to all of it, so that those that failed together do not try together.
            let half = pause.max(least).min(pause_max) / 2;
            let share = f64::from(random() as u16) / f64::from(u16::MAX);
            tokio::select! {
                () = sleep(half + half.mul_f64(share)) => {}
                () = self.live.canceled() => return Made::Canceled,
                () = self.gateway.stop.cancelled() => return Made::Interrupted,
            }
            pause = (pause * 2).min(pause_max);
        }
    }

    /// The end of a response that is not complete.
    fn end_early(&self, queued: &Stored, end: Ended<'_>) -> (BackgroundOutcome, Vec<u8>) {
        let ended = queued.ended(end);
        let number = self.live.len();
        self.live.push(number, &ended.last_event(number).into());
        let outcome = match end {
            Ended::Canceled => BackgroundOutcome::Canceled,
            Ended::Failed(ErrorDetail { message, .. }, status) => {
                let response = &self.response.id;
                tracing::warn!(response, status, reason = message, "response failed");
                BackgroundOutcome::Failed
            }
        };
        (outcome, ended.to_json().unwrap_or_default())
    }

    /// Stores its end. A full disk must not cost what was computed: it waits here.
    async fn finish(&self, conversation: Vec<u8>) {
        loop {
            let (conversation, events) = (conversation.clone(), self.live.events());
            match self.store.finish_response(&self.response, conversation, events).await {
                Ok(()) => return self.live.end(),
                Err(_) => tokio::select! {
                    () = sleep(STORE_PAUSE) => {}
                    () = self.gateway.stop.cancelled() => return,
                },
            }
        }
    }

    fn interrupt(&self, error: StoreError) {
        tracing::warn!(response = self.response.id, ?error, "response interrupted");
    }
}
