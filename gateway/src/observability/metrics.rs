//! All metrics of the gateway, served on the admin listener. Label values come from fixed sets or
//! are names from the configuration and the fleet.
//!
//! [`families`] counts events, [`series`] keeps the handles that requests use, and [`fleet`]
//! reports the state of the fleet at each scrape. `docs/metrics.md` lists all metrics.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use inference_metrics::{FamilyDescription, MetricsRegistry};
use prometheus::IntGauge;
use prometheus::core::MetricVec;

use crate::access::users::Entered;
use crate::dispatcher::{Dispatcher, FleetSnapshot};
use crate::scheduler::routing::Policy;
use crate::types::class::Class;
use crate::types::error::Error;
use crate::types::limits::QueueBounds;
use flotilla_listeners::CloseCounter;
use flotilla_listeners::CloseReason;

mod families;
mod fleet;
mod labels;
mod series;
mod store;

use families::Families;
pub use labels::EndpointKind;
pub(crate) use labels::{
    HandOverOutcome, MetricLabels, NODE_LEAVES, RequestSample, RetryKind, SpanLoss,
};
pub(crate) use series::Series;
use series::SeriesCache;
pub(crate) use store::{BackgroundOutcome, WebhookOutcome};

/// The gateway's metrics. Clones share them.
#[derive(Debug, Clone)]
pub struct Metrics(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    families: Families,
    known: SeriesCache,
}

impl Metrics {
    /// Creates all metric families. Fails only if two have the same name.
    pub fn new() -> prometheus::Result<Self> {
        let (families, known) = (Families::new()?, SeriesCache::default());
        let metrics = Self(Arc::new(Shared { families, known }));
        metrics.record_config_applied();
        Ok(metrics)
    }

    /// All metric families by name, for the documentation.
    ///
    /// # Errors
    /// Two families have the same name.
    pub fn list(&self) -> prometheus::Result<Vec<FamilyDescription>> {
        let nobody = Dispatcher::new(QueueBounds::new(0, 0), Policy::default());
        let fleet = fleet::registry(&nobody.snapshot())?;
        let mut all = [self.0.families.registry.families.clone(), fleet.families].concat();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(all)
    }

    /// Counts a request that has arrived.
    pub(crate) fn record_request_start(&self) {
        self.0.families.in_flight.inc();
    }

    /// The series for requests with these labels.
    pub fn series(&self, labels: MetricLabels<'_>) -> Arc<Series> {
        self.0.known.find(&self.0.families, labels).0
    }

    /// Counts a request that has ended.
    pub(crate) fn record_request_end(&self, labels: MetricLabels<'_>, ended: RequestSample) {
        let families = &self.0.families;
        families.in_flight.dec();
        let (series, labels) = self.0.known.find(families, labels);
        series.record_end(families, labels, ended);
    }

    /// Requests whose response is not finished.
    pub fn requests_in_flight(&self) -> i64 {
        self.0.families.in_flight.get()
    }

    /// Observes the queue wait of a request that got its first slot.
    pub(crate) fn record_queue_wait(&self, class: Class, wait: Duration) {
        self.0.families.queue_wait[class as usize].observe(wait.as_secs_f64());
    }

    /// Counts another attempt, on another node.
    pub(crate) fn record_retry(&self, kind: RetryKind, reason: &str) {
        let family = match kind {
            RetryKind::Retry => &self.0.families.retries,
            RetryKind::Resume => &self.0.families.resumes,
        };
        family.with_label_values(&[reason]).inc();
    }

    /// Records how many users of a tenant are tracked.
    pub(crate) fn record_users(&self, tenant: &str, entered: &Entered) {
        let tracked = i64::try_from(entered.tracked).unwrap_or(i64::MAX);
        self.0.families.users.with_label_values(&[tenant]).set(tracked);
        let evicted = self.0.families.users_evicted.with_label_values(&[tenant]);
        evicted.inc_by(entered.has_evicted.into());
    }

    /// Counts a retry that the budget refused.
    pub(crate) fn record_retry_refused(&self) {
        self.0.families.retries_refused.inc();
    }

    /// Counts a request that gave its slot to a more urgent one.
    pub(crate) fn record_preemption(&self) {
        self.0.families.preemptions.inc();
    }

