//! Makes responses in the background, and does jobs. Each has a task. What it knows is in the
//! store, so that another gateway process continues where this one was killed.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use inference_protocol::time::unix_seconds;
use inference_translation::store::Stored;
use serde_json::Value;
use tokio::task::{self, JoinSet};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use super::asking::ABSENT_MAX;
use super::room::Room;
use super::webhooks::messages;
use crate::config::store::BackgroundLimits;
use crate::context::Gateway;
use crate::observability::metrics::BackgroundOutcome;
use crate::proxy::deferral::Checkpoint;
use crate::store::{BackgroundTask, Live, Store, StoreError, TaskEnd, TaskKind};

mod job;
mod response;
mod stream;

/// How often to look for work whose task has failed.
const INTERVAL: Duration = Duration::from_secs(10);
/// How often to look for an endpoint.
const ENDPOINT_INTERVAL: Duration = Duration::from_millis(100);
/// Pause between attempts to store an end.
const STORE_PAUSE: Duration = Duration::from_secs(1);

/// Works until the gateway stops.
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
        let Ok(own) = store.own_tasks().await else { continue };
        let ids: HashSet<&str> = own.iter().map(|task| &*task.id).collect();
        let gone = known.iter().filter(|(id, _)| !ids.contains(id.as_str()));
        // Deleted, or another gateway does them.
        gone.for_each(|(_, Known { live, .. })| live.cancel());
        for task in own {
            if let Some(Known { live, .. }) = known.get(&task.id) {
                if task.is_canceled {
                    live.cancel();
                }
                continue;
            }
            let (id, live) = (task.id.clone(), store.live(&task));
            let (gateway, store, room) = (gateway.clone(), store.clone(), room.clone());
            live.set_own(true);
            known.insert(id.clone(), Known { live: live.clone(), since: task.created_at });
            let one = One { gateway, store, room, task, live };
            tasks.insert(running.spawn(one.run()).id(), id);
        }
        report(&gateway, &known);
    }
    // They store how far they are.
    while running.join_next().await.is_some() {}
}

/// A running task, and when it was asked for, in seconds since 1970.
struct Known {
    live: Arc<Live>,
    since: u64,
}

fn report(gateway: &Gateway, known: &HashMap<String, Known>) {
    let oldest = known.values().map(|known| known.since).min();
    gateway.metrics.set_active_tasks(known.len(), oldest.unwrap_or_default());
}

/// A response or a job.
struct One {
    gateway: Gateway,
    store: Store,
    room: Arc<Room>,
    task: BackgroundTask,
    live: Arc<Live>,
}

impl One {
    /// Does it until it has ended, the gateway stops, or the store fails.
    async fn run(self) {
        self.work().await;
        self.live.set_own(false);
    }

    /// Does it, or what is left of it, unless the gateway stops or the store fails; then it is
    /// continued later.
    async fn work(&self) {
        if self.task.is_canceled {
            self.live.cancel();
        }
        let own = self.room.of(&self.task.tenant);
        let stop = self.gateway.stop.clone();
        let _permits = tokio::select! {
            // Read below, so that those that wait take no memory.
            permits = self.room.enter(&own, self.task.bytes as usize) => Some(permits),
            () = self.live.canceled() => None,
            () = stop.cancelled() => return,
        };
        let input = match self.store.task_input(&self.task).await {
            Ok(input) => input,
            // It was deleted.
            Err(StoreError::Unknown) => return self.live.end(),
            Err(error) => {
                return tracing::warn!(task = self.task.id, ?error, "task interrupted");
            }
        };
        tokio::select! {
            () = self.endpoint() => {}
            () = self.live.canceled() => {}
            () = stop.cancelled() => return,
        }
        let done = match self.task.kind() {
            TaskKind::Job => {
                let left = self.task.expires_at().saturating_sub(unix_seconds(SystemTime::now()));
                let left = Duration::from_secs(left);
                job::run(self, input, left).await
            }
            TaskKind::Response => response::run(self, input).await,
            TaskKind::Stream => stream::run(self, input).await,
        };
        let Some((outcome, result)) = done else { return };
        if !self.finish(outcome, result).await {
            return;
        }
        self.gateway.metrics.record_task(outcome);
        let (task, tenant) = (&self.task.id, &self.task.tenant);
        tracing::info!(task, tenant, outcome = outcome.name(), "task ended");
    }

    /// Where to continue it.
    fn checkpoint(&self, progress: Option<Vec<u8>>) -> Checkpoint {
        let known = progress.and_then(|progress| serde_json::from_slice(&progress).ok());
        known.unwrap_or_else(|| Checkpoint::first(self.task.number(), self.task.created_at))
    }

    /// Waits until an endpoint serves the model, or for so long that this must be an error. Tried
    /// before, it would count as refused. A revoked key needs no endpoint.
    async fn endpoint(&self) {
        let begun = Instant::now();
        let BackgroundTask { model, tenant, .. } = &self.task;
        let waits = || {
            let settings = self.gateway.settings.now();
            let has_key = settings.keys.tenants().any(|caller| *caller.tenant == **tenant);
            has_key && !model.is_empty() && !self.gateway.dispatcher.serves(model)
        };
        while waits() && begun.elapsed() < ABSENT_MAX {
            sleep(ENDPOINT_INTERVAL).await;
        }
    }

    /// Stores its end. A full disk must not cost what was computed: it waits here. Returns false if
    /// it has not ended.
    async fn finish(&self, outcome: BackgroundOutcome, result: Vec<u8>) -> bool {
        let event = event(&self.task, outcome, &result);
        let is_told = self.task.kind() != TaskKind::Stream;
        let told = || messages(&self.gateway, &self.task.tenant, &event, &self.task.id);
        let messages = if is_told { told() } else { Vec::new() };
        let status = event.rsplit_once('.').map_or("", |(_, status)| status).to_string();
        let end = TaskEnd { status, result, events: self.live.events(), messages };
        loop {
            match self.store.finish_task(&self.task, end.clone()).await {
                Ok(()) => {
                    self.live.end();
                    return true;
                }
                // Another gateway thought this one dead, and makes the same.
                Err(StoreError::NotOwner) => return false,
                Err(_) => tokio::select! {
                    () = sleep(STORE_PAUSE) => {}
                    () = self.gateway.stop.cancelled() => return false,
                },
            }
        }
    }
}

/// The event that tells of the end of a task, as at OpenAI.
fn event(task: &BackgroundTask, outcome: BackgroundOutcome, result: &[u8]) -> String {
    let end = match outcome {
        BackgroundOutcome::Canceled => "cancelled",
        BackgroundOutcome::Failed => "failed",
        BackgroundOutcome::Completed => "completed",
    };
    match task.kind() {
        kind @ (TaskKind::Job | TaskKind::Stream) => format!("{}.{end}", kind.name()),
        TaskKind::Response => {
            // One that is complete may have been cut off.
            let stored = Stored::from_json(result);
            let response = stored.map(|stored| serde_json::from_slice(stored.response()));
            let response: Value = response.and_then(Result::ok).unwrap_or_default();
            format!("response.{}", response["status"].as_str().unwrap_or(end))
        }
    }
}
