//! Stores what was used every few seconds, and learns what was used at other gateways, so that
//! budgets are those of the fleet and survive a restart.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::access::spend::Totals;
use crate::context::Gateway;
use crate::store::{Booked, Store, StoreError, UsageTotals};
use crate::types::budget::{BudgetId, money};
use crate::types::random::random;
use crate::types::usage::{Date, Used};

/// Usage of the last seconds is lost if the gateway is killed.
const INTERVAL: Duration = Duration::from_secs(5);
/// How long the gateway waits for the store before it serves.
const RESTORE_TIMEOUT: Duration = Duration::from_secs(2);
/// Rows in one transaction.
const ROWS_MAX: usize = 1000;

/// What an earlier run has left in the state file, until it is in the store.
type Restored = Option<(Vec<(String, Used)>, Date)>;

/// Usage of which the store has not said whether it is stored. It waits in the book as well.
type Unanswered = Option<Booked>;

/// Learns what was used before this run. Without the store, which may be slow or gone, the gateway
/// knows what its state file says.
pub(crate) async fn restore(gateway: &Gateway) -> Restored {
    let mut restored = Some(gateway.dispatcher.month_totals());
    let store = gateway.store.as_ref()?;
    gateway.dispatcher.share_budgets();
    let load = async {
        if import(store, &mut restored).await.is_ok() {
            save(gateway, store, &mut None).await;
        }
    };
    // Nothing is booked yet, so that nothing can remain unanswered.
    let _ = timeout(RESTORE_TIMEOUT, load).await;
    restored
}

/// Stores usage until the gateway stops, and once more then.
pub(crate) async fn run(gateway: Gateway, mut restored: Restored) {
    let Some(store) = gateway.store.clone() else { return };
    let (mut ticks, mut unanswered) = (interval(INTERVAL), None);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let stops = tokio::select! {
            _ = ticks.tick() => false,
            () = gateway.links.cancelled() => true,
        };
        if import(&store, &mut restored).await.is_ok() {
            save(&gateway, &store, &mut unanswered).await;
        }
        if stops {
            return;
        }
        // Requests that wait for an endpoint do not ask themselves.
        let _ = gateway.allot(|| gateway.dispatcher.unallotted_in_queue()).await;
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
/// it only reads. What is unanswered comes first and as it was, so that it counts once.
async fn save(gateway: &Gateway, store: &Store, unanswered: &mut Unanswered) {
    // What the store says of allotments is true only if nobody asks for another meanwhile.
    let _alone = gateway.allotting.lock().await;
    let mut given_back = gateway.dispatcher.give_back();
    let mut all = gateway.usage.take();
    let mut again = unanswered.take().filter(|booked| all.take_out(booked));
    let (mut rows, mut users): (Vec<_>, Vec<_>) =
        (all.rows.into_iter().collect(), all.users.into_iter().collect());
    loop {
        let booked = again.take().unwrap_or_else(|| Booked {
            rows: last(&mut rows).into_iter().collect(),
            users: last(&mut users).into_iter().collect(),
            // A number of the database has a sign.
            number: (random() >> 65) as u64,
        });
        let today = Date::today();
        let given_back = std::mem::take(&mut given_back);
        match store.add_usage(booked.clone(), given_back, today).await {
            Ok(totals) if rows.is_empty() && users.is_empty() => {
                return set_totals(gateway, today, totals);
            }
            Ok(_) => {}
            Err(_) => {
                let Booked { rows: some, users: of_users, .. } = booked.clone();
                gateway.usage.put_back(some, of_users);
                gateway.usage.put_back(rows, users);
                *unanswered = Some(booked);
                return;
            }
        }
    }
}

/// Takes the last rows, as many as belong in a transaction.
fn last<T>(rows: &mut Vec<T>) -> Vec<T> {
    rows.split_off(rows.len().saturating_sub(ROWS_MAX))
}

/// Sets the totals, with what was booked here meanwhile.
fn set_totals(gateway: &Gateway, today: Date, totals: UsageTotals) {
    gateway.dispatcher.set_totals(today, || {
        let UsageTotals { tenants, endpoints, allotted } = totals;
        let mut tenants: HashMap<String, Used> = tenants.into_iter().collect();
        let mut endpoints: HashMap<String, f64> = endpoints.into_iter().collect();
        let mut allotted: HashMap<BudgetId, u64> = allotted.into_iter().collect();
        for (id, waits) in gateway.usage.by_budget(today) {
            if let Some(amount) = allotted.get_mut(&id) {
                *amount = amount.saturating_sub(waits);
            }
            match id {
                BudgetId::Tokens(tenant) => {
                    let used = Used { tokens: waits, spend: 0.0 };
                    tenants.entry(tenant).or_default().add(used);
                }
                BudgetId::Spend(tenant) => {
                    let spend = money(waits);
                    tenants.entry(tenant).or_default().add(Used { tokens: 0, spend });
                }
                BudgetId::EndpointSpend(name) => {
                    *endpoints.entry(name).or_default() += money(waits);
                }
                BudgetId::UserTokens(..) | BudgetId::UserSpend(..) => {}
            }
        }
        Totals { tenants, endpoints, allotted }
    });
}