    /// Adds the cost of an endpoint, for tokens or for hours.
    pub(crate) fn add_spend(&self, endpoint: &str, what: SpendKind<'_>, amount: f64) {
        let (what, tenant) = match what {
            SpendKind::Tokens(tenant) => ("tokens", tenant),
            SpendKind::Hours => ("hours", ""),
        };
        if amount > 0.0 {
            let spent = &self.0.families.spent;
            spent.with_label_values(&[endpoint, what, tenant]).inc_by(amount);
        }
    }

    /// Counts a reload of the configuration, successful or refused.
    pub(crate) fn record_reload(&self, is_ok: bool) {
        let outcome = if is_ok { "ok" } else { "refused" };
        self.0.families.reloads.with_label_values(&[outcome]).inc();
        match is_ok {
            true => self.record_config_applied(),
            false => self.0.families.reload_is_ok.set(0),
        }
    }

    /// Counts a write of the state file.
    pub(crate) fn record_state_save(&self, is_ok: bool) {
        let outcome = if is_ok { "ok" } else { "failed" };
        self.0.families.state_saves.with_label_values(&[outcome]).inc();
    }

    /// Counts an attempt to get a certificate.
    pub(crate) fn record_certificate_order(&self, is_ok: bool) {
        let outcome = if is_ok { "ok" } else { "failed" };
        self.0.families.certificate_orders.with_label_values(&[outcome]).inc();
    }

    /// Records that there is no certificate from an ACME server.
    pub(crate) fn forget_certificate(&self) {
        self.0.families.certificate.iter().for_each(MetricVec::reset);
    }

    /// Records when the certificate in use is valid, in seconds since 1970.
    pub(crate) fn set_certificate(&self, domain: &str, not_before: u64, not_after: u64) {
        // Its first domain may be another one now.
        self.forget_certificate();
        for (family, time) in self.0.families.certificate.iter().zip([not_before, not_after]) {
            family.with_label_values(&[domain]).set(time as f64);
        }
    }

    /// Counts a prefix that a leaving node offered.
    pub(crate) fn record_hand_over(&self, outcome: HandOverOutcome) {
        self.0.families.handed_over.with_label_values(&[outcome.name()]).inc();
    }

    /// Counts a decided hedge.
    pub(crate) fn record_hedge(&self, second_was_first: bool) {
        let first = if second_was_first { "second" } else { "first" };
        self.0.families.hedges.with_label_values(&[first]).inc();
    }

    /// Records that the current configuration took effect now.
    fn record_config_applied(&self) {
        self.0.families.reload_is_ok.set(1);
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        self.0.families.reloaded_at.set(now.map_or(0.0, |now| now.as_secs_f64()));
    }

    /// Counts a connection as open until the result is dropped.
    pub(crate) fn open_connection(&self) -> OpenConnection {
        let connections = self.0.families.connections.clone();
        connections.inc();
        OpenConnection(connections)
    }

    /// Counts a refused join. Leaves out nodes that are already linked and gateways without
    /// joining, because neither is a problem of a node.
    pub(crate) fn record_join_refused(&self, why: &Error) {
        if !matches!(why, Error::JoinedAlready | Error::UnknownPath) {
            self.0.families.joins_refused.with_label_values(&[why.code()]).inc();
        }
    }

    /// Counts lost spans.
    pub(crate) fn record_spans_lost(&self, why: SpanLoss, spans: u64) {
        self.0.families.spans_lost.with_label_values(&[why.name()]).inc_by(spans);
    }

    /// Sets how many responses are stored, and their bytes.
    pub(crate) fn set_stored(&self, responses: usize, bytes: usize) {
        let [count, size] = &self.0.families.stored;
        count.set(i64::try_from(responses).unwrap_or(i64::MAX));
        size.set(i64::try_from(bytes).unwrap_or(i64::MAX));
    }

    /// All metrics in the Prometheus text format 0.0.4.
    ///
    /// # Errors
    /// They cannot be encoded.
    pub fn render(&self, overview: &FleetSnapshot) -> Result<String, Error> {
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
pub(crate) enum SpendKind<'a> {
    /// Tokens of this tenant.
    Tokens(&'a str),
    /// Time, used or not.
    Hours,
}

/// An open connection; dropping it counts it as closed.
#[derive(Debug)]
pub(crate) struct OpenConnection(IntGauge);

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl CloseCounter for Metrics {
    fn record_close(&self, reason: CloseReason) {
        self.0.families.closed.with_label_values(&[reason.name()]).inc();
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
