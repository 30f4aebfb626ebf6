//! Looks after the store: whether it works, how much is in it, and what has expired.

use std::time::{Duration, SystemTime};

use inference_protocol::time::unix_seconds;
use tokio::time::{MissedTickBehavior, interval};

use crate::context::Gateway;
use crate::store::{Store, StoreError, minute_of};
use crate::types::usage::Date;

/// How often to write something, to know whether that works, and to count what gateways store.
const INTERVAL: Duration = Duration::from_secs(10);
/// How often to delete what has expired.
const EXPIRY_INTERVAL: Duration = Duration::from_secs(30);
/// How often to look for copies of contents that nobody reads any more.
const COPIES_INTERVAL: Duration = Duration::from_secs(10 * 60);
/// How long a stream can be read on after it was asked for.
const STREAM_AGE_S: u64 = 60 * 60;
/// How long usage is kept: a year and a month, for bills.
const USAGE_AGE_S: u64 = 400 * DAY_S;
/// How long minutes of usage are kept. After that, they are rolled up into hours.
const MINUTES_AGE_S: u64 = 2 * DAY_S;
const DAY_S: u64 = 24 * 60 * 60;
const HOUR_S: u64 = 60 * 60;

/// Runs until the gateway stops. It has a task of its own, because a slow store holds it up.
pub(crate) async fn run(gateway: Gateway) {
    let Some(store) = gateway.store.clone() else { return };
    let (mut rounds, mut expiries) = (interval(INTERVAL), interval(EXPIRY_INTERVAL));
    let mut copies = interval(COPIES_INTERVAL);
    let mut rolled_up = 0;
    for ticks in [&mut rounds, &mut expiries, &mut copies] {
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    }
    // The database logs what is wrong.
    loop {
        let _ = tokio::select! {
            biased;
            () = gateway.stop.cancelled() => return,
            _ = rounds.tick() => check(&store).await,
            _ = expiries.tick() => {
                roll_up(&store, &mut rolled_up).await.and(expire(&gateway, &store).await)
            }
            _ = copies.tick() => store.remove_copies().await,
        };
    }
}

async fn check(store: &Store) -> Result<(), StoreError> {
    store.check(unix_seconds(SystemTime::now())).await?;
    store.restore().await?;
    store.settle_killed().await?;
    if store.is_shared() {
        store.count().await?;
    }
    Ok(())
}

/// Rolls up old minutes of usage, from the one that was reached before.
async fn roll_up(store: &Store, reached: &mut u64) -> Result<(), StoreError> {
    let before = unix_seconds(SystemTime::now()).saturating_sub(MINUTES_AGE_S);
    let before = minute_of(before / HOUR_S * HOUR_S);
    if before > *reached {
        store.roll_up_usage(*reached..before).await?;
        *reached = before;
    }
    Ok(())
}

/// Deletes what has expired.
async fn expire(gateway: &Gateway, store: &Store) -> Result<(), StoreError> {
    let settings = gateway.settings.now();
    let now = unix_seconds(SystemTime::now());
    let files = store.expire_files(now).await?;
    let Some(limits) = &settings.config.store else { return Ok(()) };
    let before = now.saturating_sub(limits.age_s_max);
    store.expire_turns(now.saturating_sub(settings.config.limits.stored.age_s_max)).await?;
    let usage_before = now.saturating_sub(USAGE_AGE_S);
    let yesterday = Date::at(now.saturating_sub(DAY_S));
    let usage_before = (minute_of(usage_before), Date::at(usage_before));
    store.expire_usage(usage_before, yesterday).await?;
    let batches = store.expire_batches(before).await?;
    let responses = store.expire_tasks(before, now.saturating_sub(STREAM_AGE_S)).await?;
    if files + batches + responses > 0 {
        tracing::info!(files, batches, responses, "expired records deleted");
    }
    Ok(())
}
