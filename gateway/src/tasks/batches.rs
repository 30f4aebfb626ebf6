//! Runs batches: their lines are requests of class `batch`, which use the slots that others leave.
//!
//! Each batch has a task. What it knows is in the store, so that another gateway process continues
//! where this one was killed: lines with a result are not run again.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, SystemTime};

use inference_protocol::time::unix_seconds;
use tokio::task::{self, JoinSet};
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::config::store::{BatchLimits, StoreSettings};
use crate::context::Gateway;
use crate::store::{Batch, Store, StoreError};
use crate::tasks::room::Room;

mod end;
mod gate;
mod input;
mod line;
mod messages;
mod run;

/// How often to look for what has expired.
const INTERVAL: Duration = Duration::from_secs(10);

/// How often to look for copies of contents that nobody reads any more.
const COPIES_INTERVAL: Duration = Duration::from_secs(10 * 60);

/// How long batches may take to store how far they are when the gateway stops.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// What limits the lines of all batches.
#[derive(Debug)]
struct Limits {
    /// Lines of one batch.
    lines_max: usize,
    room: Room,
    /// Lines that were started and have not asked for a slot yet.
    starting: Arc<AtomicU64>,
}

/// Runs batches until the gateway stops.
pub(crate) async fn run(gateway: Gateway) {
    let settings = gateway.settings.now().config.store.clone();
    let (Some(store), Some(settings)) = (gateway.store.clone(), settings) else { return };
    let BatchLimits { lines_max, concurrent_max, tenant_concurrent_max, .. } = settings.batches;
    let room = Room::new(concurrent_max, tenant_concurrent_max);
    let limits = Arc::new(Limits { lines_max, room, starting: Arc::default() });
    let mut running: JoinSet<()> = JoinSet::new();
    let mut known: HashMap<task::Id, String> = HashMap::new();
    let (mut rounds, mut ticks) = (interval(INTERVAL), interval(store.interval()));
    let mut removals = interval(COPIES_INTERVAL);
    rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut changes = store.changes();
    loop {
        tokio::select! {
            _ = rounds.tick() => {
                maintain(&gateway, &store).await;
                continue;
            }
            _ = removals.tick() => {
                let _ = store.remove_copies().await;
                continue;
            }
            _ = ticks.tick() => {}
            _ = changes.changed() => {}
            Some(ended) = running.join_next_with_id() => {
                known.remove(&ended.map_or_else(|panicked| panicked.id(), |(id, ())| id));
                continue;
            }
            () = gateway.stop.cancelled() => break,
        }
        let Ok(own) = store.own_batches().await else { continue };
        gateway.metrics.set_active_batches(&own);
        for batch in own {
            if !known.values().any(|id| *id == batch.id) {
                let id = batch.id.clone();
                let task = one(gateway.clone(), store.clone(), limits.clone(), batch);
                known.insert(running.spawn(task).id(), id);
            }
        }
    }
    // They store how far they are, unless they wait for the store.
    let _ = timeout(STOP_TIMEOUT, async { while running.join_next().await.is_some() {} }).await;
    running.shutdown().await;
}

/// Runs a batch to its end, or until the store fails; then another task begins at the next tick.
async fn one(gateway: Gateway, store: Store, limits: Arc<Limits>, batch: Batch) {
    let id = batch.id.clone();
    let ran = run::Run::new(gateway, store, limits, batch).run().await;
    match ran {
        Ok(None) => {}
        Ok(Some(batch)) => tracing::info!(
            batch = batch.id,
            tenant = batch.tenant,
            status = ?batch.status,
            completed = batch.completed,
            failed = batch.failed,
            "batch ended"
        ),
        Err(error) => tracing::warn!(batch = id, ?error, "batch interrupted"),
    }
}

/// Counts what is stored, and deletes what has expired.
async fn maintain(gateway: &Gateway, store: &Store) {
    let now = unix_seconds(SystemTime::now());
    let settings = gateway.settings.now();
    // The database logs what is wrong.
    let _ = store.check(now).await;
    let expired = async {
        store.restore().await?;
        if store.is_shared() {
            store.count().await?;
        }
        let files = store.expire_files(now).await?;
        let Some(StoreSettings { age_s_max, .. }) = settings.config.store else {
            return Ok([files, 0, 0]);
        };
        let before = now.saturating_sub(age_s_max);
        let sent_before = now.saturating_sub(settings.config.limits.stored.age_s_max);
        store.expire_turns(sent_before).await?;
        let (batches, responses) =
            (store.expire_batches(before).await?, store.expire_tasks(before).await?);
        Ok::<_, StoreError>([files, batches, responses])
    };
    let Ok([files, batches, responses]) = expired.await else { return };
    if files + batches + responses > 0 {
        tracing::info!(files, batches, responses, "expired records deleted");
    }
}
