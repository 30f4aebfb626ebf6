//! PURE. Queue of requests that wait for a slot, fair between tenants: deficit round robin by
//! prompt tokens (Shreedhar and Varghese, "Efficient Fair Queuing Using Deficit Round Robin",
//! SIGCOMM 1995). One tenant's long prompts do not hold up another's short ones.

use std::collections::VecDeque;

use crate::types::request::Tenant;

/// Prompt tokens that a tenant may start before the next tenant's turn.
const QUANTUM: u32 = 512;

/// A bounded fair queue. See the module.
#[derive(Debug)]
pub(crate) struct FairQueue<T> {
    lanes: VecDeque<TenantLane<T>>,
    len: usize,
    max: usize,
}

#[derive(Debug)]
struct TenantLane<T> {
    tenant: Tenant,
    /// Prompt tokens the tenant may start now.
    credit: u32,
    waiting: VecDeque<(T, u32)>,
}

impl<T> FairQueue<T> {
    /// Creates an empty queue for at most `max` requests.
    pub(crate) fn new(max: usize) -> Self {
        Self { lanes: VecDeque::new(), len: 0, max }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds a request whose prompt has `tokens` tokens; returns it as the error when the queue is
    /// full.
    pub(crate) fn push(&mut self, tenant: Tenant, tokens: u32, request: T) -> Result<(), T> {
        if self.len >= self.max {
            return Err(request);
        }
        self.len += 1;
        match self.lanes.iter_mut().find(|lane| lane.tenant == tenant) {
            Some(lane) => lane.waiting.push_back((request, tokens)),
            None => {
                let waiting = VecDeque::from([(request, tokens)]);
                self.lanes.push_back(TenantLane { tenant, credit: QUANTUM, waiting });
            }
        }
        Ok(())
    }

    /// All queued requests, grouped by tenant.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = &T> {
        self.lanes.iter().flat_map(|lane| &lane.waiting).map(|(request, _)| request)
    }

    /// The queued requests of one tenant.
    pub(crate) fn waiting_of(&self, tenant: Tenant) -> impl Iterator<Item = &T> {
        let own = self.lanes.iter().filter(move |lane| lane.tenant == tenant);
        own.flat_map(|lane| &lane.waiting).map(|(request, _)| request)
    }

    /// Removes and returns the next request.
    pub(crate) fn pop(&mut self) -> Option<T> {
        loop {
            let lane = self.lanes.front_mut()?;
            let affordable = lane.waiting.front().is_some_and(|(_, tokens)| *tokens <= lane.credit);
            if affordable && let Some((request, tokens)) = lane.waiting.pop_front() {
                lane.credit -= tokens;
                self.len -= 1;
                if lane.waiting.is_empty() {
                    // A tenant with nothing to start saves up no credit.
                    self.lanes.pop_front();
                }
                return Some(request);
            }
            lane.credit = lane.credit.saturating_add(QUANTUM);
            self.lanes.rotate_left(1);
        }
    }

    /// Drops the requests for which `wanted` is false.
    pub(crate) fn retain(&mut self, mut wanted: impl FnMut(&T) -> bool) {
        for lane in &mut self.lanes {
            lane.waiting.retain(|(request, _)| wanted(request));
        }
        self.lanes.retain(|lane| !lane.waiting.is_empty());
        self.len = self.lanes.iter().map(|lane| lane.waiting.len()).sum();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(mut queue: FairQueue<u32>) -> Vec<u32> {
        std::iter::from_fn(|| queue.pop()).collect()
    }

    #[test]
    fn one_tenant_is_served_in_order() {
        let mut queue = FairQueue::new(9);
        (0..5).for_each(|i| queue.push(Tenant(7), 2000, i).unwrap());
        assert_eq!(order(queue), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn long_prompts_of_one_tenant_do_not_hold_up_short_ones_of_another() {
        let mut queue = FairQueue::new(99);
        (0..4).for_each(|i| queue.push(Tenant(1), 2048, i).unwrap());
        (10..26).for_each(|i| queue.push(Tenant(2), 128, i).unwrap());
        let order = order(queue);
        let second_long = order.iter().position(|i| *i == 1).unwrap();
        let short_before = order[..second_long].iter().filter(|i| **i >= 10).count();
        assert_eq!(short_before, 16, "2048 tokens of each: {order:?}");
    }

    #[test]
    fn a_full_queue_gives_back_and_forgets_what_is_not_wanted() {
        let mut queue = FairQueue::new(2);
        queue.push(Tenant(1), 1, 10).unwrap();
        queue.push(Tenant(2), 1, 20).unwrap();
        assert_eq!(queue.push(Tenant(3), 1, 30), Err(30));
        queue.retain(|i| *i != 10);
        assert_eq!(queue.len(), 1);
        queue.push(Tenant(3), 1, 30).unwrap();
        assert_eq!(order(queue), [20, 30]);
    }
}
