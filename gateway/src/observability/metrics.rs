//! All metrics of the gateway, served on the admin listener. Label values come from fixed sets or
//! are names from the configuration and the fleet.
//!
//! [`families`] counts events, [`series`] keeps the handles that requests use, and [`fleet`]
//! reports the state of the fleet at each scrape. `docs/metrics.md` lists all metrics.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use inference_metrics::{FamilyDescription, MetricsRegistry};
use prometheus::IntGauge;

use crate::dispatcher::{Dispatcher, Overview};
use crate::scheduler::routing::Policy;
use crate::types::class::Class;
use crate::types::error::Error;
use crate::types::limits::Bounds;
use flotilla_listeners::Closed;
use flotilla_listeners::CountClosed;

mod families;
mod fleet;
mod labels;
mod series;

use families::Families;
pub use labels::{Again, Ended, EndpointKind, Key, Lost, NODE_LEAVES};
use series::Known;
pub use series::Series;

/// The gateway's metrics. Clones share them.
#[derive(Debug, Clone)]
pub struct Metrics(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    families: Families,
    known: Known,
}

impl Metrics {
    /// Creates all metric families. Fails only if two have the same name.
    pub fn new() -> prometheus::Result<Self> {
        let (families, known) = (Families::new()?, Known::default());
        let metrics = Self(Arc::new(Shared { families, known }));
        metrics.in_force();
        Ok(metrics)
    }

    /// All metric families by name, for the documentation.
    ///
    /// # Errors
    /// Two families have the same name.
    pub fn list(&self) -> prometheus::Result<Vec<FamilyDescription>> {
        let nobody = Dispatcher::new(Bounds::new(0, 0), Policy::default());
        let fleet = fleet::registry(&nobody.overview())?;
        let mut all = [self.0.families.registry.families.clone(), fleet.families].concat();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(all)
    }

    /// Counts a request that has arrived.
    pub fn request_begins(&self) {
        self.0.families.in_flight.inc();
    }

    /// The series for requests with these labels.
    pub fn series(&self, key: Key<'_>) -> Arc<Series> {
        self.0.known.find(&self.0.families, key).0
    }

    /// Counts a request that has ended.
    pub fn request_ends(&self, key: Key<'_>, ended: Ended) {
        let families = &self.0.families;
        families.in_flight.dec();
        let (series, key) = self.0.known.find(families, key);
        series.ends(families, key, ended);
    }

    /// Requests whose response is not finished.
    pub fn requests_in_flight(&self) -> i64 {
        self.0.families.in_flight.get()
    }

    /// Observes the queue wait of a request that got its first slot.
    pub fn queue_waited(&self, class: Class, wait: Duration) {
        self.0.families.queue_wait[class as usize].observe(wait.as_secs_f64());
    }

    /// Counts another attempt, on another node.
    pub fn tried_again(&self, kind: Again, reason: &str) {
        let family = match kind {
            Again::Retry => &self.0.families.retries,
            Again::Resume => &self.0.families.resumes,
        };
        family.with_label_values(&[reason]).inc();
    }

    /// Counts a retry that the budget refused.
    pub fn retry_refused(&self) {
        self.0.families.retries_refused.inc();
    }

    /// Adds the cost of an endpoint, for tokens or for hours.
    pub fn spent(&self, endpoint: &str, what: Paid<'_>, amount: f64) {
        let (what, tenant) = match what {
            Paid::Tokens(tenant) => ("tokens", tenant),
            Paid::Hours => ("hours", ""),
        };
        if amount > 0.0 {
            let spent = &self.0.families.spent;
            spent.with_label_values(&[endpoint, what, tenant]).inc_by(amount);
        }
    }

    /// Counts a reload of the configuration, successful or refused.
    pub fn reloaded(&self, is_ok: bool) {
        let outcome = if is_ok { "ok" } else { "refused" };
        self.0.families.reloads.with_label_values(&[outcome]).inc();
        match is_ok {
            true => self.in_force(),
            false => self.0.families.reload_is_ok.set(0),
        }
    }

    /// Counts a write of the state file.
    pub fn state_saved(&self, is_ok: bool) {
        let outcome = if is_ok { "ok" } else { "failed" };
        self.0.families.state_saves.with_label_values(&[outcome]).inc();
    }

    /// Counts a decided hedge.
    pub fn hedged(&self, second_was_first: bool) {
        let first = if second_was_first { "second" } else { "first" };
        self.0.families.hedges.with_label_values(&[first]).inc();
    }

    /// Records that the current configuration took effect now.
    fn in_force(&self) {
        self.0.families.reload_is_ok.set(1);
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        self.0.families.reloaded_at.set(now.map_or(0.0, |now| now.as_secs_f64()));
    }

    /// Counts a connection as open until the result is dropped.
    pub fn open_connection(&self) -> OpenConnection {
        let connections = self.0.families.connections.clone();
        connections.inc();
        OpenConnection(connections)
    }

    /// Counts a refused join. Leaves out nodes that are already linked and gateways without
    /// joining, because neither is a problem of a node.
    pub fn join_refused(&self, why: &Error) {
        if !matches!(why, Error::JoinedAlready | Error::UnknownPath) {
            self.0.families.joins_refused.with_label_values(&[why.code()]).inc();
        }
    }

    /// Counts lost spans.
    pub fn spans_lost(&self, why: Lost, spans: u64) {
        self.0.families.spans_lost.with_label_values(&[why.name()]).inc_by(spans);
    }

    /// All metrics in the Prometheus text format 0.0.4.
    ///
    /// # Errors
    /// They cannot be encoded.
    pub fn render(&self, overview: &Overview) -> Result<String, Error> {
        let counted = self.0.families.registry.gather();
        let fleet = fleet::registry(overview)
            .as_ref()
            .map(MetricsRegistry::gather)
            .map_err(ToString::to_string);
        let all = fleet.and_then(|fleet| {
            let all: Vec<_> = counted.into_iter().chain(fleet).collect();
            inference_metrics::encode_text(&all).map_err(|error| error.to_string())
        });
        all.map_err(|error| Error::internal(format!("metrics cannot be written: {error}")))
    }
}

/// What was paid for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Paid<'a> {
    /// Tokens of this tenant.
    Tokens(&'a str),
    /// Time, used or not.
    Hours,
}

/// An open connection; dropping it counts it as closed.
#[derive(Debug)]
pub struct OpenConnection(IntGauge);

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl CountClosed for Metrics {
    fn connection_closed(&self, why: Closed) {
        self.0.families.closed.with_label_values(&[why.name()]).inc();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_family_has_a_help_and_a_name_of_ours() {
        let all = Metrics::new().unwrap().list().unwrap();
        assert!(all.len() > 50, "{}", all.len());
        for made in &all {
            let known = ["gateway_", "process_"].iter().any(|p| made.name.starts_with(p));
            assert!(known && made.help.ends_with('.'), "{made:?}");
        }
    }
}
