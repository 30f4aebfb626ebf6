//! PURE. The central queue: requests wait here, not at nodes, and are bound to an endpoint
//! only when a slot is free.
//!
//! First come, first served for each model. A request whose node was lost before it
//! answered goes to the head of the line: it has waited already.

use std::collections::VecDeque;
use std::time::Duration;

/// A waiting request's number.
pub type TicketId = u64;

/// A waiting request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ticket<I> {
    /// Its number.
    pub id: TicketId,
    /// The model it wants.
    pub model: String,
    /// Bytes that it holds in memory.
    pub bytes: usize,
    /// Endpoints that failed it already.
    pub tried: Vec<I>,
}

/// The queue's bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Requests.
    pub depth_max: usize,
    /// Bytes of their bodies together.
    pub bytes_max: usize,
}

/// Waiting requests, in order.
#[derive(Debug)]
pub struct Queue<I> {
    bounds: Bounds,
    tickets: VecDeque<Ticket<I>>,
    bytes: usize,
    drained: DrainRate,
}

/// The queue is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Full;

impl<I: Copy + PartialEq> Queue<I> {
    /// An empty queue.
    pub fn new(bounds: Bounds) -> Self {
        Self { bounds, tickets: VecDeque::new(), bytes: 0, drained: DrainRate::default() }
    }

    /// Takes a request: a new one at the end, a retried one (it has `tried`) at the head.
    /// A retried one was admitted before, so the bounds do not turn it away.
    pub fn offer(&mut self, ticket: Ticket<I>) -> Result<(), Full> {
        let retried = !ticket.tried.is_empty();
        let fits = self.tickets.len() < self.bounds.depth_max
            && self.bytes.saturating_add(ticket.bytes) <= self.bounds.bytes_max;
        if !retried && !fits {
            return Err(Full);
        }
        self.bytes += ticket.bytes;
        if retried {
            self.tickets.push_front(ticket)
        } else {
            self.tickets.push_back(ticket)
        }
        Ok(())
    }

    /// Takes a request out: it is bound, too late, or its client is gone.
    pub fn remove(&mut self, id: TicketId) -> Option<Ticket<I>> {
        let at = self.tickets.iter().position(|t| t.id == id)?;
        let ticket = self.tickets.remove(at)?;
        self.bytes -= ticket.bytes;
        Some(ticket)
    }

    /// The requests in the order in which they are to be bound.
    pub fn iter(&self) -> impl Iterator<Item = &Ticket<I>> {
        self.tickets.iter()
    }

    /// Requests that wait.
    pub fn depth(&self) -> usize {
        self.tickets.len()
    }

    /// Notes that a slot became free at `now`.
    pub fn note_drained(&mut self, now: Duration) {
        self.drained.note(now);
    }

    /// After how many seconds a new request could be bound, by the measured drain rate;
    /// 1 to 120, since clients give up beyond that.
    pub fn retry_after_seconds(&self, now: Duration) -> u32 {
        let ahead = self.tickets.len() as f64 + 1.0;
        match self.drained.per_second(now) {
            Some(rate) => (ahead / rate).ceil().clamp(1.0, 120.0) as u32,
            None => 5,
        }
    }
}

/// How often slots become free, from the last of them.
#[derive(Debug, Default)]
struct DrainRate {
    times: VecDeque<Duration>,
}

impl DrainRate {
    const WINDOW: usize = 32;

    fn note(&mut self, now: Duration) {
        if self.times.len() == Self::WINDOW {
            self.times.pop_front();
        }
        self.times.push_back(now);
    }

    /// `None` until there is something to go by.
    fn per_second(&self, now: Duration) -> Option<f64> {
        let first = self.times.front()?;
        let span = now.saturating_sub(*first).as_secs_f64().max(0.001);
        Some(self.times.len() as f64 / span)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticket(id: TicketId, bytes: usize, tried: &[u32]) -> Ticket<u32> {
        Ticket { id, model: "m".into(), bytes, tried: tried.to_vec() }
    }

    fn queue() -> Queue<u32> {
        Queue::new(Bounds { depth_max: 3, bytes_max: 100 })
    }

    fn order(queue: &Queue<u32>) -> Vec<TicketId> {
        queue.iter().map(|t| t.id).collect()
    }

    #[test]
    fn requests_are_served_in_order_and_retried_ones_first() {
        let mut queue = queue();
        queue.offer(ticket(1, 1, &[])).unwrap();
        queue.offer(ticket(2, 1, &[])).unwrap();
        queue.offer(ticket(3, 1, &[7])).unwrap();
        assert_eq!(order(&queue), [3, 1, 2]);
    }

    #[test]
    fn the_queue_is_bounded_in_count_and_in_bytes() {
        let mut queue = queue();
        assert_eq!(queue.offer(ticket(1, 101, &[])), Err(Full));
        (1..=3).for_each(|id| queue.offer(ticket(id, 1, &[])).unwrap());
        assert_eq!(queue.offer(ticket(4, 1, &[])), Err(Full));
        assert_eq!(queue.offer(ticket(5, 1, &[7])), Ok(()), "a retried request was admitted");
    }

    #[test]
    fn what_is_taken_out_makes_room() {
        let mut queue = queue();
        queue.offer(ticket(1, 100, &[])).unwrap();
        assert_eq!(queue.offer(ticket(2, 1, &[])), Err(Full));
        assert!(queue.remove(1).is_some());
        assert!(queue.remove(1).is_none());
        assert_eq!(queue.offer(ticket(2, 100, &[])), Ok(()));
    }

    #[test]
    fn retry_after_follows_the_drain_rate() {
        let mut queue = queue();
        let second = |s| Duration::from_secs(s);
        assert_eq!(queue.retry_after_seconds(second(0)), 5, "nothing measured yet");
        (0..10).for_each(|i| queue.note_drained(second(2 * i)));
        assert_eq!(queue.retry_after_seconds(second(20)), 2);
        (1..=3).for_each(|id| queue.offer(ticket(id, 1, &[])).unwrap());
        assert_eq!(queue.retry_after_seconds(second(20)), 8);
        assert_eq!(queue.retry_after_seconds(second(20_000)), 120, "bounded");
    }
}
