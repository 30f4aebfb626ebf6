//! Books hourly costs, used or not, of nodes and rented external endpoints. Also updates the date
//! of the ledger.

use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::context::Gateway;
use crate::observability::metrics::SpendKind;
use crate::types::external::PREFIX;
use crate::types::usage::Date;

const INTERVAL: Duration = Duration::from_secs(5);
const HOUR: f64 = 3600.0;

/// Runs until the gateway stops.
pub(crate) async fn run(gateway: Gateway) {
    let mut ticks = interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut until = Instant::now();
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = gateway.links.cancelled() => return,
        }
        charge_hours(&gateway, until.elapsed().as_secs_f64() / HOUR);
        until = Instant::now();
        gateway.dispatcher.set_date(Date::today());
    }
}

fn charge_hours(gateway: &Gateway, hours: f64) {
    let settings = gateway.settings.now();
    let nodes = gateway.dispatcher.totals().nodes as f64;
    let amount = settings.config.node_price_per_hour * nodes * hours;
    gateway.metrics.add_spend("nodes", SpendKind::Hours, amount);
    for endpoint in &settings.config.externals {
        let name = format!("{PREFIX}{}", endpoint.name);
        gateway.metrics.add_spend(&name, SpendKind::Hours, endpoint.terms.prices.hour * hours);
    }
}
