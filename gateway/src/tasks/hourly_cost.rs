//! Books hourly costs, used or not, of nodes and rented external endpoints. Also updates the date
//! of the ledger.

use std::time::{Duration, SystemTime};

use chrono::{DateTime, Datelike};
use inference_protocol::time::unix_seconds;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::context::Gateway;
use crate::observability::metrics::SpendKind;
use crate::types::external::PREFIX;
use crate::types::usage::Date;

const INTERVAL: Duration = Duration::from_secs(5);
const HOUR: f64 = 3600.0;
const DAY_SECONDS: u64 = 24 * 60 * 60;

/// Today's date (UTC).
pub(crate) fn today() -> Date {
    date_of(unix_seconds(SystemTime::now()))
}

/// The date (UTC) of a time in seconds since 1970: days since then and months since year 0.
pub(crate) fn date_of(seconds: u64) -> Date {
    let date = i64::try_from(seconds).ok().and_then(|at| DateTime::from_timestamp(at, 0));
    let month = date
        .map_or(0, |date| u64::from(date.year().unsigned_abs()) * 12 + u64::from(date.month0()));
    Date { day: seconds / DAY_SECONDS, month }
}

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
        gateway.dispatcher.set_date(today());
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
