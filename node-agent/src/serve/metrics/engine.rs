//! The current state of engine and machine, read at each scrape; nothing is stored twice.

use inference_metrics::{MetricsBuilder, MetricsRegistry, Process};
use prometheus::Result;

use super::Snapshot;
use crate::engine::client::EngineState;
use crate::engine::sandbox::Part;

/// Families of the engine, the machine, and this process.
pub(crate) fn registry(snapshot: &Snapshot<'_>) -> Result<MetricsRegistry> {
    let mut builder = MetricsBuilder::default();
    engine(&mut builder, snapshot)?;
    work(&mut builder, snapshot)?;
    cells(&mut builder, snapshot)?;
    saved_prefixes(&mut builder, snapshot)?;
    machine(&mut builder, snapshot)?;
    Process::this().register(&mut builder)?;
    Ok(builder.build())
}

fn engine(builder: &mut MetricsBuilder, snapshot: &Snapshot<'_>) -> Result<()> {
    let (figures, stats) = (&snapshot.figures, &snapshot.figures.stats);
    let state = snapshot.engine.state();
    let mut gauge = |name, help, value: u64| -> Result<()> {
        builder.gauge(name, help)?.set(i64::try_from(value).unwrap_or(i64::MAX));
        Ok(())
    };
    let is_up = matches!(state, EngineState::Ready(_));
    gauge("node_engine_up", "1 if the engine accepts requests, else 0.", u64::from(is_up))?;
    gauge(
        "node_engine_requests_in_flight",
        "Requests that the engine has not finished, including queued ones.",
        figures.in_flight as u64,
    )?;
    gauge("node_slots", "Slots: sequences that can decode in parallel.", stats.slots.into())?;
    gauge("node_slots_busy", "Slots in use.", stats.slots_busy.into())?;
    gauge("node_queue_depth", "Requests queued for a slot.", stats.queued.into())?;
    let parked = "Preempted requests: they gave up their KV cells and wait for free ones.";
    gauge("node_requests_parked", parked, stats.preempted.into())?;
    let restarts = "Restarts of the engine process.";
    builder.counter("node_engine_restarts_total", restarts)?.inc_by(figures.restarts);
    let info = "Always 1; the labels describe the engine.";
    let info = builder.gauges("node_engine_info", info, &["node", "model", "kernel", "threads"])?;
    if let EngineState::Ready(facts) = &state {
        let threads = facts.threads.to_string();
        info.with_label_values(&[snapshot.node, snapshot.model, &facts.kernel, &threads]).set(1);
    }
    let sandbox = "1 if the sandbox restricts the engine to its model file (files) or to the system calls \
                   that computing needs (system_calls), else 0.";
    let sandbox = builder.gauges("node_engine_sandbox", sandbox, &["part"])?;
    if let EngineState::Ready(facts) = &state {
        for (part, state) in facts.sandbox.parts() {
            sandbox.with_label_values(&[part]).set((*state == Part::On).into());
        }
    }
    let context = "Maximum tokens of a prompt and its completion together.";
    let context = builder.gauge("node_context_tokens", context)?;
    if let EngineState::Ready(facts) = &state {
        context.set(facts.context_tokens.into());
    }
    Ok(())
}

