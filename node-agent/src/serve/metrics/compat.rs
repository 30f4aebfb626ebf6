//! The agent's metrics under the names of llama-server and vLLM, for dashboards and autoscalers
//! that expect those. Served only with `serve --metrics-compat`, and on separate paths: Prometheus
//! reserves names with colons for recording rules, and its linter rejects them.

use clap::ValueEnum;
use inference_metrics::MetricsBuilder;
use prometheus::Result;
use prometheus::proto::{LabelPair, MetricFamily};

use super::Snapshot;

/// Whose names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Names {
    /// Those of llama-server's `--metrics`
    LlamaServer,
    /// Those of vLLM
    Vllm,
}

impl Names {
    /// Path of the metrics.
    pub(crate) fn path(self) -> &'static str {
        match self {
            Self::LlamaServer => "/metrics/llama-server",
            Self::Vllm => "/metrics/vllm",
        }
    }
}

/// Our histograms, and vLLM's with the same meaning.
const HISTOGRAMS: [(&str, &str); 8] = [
    ("node_time_to_first_token_seconds", "vllm:time_to_first_token_seconds"),
    ("node_inter_token_gap_seconds", "vllm:inter_token_latency_seconds"),
    ("node_request_duration_seconds", "vllm:e2e_request_latency_seconds"),
    ("node_queue_wait_seconds", "vllm:request_queue_time_seconds"),
    ("node_prefill_seconds", "vllm:request_prefill_time_seconds"),
    ("node_decode_seconds", "vllm:request_decode_time_seconds"),
    ("node_request_prompt_tokens", "vllm:request_prompt_tokens"),
    ("node_request_completion_tokens", "vllm:request_generation_tokens"),
];

/// All families with these names; `counted` are our own.
pub(crate) fn families(
    names: Names,
    counted: &[MetricFamily],
    snapshot: &Snapshot<'_>,
) -> Result<Vec<MetricFamily>> {
    let mut builder = MetricsBuilder::default();
    match names {
        Names::LlamaServer => llama_server(&mut builder, snapshot)?,
        Names::Vllm => vllm(&mut builder, counted, snapshot)?,
    }
    let mut all = builder.build().gather();
    if names == Names::Vllm {
        all.extend(histograms(counted, snapshot.model));
    }
    Ok(all)
}

fn llama_server(builder: &mut MetricsBuilder, snapshot: &Snapshot<'_>) -> Result<()> {
    let (totals, stats) = (&snapshot.figures.totals, &snapshot.figures.stats);
    let mut counter = |name: &str, help, value: f64| -> Result<()> {
        builder.float_counter(&format!("llamacpp:{name}"), help)?.inc_by(value);
        Ok(())
    };
    let prompt = totals.prompt_tokens as f64;
    counter("prompt_tokens_total", "Prompt tokens processed.", prompt)?;
    let cached = totals.cached_tokens as f64;
    counter("prompt_tokens_cached_total", "Prompt tokens reused.", cached)?;
    counter("prompt_seconds_total", "Prompt process time.", totals.prefill_seconds)?;
    let predicted = totals.generated_tokens as f64;
    counter("tokens_predicted_total", "Generation tokens processed.", predicted)?;
    counter("tokens_predicted_seconds_total", "Predict process time.", totals.decode_seconds)?;
    counter("n_decode_total", "Batches decoded.", totals.steps as f64)?;
    let mut gauge = |name: &str, help, value: f64| -> Result<()> {
        builder.float_gauge(&format!("llamacpp:{name}"), help)?.set(value);
        Ok(())
    };
    let prefill = f64::from(stats.prefill_tokens_per_second);
    gauge("prompt_tokens_seconds", "Prompt throughput in tokens/s.", prefill)?;
    let decode = f64::from(stats.decode_tokens_per_second);
    gauge("predicted_tokens_seconds", "Generation throughput in tokens/s.", decode)?;
    let busy = f64::from(stats.slots_busy);
    gauge("requests_processing", "Requests processing.", busy)?;
    let waiting = f64::from(stats.queued + stats.preempted);
    gauge("requests_deferred", "Requests deferred.", waiting)?;
    let side_by_side = totals.slot_steps as f64 / (totals.steps as f64).max(1.0);
    gauge("n_busy_slots_per_decode", "Busy slots per batch, on average.", side_by_side)?;
    // Older builds have these, and dashboards query them.
    gauge("kv_cache_usage_ratio", "Share of the KV cells in use.", used(snapshot))?;
    let cells = f64::from(stats.kv_cells_in_use + stats.kv_cells_cached);
    gauge("kv_cache_tokens", "Tokens in the KV cells.", cells)
}

/// Fraction of the KV cells that requests in slots use.
fn used(snapshot: &Snapshot<'_>) -> f64 {
    let stats = &snapshot.figures.stats;
    f64::from(stats.kv_cells_in_use) / f64::from(stats.kv_cells.max(1))
}

