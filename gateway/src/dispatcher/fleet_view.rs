//! Snapshot of nodes, external endpoints, and queue for operators.

use super::{Dispatcher, node_view};
use crate::dispatcher::views::NodeView;
use crate::dispatcher::views::{ExternalView, QueueView};

/// The fleet and queue at one moment.
#[derive(Debug)]
pub(crate) struct FleetView {
    /// Nodes by name.
    pub nodes: Vec<NodeView>,
    /// External endpoints by name.
    pub external: Vec<ExternalView>,
    /// Queued requests per class, most urgent class first.
    pub queue: Vec<QueueView>,
    /// Retried requests in the queue.
    pub retrying: usize,
}

impl Dispatcher {
    /// Takes a snapshot.
    pub(crate) fn fleet_view(&self) -> FleetView {
        let now = self.now();
        let core = self.lock();
        let scheduler = &core.scheduler;
        let (mut nodes, mut external) = (Vec::new(), Vec::new());
        for endpoint in scheduler.fleet.endpoints() {
            let node = node_view(endpoint, now);
            match endpoint.external {
                None => nodes.push(node),
                Some(terms) => external.push(ExternalView {
                    spent_today: scheduler.ledger.spent_today(&node.name),
                    spend_day_max: terms.prices.day_max,
                    node,
                }),
            }
        }
        let waits = scheduler.longest_waits(now).into_iter().zip(scheduler.depths());
        let queue = waits.map(|((class, wait), (_, waiting))| QueueView {
            class: class.name().into(),
            waiting,
            longest_wait_seconds: wait.map(|wait| wait.as_secs_f64()),
        });
        let queue: Vec<_> = queue.collect();
        let lined_up: usize = queue.iter().map(|class| class.waiting).sum();
        let retrying = scheduler.depth().saturating_sub(lined_up);
        drop(core);
        nodes.sort_by(|a, b| a.name.cmp(&b.name));
        external.sort_by(|a, b| a.node.name.cmp(&b.node.name));
        FleetView { nodes, external, queue, retrying }
    }
}
