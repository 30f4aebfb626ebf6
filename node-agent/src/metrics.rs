//! All metrics of the agent, and the record of one request.

use std::sync::Arc;
use std::time::Instant;

use prometheus::{
    Encoder, Histogram, HistogramOpts, IntCounterVec, IntGauge, Opts, Registry, TextEncoder,
};

use crate::engine_client::{EngineClient, EngineState, Figures};
use crate::error::Error;

/// Seconds; CPU machines are slow, so the buckets reach ten minutes.
const SECONDS: &[f64] = &[
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0,
    600.0,
];

/// The agent's metrics. Cloning shares them.
#[derive(Debug, Clone)]
pub struct Metrics(Arc<Families>);

#[derive(Debug)]
struct Families {
    registry: Registry,
    requests: IntCounterVec,
    in_flight: IntGauge,
    duration: Histogram,
    first_token: Histogram,
}

impl Metrics {
    /// A registry with every family. Fails only if two share a name.
    pub fn new() -> prometheus::Result<Self> {
        let registry = Registry::new();
        let requests = IntCounterVec::new(
            Opts::new("node_requests_total", "Generation requests by API and outcome."),
            &["api", "outcome"],
        )?;
        let in_flight = IntGauge::new(
            "node_http_requests_in_flight",
            "Generation requests whose response is not finished.",
        )?;
        let duration = histogram(
            "node_request_duration_seconds",
            "Time from a request's arrival to the end of its response.",
        )?;
        let first_token = histogram(
            "node_time_to_first_token_seconds",
            "Time from a request's arrival to its first text.",
        )?;
        let build = IntGauge::with_opts(
            Opts::new("node_build_info", "Always 1; the version is a label.")
                .const_label("version", env!("CARGO_PKG_VERSION")),
        )?;
        build.set(1);
        registry.register(Box::new(requests.clone()))?;
        registry.register(Box::new(in_flight.clone()))?;
        registry.register(Box::new(duration.clone()))?;
        registry.register(Box::new(first_token.clone()))?;
        registry.register(Box::new(build))?;
        Ok(Self(Arc::new(Families { registry, requests, in_flight, duration, first_token })))
    }

    /// Opens the record of one request.
    pub fn record(&self, api: &'static str) -> Record {
        self.0.in_flight.inc();
        let metrics = self.clone();
        Record { metrics, api, begun: Instant::now(), outcome: "client_gone", first_token: false }
    }

    /// Everything in Prometheus' text format 0.0.4.
    pub fn render(&self, engine: &EngineClient) -> String {
        let mut out = Vec::new();
        // Writing into memory fails only for families that are not consistent.
        if let Err(e) = TextEncoder::new().encode(&self.0.registry.gather(), &mut out) {
            tracing::error!(error = %e, "metrics cannot be written");
        }
        let mut out = String::from_utf8_lossy(&out).into_owned();
        engine_families(&engine.figures(), &engine.state(), &mut out);
        out
    }
}

fn histogram(name: &str, help: &str) -> prometheus::Result<Histogram> {
    Histogram::with_opts(HistogramOpts::new(name, help).buckets(SECONDS.to_vec()))
}

/// The engine's figures are read when they are asked for; nothing is kept twice.
fn engine_families(figures: &Figures, state: &EngineState, out: &mut String) {
    let up = u8::from(matches!(state, EngineState::Ready(_)));
    let stats = figures.stats;
    let mut family = |name: &str, kind: &str, help: &str, value: f64| {
        out.push_str(&format!("# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}\n"));
    };
    family("node_engine_up", "gauge", "Whether the engine takes requests.", f64::from(up));
    family(
        "node_engine_restarts_total",
        "counter",
        "Times that the engine process was started again.",
        figures.restarts as f64,
    );
    family(
        "node_engine_requests_in_flight",
        "gauge",
        "Requests that the engine has not finished, waiting ones included.",
        figures.in_flight as f64,
    );
    family("node_slots", "gauge", "Sequences that decode side by side.", f64::from(stats.slots));
    family("node_slots_busy", "gauge", "Slots that are taken.", f64::from(stats.slots_busy));
    family("node_queue_depth", "gauge", "Requests that wait for a slot.", f64::from(stats.queued));
    family(
        "node_requests_parked",
        "gauge",
        "Requests that gave up their KV cells and wait for some.",
        f64::from(stats.parked),
    );
    family("node_kv_cells", "gauge", "Cells of the KV pool.", f64::from(stats.cells));
    family(
        "node_kv_cells_in_use",
        "gauge",
        "KV cells of requests in slots.",
        f64::from(stats.cells_in_use),
    );
    family(
        "node_kv_cells_cached",
        "gauge",
        "KV cells kept for prompts that begin alike.",
        f64::from(stats.cells_cached),
    );
    family(
        "node_cached_tokens_total",
        "counter",
        "Prompt tokens that did not have to be computed.",
        figures.totals.cached_tokens as f64,
    );
    family(
        "node_kv_evictions_total",
        "counter",
        "Kept prefixes that were evicted.",
        figures.totals.evictions as f64,
    );
    family(
        "node_parkings_total",
        "counter",
        "Times that a request gave up its KV cells.",
        figures.totals.parkings as f64,
    );
    family(
        "node_prompt_tokens_total",
        "counter",
        "Prompt tokens prefilled.",
        figures.totals.prompt_tokens as f64,
    );
    family(
        "node_generated_tokens_total",
        "counter",
        "Tokens generated.",
        figures.totals.generated_tokens as f64,
    );
    family(
        "node_engine_steps_total",
        "counter",
        "Batches that the engine decoded.",
        figures.totals.steps as f64,
    );
    family(
        "node_prefill_tokens_per_second",
        "gauge",
        "Prompt tokens per second while prefilling, smoothed.",
        f64::from(stats.prefill_tokens_per_second),
    );
    family(
        "node_decode_tokens_per_second",
        "gauge",
        "Generated tokens per second over all slots, smoothed.",
        f64::from(stats.decode_tokens_per_second),
    );
}

/// One request, counted when it is dropped.
#[derive(Debug)]
pub struct Record {
    metrics: Metrics,
    api: &'static str,
    begun: Instant,
    outcome: &'static str,
    first_token: bool,
}

impl Record {
    /// Notes the first text; later calls change nothing.
    pub fn first_token(&mut self) {
        if !std::mem::replace(&mut self.first_token, true) {
            self.metrics.0.first_token.observe(self.begun.elapsed().as_secs_f64());
        }
    }

    /// The answer is complete.
    pub fn succeed(&mut self) {
        self.outcome = "ok";
    }

    /// The answer failed with this code.
    pub fn fail(&mut self, code: &'static str) {
        self.outcome = code;
    }

    /// Notes the code of an error on its way.
    pub fn check<T>(&mut self, result: Result<T, Error>) -> Result<T, Error> {
        if let Err(e) = &result {
            self.outcome = e.code();
        }
        result
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let families = &self.metrics.0;
        families.in_flight.dec();
        families.duration.observe(self.begun.elapsed().as_secs_f64());
        families.requests.with_label_values(&[self.api, self.outcome]).inc();
    }
}
