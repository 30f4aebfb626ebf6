//! PURE. Connection timers: how long a connection may keep us waiting, and for what.
//!
//! A client must send the head of its first request right away, and the head of each later request
//! within the head timeout of its first byte. Between requests the connection may idle. In HTTP/2
//! no byte marks the start of a head (an idle connection answers pings), so only the first head is
//! timed.

use std::time::{Duration, Instant};

use super::CloseReason;

/// Most bytes that a connection may send without making a request. More than that is a flood of
/// frames, each of which costs us a reply. The limit exceeds all HTTP/2 windows together, because
/// their data may arrive before we have seen its request.
pub const NOISE_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// Timeouts of a connection.
#[derive(Debug, Clone, Copy)]
pub struct ConnectionTimeouts {
    /// For a request head.
    pub head: Duration,
    /// For the next request.
    pub idle: Duration,
    /// Slow-read budget: how long the client may leave response bytes unread.
    pub write: Duration,
}

impl ConnectionTimeouts {
    /// The shorter timeout: no deadline that starts from now on can be sooner than this.
    pub(crate) fn shortest(&self) -> Duration {
        self.head.min(self.idle)
    }
}

/// The timers of one connection.
#[derive(Debug)]
pub(crate) struct ConnectionTimers {
    in_flight: u32,
    /// When the first byte of the current head arrived.
    head_since: Option<Instant>,
    idle_since: Instant,
    is_multiplexed: bool,
    /// Bytes received since the last request.
    noise: u64,
    is_stopped: bool,
}

impl ConnectionTimers {
    /// Starts the timer for the first head.
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            in_flight: 0,
            head_since: Some(now),
            idle_since: now,
            is_multiplexed: false,
            noise: 0,
            is_stopped: false,
        }
    }

    /// Records bytes that arrived.
    pub(crate) fn record_bytes(&mut self, bytes: usize, now: Instant) {
        if self.in_flight > 0 || self.is_stopped {
            return;
        }
        self.noise = self.noise.saturating_add(bytes as u64);
        if !self.is_multiplexed {
            self.head_since.get_or_insert(now);
        }
    }

    /// Records a complete request head. Over HTTP/2, `is_multiplexed`, requests may run
    /// concurrently.
    pub(crate) fn begin_request(&mut self, is_multiplexed: bool) {
        self.in_flight += 1;
        self.is_multiplexed = is_multiplexed;
        self.head_since = None;
        self.noise = 0;
    }

    /// Records that a response was completed or a request canceled.
    pub(crate) fn end_request(&mut self, now: Instant) {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.idle_since = now;
        self.noise = 0;
    }

    /// Stops the timers for good: the connection no longer carries HTTP.
    pub(crate) fn stop(&mut self) {
        self.is_stopped = true;
    }

    /// When to close the connection as things stand, and why.
    pub(crate) fn deadline(&self, timeouts: &ConnectionTimeouts) -> Option<(Instant, CloseReason)> {
        match self.head_since {
            _ if self.in_flight > 0 => None,
            Some(since) => Some((since + timeouts.head, CloseReason::SlowHead)),
            None => Some((self.idle_since + timeouts.idle, CloseReason::Idle)),
        }
    }

    /// True if the connection has sent more than [`NOISE_BYTES_MAX`] without a request.
    pub(crate) fn is_noisy(&self) -> bool {
        self.noise > NOISE_BYTES_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUTS: ConnectionTimeouts = ConnectionTimeouts {
        head: Duration::from_secs(10),
        idle: Duration::from_secs(75),
        write: Duration::from_secs(30),
    };

    /// Returns the deadline in seconds after `begun`.
    fn deadline(timers: &ConnectionTimers, begun: Instant) -> Option<(u64, CloseReason)> {
        timers.deadline(&TIMEOUTS).map(|(at, reason)| ((at - begun).as_secs(), reason))
    }

    #[test]
    fn the_first_head_is_due_at_once_however_slowly_it_arrives() {
        let begun = Instant::now();
        let mut timers = ConnectionTimers::new(begun);
        assert_eq!(deadline(&timers, begun), Some((10, CloseReason::SlowHead)));
        timers.record_bytes(1, begun + Duration::from_secs(9));
        assert_eq!(deadline(&timers, begun), Some((10, CloseReason::SlowHead)));
        timers.begin_request(false);
        assert_eq!(deadline(&timers, begun), None);
    }

    #[test]
    fn between_requests_a_connection_may_be_idle_until_the_next_begins() {
        let begun = Instant::now();
        let mut timers = ConnectionTimers::new(begun);
        timers.begin_request(false);
        timers.end_request(begun + Duration::from_secs(100));
        assert_eq!(deadline(&timers, begun), Some((175, CloseReason::Idle)));
        timers.record_bytes(1, begun + Duration::from_secs(150));
        timers.record_bytes(1, begun + Duration::from_secs(159));
        assert_eq!(deadline(&timers, begun), Some((160, CloseReason::SlowHead)));
    }

    #[test]
    fn a_connection_of_http_2_that_answers_pings_is_idle() {
        let begun = Instant::now();
        let mut timers = ConnectionTimers::new(begun);
        timers.begin_request(true);
        timers.begin_request(true);
        timers.end_request(begun);
        assert_eq!(deadline(&timers, begun), None, "one is still in flight");
        timers.end_request(begun + Duration::from_secs(1));
        timers.record_bytes(17, begun + Duration::from_secs(20));
        assert_eq!(deadline(&timers, begun), Some((76, CloseReason::Idle)));
    }

    #[test]
    fn bytes_without_a_request_are_noise() {
        let now = Instant::now();
        let mut timers = ConnectionTimers::new(now);
        timers.record_bytes(NOISE_BYTES_MAX as usize, now);
        timers.begin_request(true);
        timers.record_bytes(usize::MAX, now);
        timers.end_request(now);
        timers.record_bytes(NOISE_BYTES_MAX as usize, now);
        assert!(!timers.is_noisy());
        timers.record_bytes(1, now);
        assert!(timers.is_noisy());
        let mut link = ConnectionTimers::new(now);
        link.stop();
        link.record_bytes(usize::MAX, now);
        assert!(!link.is_noisy(), "a node link has no limit");
    }
}
