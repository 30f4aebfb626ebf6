//! Runs batches: their lines are requests of class `batch`, which use the slots that others leave.
//!
//! Each batch has a task. What it knows is in the store, so that another gateway process continues
//! where this one was killed: lines with a result are not run again.

use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, SystemTime};

use inference_protocol::time::unix_seconds;
use tokio::sync::Semaphore;
use tokio::task::{self, JoinSet};
use tokio::time::{MissedTickBehavior, interval};

use crate::config::store::{BatchLimits, StoreSettings};
use crate::context::Gateway;
use crate::store::{Batch, Store};

mod end;
mod gate;
mod input;
mod line;
mod run;

/// How often to look for batches whose task has failed, and for what has expired.
const INTERVAL: Duration = Duration::from_secs(10);
/// Bytes of all lines that run or wait in the queue, in KiB.
const LINES_KIB_MAX: usize = 128 * 1024;

/// What limits the lines of all batches.
#[derive(Debug)]
struct Room {
    limits: BatchLimits,
    lines: Arc<Semaphore>,
    kib: Arc<Semaphore>,
    tenants: Mutex<HashMap<String, Weak<Semaphore>>>,
    /// Lines that were started and have not asked for a slot yet.
    starting: Arc<AtomicU64>,
}

impl Room {
    fn new(limits: BatchLimits) -> Self {
        Self {
            limits,
            lines: Arc::new(Semaphore::new(limits.concurrent_max)),
            kib: Arc::new(Semaphore::new(LINES_KIB_MAX)),
            tenants: Mutex::default(),
            starting: Arc::default(),
        }
    }

    /// What limits the lines of one tenant.
    fn of(&self, tenant: &str) -> Arc<Semaphore> {
        let mut tenants = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        tenants.retain(|_, room| room.strong_count() > 0);
        let known = tenants.get(tenant).and_then(Weak::upgrade);
        known.unwrap_or_else(|| {
            let room = Arc::new(Semaphore::new(self.limits.tenant_concurrent_max));
            tenants.insert(tenant.into(), Arc::downgrade(&room));
            room
        })
    }
}

/// Runs batches until the gateway stops.
pub(crate) async fn run(gateway: Gateway) {
    let settings = gateway.settings.now().config.store.clone();
    let (Some(store), Some(settings)) = (gateway.store.clone(), settings) else { return };
    let room = Arc::new(Room::new(settings.batches));
    let mut running: JoinSet<()> = JoinSet::new();
    let mut known: HashMap<task::Id, String> = HashMap::new();
    let mut ticks = interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut changes = store.changes();
    loop {
        tokio::select! {
            _ = ticks.tick() => maintain(&gateway, &store).await,
            _ = changes.changed() => {}
            Some(ended) = running.join_next_with_id() => {
                known.remove(&ended.map_or_else(|panicked| panicked.id(), |(id, ())| id));
                continue;
            }
            () = gateway.stop.cancelled() => break,
        }
        let active = store.active_batches().await.unwrap_or_default();
        gateway.metrics.set_active_batches(&active);
        for batch in active {
            if !known.values().any(|id| *id == batch.id) {
                let id = batch.id.clone();
                let task = one(gateway.clone(), store.clone(), room.clone(), batch);
                known.insert(running.spawn(task).id(), id);
            }
        }
    }
    // Their lines are cut off; results that were recorded stay.
    running.shutdown().await;
}

/// Runs a batch to its end, or until the store fails; then another task begins at the next tick.
async fn one(gateway: Gateway, store: Store, room: Arc<Room>, batch: Batch) {
    let id = batch.id.clone();
    let ran = run::Run::new(gateway, store, room, batch).run().await;
    match ran {
        Ok(batch) => tracing::info!(
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

/// Counts what an earlier run has stored, and deletes what has expired.
async fn maintain(gateway: &Gateway, store: &Store) {
    let now = unix_seconds(SystemTime::now());
    let age_s = gateway
        .settings
        .now()
        .config
        .store
        .as_ref()
        .map(|StoreSettings { age_s_max, .. }| *age_s_max);
    // The database logs what is wrong.
    let _ = store.check(now).await;
    let restored = store.restore().await;
    let files = match restored {
        Ok(()) => store.expire_files(now).await,
        Err(error) => Err(error),
    };
    let batches = match age_s {
        Some(age_s) => store.expire_batches(now.saturating_sub(age_s)).await,
        None => Ok(0),
    };
    if let (Ok(files @ 1..), _) | (Ok(files), Ok(1..)) = (&files, &batches) {
        tracing::info!(
            files,
            batches = batches.unwrap_or_default(),
            "expired files and batches deleted"
        );
    }
}
