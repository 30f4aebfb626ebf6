//! Metrics of the fleet's current state. They are created anew for each scrape, so a removed node
//! leaves no series behind.

use inference_metrics::{MetricsBuilder, MetricsRegistry, Process};
use inference_protocol::fleet::NodeState;
use prometheus::{GaugeVec, IntCounterVec, IntGaugeVec, Result};

use super::families::set;
use crate::dispatcher::{EndpointSnapshot, FleetSnapshot, QueueSnapshot};
use crate::scheduler::routing::Policy;
use crate::scheduler::routing_stats::{Forecast, Lookup, Reason};

/// All metrics of the fleet and of this process.
pub(super) fn registry(overview: &FleetSnapshot) -> Result<MetricsRegistry> {
    let mut builder = MetricsBuilder::default();
    queue(&mut builder, overview)?;
    decisions(&mut builder, overview)?;
    let nodes = Nodes::new(&mut builder)?;
    let external = External::new(&mut builder)?;
    for state in NodeState::ALL {
        nodes.states.with_label_values(&[state.name()]).set(0);
    }
    for endpoint in &overview.nodes {
        match endpoint.is_external {
            true => external.record(endpoint),
            false => nodes.record(endpoint),
        }
    }
    Process::this().register(&mut builder)?;
    Ok(builder.build())
}

fn queue(builder: &mut MetricsBuilder, overview: &FleetSnapshot) -> Result<()> {
    let help = "Queued requests that wait for their first slot.";
    let depth = builder.gauges("gateway_queue_depth", help, &["class"])?;
    let mut lined_up = 0;
    let queue = &overview.queue;
    for (class, waiting) in queue.depths {
        set(&depth, class.name(), waiting);
        lined_up += waiting;
    }
    let help = "Most requests in the queue (limits.queue_depth_max).";
    builder.gauge("gateway_queue_depth_max", help)?.set(queue.bounds.depth_max as i64);
    let retrying = queue.taken.depth.saturating_sub(lined_up);
    let help = "Queued requests that wait for another node after a failed attempt.";
    builder.gauge("gateway_retries_waiting", help)?.set(retrying as i64);
    room(builder, queue)?;
    let forecasts = builder.counters(
        "gateway_wait_forecasts_total",
        "Queue-wait predictions by result: right (within half of the wait or a second), too long \
         (requests may be refused without need), or too short (requests may wait in vain).",
        &["result"],
    )?;
    for forecast in Forecast::ALL {
        let count = overview.stats.forecasts(forecast);
        forecasts.with_label_values(&[forecast.name()]).inc_by(count);
    }
    let help = "Slots that this gateway holds on all endpoints.";
    builder.gauge("gateway_leases", help)?.set(i64::from(overview.totals.leases));
    Ok(())
}

/// Queue occupancy by model and tenant; both are names from the fleet and the keys.
fn room(builder: &mut MetricsBuilder, queue: &QueueSnapshot) -> Result<()> {
    let help = "Bytes of request bodies that are queued (waiting) or being read (reading).";
    let bytes = builder.gauges("gateway_queue_bytes", help, &["state"])?;
    set(&bytes, "reading", queue.reading_bytes as i64);
    set(&bytes, "waiting", queue.taken.bytes.saturating_sub(queue.reading_bytes) as i64);
    let help = "Most bytes of request bodies that are queued or being read \
     (limits.queue_bytes_max).";
    let bytes_max = i64::try_from(queue.bounds.bytes_max).unwrap_or(i64::MAX);
    builder.gauge("gateway_queue_bytes_max", help)?.set(bytes_max);
    let help = "Queued requests by model. Models without queued requests are left out.";
    let models = builder.gauges("gateway_queue_model_depth", help, &["model"])?;
    queue.models.iter().for_each(|(model, taken)| set(&models, model, taken.depth));
    let help = "Queued requests by tenant. Tenants without queued requests are left out.";
    let tenants = builder.gauges("gateway_queue_tenant_depth", help, &["tenant"])?;
    let help = "Bytes of request bodies that are queued or being read, by tenant.";
    let tenant_bytes = builder.gauges("gateway_queue_tenant_bytes", help, &["tenant"])?;
    for (tenant, taken) in &queue.tenants {
        set(&tenants, tenant, taken.depth);
        set(&tenant_bytes, tenant, taken.bytes as i64);
    }
    Ok(())
}

