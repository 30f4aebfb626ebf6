//! PURE. Queue of requests waiting to be prepared. It has two lanes, so that small requests never
//! wait for the tokenizing of a large one, each fair between tenants.

use crate::scheduler::queue::FairQueue;
use crate::types::request::Tenant;

/// Requests of at least this many bytes of text are large: tokenizing them takes milliseconds.
pub(crate) const LARGE_BYTES: usize = 64 * 1024;
/// Maximum requests in one lane, in total and per tenant.
const REQUESTS_MAX: usize = 512;
const TENANT_REQUESTS_MAX: usize = 256;
/// Maximum bytes in one lane, in total and per tenant: the latter is eight of the largest requests.
const BYTES_MAX: u64 = 256 << 20;
const TENANT_BYTES_MAX: u64 = 64 << 20;
/// The fair queue counts tokens; a token is about this many bytes.
const BYTES_PER_TOKEN: usize = 4;

/// Which requests a thread prepares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    /// Small requests, prepared in negligible time.
    Small,
    /// Large requests.
    Large,
}

impl Lane {
    /// The lane of a request with `bytes` bytes of text.
    pub fn of(bytes: usize) -> Self {
        if bytes < LARGE_BYTES { Self::Small } else { Self::Large }
    }
}

/// Requests waiting to be prepared. See the module.
#[derive(Debug)]
pub struct PrepareQueue<T> {
    small: FairQueue<(T, u64)>,
    large: FairQueue<(T, u64)>,
}

impl<T> Default for PrepareQueue<T> {
    fn default() -> Self {
        Self { small: FairQueue::new(REQUESTS_MAX), large: FairQueue::new(REQUESTS_MAX) }
    }
}

impl<T> PrepareQueue<T> {
    /// Adds a request with `bytes` bytes of text; returns it as the error if the lane, or the
    /// tenant's share of it, is full.
    pub fn push(&mut self, tenant: Tenant, bytes: usize, request: T) -> Result<(), T> {
        let queue = self.lane(Lane::of(bytes));
        let own = queue.waiting_of(tenant).map(|(_, bytes)| *bytes);
        let (count, own) = own.fold((0, 0), |(count, sum), bytes| (count + 1, sum + bytes));
        let all: u64 = queue.waiting().map(|(_, bytes)| *bytes).sum();
        let size = bytes as u64;
        if count >= TENANT_REQUESTS_MAX || own + size > TENANT_BYTES_MAX || all + size > BYTES_MAX {
            return Err(request);
        }
        let tokens = u32::try_from(bytes / BYTES_PER_TOKEN).unwrap_or(u32::MAX);
        queue.push(tenant, tokens, (request, size)).map_err(|(request, _)| request)
    }

    /// Removes and returns the next request of a lane.
    pub fn pop(&mut self, lane: Lane) -> Option<T> {
        self.lane(lane).pop().map(|(request, _)| request)
    }

    /// Drops the requests for which `wanted` is false.
    pub fn retain(&mut self, mut wanted: impl FnMut(&T) -> bool) {
        for lane in [Lane::Small, Lane::Large] {
            self.lane(lane).retain(|(request, _)| wanted(request));
        }
    }

    fn lane(&mut self, lane: Lane) -> &mut FairQueue<(T, u64)> {
        match lane {
            Lane::Small => &mut self.small,
            Lane::Large => &mut self.large,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn small_requests_have_a_lane_of_their_own() {
        let mut queue = PrepareQueue::default();
        queue.push(Tenant(1), 8 * MIB, "large").unwrap();
        queue.push(Tenant(1), 100, "small").unwrap();
        assert_eq!(queue.pop(Lane::Small), Some("small"));
        assert_eq!(queue.pop(Lane::Small), None);
        assert_eq!(queue.pop(Lane::Large), Some("large"));
    }

    #[test]
    fn tenants_take_turns_with_large_requests() {
        let mut queue = PrepareQueue::default();
        for id in 0..7 {
            queue.push(Tenant(1), 8 * MIB, id).unwrap();
        }
        queue.push(Tenant(2), LARGE_BYTES, 100).unwrap();
        assert_eq!(queue.pop(Lane::Large), Some(100), "it is the smaller one");
        assert_eq!(queue.pop(Lane::Large), Some(0));
    }

    #[test]
    fn one_tenant_cannot_fill_a_lane() {
        let mut queue = PrepareQueue::default();
        let largest = 8 * MIB;
        for id in 0..8 {
            queue.push(Tenant(1), largest, id).unwrap();
        }
        assert_eq!(queue.push(Tenant(1), largest, 8), Err(8), "64 MiB are one tenant's share");
        queue.push(Tenant(2), largest, 9).unwrap();
        for id in 0..TENANT_REQUESTS_MAX {
            queue.push(Tenant(1), 1, id).unwrap();
        }
        assert_eq!(queue.push(Tenant(1), 1, 7), Err(7));
        queue.push(Tenant(2), 1, 7).unwrap();
    }

    #[test]
    fn all_tenants_together_cannot_hold_more_than_the_lane_has() {
        let mut queue = PrepareQueue::default();
        let filled = (0..99).take_while(|n| queue.push(Tenant(*n), 60 * MIB, *n).is_ok()).count();
        assert_eq!(filled, 4, "256 MiB");
        queue.retain(|tenant| *tenant != 2);
        queue.push(Tenant(9), 60 * MIB, 9).unwrap();
    }
}
