//! What goes wrong with nodes, and how they recover.

use inference_protocol::fleet::NodeState;

use super::world::{Happening, World};

#[derive(Debug, Clone, Copy)]
pub(super) enum Fault {
    Crash,
    EngineDeath,
    Freeze,
    LinkCut,
    Drain,
    Lie,
    /// Not its own: an operator moves it, or configures the gateway anew.
    Operate,
    /// Its clock, and the gateway's with it, jumps: a machine that was suspended.
    Jump,
    /// Another gateway has all of its slots for a while, before its status shows it.
    Crowd,
}

impl World {
    pub(super) fn engine_dies(&mut self, node: usize) {
        let jobs = self.nodes[node].lose_engine();
        if self.nodes[node].state == NodeState::Ready {
            self.nodes[node].state = NodeState::Restarting;
        }
        self.tell(node);
        jobs.into_iter().for_each(|job| self.write(node, job, None));
        let (life, after) = (self.nodes[node].life, 0.3 + self.part());
        self.at(self.now + after, Happening::Recovers(node, life));
    }

    pub(super) fn fault(&mut self, node: usize, fault: Fault) {
        let life = self.nodes[node].life;
        match fault {
            Fault::Crash => {
                self.nodes[node].live_again();
                self.loses_link(node);
            }
            Fault::EngineDeath if !self.nodes[node].is_frozen => self.engine_dies(node),
            Fault::Freeze => {
                self.nodes[node].is_frozen = true;
                let after = 1.0 + self.part() * 9.0;
                self.at(self.now + after, Happening::Thaws(node, life));
            }
            Fault::LinkCut => self.loses_link(node),
            Fault::Drain if !self.nodes[node].is_frozen => {
                self.nodes[node].state = NodeState::Draining;
                self.tell(node);
                // It leaves, and another one comes in its place.
                let after = 5.0 + self.part() * 20.0;
                self.at(self.now + after, Happening::Fault(node, Fault::Crash));
            }
            Fault::Lie => {
                self.nodes[node].lie = self.pick(3);
                self.tell(node);
            }
            Fault::Operate => self.operates(node),
            Fault::Crowd => self.crowded[node] = self.now + 2.0,
            Fault::Jump => {
                let jump = self.part() * 120.0;
                self.now += jump;
                self.end += jump;
            }
            Fault::EngineDeath | Fault::Drain => {}
        }
    }

    pub(super) fn thaws(&mut self, node: usize, life: u64) {
        if self.nodes[node].life == life && self.nodes[node].is_frozen {
            self.nodes[node].is_frozen = false;
            self.at(self.now, Happening::Says(node, life));
            self.at(self.now + 0.2, Happening::Joins(node));
            self.step_soon(node);
        }
    }
}