fn vllm(
    builder: &mut MetricsBuilder,
    counted: &[MetricFamily],
    snapshot: &Snapshot<'_>,
) -> Result<()> {
    let (totals, stats) = (&snapshot.figures.totals, &snapshot.figures.stats);
    let labels = ["model_name", "engine"];
    let values = [snapshot.model, ENGINE];
    let mut gauge = |name: &str, help, value: f64| -> Result<()> {
        builder
            .float_gauges(&format!("vllm:{name}"), help, &labels)?
            .with_label_values(&values)
            .set(value);
        Ok(())
    };
    let running = f64::from(stats.slots_busy);
    gauge("num_requests_running", "Requests in slots.", running)?;
    let waiting = f64::from(stats.queued + stats.preempted);
    gauge("num_requests_waiting", "Requests queued.", waiting)?;
    for name in ["kv_cache_usage_perc", "gpu_cache_usage_perc"] {
        gauge(name, "Share of the KV cells in use, 0 to 1.", used(snapshot))?;
    }
    let mut counter = |name: &str, help, value: u64| -> Result<()> {
        let family = builder.counters(&format!("vllm:{name}"), help, &labels)?;
        family.with_label_values(&values).inc_by(value);
        Ok(())
    };
    let looked_up = totals.prompt_tokens + totals.cached_tokens;
    counter("prompt_tokens_total", "Prompt tokens.", looked_up)?;
    counter(
        "prompt_tokens_cached_total",
        "Prompt tokens served from the prefix cache.",
        totals.cached_tokens,
    )?;
    counter("generation_tokens_total", "Tokens generated.", totals.generated_tokens)?;
    counter("num_preemptions_total", "Preemptions.", totals.parkings)?;
    let drafted = totals.drafted_tokens;
    counter("spec_decode_num_draft_tokens_total", "Draft tokens computed.", drafted)?;
    let accepted = totals.accepted_tokens;
    counter("spec_decode_num_accepted_tokens_total", "Draft tokens accepted.", accepted)?;
    for name in ["prefix_cache", "gpu_prefix_cache"] {
        let queries = "Prompt tokens looked up in the prefix cache.";
        counter(&format!("{name}_queries_total"), queries, looked_up)?;
        let hits = "Prompt tokens found in the prefix cache.";
        counter(&format!("{name}_hits_total"), hits, totals.cached_tokens)?;
    }
    let help = "Always 1; the labels hold the size of the KV cache.";
    let config = ["model_name", "engine", "block_size", "num_gpu_blocks"];
    let config = builder.gauges("vllm:cache_config_info", help, &config)?;
    config.with_label_values(&[snapshot.model, ENGINE, "1", &stats.kv_cells.to_string()]).set(1);
    let help = "Completed choices.";
    let success = ["model_name", "engine", "finished_reason"];
    let success = builder.counters("vllm:request_success_total", help, &success)?;
    for metric in counted.iter().filter(|f| f.name() == FINISHED).flat_map(|f| f.get_metric()) {
        let reason = metric.get_label().first().map_or("", LabelPair::value);
        let count = metric.get_counter().get_value() as u64;
        // vLLM counts tool calls as a stop.
        let reason = if reason == "tool_calls" { "stop" } else { reason };
        success.with_label_values(&[snapshot.model, ENGINE, reason]).inc_by(count);
    }
    Ok(())
}

/// The engine label: a node has one engine.
const ENGINE: &str = "0";
const FINISHED: &str = "node_answers_finished_total";

fn histograms(counted: &[MetricFamily], model: &str) -> Vec<MetricFamily> {
    let renamed = |(ours, theirs): (&str, &str)| {
        let mut family = counted.iter().find(|family| family.name() == ours)?.clone();
        family.set_name(theirs.to_string());
        for metric in family.mut_metric() {
            metric.set_label(vec![label("engine", ENGINE), label("model_name", model)]);
        }
        Some(family)
    };
    HISTOGRAMS.into_iter().filter_map(renamed).collect()
}

fn label(name: &str, value: &str) -> LabelPair {
    let mut pair = LabelPair::default();
    pair.set_name(name.to_string());
    pair.set_value(value.to_string());
    pair
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::client::EngineClient;
    use crate::serve::metrics::Metrics;
    use crate::serve::resources::ResourceSample;

    fn render(names: Names) -> String {
        let (metrics, engine) = (Metrics::new().unwrap(), EngineClient::default());
        let mut record = metrics.record("completions");
        record.record_text();
        record.record_finish("tool_calls");
        drop(record);
        let (figures, sample) = (engine.figures(), ResourceSample::default());
        metrics
            .render_as(names, &Snapshot { node: "n", model: "m", engine: &engine, figures, sample })
    }

    #[test]
    fn dashboards_of_vllm_find_what_they_ask_for() {
        let text = render(Names::Vllm);
        for line in [
            "vllm:num_requests_waiting{engine=\"0\",model_name=\"m\"} 0",
            "vllm:time_to_first_token_seconds_count{engine=\"0\",model_name=\"m\"} 1",
            "vllm:e2e_request_latency_seconds_bucket{engine=\"0\",model_name=\"m\",le=\"600\"} 1",
            "vllm:request_success_total{engine=\"0\",finished_reason=\"stop\",model_name=\"m\"} 1",
        ] {
            assert!(text.lines().any(|l| l == line), "no {line} in\n{text}");
        }
    }

    #[test]
    fn dashboards_of_llama_server_find_what_they_ask_for() {
        let text = render(Names::LlamaServer);
        for name in ["prompt_tokens_total", "requests_deferred", "kv_cache_usage_ratio"] {
            assert!(text.lines().any(|l| l == format!("llamacpp:{name} 0")), "{text}");
        }
        assert!(!text.contains("node_"));
    }
}
