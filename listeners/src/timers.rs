//! PURE. Connection timers: how long a connection may keep us waiting, and for what.
//!
//! A client must send the head of its first request right away, and the head of each later request
//! within the head timeout of its first byte. Between requests the connection may idle. In HTTP/2
//! no byte marks the start of a head (an idle connection answers pings), so only the first head is
//! timed.

use std::time::{Duration, Instant};

use super::Closed;

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
}

impl ConnectionTimeouts {
    /// The shorter timeout: no deadline that starts from now on can be sooner than this.
    pub fn shortest(&self) -> Duration {
        self.head.min(self.idle)
    }
}

/// The timers of one connection.
#[derive(Debug)]
pub struct ConnectionTimers {
    in_flight: u32,
    /// When the first byte of the current head arrived.
    head_since: Option<Instant>,
    idle_since: Instant,
    is_multiplexed: bool,
    /// Bytes received since the last request.
    noise: u64,
    is_retired: bool,
}

impl ConnectionTimers {
    /// Starts the timer for the first head.
    pub fn new(now: Instant) -> Self {
        Self {
            in_flight: 0,
            head_since: Some(now),
            idle_since: now,
            is_multiplexed: false,
            noise: 0,
            is_retired: false,
        }
    }

    /// Records bytes that arrived.
    pub fn reads(&mut self, bytes: usize, now: Instant) {
        if self.in_flight > 0 || self.is_retired {
            return;
        }
        self.noise = self.noise.saturating_add(bytes as u64);
        if !self.is_multiplexed {
            self.head_since.get_or_insert(now);
        }
    }

    /// Records a complete request head. Over HTTP/2, `is_multiplexed`, requests may run
    /// concurrently.
    pub fn begins(&mut self, is_multiplexed: bool) {
        self.in_flight += 1;
        self.is_multiplexed = is_multiplexed;
        self.head_since = None;
        self.noise = 0;
    }

    /// Records that a response was completed or a request canceled.
    pub fn ends(&mut self, now: Instant) {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.idle_since = now;
        self.noise = 0;
    }

    /// Stops the timers for good: the connection no longer carries HTTP.
    pub fn retires(&mut self) {
        self.is_retired = true;
    }

    /// When to close the connection as things stand, and why.
    pub fn deadline(&self, patience: &ConnectionTimeouts) -> Option<(Instant, Closed)> {
        match self.head_since {
            _ if self.in_flight > 0 => None,
            Some(since) => Some((since + patience.head, Closed::SlowHead)),
            None => Some((self.idle_since + patience.idle, Closed::Idle)),
        }
    }

    /// True if the connection has sent more than [`NOISE_BYTES_MAX`] without a request.
    pub fn is_noisy(&self) -> bool {
        self.noise > NOISE_BYTES_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: ConnectionTimeouts =
        ConnectionTimeouts { head: Duration::from_secs(10), idle: Duration::from_secs(75) };

    /// Returns the deadline in seconds after `begun`.
    fn deadline(timers: &ConnectionTimers, begun: Instant) -> Option<(u64, Closed)> {
        timers.deadline(&PATIENCE).map(|(at, why)| ((at - begun).as_secs(), why))
    }

    #[test]
    fn the_first_head_is_owed_at_once_however_slowly_it_comes() {
        let begun = Instant::now();
        let mut timers = ConnectionTimers::new(begun);
        assert_eq!(deadline(&timers, begun), Some((10, Closed::SlowHead)));
        timers.reads(1, begun + Duration::from_secs(9));
        assert_eq!(deadline(&timers, begun), Some((10, Closed::SlowHead)));
        timers.begins(false);
        assert_eq!(deadline(&timers, begun), None);
    }

    #[test]
    fn between_requests_a_connection_may_be_idle_until_the_next_begins() {
        let begun = Instant::now();
        let mut timers = ConnectionTimers::new(begun);
        timers.begins(false);
        timers.ends(begun + Duration::from_secs(100));
        assert_eq!(deadline(&timers, begun), Some((175, Closed::Idle)));
        timers.reads(1, begun + Duration::from_secs(150));
        timers.reads(1, begun + Duration::from_secs(159));
        assert_eq!(deadline(&timers, begun), Some((160, Closed::SlowHead)));
    }

    #[test]
    fn a_connection_of_http_2_that_answers_pings_is_idle() {
        let begun = Instant::now();
        let mut timers = ConnectionTimers::new(begun);
        timers.begins(true);
        timers.begins(true);
        timers.ends(begun);
        assert_eq!(deadline(&timers, begun), None, "one is still in flight");
        timers.ends(begun + Duration::from_secs(1));
        timers.reads(17, begun + Duration::from_secs(20));
        assert_eq!(deadline(&timers, begun), Some((76, Closed::Idle)));
    }

    #[test]
    fn noise_is_what_comes_while_nothing_is_asked() {
        let now = Instant::now();
        let mut timers = ConnectionTimers::new(now);
        timers.reads(NOISE_BYTES_MAX as usize, now);
        timers.begins(true);
        timers.reads(usize::MAX, now);
        timers.ends(now);
        timers.reads(NOISE_BYTES_MAX as usize, now);
        assert!(!timers.is_noisy());
        timers.reads(1, now);
        assert!(timers.is_noisy());
        let mut link = ConnectionTimers::new(now);
        link.retires();
        link.reads(usize::MAX, now);
        assert!(!link.is_noisy(), "a node may say what it likes");
    }
}
