//! Metric families that count events.

use inference_metrics::{MetricsBuilder, MetricsRegistry, build_info};
use prometheus::{
    CounterVec, Gauge, GaugeVec, Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Result,
};

use super::labels::{HandOverOutcome, NODE_LEAVES, SpanLoss};
use super::store::StoreFamilies;
use crate::types::class::Class;
use crate::types::error::Error;
use flotilla_listeners::CloseReason;

/// Buckets for whole requests and waits, in seconds. CPU machines are slow, so they reach ten
/// minutes.
const SECONDS: &[f64] = &[
    0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 600.0,
];
/// Buckets for the time to first token, in seconds; finer where objectives lie.
const FIRST: &[f64] = &[
    0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0,
    60.0, 120.0, 300.0,
];
/// Buckets for the time between two pieces, in seconds: from the speed of a small model to the
/// patience of a reader.
const GAPS: &[f64] =
    &[0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 30.0];

/// All families that count events.
#[derive(Debug)]
pub(crate) struct Families {
    pub registry: MetricsRegistry,
    pub requests: IntCounterVec,
    pub in_flight: IntGauge,
    pub duration: HistogramVec,
    pub first_token: HistogramVec,
    pub gap: HistogramVec,
    /// Indexed by class.
    pub queue_wait: [Histogram; 3],
    pub retries: IntCounterVec,
    pub retries_refused: IntCounter,
    pub preemptions: IntCounter,
    pub handed_over: IntCounterVec,
    pub resumes: IntCounterVec,
    pub refusals: IntCounterVec,
    pub tokens: IntCounterVec,
    pub users: IntGaugeVec,
    pub users_evicted: IntCounterVec,
    pub spent: CounterVec,
    pub saved: CounterVec,
    pub connections: IntGauge,
    /// Stored responses: how many, and their bytes.
    pub stored: [IntGauge; 2],
    pub(super) store: StoreFamilies,
    pub closed: IntCounterVec,
    pub joins_refused: IntCounterVec,
    pub reloads: IntCounterVec,
    pub reload_is_ok: IntGauge,
    pub reloaded_at: Gauge,
    pub spans_lost: IntCounterVec,
    pub state_saves: IntCounterVec,
    pub hedges: IntCounterVec,
    pub certificate_orders: IntCounterVec,
    /// When the certificate was issued, and when it expires.
    pub certificate: [GaugeVec; 2],
}

impl Families {
    /// Creates all families. Series with fixed label values start at 0. Fails only if two families
    /// have the same name.
    pub(crate) fn new() -> Result<Self> {
        let mut builder = MetricsBuilder::default();
        let requests = requests(&mut builder)?;
        let histograms = histograms(&mut builder)?;
        let [duration, first_token, gap, queue_wait] = histograms;
        let [retries, resumes, refusals] = failures(&mut builder)?;
        let [spent, saved] = money(&mut builder)?;
        let families = Self {
            requests,
            in_flight: builder.gauge(
                "gateway_requests_in_flight",
                "Requests whose response is not finished, including queued ones.",
            )?,
            duration,
            first_token,
            gap,
            queue_wait: Class::ALL.map(|class| queue_wait.with_label_values(&[class.name()])),
            retries,
            retries_refused: builder.counter(
                "gateway_retries_refused_total",
                "Requests that were not retried because the retry budget was used up.",
            )?,
            preemptions: builder.counter(
                "gateway_preemptions_total",
                "Lines of batches and jobs of class batch that gave their slot to a more urgent request \
                 and continued later.",
            )?,
            resumes,
            refusals,
            tokens: builder.counters(
                "gateway_tokens_total",
                "Tokens by kind: prompt (computed), cached (prompt tokens reused from the cache), \
                 and completion.",
                &["model", "tenant", "endpoint_kind", "kind"],
            )?,
            users: builder.gauges(
                "gateway_users",
                "Users of a tenant whose limits the gateway tracks, for keys with users. At most \
                 users_max.",
                &["tenant"],
            )?,
            users_evicted: builder.counters(
                "gateway_users_evicted_total",
                "Users whose limits the gateway forgot because the tenant has more than users_max. \
                 They start anew with their next request.",
                &["tenant"],
            )?,
            spent,
            saved,
            stored: [
                builder
                    .gauge("gateway_stored_responses", "Stored responses of the Responses API.")?,
                builder.gauge(
                    "gateway_stored_responses_bytes",
                    "Bytes of stored responses with their conversations (limits.stored_bytes_max).",
                )?,
            ],
            store: StoreFamilies::register(&mut builder)?,
            connections: builder.gauge("gateway_connections_open", "Open client connections.")?,
            closed: builder.counters(
                "gateway_connections_closed_total",
                "Client connections that the gateway rejected or closed, and stalled HTTP/2 \
                 streams, by reason.",
                &["reason"],
            )?,
            joins_refused: builder.counters(
                "gateway_joins_refused_total",
                "Refused joins of nodes by reason. node_name_taken: another node with this name \
                 has a link.",
                &["reason"],
            )?,
            reloads: builder.counters(
                "gateway_config_reloads_total",
                "Configuration reloads by outcome.",
                &["outcome"],
            )?,
            reload_is_ok: builder.gauge(
                "gateway_config_last_reload_successful",
                "1 if the last reload succeeded. 0 while the configuration in effect is older than \
                 the file, which was rejected.",
            )?,
            reloaded_at: builder.float_gauge(
                "gateway_config_last_reload_success_timestamp_seconds",
                "Time at which the configuration in effect was loaded, in seconds since 1970.",
            )?,
            spans_lost: builder.counters(
                "gateway_traces_dropped_total",
                "Spans that did not reach the collector, by reason.",
                &["reason"],
            )?,
            state_saves: builder.counters(
                "gateway_state_saves_total",
                "Writes of the state file by outcome.",
                &["outcome"],
            )?,
            handed_over: builder.counters(
                "gateway_prefixes_handed_over_total",
                "Saved prefixes that leaving and drained nodes had for others (nodes.hand_over), by \
                 outcome: moved, slower (than to compute it again), refused, failed.",
                &["outcome"],
            )?,
            hedges: builder.counters(
                "gateway_hedges_total",
                "Requests that were sent to a second node because the first token was late, by the \
                 node that responded first.",
                &["first"],
            )?,
            certificate_orders: builder.counters(
                "gateway_certificate_orders_total",
                "Attempts to get a certificate from the ACME server (tls.acme) by outcome.",
                &["outcome"],
            )?,
            certificate: certificate(&mut builder)?,
            registry: {
                build_info(&mut builder, "gateway_build_info")?;
                builder.build()
            },
        };
        families.create_fixed_series();
        Ok(families)
    }

