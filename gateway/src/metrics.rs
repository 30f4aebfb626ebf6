//! All metrics of the gateway. Labels come from closed sets or from names of the fleet.

use std::sync::Arc;
use std::time::Duration;

use inference_protocol::fleet::NodeState;
use inference_protocol::resume::Usage;
use prometheus::{
    CounterVec, Encoder, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, Registry, TextEncoder,
};

use crate::api::Api;
use crate::dispatcher::{NodeOverview, Overview};
use crate::edge::Closed;

/// Seconds; CPU machines are slow, so the buckets reach ten minutes.
const SECONDS: &[f64] = &[
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0,
    600.0,
];

/// The gateway's metrics. Cloning shares them.
#[derive(Debug, Clone)]
pub struct Metrics(Arc<Families>);

#[derive(Debug)]
struct Families {
    registry: Registry,
    requests: IntCounterVec,
    in_flight: IntGauge,
    duration: HistogramVec,
    first_token: HistogramVec,
    queue_wait: HistogramVec,
    retries: IntCounterVec,
    retries_refused: IntCounter,
    resumes: IntCounterVec,
    connections: IntGauge,
    reloads: IntCounterVec,
    reload_is_ok: IntGauge,
    state_saves: IntCounterVec,
    hedges: IntCounterVec,
    tokens: IntCounterVec,
    spent: CounterVec,
    saved: CounterVec,
    closed: IntCounterVec,
    spans_lost: IntCounterVec,
}

impl Metrics {
    /// A registry with every family. Fails only if two share a name.
    pub fn new() -> prometheus::Result<Self> {
        let registry = Registry::new();
        let families = Families {
            requests: counter(
                "requests_total",
                "Generation requests.",
                &["api", "class", "outcome"],
            )?,
            in_flight: IntGauge::new(
                "gateway_requests_in_flight",
                "Generation requests whose response is not finished, waiting ones included.",
            )?,
            duration: histogram(
                "request_duration_seconds",
                "Time from a request's arrival to the end of its response.",
                &["api", "class"],
            )?,
            first_token: histogram(
                "time_to_first_token_seconds",
                "Time from a request's arrival to the first of its answer.",
                &["api", "class"],
            )?,
            queue_wait: histogram(
                "queue_wait_seconds",
                "Time from a request's arrival until a slot was bound.",
                &["class"],
            )?,
            retries: counter(
                "retries_total",
                "Attempts on another node for a request without any of its answer.",
                &["reason"],
            )?,
            retries_refused: IntCounter::new(
                "gateway_retries_refused_total",
                "Requests that a node refused and that were not tried elsewhere, because too many were.",
            )?,
            resumes: counter(
                "resumes_total",
                "Attempts of another node to go on with an answer that had begun.",
                &["reason"],
            )?,
            connections: IntGauge::new("gateway_connections_open", "Client connections.")?,
            reloads: counter(
                "config_reloads_total",
                "Times that the configuration was read again.",
                &["outcome"],
            )?,
            reload_is_ok: IntGauge::new(
                "gateway_config_last_reload_successful",
                "0 while the configuration in force is older than its file, which was refused.",
            )?,
            state_saves: counter(
                "state_saves_total",
                "Times that what was used and spent was written to the state file.",
                &["outcome"],
            )?,
            hedges: counter(
                "hedges_total",
                "Requests whose first token was late and that a second node was asked, by who was first.",
                &["first"],
            )?,
            tokens: counter(
                "tokens_total",
                "Tokens of prompts and answers, by model, and by where they were answered.",
                &["model", "place", "kind"],
            )?,
            spent: amounts(
                "spent_total",
                "What endpoints cost, by their configured prices: external ones for tokens and \
                 hours, nodes (together) for hours.",
                &["endpoint", "for"],
            )?,
            saved: amounts(
                "saved_total",
                "What the tokens that nodes answered would have cost at the cheapest external \
                 endpoint for their model.",
                &["model"],
            )?,
            closed: counter(
                "connections_closed_total",
                "Client connections that were refused or cut; of HTTP/2, streams that stalled too.",
                &["reason"],
            )?,
            spans_lost: counter(
                "traces_dropped_total",
                "Spans that no collector got.",
                &["reason"],
            )?,
            registry,
        };
        let registry = &families.registry;
        registry.register(Box::new(families.requests.clone()))?;
        registry.register(Box::new(families.in_flight.clone()))?;
        registry.register(Box::new(families.duration.clone()))?;
        registry.register(Box::new(families.first_token.clone()))?;
        registry.register(Box::new(families.queue_wait.clone()))?;
        registry.register(Box::new(families.retries.clone()))?;
        registry.register(Box::new(families.retries_refused.clone()))?;
        registry.register(Box::new(families.resumes.clone()))?;
        registry.register(Box::new(families.connections.clone()))?;
        registry.register(Box::new(families.reloads.clone()))?;
        registry.register(Box::new(families.reload_is_ok.clone()))?;
        families.reload_is_ok.set(1);
        registry.register(Box::new(families.state_saves.clone()))?;
        registry.register(Box::new(families.hedges.clone()))?;
        registry.register(Box::new(families.tokens.clone()))?;
        registry.register(Box::new(families.spent.clone()))?;
        registry.register(Box::new(families.saved.clone()))?;
        registry.register(Box::new(families.closed.clone()))?;
        registry.register(Box::new(families.spans_lost.clone()))?;
        let build = IntGauge::with_opts(
            Opts::new("gateway_build_info", "Always 1; the version is a label.")
                .const_label("version", env!("CARGO_PKG_VERSION")),
        )?;
        build.set(1);
        registry.register(Box::new(build))?;
        Ok(Self(Arc::new(families)))
    }

