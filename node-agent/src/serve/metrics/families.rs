//! Families that count while requests are handled.

use flotilla_listeners::CloseReason;
use inference_metrics::{MetricsBuilder, MetricsRegistry, build_info};
use prometheus::{Histogram, IntCounterVec, IntGauge, Result};

/// Histogram buckets in seconds; CPU machines are slow, so they reach ten minutes.
const SECONDS: &[f64] = &[
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0,
    600.0,
];
/// Histogram buckets in seconds between two chunks of a response.
const GAPS: &[f64] =
    &[0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 30.0];
/// Histogram buckets in tokens per request.
const TOKENS: &[f64] =
    &[1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5];

/// Why connections are refused or closed: there is no TLS on this port.
const REASONS: [CloseReason; 5] = [
    CloseReason::AddressLimit,
    CloseReason::SlowHead,
    CloseReason::Idle,
    CloseReason::Noise,
    CloseReason::Stalled,
];

/// Finish reasons.
const FINISHES: [&str; 3] = ["stop", "length", "tool_calls"];

/// All counted families. See the module.
#[derive(Debug)]
pub(crate) struct Families {
    pub registry: MetricsRegistry,
    pub requests: IntCounterVec,
    pub in_flight: IntGauge,
    pub finished: IntCounterVec,
    pub closed: IntCounterVec,
    pub duration: Histogram,
    pub queue_wait: Histogram,
    pub first_token: Histogram,
    pub prefill: Histogram,
    pub decode: Histogram,
    pub gap: Histogram,
    pub prompt_tokens: Histogram,
    pub completion_tokens: Histogram,
}

impl Families {
    /// Creates all of them. Fails only if two share a name.
    pub(crate) fn new() -> Result<Self> {
        let mut builder = MetricsBuilder::default();
        let requests = builder.counters(
            "node_requests_total",
            "Requests to the model, by API and outcome.",
            &["api", "outcome"],
        )?;
        let in_flight = builder
            .gauge("node_http_requests_in_flight", "Requests whose response is not complete.")?;
        let help = "Completed choices, by finish reason.";
        let finished = builder.counters("node_answers_finished_total", help, &["reason"])?;
        for reason in FINISHES {
            finished.with_label_values(&[reason]);
        }
        let help = "Connections to the agent's own port that it refused or closed, by reason.";
        let closed = builder.counters("node_connections_closed_total", help, &["reason"])?;
        for why in REASONS {
            closed.with_label_values(&[why.name()]);
        }
        let mut seconds = |name, help| builder.histogram(name, help, SECONDS);
        let duration = seconds(
            "node_request_duration_seconds",
            "Time from a request's arrival to the end of its response.",
        )?;
        let queue_wait = seconds(
            "node_queue_wait_seconds",
            "Time from a request's arrival until it got a slot of the engine.",
        )?;
        let first_token = seconds(
            "node_time_to_first_token_seconds",
            "Time from a request's arrival to its first token.",
        )?;
        let prefill =
            seconds("node_prefill_seconds", "Time from getting a slot to the first token.")?;
        let decode = seconds("node_decode_seconds", "Time from the first token to the last.")?;
        let gap = builder.histogram(
            "node_inter_token_gap_seconds",
            "Time between two chunks of a response; most chunks are one token.",
            GAPS,
        )?;
        let mut tokens = |name, help| builder.histogram(name, help, TOKENS);
        let prompt_tokens = tokens("node_request_prompt_tokens", "Prompt tokens per request.")?;
        let completion_tokens =
            tokens("node_request_completion_tokens", "Completion tokens per request.")?;
        build_info(&mut builder, "node_build_info")?;
        Ok(Self {
            registry: builder.build(),
            requests,
            in_flight,
            finished,
            closed,
            duration,
            queue_wait,
            first_token,
            prefill,
            decode,
            gap,
            prompt_tokens,
            completion_tokens,
        })
    }
}
