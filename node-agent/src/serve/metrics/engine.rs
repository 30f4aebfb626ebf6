//! The current state of engine and machine, read at each scrape; nothing is stored twice.

use inference_metrics::{MetricsBuilder, MetricsRegistry, Process};
use prometheus::Result;

use super::Sight;
use crate::engine::client::EngineState;
use crate::engine::sandbox::Part;

/// Families of the engine, the machine, and this process.
pub fn registry(sight: &Sight<'_>) -> Result<MetricsRegistry> {
    let mut builder = MetricsBuilder::default();
    engine(&mut builder, sight)?;
    work(&mut builder, sight)?;
    cells(&mut builder, sight)?;
    machine(&mut builder, sight)?;
    Process::this().register(&mut builder)?;
    Ok(builder.build())
}

fn engine(builder: &mut MetricsBuilder, sight: &Sight<'_>) -> Result<()> {
    let (figures, stats) = (&sight.figures, &sight.figures.stats);
    let state = sight.engine.state();
    let mut gauge = |name, help, value: u64| -> Result<()> {
        builder.gauge(name, help)?.set(i64::try_from(value).unwrap_or(i64::MAX));
        Ok(())
    };
    let is_up = matches!(state, EngineState::Ready(_));
    gauge("node_engine_up", "Whether the engine takes requests.", u64::from(is_up))?;
    gauge(
        "node_engine_requests_in_flight",
        "Requests that the engine has not finished, waiting ones included.",
        figures.in_flight as u64,
    )?;
    gauge("node_slots", "Sequences that decode side by side.", stats.slots.into())?;
    gauge("node_slots_busy", "Slots that are taken.", stats.slots_busy.into())?;
    gauge("node_queue_depth", "Requests that wait for a slot.", stats.queued.into())?;
    let parked = "Requests that gave up their KV cells and wait for some.";
    gauge("node_requests_parked", parked, stats.parked.into())?;
    let restarts = "Times that the engine process was started again.";
    builder.counter("node_engine_restarts_total", restarts)?.inc_by(figures.restarts);
    let info = "Always 1; how the engine runs is in the labels.";
    let info = builder.gauges("node_engine_info", info, &["node", "model", "kernel", "threads"])?;
    if let EngineState::Ready(facts) = &state {
        let threads = facts.threads.to_string();
        info.with_label_values(&[sight.node, sight.model, &facts.kernel, &threads]).set(1);
    }
    let sandbox = "Whether the engine is confined to its model file (files) and to the system calls that \
                   computing takes (system_calls).";
    let sandbox = builder.gauges("node_engine_sandbox", sandbox, &["part"])?;
    if let EngineState::Ready(facts) = &state {
        for (part, state) in facts.sandbox.parts() {
            sandbox.with_label_values(&[part]).set((*state == Part::On).into());
        }
    }
    let context = "Tokens that a prompt and its answer may have together.";
    let context = builder.gauge("node_context_tokens", context)?;
    if let EngineState::Ready(facts) = &state {
        context.set(facts.context_tokens.into());
    }
    Ok(())
}

fn work(builder: &mut MetricsBuilder, sight: &Sight<'_>) -> Result<()> {
    let (totals, stats) = (&sight.figures.totals, &sight.figures.stats);
    let mut counter = |name, help, value| -> Result<()> {
        builder.counter(name, help)?.inc_by(value);
        Ok(())
    };
    counter("node_prompt_tokens_total", "Prompt tokens prefilled.", totals.prompt_tokens)?;
    let cached = "Prompt tokens that did not have to be computed.";
    counter("node_cached_tokens_total", cached, totals.cached_tokens)?;
    counter("node_generated_tokens_total", "Tokens generated.", totals.generated_tokens)?;
    counter("node_engine_steps_total", "Batches that the engine decoded.", totals.steps)?;
    let slots = "Slots that these batches worked on, so that a rate of it over one of the batches is \
                 how many decode side by side.";
    counter("node_engine_slot_steps_total", slots, totals.slot_steps)?;
    let evictions = "Kept prefixes that were evicted.";
    counter("node_kv_evictions_total", evictions, totals.evictions)?;
    let parkings = "Times that a request gave up its KV cells.";
    counter("node_parkings_total", parkings, totals.parkings)?;
    let prefill = "Time that the engine spent on prompts, in seconds.";
    builder
        .float_counter("node_engine_prefill_seconds_total", prefill)?
        .inc_by(totals.prefill_seconds);
    let decode = "Time that the engine spent on answers, in seconds.";
    builder
        .float_counter("node_engine_decode_seconds_total", decode)?
        .inc_by(totals.decode_seconds);
    let prefill = "Prompt tokens per second while prefilling, smoothed.";
    let prefill = builder.float_gauge("node_prefill_tokens_per_second", prefill)?;
    prefill.set(stats.prefill_tokens_per_second.into());
    let decode = "Generated tokens per second over all slots, smoothed.";
    let decode = builder.float_gauge("node_decode_tokens_per_second", decode)?;
    decode.set(stats.decode_tokens_per_second.into());
    Ok(())
}

fn cells(builder: &mut MetricsBuilder, sight: &Sight<'_>) -> Result<()> {
    let stats = &sight.figures.stats;
    let mut gauge = |name, help, value: u32| -> Result<()> {
        builder.gauge(name, help)?.set(value.into());
        Ok(())
    };
    gauge("node_kv_cells", "Cells of the KV pool; one holds one token.", stats.cells)?;
    gauge("node_kv_cells_in_use", "KV cells of requests in slots.", stats.cells_in_use)?;
    let cached = "KV cells kept for prompts that begin alike.";
    gauge("node_kv_cells_cached", cached, stats.cells_cached)
}

fn machine(builder: &mut MetricsBuilder, sight: &Sight<'_>) -> Result<()> {
    let sample = &sight.sample;
    let mut gauge = |name, help, value: u64| -> Result<()> {
        builder.gauge(name, help)?.set(i64::try_from(value).unwrap_or(i64::MAX));
        Ok(())
    };
    let engine = sample.engine.unwrap_or_default();
    let resident = "Memory that the engine's process holds, the mapped model included.";
    gauge("node_engine_memory_resident_bytes", resident, engine.resident_bytes)?;
    let available = "Memory that the machine, or our control group, could still give.";
    gauge("node_memory_available_bytes", available, sample.available_bytes)?;
    let cpu =
        "CPU time of the engine's process, in seconds; from 0 again when it is started again.";
    builder.float_counter("node_engine_cpu_seconds_total", cpu)?.inc_by(engine.cpu_seconds);
    let pressure = builder.float_gauges(
        "node_pressure_ratio",
        "Share of the last ten seconds in which something waited for a resource (PSI), where the \
         kernel tells.",
        &["resource"],
    )?;
    for (resource, share) in sample.pressure.all() {
        pressure.with_label_values(&[resource]).set(share.into());
    }
    Ok(())
}
