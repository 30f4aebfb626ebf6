//! Queue between the thread that reads commands and those that prepare prompts.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use inference_core::prepare::{Lane, PrepareQueue};
use inference_core::scheduler::sequence::CancelFlag;
use inference_core::types::request::{RequestId, Work};

/// Submitted work.
#[derive(Debug)]
pub(crate) struct Submit {
    /// Id of its first request; the others have the ids that follow.
    pub id: RequestId,
    pub work: Work,
    /// One cancellation flag for each of its requests.
    pub cancels: Vec<CancelFlag>,
}

impl Submit {
    /// True unless all of its requests are canceled.
    pub(crate) fn is_wanted(&self) -> bool {
        self.cancels.iter().any(|cancel| !cancel.is_set())
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = RequestId> + use<> {
        self.id..self.id + self.cancels.len() as RequestId
    }
}

/// Bounded queue of submitted work. See the module.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    waiting: Mutex<PrepareQueue<Submit>>,
    arrived: Condvar,
}

impl Inbox {
    /// Adds work; if the queue is full, the error has the ids of its requests.
    pub(crate) fn push(&self, submit: Submit) -> Result<(), Vec<RequestId>> {
        let (tenant, bytes) = (submit.work.tenant(), submit.work.bytes());
        let pushed = self.lock().push(tenant, bytes, submit);
        self.arrived.notify_all();
        pushed.map_err(|refused| refused.ids().collect())
    }

    /// Waits for work in a lane.
    pub(crate) fn next(&self, lane: Lane) -> Submit {
        let mut waiting = self.lock();
        loop {
            if let Some(submit) = waiting.pop(lane) {
                return submit;
            }
            waiting = self.arrived.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Removes canceled work; returns the ids of its requests.
    pub(crate) fn drop_unwanted(&self) -> Vec<RequestId> {
        let mut dropped = Vec::new();
        self.lock().retain(|submit| {
            let is_wanted = submit.is_wanted();
            if !is_wanted {
                dropped.extend(submit.ids());
            }
            is_wanted
        });
        dropped
    }

    fn lock(&self) -> MutexGuard<'_, PrepareQueue<Submit>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use inference_core::types::request::{Tenant, TextQuery};

    fn submit(id: RequestId, tenant: u64, bytes: usize) -> Submit {
        let question = TextQuery::TokenizeText {
            text: "x".repeat(bytes),
            beginning: false,
            control: false,
            with_pieces: false,
        };
        let work = Work::Query(Tenant(tenant), question);
        Submit { id, work, cancels: vec![CancelFlag::default(), CancelFlag::default()] }
    }

    #[test]
    fn cancelled_work_leaves_the_inbox_when_nobody_wants_any_of_it() {
        let inbox = Inbox::default();
        let one = submit(7, 1, 100_000);
        let cancels: Vec<CancelFlag> = one.cancels.clone();
        inbox.push(one).unwrap();
        inbox.push(submit(9, 1, 100_000)).unwrap();
        cancels[0].set();
        assert_eq!(inbox.drop_unwanted(), [] as [RequestId; 0]);
        cancels[1].set();
        assert_eq!(inbox.drop_unwanted(), [7, 8]);
        assert_eq!(inbox.next(Lane::Large).id, 9);
    }

    #[test]
    fn requests_of_one_lane_are_prepared_side_by_side_by_as_many_threads() {
        let inbox = Inbox::default();
        let both_have_one = std::sync::Barrier::new(2);
        let take = || {
            let id = inbox.next(Lane::Large).id;
            both_have_one.wait();
            id
        };
        std::thread::scope(|scope| {
            let threads = [scope.spawn(take), scope.spawn(take)];
            inbox.push(submit(1, 1, 100_000)).unwrap();
            inbox.push(submit(3, 2, 100_000)).unwrap();
            let mut ids = threads.map(|thread| thread.join().unwrap());
            ids.sort_unstable();
            assert_eq!(ids, [1, 3]);
        });
    }

    #[test]
    fn a_thread_that_waits_is_woken_by_work_of_its_lane() {
        let inbox = Inbox::default();
        std::thread::scope(|scope| {
            let small = scope.spawn(|| inbox.next(Lane::Small).id);
            let large = scope.spawn(|| inbox.next(Lane::Large).id);
            inbox.push(submit(1, 1, 100_000)).unwrap();
            inbox.push(submit(3, 2, 10)).unwrap();
            assert_eq!((small.join().unwrap(), large.join().unwrap()), (3, 1));
        });
    }
}
