//! PURE. Acquires slots: right away if one is free, otherwise through the queue, otherwise on an
//! external endpoint if the request may go to one.

use crate::types::class::Class;
use std::time::Duration;

use super::{Binding, Scheduler, SlotRefusal, SlotRequest};
use crate::scheduler::fleet::STATUS_DEADLINE;
use crate::scheduler::queue::TicketId;

/// The result of a slot request.
#[derive(Debug)]
pub enum Acquired {
    /// The request has a slot.
    Slot(Binding),
    /// The request is in the queue.
    Waiting {
        /// Its place in the queue.
        ticket: TicketId,
        /// When to call [`Scheduler::check_waiting`], unless a slot is granted earlier.
        check_at: Duration,
    },
    /// The request gets no slot.
    Refused(SlotRefusal),
}

impl<L> Scheduler<L> {
    /// Acquires a slot until `deadline`. Call [`Scheduler::bind`] afterwards.
    pub fn acquire(
        &mut self,
        request: &SlotRequest<'_>,
        deadline: Duration,
        now: Duration,
    ) -> Acquired {
        if request.class != Class::Batch {
            self.others_at = Some(now);
        }
        if let Some(binding) = self.bind_at_once(request, now) {
            return Acquired::Slot(binding);
        }
        let patience = deadline.saturating_sub(now);
        match self.enqueue(request, patience, now) {
            Ok(ticket) => waiting(ticket, request, deadline, now),
            Err(refused) => self.overflow(request, refused, now),
        }
    }

    /// Adds a request to the queue until `deadline`, however long the wait is predicted to be.
    pub(crate) fn wait(
        &mut self,
        request: &SlotRequest<'_>,
        deadline: Duration,
        now: Duration,
    ) -> Acquired {
        match self.enqueue(request, Duration::MAX, now) {
            Ok(ticket) => waiting(ticket, request, deadline, now),
            Err(refused) => Acquired::Refused(refused),
        }
    }

    /// Decides about a request that is still queued at its `check_at`. A retried request keeps
    /// waiting, unless all endpoints that serve its model have failed it.
    pub fn check_waiting(
        &mut self,
        ticket: TicketId,
        request: &SlotRequest<'_>,
        deadline: Duration,
        now: Duration,
    ) -> Acquired {
        if now < deadline && !self.fleet.all_have_failed(request.model, request.constraints) {
            return Acquired::Waiting { ticket, check_at: deadline };
        }
        self.withdraw(ticket, now);
        self.overflow(request, SlotRefusal::Timeout, now)
    }

    /// After an overload refusal, tries an external endpoint.
    fn overflow(
        &mut self,
        request: &SlotRequest<'_>,
        refused: SlotRefusal,
        now: Duration,
    ) -> Acquired {
        let binding = refused.is_overload().then(|| self.bind_overflow(request, now));
        binding.flatten().map_or(Acquired::Refused(refused), Acquired::Slot)
    }
}

fn waiting(
    ticket: TicketId,
    request: &SlotRequest<'_>,
    deadline: Duration,
    now: Duration,
) -> Acquired {
    // By then, status updates will show whatever made nodes fail this request.
    let shown = now + STATUS_DEADLINE;
    let check_at = if request.is_retried() { shown.min(deadline) } else { deadline };
    Acquired::Waiting { ticket, check_at }
}
