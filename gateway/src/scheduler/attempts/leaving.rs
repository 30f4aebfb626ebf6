//! PURE. Responses that leave a node in good health: it drains, or a more urgent request needs the
//! slot.

use std::time::Duration;

use super::{AttemptAction, AttemptId, Attempts, Purpose};
use crate::scheduler::fleet::AttemptOutcome;

impl Attempts {
    /// Handles a node that is about to leave: tries to move the response to another slot while it
    /// continues.
    pub fn on_node_leaving(&mut self, attempt: AttemptId, now: Duration) {
        let is_alone = self.rival.is_none() && self.pending.is_none();
        let Some(current) = self.current.as_ref().filter(|current| current.id == attempt) else {
            return;
        };
        if is_alone && self.progress.is_resumable() {
            let constraints = self.retry.constraints_without(&current.target);
            self.acquire(Purpose::Move, constraints, now + self.settings.resume);
        }
    }

    /// Handles a more urgent request that needs the slot: gives it up, and continues the response
    /// once there is another one.
    pub fn on_preempted(&mut self, attempt: AttemptId, now: Duration) {
        let is_alone = self.rival.is_none() && self.pending.is_none();
        if !is_alone || !self.progress.is_resumable() {
            return;
        }
        let Some(current) = self.current.take_if(|current| current.id == attempt) else { return };
        self.actions.push_back(AttemptAction::Preempted);
        self.release(current, AttemptOutcome::Unknown);
        let constraints = self.retry.constraints().clone();
        let deadline = self.deadline.max(now + self.settings.resume);
        self.acquire(Purpose::Next, constraints, deadline);
    }
}
