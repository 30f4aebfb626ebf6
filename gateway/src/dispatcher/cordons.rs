//! What operators do with nodes.

use std::collections::BTreeSet;

use super::Dispatcher;
use crate::dispatcher::views::NodeAction;
use crate::upstream::Upstream;

impl Dispatcher {
    /// Applies an operator's action to a node. Returns false if no node has this name.
    pub fn apply_action(&self, node: &str, action: NodeAction) -> bool {
        self.update(|core| {
            let fleet = &mut core.scheduler.fleet;
            let id = match action {
                NodeAction::Uncordon => return fleet.uncordon(node, Upstream::cancel_leaving),
                NodeAction::Cordon | NodeAction::Drain => fleet.cordon(node),
            };
            if let Some(endpoint) = id.and_then(|id| fleet.endpoint(id))
                && action == NodeAction::Drain
            {
                endpoint.link.start_leaving();
            }
            id.is_some()
        })
    }

    /// Names of cordoned nodes.
    pub(crate) fn cordoned(&self) -> BTreeSet<String> {
        self.lock().scheduler.fleet.cordoned().clone()
    }

    /// Cordons these nodes, linked or not, and uncordons those.
    pub(crate) fn set_cordons(&self, cordoned: &[&String], uncordoned: &[&String]) {
        self.update(|core| {
            let fleet = &mut core.scheduler.fleet;
            fleet.restore_cordoned(cordoned.iter().map(|name| (*name).clone()).collect());
            for name in cordoned {
                fleet.cordon(name);
            }
            for name in uncordoned {
                fleet.uncordon(name, Upstream::cancel_leaving);
            }
        });
    }
}