fn work(builder: &mut MetricsBuilder, snapshot: &Snapshot<'_>) -> Result<()> {
    let (totals, stats) = (&snapshot.figures.totals, &snapshot.figures.stats);
    let mut counter = |name, help, value| -> Result<()> {
        builder.counter(name, help)?.inc_by(value);
        Ok(())
    };
    counter("node_prompt_tokens_total", "Prompt tokens prefilled.", totals.prompt_tokens)?;
    let cached = "Prompt tokens served from the prefix cache.";
    counter("node_cached_tokens_total", cached, totals.cached_tokens)?;
    counter("node_generated_tokens_total", "Tokens generated.", totals.generated_tokens)?;
    let drafted = "Draft tokens that were computed.";
    counter("node_drafted_tokens_total", drafted, totals.drafted_tokens)?;
    let accepted = "Draft tokens that were accepted; each saved a step.";
    counter("node_accepted_tokens_total", accepted, totals.accepted_tokens)?;
    counter(
        "node_engine_steps_total",
        "Steps of the engine; each decodes one batch.",
        totals.steps,
    )?;
    let slots = "Busy slots of all steps, added up; its rate divided by the rate of steps is the average \
                 number of parallel sequences.";
    counter("node_engine_slot_steps_total", slots, totals.slot_steps)?;
    let evictions = "Cached prefixes evicted.";
    counter("node_kv_evictions_total", evictions, totals.evictions)?;
    let parkings = "Preemptions: a request gave up its KV cells.";
    counter("node_parkings_total", parkings, totals.parkings)?;
    let prefill = "Time that the engine spent on prefill, in seconds.";
    builder
        .float_counter("node_engine_prefill_seconds_total", prefill)?
        .inc_by(totals.prefill_seconds);
    let decode = "Time that the engine spent on decoding, in seconds.";
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

fn cells(builder: &mut MetricsBuilder, snapshot: &Snapshot<'_>) -> Result<()> {
    let stats = &snapshot.figures.stats;
    let mut gauge = |name, help, value: u32| -> Result<()> {
        builder.gauge(name, help)?.set(value.into());
        Ok(())
    };
    gauge("node_kv_cells", "Cells of the KV pool; one holds one token.", stats.kv_cells)?;
    gauge("node_kv_cells_in_use", "KV cells of requests in slots.", stats.kv_cells_in_use)?;
    let cached = "KV cells of cached prefixes.";
    gauge("node_kv_cells_cached", cached, stats.kv_cells_cached)?;
    Ok(())
}

fn saved_prefixes(builder: &mut MetricsBuilder, snapshot: &Snapshot<'_>) -> Result<()> {
    let (totals, stats) = (&snapshot.figures.totals, &snapshot.figures.stats);
    let saved = "Memory of prefixes saved outside the KV pool.";
    let bytes = i64::try_from(stats.saved_prefix_bytes).unwrap_or(i64::MAX);
    builder.gauge("node_saved_prefix_bytes", saved)?.set(bytes);
    let hits = "Requests that began with a saved prefix, by where it was.";
    let hits = builder.counters("node_saved_prefix_hits_total", hits, &["tier"])?;
    let tokens = "Prompt tokens that came from saved prefixes, by where these were.";
    let tokens = builder.counters("node_saved_prefix_tokens_total", tokens, &["tier"])?;
    hits.with_label_values(&["memory"]).inc_by(totals.restored_prefixes);
    tokens.with_label_values(&["memory"]).inc_by(totals.restored_tokens);
    hits.with_label_values(&["disk"]).inc_by(totals.disk_prefixes);
    tokens.with_label_values(&["disk"]).inc_by(totals.disk_tokens);
    let received = "Saved prefixes received from nodes that have left.";
    builder.counter("node_received_prefixes_total", received)?.inc_by(totals.received_prefixes);
    let disk = "Size of the files of saved prefixes (--prefix-disk-mib).";
    let bytes = i64::try_from(stats.disk_prefix_bytes).unwrap_or(i64::MAX);
    builder.gauge("node_saved_prefix_disk_bytes", disk)?.set(bytes);
    Ok(())
}

fn machine(builder: &mut MetricsBuilder, snapshot: &Snapshot<'_>) -> Result<()> {
    let sample = &snapshot.sample;
    let mut gauge = |name, help, value: u64| -> Result<()> {
        builder.gauge(name, help)?.set(i64::try_from(value).unwrap_or(i64::MAX));
        Ok(())
    };
    let engine = sample.engine.unwrap_or_default();
    let resident = "Resident memory of the engine process, including the mapped model file.";
    gauge("node_engine_memory_resident_bytes", resident, engine.resident_bytes)?;
    let available = "Memory that the machine or the agent's control group has available.";
    gauge("node_memory_available_bytes", available, sample.available_bytes)?;
    let cpu = "CPU time of the engine process, in seconds; a restart of the engine resets it.";
    builder.float_counter("node_engine_cpu_seconds_total", cpu)?.inc_by(engine.cpu_seconds);
    let pressure = builder.float_gauges(
        "node_pressure_ratio",
        "Share of the last ten seconds in which a task waited for a resource (PSI), if the kernel \
         reports it.",
        &["resource"],
    )?;
    for (resource, share) in sample.pressure.all() {
        pressure.with_label_values(&[resource]).set(share.into());
    }
    Ok(())
}
