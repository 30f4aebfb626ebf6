//! Snapshot of fleet and queue for the metrics.

use std::sync::{Arc, PoisonError};
use std::time::Instant;

use inference_protocol::fleet::NodeStatus;

use super::Dispatcher;
use crate::scheduler::fleet::{Endpoint, Totals};
use crate::scheduler::queue::Occupancy;
use crate::scheduler::routing::Policy;
use crate::scheduler::routing_stats::{Ejections, RoutingStats};
use crate::types::class::Class;
use crate::types::limits::QueueBounds;
use crate::upstream::Upstream;

/// Endpoints and queue at one moment.
#[derive(Debug)]
pub struct FleetSnapshot {
    /// Fleet totals.
    pub totals: Totals,
    /// The queue.
    pub queue: QueueSnapshot,
    /// The routing policy.
    pub policy: Policy,
    /// Routing statistics.
    pub stats: RoutingStats,
    /// Ejections by cause.
    pub ejections: Ejections,
    /// Nodes and external endpoints.
    pub nodes: Vec<EndpointSnapshot>,
}

/// The queue at one moment.
#[derive(Debug)]
pub struct QueueSnapshot {
    /// Its bounds.
    pub bounds: QueueBounds,
    /// Queued requests, and bytes of their bodies and of bodies being read.
    pub taken: Occupancy,
    /// Bytes of bodies being read.
    pub reading_bytes: usize,
    /// Queued requests by class, without retried ones.
    pub depths: [(Class, usize); 3],
    /// Occupancy by model.
    pub models: Vec<(String, Occupancy)>,
    /// Occupancy by tenant.
    pub tenants: Vec<(String, Occupancy)>,
}

/// One endpoint at one moment.
#[derive(Debug)]
pub struct EndpointSnapshot {
    /// Its last status.
    pub status: NodeStatus,
    /// Busy slots.
    pub busy: u32,
    /// True while ejected.
    pub is_ejected: bool,
    /// True while cordoned.
    pub is_cordoned: bool,
    /// True if external.
    pub is_external: bool,
    /// Responses that reported more tokens than possible.
    pub misreports: u64,
}

/// Snapshots for unauthenticated clients hold the lock for at most 1/20 of the time.
const SNAPSHOT_PART: u32 = 20;

/// A cached overview.
#[derive(Debug)]
pub(super) struct CachedSnapshot {
    overview: Arc<FleetSnapshot>,
    until: Instant,
}

impl Dispatcher {
    /// Returns a recent overview, cached for a multiple of the time it takes to make one. So
    /// clients that poll fast do not load the dispatcher.
    pub(crate) fn cached_snapshot(&self) -> Arc<FleetSnapshot> {
        let mut shared = self.0.snapshot.lock().unwrap_or_else(PoisonError::into_inner);
        let begun = Instant::now();
        if let Some(snapshot) = shared.as_ref().filter(|snapshot| begun < snapshot.until) {
            return snapshot.overview.clone();
        }
        let overview = Arc::new(self.snapshot());
        let until = Instant::now() + begun.elapsed() * SNAPSHOT_PART;
        *shared = Some(CachedSnapshot { overview: overview.clone(), until });
        overview
    }

    /// Takes a fresh overview.
    pub(crate) fn snapshot(&self) -> FleetSnapshot {
        let core = self.lock();
        let scheduler = &core.scheduler;
        let node = |e: &Endpoint<Upstream>| EndpointSnapshot {
            status: e.status.clone(),
            busy: e.busy(),
            is_ejected: e.health.is_ejected(),
            is_cordoned: e.is_cordoned,
            is_external: e.external.is_some(),
            misreports: e.misreports,
        };
        let room = scheduler.queue_space();
        let listed = |(name, taken): (&String, &Occupancy)| (name.clone(), *taken);
        FleetSnapshot {
            totals: scheduler.fleet.totals(),
            queue: QueueSnapshot {
                bounds: scheduler.bounds(),
                taken: room.total(),
                reading_bytes: room.body_bytes(),
                depths: scheduler.depths(),
                models: room.models().iter().map(listed).collect(),
                tenants: room.tenants().iter().map(listed).collect(),
            },
            policy: scheduler.policy(),
            stats: scheduler.stats,
            ejections: scheduler.fleet.ejections,
            nodes: scheduler.fleet.endpoints().map(node).collect(),
        }
    }
}
