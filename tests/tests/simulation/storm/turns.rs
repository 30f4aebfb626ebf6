//! Turns of a storm: what requests were charged is corrected, nobody is overlooked, and the least
//! urgent give way.

use std::sync::Arc;
use std::time::Duration;

use flotilla_gateway::scheduler::attempts::Attempts;
use flotilla_gateway::scheduler::charge::{ActualWork, Charge};
use flotilla_gateway::scheduler::fleet::RoutingInputs;
use flotilla_gateway::scheduler::queue::TicketId;
use flotilla_gateway::scheduler::routing::Policy;
use flotilla_gateway::types::class::Class;
use inference_protocol::fleet::ModelStatus;

use super::gateway::{Gateway, at};

impl Gateway {
    /// Nobody who is to be retried waits beside a node that would take it.
    pub(super) fn check_retried(&mut self, now: f64) {
        let fleet = &self.scheduler.fleet;
        let inputs = RoutingInputs {
            policy: Policy::default(),
            cached: &[],
            now: Duration::from_secs_f64(now),
            seed: 0,
        };
        let suits = |id: &&TicketId| {
            let waiting = self.scheduler.ticket(**id).filter(|ticket| ticket.is_retried);
            waiting.is_some_and(|t| fleet.pick(&t.model, &t.constraints, inputs).is_some())
        };
        let missed = self.tickets.keys().find(suits).map(|id| self.tickets[id]);
        if let Some(number) = missed {
            self.violated(format!("request {number} waits beside a node that would take it"));
        }
    }

    /// A request is charged, unless it is made again. It waited for another slot after it gave one
    /// up: it pays once.
    pub(super) fn charge(&mut self, number: usize, charge: Option<(Charge, Arc<ModelStatus>)>) {
        if charge.is_some() {
            self.correct_by(number, ActualWork::Nothing);
            self.requests[number].charge = charge;
        }
    }

    /// A request is over: what it was charged is corrected by what was done for it.
    pub(super) fn correct(&mut self, number: usize) {
        let request = &self.requests[number];
        let done = request.attempts.as_ref().and_then(Attempts::work);
        if let Some(done) = done {
            self.correct_by(number, done);
        }
    }

    /// What a request was charged, if it was, is corrected by what was done for it.
    pub(super) fn correct_by(&mut self, number: usize, done: ActualWork) {
        let Some((charge, model)) = self.requests[number].charge.take() else { return };
        let moved = self.scheduler.correct_charge(&charge, &model, done);
        let request = &self.requests[number];
        self.fairness.corrected(request.class, &request.tenant, moved);
    }

    /// The least urgent request that began last gives its slot to a more urgent one that waits.
    pub(super) fn preempts_for(&mut self, number: usize, now: f64) {
        if self.requests[number].class == Class::Batch {
            return;
        }
        let running = self.requests.iter().enumerate().rev();
        let mut lowest = running.filter(|(_, request)| request.class == Class::Batch);
        let found = lowest.find_map(|(number, request)| {
            let mut legs = request.legs.iter();
            let leg = legs.find(|leg| !leg.is_external && !leg.is_released && leg.job.is_some())?;
            Some((number, leg.attempt))
        });
        let Some((number, attempt)) = found else { return };
        if let Some(attempts) = &mut self.requests[number].attempts {
            attempts.on_preempted(attempt, at(now));
        }
        self.perform(number, now);
    }
}
