//! Takes slots of lines of batches for more urgent requests, so that lines may use all slots.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use super::{Core, Lease};
use crate::scheduler::fleet::EndpointId;
use crate::scheduler::{Acquired, SlotRefusal, SlotRequest};
use crate::types::class::Class;

/// Requests whose slots more urgent ones may take, by when they got them.
#[derive(Debug, Default)]
pub(super) struct Preemptible {
    running: BTreeMap<u64, (EndpointId, CancellationToken)>,
    last: u64,
}

impl Preemptible {
    fn add(&mut self, endpoint: EndpointId) -> (u64, CancellationToken) {
        self.last += 1;
        let token = CancellationToken::new();
        self.running.insert(self.last, (endpoint, token.clone()));
        (self.last, token)
    }

    pub(super) fn remove(&mut self, id: u64) {
        self.running.remove(&id);
    }
}

impl Core {
    /// Lets an urgent request that has to wait take the slot of one that is not. The one that began
    /// last has the least to compute again. If the wait was predicted to be too long, it is not any
    /// more.
    pub(super) fn preempt_for(
        &mut self,
        request: &SlotRequest<'_>,
        acquired: Acquired,
        deadline: Duration,
        now: Duration,
    ) -> Acquired {
        let waits = matches!(
            acquired,
            Acquired::Waiting { .. } | Acquired::Refused(SlotRefusal::DeadlineUnmet)
        );
        if !waits || request.class == Class::Batch {
            return acquired;
        }
        let fleet = &self.scheduler.fleet;
        let suits = |endpoint| fleet.suits(endpoint, request.model, request.constraints);
        let mut running = self.preemptible.running.iter().rev();
        let Some(id) = running.find(|(_, (at, _))| suits(*at)).map(|(id, _)| *id) else {
            return acquired;
        };
        let acquired = match acquired {
            Acquired::Refused(_) => self.scheduler.wait(request, deadline, now),
            acquired => acquired,
        };
        if matches!(acquired, Acquired::Waiting { .. })
            && let Some((_, token)) = self.preemptible.running.remove(&id)
        {
            token.cancel();
        }
        acquired
    }
}

impl Lease {
    /// Lets more urgent requests take the slot. Completes when one does: the lease should be
    /// dropped then.
    pub(crate) fn preempted(&mut self) -> WaitForCancellationFutureOwned {
        let (id, token) = self.dispatcher.lock().preemptible.add(self.binding.endpoint);
        self.preemptible = Some(id);
        token.cancelled_owned()
    }
}