    /// Creates the series with fixed label values up front, so that rates see their first
    /// increment.
    fn create_fixed_series(&self) {
        let again = [Error::NodeLost, Error::EngineLost, Error::NodeRefused(503)];
        let again = again.iter().map(Error::code).chain([NODE_LEAVES]);
        for reason in again {
            self.retries.with_label_values(&[reason]);
            self.resumes.with_label_values(&[reason]);
        }
        for closed in CloseReason::ALL {
            self.closed.with_label_values(&[closed.name()]);
        }
        for refused in
            [Error::JoinKeyWrong, Error::JoinVersion, Error::NodeNameTaken(String::new())]
        {
            self.joins_refused.with_label_values(&[refused.code()]);
        }
        for lost in SpanLoss::ALL {
            self.spans_lost.with_label_values(&[lost.name()]);
        }
        for outcome in HandOverOutcome::ALL {
            self.handed_over.with_label_values(&[outcome.name()]);
        }
        for first in ["first", "second"] {
            self.hedges.with_label_values(&[first]);
        }
        for outcome in ["ok", "failed"] {
            self.certificate_orders.with_label_values(&[outcome]);
            self.state_saves.with_label_values(&[outcome]);
        }
        for outcome in ["ok", "refused"] {
            self.reloads.with_label_values(&[outcome]);
        }
        self.spent.with_label_values(&["nodes", "hours", ""]);
    }
}

fn certificate(builder: &mut MetricsBuilder) -> Result<[GaugeVec; 2]> {
    Ok([
        builder.float_gauges(
            "gateway_certificate_issued_timestamp_seconds",
            "Time from which the certificate from the ACME server is valid, in seconds since 1970. \
             Left out while there is none.",
            &["domain"],
        )?,
        builder.float_gauges(
            "gateway_certificate_expiry_timestamp_seconds",
            "Time at which the certificate from the ACME server expires, in seconds since 1970. \
             Left out while there is none.",
            &["domain"],
        )?,
    ])
}

fn requests(builder: &mut MetricsBuilder) -> Result<IntCounterVec> {
    builder.counters(
        "gateway_requests_total",
        "Requests by outcome and by who is at fault (none, client, gateway, node). Unknown tenants \
         and models count as 'unknown'.",
        &["api", "class", "endpoint_kind", "fault", "model", "outcome", "tenant"],
    )
}

fn histograms(builder: &mut MetricsBuilder) -> Result<[HistogramVec; 4]> {
    let labels = ["model", "class", "endpoint_kind"];
    Ok([
        builder.histograms(
            "gateway_request_duration_seconds",
            "Time from a request's arrival to the end of its response.",
            &labels,
            SECONDS,
        )?,
        builder.histograms(
            "gateway_time_to_first_token_seconds",
            "Time from a request's arrival to the first token of its response.",
            &labels,
            FIRST,
        )?,
        builder.histograms(
            "gateway_inter_token_gap_seconds",
            "Time between two pieces of a response, which are usually tokens. Includes the time to \
             fail over to another node.",
            &labels,
            GAPS,
        )?,
        builder.histograms(
            "gateway_queue_wait_seconds",
            "Time from a request's arrival until it has a slot.",
            &["class"],
            SECONDS,
        )?,
    ])
}

fn failures(builder: &mut MetricsBuilder) -> Result<[IntCounterVec; 3]> {
    Ok([
        builder.counters(
            "gateway_retries_total",
            "Retries on another node before the first token, by reason.",
            &["reason"],
        )?,
        builder.counters(
            "gateway_resumes_total",
            "Failovers in the middle of a response, by reason. node_leaves: the response moved \
             before its node left.",
            &["reason"],
        )?,
        builder.counters(
            "gateway_refusals_total",
            "Refused requests by reason: invalid requests, rate limits of a key (limit_...), or a \
             full queue.",
            &["reason", "tenant"],
        )?,
    ])
}

fn money(builder: &mut MetricsBuilder) -> Result<[CounterVec; 2]> {
    Ok([
        builder.float_counters(
            "gateway_spent_total",
            "Cost of endpoints at their configured prices: of external endpoints for tokens (by \
             tenant) and hours, and of all nodes together for hours.",
            &["endpoint", "for", "tenant"],
        )?,
        builder.float_counters(
            "gateway_saved_total",
            "Estimated savings: what the tokens that nodes served would have cost at the cheapest \
             external endpoint for their model.",
            &["model", "tenant"],
        )?,
    ])
}

/// Sets the gauge with this label, capped at the range of `i64`.
pub(super) fn set(family: &IntGaugeVec, label: &str, value: impl TryInto<i64>) {
    family.with_label_values(&[label]).set(value.try_into().unwrap_or(i64::MAX));
}
