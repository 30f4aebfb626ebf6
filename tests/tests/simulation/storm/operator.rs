//! What operators do in a storm: nodes are cordoned, drained and let back in, and the gateway is
//! configured anew.

use flotilla_gateway::scheduler::routing::Policy;
use flotilla_gateway::types::limits::QueueBounds;

use super::world::{Happening, World};

impl World {
    pub(super) fn operates(&mut self, node: usize) {
        match self.pick(3) {
            0 => self.configures(),
            choice => self.cordons(node, choice == 1),
        }
    }

    fn configures(&mut self) {
        let policy = Policy::ALL[self.pick(4) as usize];
        let bounds = QueueBounds::new(8 + self.pick(100) as usize, 1 << 20);
        self.gateway.scheduler.configure(bounds, policy);
    }

    fn cordons(&mut self, node: usize, is_drained: bool) {
        let name = self.nodes[node].name.clone();
        self.gateway.cordon(node, &name, is_drained, self.now);
        let after = 2.0 + self.part() * 20.0;
        self.at(self.now + after, Happening::Uncordons(node));
    }

    pub(super) fn uncordons(&mut self, node: usize) {
        let name = self.nodes[node].name.clone();
        self.gateway.uncordon(node, &name);
    }
}
