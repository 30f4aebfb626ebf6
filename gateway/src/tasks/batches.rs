//! Runs batches: their lines are requests of class `batch`, which use the slots that others leave.
//!
//! Each batch has a task. What it knows is in the store, so that another gateway process continues
//! where this one was killed: lines with a result are not run again.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use tokio::task::{self, JoinSet};
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::config::store::BatchLimits;
use crate::context::Gateway;
use crate::store::{Batch, Store};
use crate::tasks::room::Room;

mod end;
mod gate;
mod input;
mod line;
mod messages;
mod order;
mod run;

/// Results of lines read at a time.
const RESULTS_PAGE: usize = 64;
/// How often to look for work whose task has failed.
const INTERVAL: Duration = Duration::from_secs(10);

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
    let mut ticks = interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut changes = store.changes();
    loop {
        tokio::select! {
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