fn decisions(builder: &mut MetricsBuilder, overview: &FleetSnapshot) -> Result<()> {
    let made = builder.counters(
        "gateway_routing_decisions_total",
        "Routing decisions by policy and reason: prefix (the node has part of the prompt cached), \
         policy (the best node by the policy), or an external endpoint.",
        &["policy", "reason"],
    )?;
    for policy in Policy::ALL {
        for reason in Reason::ALL {
            let count = overview.stats.decisions(policy, reason);
            if count > 0 || policy == overview.policy {
                made.with_label_values(&[policy.name(), reason.name()]).inc_by(count);
            }
        }
    }
    let lookups = builder.counters(
        "gateway_prefix_lookups_total",
        "Prefix cache predictions by result: hit (the chosen node has the beginning of the prompt \
         cached), elsewhere (only another node has), or miss.",
        &["result"],
    )?;
    for lookup in Lookup::ALL {
        lookups.with_label_values(&[lookup.name()]).inc_by(overview.stats.lookups(lookup));
    }
    let ejections = builder.counters(
        "gateway_ejections_total",
        "Ejections of endpoints by reason: failures in a row, or slow (decoding has become very \
         slow).",
        &["reason"],
    )?;
    ejections.with_label_values(&["failures"]).inc_by(overview.ejections.failures);
    ejections.with_label_values(&["slow"]).inc_by(overview.ejections.slow);
    Ok(())
}

struct Nodes {
    states: IntGaugeVec,
    models: IntGaugeVec,
    slots: IntGaugeVec,
    busy: IntGaugeVec,
    queued: IntGaugeVec,
    ejected: IntGaugeVec,
    cordoned: IntGaugeVec,
    restarts: IntCounterVec,
    misreports: IntCounterVec,
    prefill: GaugeVec,
    decode: GaugeVec,
    resident: IntGaugeVec,
    available: IntGaugeVec,
    cells: IntGaugeVec,
    cells_used: IntGaugeVec,
    pressure: GaugeVec,
}

impl Nodes {
    fn new(builder: &mut MetricsBuilder) -> Result<Self> {
        let node = &["node"];
        Ok(Self {
            states: builder.gauges("gateway_nodes", "Linked nodes by state.", &["state"])?,
            models: builder.gauges(
                "gateway_node_model_info",
                "Always 1. The models that a node serves.",
                &["node", "model"],
            )?,
            slots: builder.gauges("gateway_node_slots", "Slots of a node.", node)?,
            busy: builder.gauges("gateway_node_slots_busy", "Busy slots of a node.", node)?,
            queued: builder.gauges(
                "gateway_node_queue_depth",
                "Requests in the queue of the node itself, from all gateways.",
                node,
            )?,
            ejected: builder.gauges(
                "gateway_node_ejected",
                "1 while the node is ejected.",
                node,
            )?,
            cordoned: builder.gauges(
                "gateway_node_cordoned",
                "1 while the node is cordoned.",
                node,
            )?,
            restarts: builder.counters(
                "gateway_node_engine_restarts_total",
                "Engine restarts since the agent of the node started.",
                node,
            )?,
            misreports: builder.counters(
                "gateway_node_usage_corrected_total",
                "Responses whose node reported more tokens than the request can have used. The \
                 gateway capped their usage.",
                node,
            )?,
            prefill: builder.float_gauges(
                "gateway_node_prefill_tokens_per_second",
                "Prefill speed in prompt tokens per second, as measured by the node.",
                node,
            )?,
            decode: builder.float_gauges(
                "gateway_node_decode_tokens_per_second",
                "Decode speed in tokens per second over all slots, as measured by the node.",
                node,
            )?,
            resident: builder.gauges(
                "gateway_node_memory_resident_bytes",
                "Memory of agent and engine, including the mapped model.",
                node,
            )?,
            available: builder.gauges(
                "gateway_node_memory_available_bytes",
                "Available memory of the machine, or of the control group, of the node.",
                node,
            )?,
            cells: builder.gauges("gateway_node_kv_cells", "KV cells of a node.", node)?,
            cells_used: builder.gauges(
                "gateway_node_kv_cells_used",
                "Used KV cells: by running requests (busy), and by cached prompt prefixes \
                 (cached).",
                &["node", "use"],
            )?,
            pressure: builder.float_gauges(
                "gateway_node_pressure_ratio",
                "Share of the last ten seconds in which a task on the node waited for a resource \
                 (pressure stall information), if the kernel reports it.",
                &["node", "resource"],
            )?,
        })
    }

