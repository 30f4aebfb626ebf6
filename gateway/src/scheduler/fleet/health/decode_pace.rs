//! PURE. Detects a node that decodes slower than it used to under the same load.

/// Load levels: 1, 2, 3 to 4, 5 to 8 busy slots, and so on.
const KINDS: usize = 8;
/// Observations of a level before it serves as a baseline.
const SEEN_MIN: u32 = 8;
/// Weight of the newest observation in the baseline.
const USUAL: f64 = 0.01;
/// Weight while the node is slow. A node that stays slow gets a new baseline eventually.
const USUAL_DRIFTING: f64 = 0.002;
/// Weight of the newest observation in the current drift.
const RECENT: f64 = 0.2;
/// Thresholds as multiples of the baseline. Prefills of other requests explain little more than a
/// factor of 2.
const SLOW: f64 = 3.0;
const FAR: f64 = 12.0;

/// How far the speed is from the baseline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Drift {
    /// At the baseline, or unknown.
    None,
    /// At least 3 times slower.
    Slow,
    /// At least 12 times slower: as good as dead.
    Far,
}

/// Baseline and drift of a node's seconds per token.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct DecodePace {
    usual: [Usual; KINDS],
    /// Smoothed logarithm of current time over baseline, so that one outlier is no trend.
    drift: f64,
}

#[derive(Debug, Clone, Copy, Default)]
struct Usual {
    seconds: f64,
    seen: u32,
}

impl DecodePace {
    /// Records seconds per token while `busy` slots are busy.
    pub(crate) fn observe(&mut self, busy: u32, seconds: f64) {
        let kind = busy.max(1).next_power_of_two().trailing_zeros() as usize;
        let drifting = self.drift() != Drift::None;
        let usual = &mut self.usual[kind.min(KINDS - 1)];
        if usual.seen >= SEEN_MIN && usual.seconds > 0.0 {
            let times = (seconds / usual.seconds).clamp(0.1, 100.0).ln();
            self.drift += RECENT * (times - self.drift);
        }
        let weight = match usual.seen {
            seen if seen < SEEN_MIN => 1.0 / f64::from(seen + 1),
            _ if drifting => USUAL_DRIFTING,
            _ => USUAL,
        };
        // Once there is a baseline, an outlier counts as at most twice the baseline.
        let most = if usual.seen < SEEN_MIN { seconds } else { 2.0 * usual.seconds };
        usual.seconds += weight * (seconds.min(most) - usual.seconds);
        usual.seen = usual.seen.saturating_add(1);
    }

    /// How far the speed is from the baseline.
    pub(crate) fn drift(&self) -> Drift {
        match self.drift {
            drift if drift >= FAR.ln() => Drift::Far,
            drift if drift >= SLOW.ln() => Drift::Slow,
            _ => Drift::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usual() -> DecodePace {
        let mut pace = DecodePace::default();
        for busy in [1, 4] {
            (0..100).for_each(|_| pace.observe(busy, 0.1 * f64::from(busy)));
        }
        pace
    }

    #[test]
    fn load_and_single_pauses_are_no_drift() {
        let mut pace = usual();
        pace.observe(1, 3.0);
        assert_eq!(pace.drift(), Drift::None);
        for busy in [1, 4, 3, 1] {
            (0..50).for_each(|_| pace.observe(busy, 0.1 * f64::from(busy) * 2.5));
            assert_eq!(pace.drift(), Drift::None);
        }
    }

    #[test]
    fn a_slow_node_is_noticed_soon_and_forgiven_when_it_is_fast_again() {
        let mut pace = usual();
        let slow = (1..100).find(|_| {
            pace.observe(1, 0.8);
            pace.drift() == Drift::Slow
        });
        assert!(slow.unwrap() <= 8, "{slow:?}");
        (0..10).for_each(|_| pace.observe(1, 0.1));
        assert_eq!(pace.drift(), Drift::None);
    }

    #[test]
    fn what_is_slow_for_good_is_usual_one_day() {
        let mut pace = usual();
        (0..3000).for_each(|_| pace.observe(1, 0.8));
        assert_eq!(pace.drift(), Drift::None);
    }

    #[test]
    fn who_stands_almost_still_is_far_from_usual() {
        let mut pace = usual();
        (0..30).for_each(|_| pace.observe(1, 9.0));
        assert_eq!(pace.drift(), Drift::Far);
    }
}
