//! PURE. How a request gets a slot: at once if one is free, else after waiting in the queue, else
//! on an external endpoint if it may go there.

use std::time::Duration;

use super::{Binding, Refused, Scheduler, SlotRequest};
use crate::scheduler::fleet::STATUS_DEADLINE;
use crate::scheduler::queue::TicketId;

/// What became of a request for a slot.
#[derive(Debug)]
pub enum Acquired {
    /// It has a slot.
    Slot(Binding),
    /// It waits in the queue.
    Waiting {
        /// Its place.
        ticket: TicketId,
        /// When to call [`Scheduler::check_waiting`], unless a slot is granted before.
        check_at: Duration,
    },
    /// It gets none.
    Refused(Refused),
}

impl<L> Scheduler<L> {
    /// Acquires a slot until a deadline. To be followed by [`Scheduler::bind`].
    pub fn acquire(
        &mut self,
        request: &SlotRequest<'_>,
        deadline: Duration,
        now: Duration,
    ) -> Acquired {
        if let Some(binding) = self.bind_at_once(request, now) {
            return Acquired::Slot(binding);
        }
        match self.ask(request, deadline.saturating_sub(now), now) {
            Ok(ticket) => {
                // By then a node's status shows what made it fail this request.
                let shown = now + STATUS_DEADLINE;
                let is_retried = request.is_retried();
                let check_at = if is_retried { shown.min(deadline) } else { deadline };
                Acquired::Waiting { ticket, check_at }
            }
            Err(refused) => self.overflow(request, refused, now),
        }
    }

    /// A request still waits at its `check_at`. A retried request goes on waiting, unless all
    /// endpoints that serve its model have failed it.
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
        self.overflow(request, Refused::Timeout, now)
    }

    /// An external endpoint may do what no node can do in time.
    fn overflow(&mut self, request: &SlotRequest<'_>, refused: Refused, now: Duration) -> Acquired {
        let binding = refused.is_overload().then(|| self.bind_external(request, now));
        binding.flatten().map_or(Acquired::Refused(refused), Acquired::Slot)
    }
}