    fn record(&self, overview: &EndpointSnapshot) {
        let EndpointSnapshot { status, busy, is_ejected, is_cordoned, misreports, .. } = overview;
        let node = status.node.as_str();
        self.misreports.with_label_values(&[node]).inc_by(*misreports);
        self.states.with_label_values(&[status.state.name()]).inc();
        for model in &status.models {
            self.models.with_label_values(&[node, &model.id]).set(1);
        }
        set(&self.slots, node, status.slots);
        set(&self.busy, node, *busy);
        set(&self.queued, node, status.queued);
        set(&self.ejected, node, *is_ejected);
        set(&self.cordoned, node, *is_cordoned);
        self.restarts.with_label_values(&[node]).inc_by(status.engine_restarts);
        let speeds = [
            (&self.prefill, status.prefill_tokens_per_second),
            (&self.decode, status.decode_tokens_per_second),
        ];
        for (family, speed) in speeds {
            speed.into_iter().for_each(|s| family.with_label_values(&[node]).set(s.into()));
        }
        let Some(vitals) = &status.vitals else { return };
        set(&self.resident, node, vitals.memory_resident_bytes);
        set(&self.available, node, vitals.memory_available_bytes);
        set(&self.cells, node, vitals.kv_cells);
        for (what, cells) in [("busy", vitals.kv_cells_in_use), ("cached", vitals.kv_cells_cached)]
        {
            self.cells_used.with_label_values(&[node, what]).set(cells.into());
        }
        let pressures = [
            ("cpu", vitals.pressure_cpu),
            ("memory", vitals.pressure_memory),
            ("io", vitals.pressure_io),
        ];
        for (resource, share) in pressures {
            let Some(share) = share else { continue };
            self.pressure.with_label_values(&[node, resource]).set(share.into());
        }
    }
}

struct External {
    ready: IntGaugeVec,
    slots: IntGaugeVec,
    busy: IntGaugeVec,
}

impl External {
    fn new(builder: &mut MetricsBuilder) -> Result<Self> {
        let endpoint = &["endpoint"];
        Ok(Self {
            ready: builder.gauges(
                "gateway_external_ready",
                "1 if an external endpoint is ready.",
                endpoint,
            )?,
            slots: builder.gauges(
                "gateway_external_slots",
                "Most concurrent requests of an external endpoint.",
                endpoint,
            )?,
            busy: builder.gauges(
                "gateway_external_slots_busy",
                "Running requests of an external endpoint.",
                endpoint,
            )?,
        })
    }

    fn record(&self, endpoint: &EndpointSnapshot) {
        let name = endpoint.status.node.as_str();
        let is_ready = endpoint.status.state == NodeState::Ready && !endpoint.is_ejected;
        set(&self.ready, name, is_ready);
        set(&self.slots, name, endpoint.status.slots);
        set(&self.busy, name, endpoint.busy);
    }
}
