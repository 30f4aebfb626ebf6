//! What metrics tell of the fleet and its queue: all of one moment.

use std::sync::{Arc, PoisonError};
use std::time::Instant;

use inference_protocol::fleet::NodeStatus;

use super::Dispatcher;
use crate::scheduler::fleet::{Endpoint, Totals};
use crate::scheduler::queue::Occupancy;
use crate::scheduler::routing::Policy;
use crate::scheduler::routing_stats::{Ejections, RoutingStats};
use crate::types::class::Class;
use crate::types::limits::Bounds;
use crate::upstream::Upstream;

/// What is known about the nodes and the queue at one moment.
#[derive(Debug)]
pub struct Overview {
    /// Sums.
    pub totals: Totals,
    /// The queue.
    pub queue: QueueOverview,
    /// How nodes are chosen.
    pub policy: Policy,
    /// Why they were.
    pub stats: RoutingStats,
    /// How often they were ejected.
    pub ejections: Ejections,
    /// The nodes, and external endpoints.
    pub nodes: Vec<NodeOverview>,
}

/// What is known about the queue at one moment.
#[derive(Debug)]
pub struct QueueOverview {
    /// Its bounds.
    pub bounds: Bounds,
    /// Requests that wait, and bytes of their bodies and of those that are being read.
    pub taken: Occupancy,
    /// Bytes of bodies that are being read.
    pub reading_bytes: usize,
    /// Requests that wait, by class, without those that failed on a node.
    pub depths: [(Class, usize); 3],
    /// What is taken, by model.
    pub models: Vec<(String, Occupancy)>,
    /// What is taken, by tenant.
    pub tenants: Vec<(String, Occupancy)>,
}

/// What is known about a node at one moment.
#[derive(Debug)]
pub struct NodeOverview {
    /// What it says.
    pub status: NodeStatus,
    /// Slots that are taken.
    pub busy: u32,
    /// Whether it gets nothing because it failed.
    pub is_ejected: bool,
    /// Whether it gets nothing because an operator said so.
    pub is_cordoned: bool,
    /// Whether it is no node of ours.
    pub is_external: bool,
    /// Responses whose reported tokens were more than can be.
    pub misreports: u64,
}

/// Making overviews for those who show no key takes such a part of the lock's time at most.
const SNAPSHOT_PART: u32 = 20;

/// An overview that is shared for a while.
#[derive(Debug)]
pub(super) struct Snapshot {
    overview: Arc<Overview>,
    until: Instant,
}

impl Dispatcher {
    /// Everything that metrics tell, as it was a moment ago: who asks again and again gets the same
    /// overview, for a time that grows with what it costs to make one.
    pub fn snapshot(&self) -> Arc<Overview> {
        let mut shared = self.0.snapshot.lock().unwrap_or_else(PoisonError::into_inner);
        let begun = Instant::now();
        if let Some(snapshot) = shared.as_ref().filter(|snapshot| begun < snapshot.until) {
            return snapshot.overview.clone();
        }
        let overview = Arc::new(self.overview());
        let until = Instant::now() + begun.elapsed() * SNAPSHOT_PART;
        *shared = Some(Snapshot { overview: overview.clone(), until });
        overview
    }

    /// Everything that metrics tell.
    pub fn overview(&self) -> Overview {
        let core = self.lock();
        let scheduler = &core.scheduler;
        let node = |e: &Endpoint<Upstream>| NodeOverview {
            status: e.status.clone(),
            busy: e.busy(),
            is_ejected: e.health.is_out(),
            is_cordoned: e.is_cordoned,
            is_external: e.external.is_some(),
            misreports: e.misreports,
        };
        let room = scheduler.room();
        let listed = |(name, taken): (&String, &Occupancy)| (name.clone(), *taken);
        Overview {
            totals: scheduler.fleet.totals(),
            queue: QueueOverview {
                bounds: scheduler.bounds(),
                taken: room.all(),
                reading_bytes: room.reading(),
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