    /// A request has arrived.
    pub fn request_begins(&self) {
        self.0.in_flight.inc();
    }

    /// A request is over.
    pub fn request_ends(&self, ended: &Ended) {
        let families = &self.0;
        let kind = [ended.api.name(), ended.class];
        families.in_flight.dec();
        families.requests.with_label_values(&[kind[0], kind[1], ended.outcome]).inc();
        families.duration.with_label_values(&kind).observe(ended.duration.as_secs_f64());
        if let Some(first) = ended.first_token {
            families.first_token.with_label_values(&kind).observe(first.as_secs_f64());
        }
    }

    /// Requests whose response is not finished.
    pub fn requests_in_flight(&self) -> i64 {
        self.0.in_flight.get()
    }

    /// A request got its first slot.
    pub fn queue_waited(&self, class: &str, wait: Duration) {
        self.0.queue_wait.with_label_values(&[class]).observe(wait.as_secs_f64());
    }

    /// A request is tried on another node.
    pub fn tried_again(&self, kind: Again, reason: &str) {
        let family = match kind {
            Again::Retry => &self.0.retries,
            Again::Resume => &self.0.resumes,
        };
        family.with_label_values(&[reason]).inc();
    }

    /// A request is not tried on another node: too many are.
    pub fn retry_refused(&self) {
        self.0.retries_refused.inc();
    }

    /// A request has used tokens. `place`: `node` or `external`.
    pub fn used(&self, model: &str, place: &str, usage: Usage) {
        // Those that are cached are part of the prompt's.
        let read = usage.prompt.saturating_sub(usage.cached);
        let kinds = [("prompt", read), ("cached", usage.cached), ("completion", usage.completion)];
        for (kind, tokens) in kinds {
            self.0.tokens.with_label_values(&[model, place, kind]).inc_by(tokens);
        }
    }

    /// An endpoint was paid, for `tokens` or `hours`.
    pub fn spent(&self, endpoint: &str, what: &str, amount: f64) {
        if amount > 0.0 {
            self.0.spent.with_label_values(&[endpoint, what]).inc_by(amount);
        }
    }

    /// So much was not paid to external endpoints.
    pub fn saved(&self, model: &str, amount: f64) {
        self.0.saved.with_label_values(&[model]).inc_by(amount.max(0.0));
    }

    /// The configuration was read again, and taken over or refused.
    pub fn reloaded(&self, is_ok: bool) {
        let outcome = if is_ok { "ok" } else { "refused" };
        self.0.reloads.with_label_values(&[outcome]).inc();
        self.0.reload_is_ok.set(i64::from(is_ok));
    }

    /// What was used and spent was written down, or could not be.
    pub fn state_saved(&self, is_ok: bool) {
        let outcome = if is_ok { "ok" } else { "failed" };
        self.0.state_saves.with_label_values(&[outcome]).inc();
    }

    /// A second node was asked, because the first token was late.
    pub fn hedged(&self, second_was_first: bool) {
        let first = if second_was_first { "second" } else { "first" };
        self.0.hedges.with_label_values(&[first]).inc();
    }

    /// Counts a connection until the result is dropped.
    pub fn open_connection(&self) -> OpenConnection {
        self.0.connections.inc();
        OpenConnection(self.0.connections.clone())
    }

    /// A connection was refused or cut.
    pub fn connection_closed(&self, why: Closed) {
        self.0.closed.with_label_values(&[why.name()]).inc();
    }

    /// So many spans are lost.
    pub fn spans_lost(&self, why: Lost, spans: u64) {
        self.0.spans_lost.with_label_values(&[why.name()]).inc_by(spans);
    }

