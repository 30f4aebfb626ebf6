//! PURE. The slow-read budget of a client: the time in which it read nothing, less the time that
//! the bytes it did read are worth. A client that reads a few bytes now and then to hold a slot
//! runs out of budget like one that reads nothing.

use std::time::{Duration, Instant};

/// Bytes per second that a client must read on average; slower than any network link in use today.
const BYTES_PER_SECOND_MIN: f64 = 256.0;

/// Time used up of a slow-read budget.
#[derive(Debug, Default)]
pub(crate) struct SlowReadBudget {
    used: Duration,
    /// When the client stopped reading while bytes were waiting for it.
    waiting_since: Option<Instant>,
}

impl SlowReadBudget {
    /// Starts the clock, unless it runs already: bytes are waiting for the client.
    pub(crate) fn start(&mut self, now: Instant) {
        self.waiting_since.get_or_insert(now);
    }

    /// Stops the clock and credits the `bytes` that the client has read.
    pub(crate) fn record_read(&mut self, bytes: usize, now: Instant) {
        let since = self.waiting_since.take();
        let waited = since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        let worth = Duration::from_secs_f64(bytes as f64 / BYTES_PER_SECOND_MIN);
        self.used = (self.used + waited).saturating_sub(worth);
    }

    /// True if the client has used none of its budget and no bytes are waiting for it.
    pub(crate) fn is_unused(&self) -> bool {
        self.waiting_since.is_none() && self.used.is_zero()
    }

    /// When the budget runs out if the client reads nothing until then. `None` while the clock is
    /// stopped.
    pub(crate) fn deadline(&self, limit: Duration) -> Option<Instant> {
        Some(self.waiting_since? + limit.saturating_sub(self.used))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    /// Seconds until disconnection if the client reads `bytes` every `every` seconds.
    fn disconnected_after(bytes: usize, every: u64) -> Option<u64> {
        let begun = Instant::now();
        let mut budget = SlowReadBudget::default();
        (0..1000).find_map(|round| {
            let now = begun + Duration::from_secs(round * every);
            budget.start(now);
            let due = budget.deadline(LIMIT).filter(|due| *due <= now + Duration::from_secs(every));
            budget.record_read(bytes, now + Duration::from_secs(every));
            due.map(|due| due.duration_since(begun).as_secs())
        })
    }

    #[test]
    fn a_client_that_reads_nothing_is_disconnected_at_the_limit() {
        assert_eq!(disconnected_after(0, 1000), Some(30));
        assert_eq!(disconnected_after(0, 7), Some(30));
    }

    #[test]
    fn a_client_that_reads_a_byte_now_and_then_is_disconnected_too() {
        assert_eq!(disconnected_after(1, 29), Some(30));
        assert!(disconnected_after(200, 1).unwrap() < 300);
    }

    #[test]
    fn a_slow_connection_is_not_disconnected() {
        assert_eq!(disconnected_after(1000, 1), None);
        assert_eq!(disconnected_after(16_384, 25), None, "rarely, but much at a time");
        let mut budget = SlowReadBudget::default();
        assert!(budget.is_unused() && budget.deadline(LIMIT).is_none());
        budget.record_read(9, Instant::now());
        assert!(budget.is_unused(), "nothing is saved up");
    }
}
