//! Stores what was used every few seconds, and learns what was used at other gateways, so that
//! budgets are those of the fleet and survive a restart.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::access::spend::Totals;
use crate::context::Gateway;
use crate::store::{Store, StoreError, UsageKey, UsageSum, UsageTotals};
use crate::types::usage::{Date, Used};

/// Usage of the last seconds is lost if the gateway is killed.
const INTERVAL: Duration = Duration::from_secs(5);
/// How long the gateway waits for the store before it serves.
const RESTORE_TIMEOUT: Duration = Duration::from_secs(2);
/// Rows in one transaction.
const ROWS_MAX: usize = 1000;

/// What an earlier run has left in the state file, until it is in the store.
type Restored = Option<(Vec<(String, Used)>, Date)>;

/// Learns what was used before this run. Without the store, which may be slow or gone, the gateway
/// knows what its state file says.
pub(crate) async fn restore(gateway: &Gateway) -> Restored {
    let mut restored = Some(gateway.dispatcher.month_totals());
    let store = gateway.store.as_ref()?;
    gateway.dispatcher.share_budgets();
    let load = async {
        if import(store, &mut restored).await.is_ok() {
            save(gateway, store).await;
        }
    };
    let _ = timeout(RESTORE_TIMEOUT, load).await;
    restored
}

/// Stores usage until the gateway stops, and once more then.
pub(crate) async fn run(gateway: Gateway, mut restored: Restored) {
    let Some(store) = gateway.store.clone() else { return };
    let mut ticks = interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let stops = tokio::select! {
            _ = ticks.tick() => false,
            () = gateway.links.cancelled() => true,
        };
        if import(&store, &mut restored).await.is_ok() {
            save(&gateway, &store).await;
        }
        if stops {
            return;
        }
    }
}

/// Stores what was used before there was a store, once.
async fn import(store: &Store, restored: &mut Restored) -> Result<(), StoreError> {
    if let Some((tenants, date)) = restored.clone() {
        store.import_usage(tenants, date.month).await?;
        *restored = None;
    }
    Ok(())
}

/// Stores what was used since the last time, and sets what all gateways have counted. Without rows,
/// it only reads.
async fn save(gateway: &Gateway, store: &Store) {
    // What the store says of allotments is true only if nobody asks for another meanwhile.
    let _alone = gateway.allotting.lock().await;
    let mut given_back = gateway.dispatcher.give_back();
    let mut left = gateway.usage.take();
    loop {
        let rows = left.split_off(left.len().saturating_sub(ROWS_MAX));
        let dated = rows.iter().map(|(key, sum)| (key.clone(), *sum, Date::at(key.hour * 3600)));
        let today = Date::today();
        match store.add_usage(dated.collect(), std::mem::take(&mut given_back), today).await {
            Ok(totals) if left.is_empty() => return set_totals(gateway, today, totals),
            Ok(_) => {}
            Err(_) => {
                gateway.usage.put_back(rows);
                return gateway.usage.put_back(left);
            }
        }
    }
}

/// Sets the totals, with what was booked here meanwhile.
fn set_totals(gateway: &Gateway, today: Date, totals: UsageTotals) {
    gateway.dispatcher.set_totals(today, || {
        let UsageTotals { tenants, endpoints, allotted } = totals;
        let mut tenants: HashMap<String, Used> = tenants.into_iter().collect();
        let mut endpoints: HashMap<String, f64> = endpoints.into_iter().collect();
        let mut allotted: HashMap<String, u64> = allotted.into_iter().collect();
        for (UsageKey { hour, tenant, endpoint, .. }, sum) in gateway.usage.rows() {
            let date = Date::at(hour * 3600);
            if let Some(tokens) = allotted.get_mut(&*tenant) {
                *tokens = tokens.saturating_sub(sum.tokens());
            }
            if date.month == today.month {
                add(tenants.entry(tenant.to_string()).or_default(), sum);
            }
            if date.day == today.day && !endpoint.is_empty() {
                *endpoints.entry(endpoint.to_string()).or_default() += sum.amount();
            }
        }
        Totals { tenants, endpoints, allotted }
    });
}

fn add(used: &mut Used, sum: UsageSum) {
    used.tokens = used.tokens.saturating_add(sum.tokens());
    used.spend += sum.amount();
}