    /// Everything in Prometheus' text format 0.0.4.
    pub fn render(&self, overview: &Overview) -> String {
        let mut out = Vec::new();
        let mut families = self.0.registry.gather();
        match fleet_families(overview) {
            Ok(registry) => families.extend(registry.gather()),
            Err(error) => tracing::error!(%error, "fleet metrics cannot be made"),
        }
        // Writing into memory fails only for families that are not consistent.
        if let Err(error) = TextEncoder::new().encode(&families, &mut out) {
            tracing::error!(%error, "metrics cannot be written");
        }
        String::from_utf8_lossy(&out).into_owned()
    }
}

/// Why a request goes to another node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Again {
    /// Nothing of its answer was there.
    Retry,
    /// Its answer goes on.
    Resume,
}

impl Again {
    /// Its name in logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::Resume => "resume",
        }
    }
}

/// Why a span is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lost {
    /// Too many waited for the collector, or the gateway has stopped.
    QueueFull,
    /// The collector did not take it.
    Refused,
}

impl Lost {
    fn name(self) -> &'static str {
        match self {
            Self::QueueFull => "queue_full",
            Self::Refused => "refused",
        }
    }
}

/// How a request ended.
#[derive(Debug)]
pub struct Ended {
    /// Which endpoint.
    pub api: Api,
    /// Its class.
    pub class: &'static str,
    /// A closed set.
    pub outcome: &'static str,
    /// From its arrival to the end of its response.
    pub duration: Duration,
    /// From its arrival to the first of its answer.
    pub first_token: Option<Duration>,
}

/// One open connection.
#[derive(Debug)]
pub struct OpenConnection(IntGauge);

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// What the fleet looks like now. Made anew for each scrape, so that a node that has gone
/// leaves no series behind.
fn fleet_families(overview: &Overview) -> prometheus::Result<Registry> {
    let registry = Registry::new();
    let nodes = gauges("nodes", "Nodes with a link, by state.", "state")?;
    let slots = gauges("node_slots", "Slots of a node.", "node")?;
    let busy = gauges("node_slots_busy", "Slots of a node that are taken.", "node")?;
    let restarts =
        gauges("node_engine_restarts", "Times that a node's engine was started again.", "node")?;
    let ejected = gauges("node_ejected", "1 while a node that failed is sent nothing.", "node")?;
    let cordoned =
        gauges("node_cordoned", "1 while an operator lets a node get nothing new.", "node")?;
    let leases = IntGauge::new("gateway_leases", "Slots that this gateway holds.")?;
    let depth = gauges("queue_depth", "Requests that wait for their first slot.", "class")?;
    let retrying =
        IntGauge::new("gateway_retries_waiting", "Requests that wait for another node.")?;
    for state in NodeState::ALL {
        nodes.with_label_values(&[state.name()]).set(0);
    }
    for NodeOverview { status, busy: in_use, is_ejected, is_cordoned } in &overview.nodes {
        nodes.with_label_values(&[status.state.name()]).inc();
        slots.with_label_values(&[&status.node]).set(i64::from(status.slots));
        busy.with_label_values(&[&status.node]).set(i64::from(*in_use));
        ejected.with_label_values(&[&status.node]).set(i64::from(*is_ejected));
        cordoned.with_label_values(&[&status.node]).set(i64::from(*is_cordoned));
        restarts.with_label_values(&[&status.node]).set(status.engine_restarts as i64);
    }
    leases.set(i64::from(overview.totals.leases));
    let mut lined_up = 0;
    for (class, waiting) in overview.queue_depths {
        depth.with_label_values(&[class.name()]).set(waiting as i64);
        lined_up += waiting;
    }
    retrying.set(overview.queue_depth.saturating_sub(lined_up) as i64);
    registry.register(Box::new(nodes))?;
    registry.register(Box::new(slots))?;
    registry.register(Box::new(busy))?;
    registry.register(Box::new(ejected))?;
    registry.register(Box::new(cordoned))?;
    registry.register(Box::new(restarts))?;
    registry.register(Box::new(leases))?;
    registry.register(Box::new(depth))?;
    registry.register(Box::new(retrying))?;
    Ok(registry)
}

fn counter(name: &str, help: &str, labels: &[&str]) -> prometheus::Result<IntCounterVec> {
    IntCounterVec::new(Opts::new(format!("gateway_{name}"), help), labels)
}

fn amounts(name: &str, help: &str, labels: &[&str]) -> prometheus::Result<CounterVec> {
    CounterVec::new(Opts::new(format!("gateway_{name}"), help), labels)
}

fn gauges(name: &str, help: &str, label: &str) -> prometheus::Result<IntGaugeVec> {
    IntGaugeVec::new(Opts::new(format!("gateway_{name}"), help), &[label])
}

fn histogram(name: &str, help: &str, labels: &[&str]) -> prometheus::Result<HistogramVec> {
    let opts = HistogramOpts::new(format!("gateway_{name}"), help).buckets(SECONDS.to_vec());
    HistogramVec::new(opts, labels)
}
