//! PURE. Delays between attempts: exponential backoff with jitter (Brooker, "Exponential Backoff
//! And Jitter", AWS Architecture Blog, 2015).

use std::time::Duration;

/// Delays from `min` to `max` that double each time; each is drawn between half of it and all.
#[derive(Debug, Clone)]
pub(crate) struct Backoff {
    min: Duration,
    max: Duration,
    next: Duration,
    /// State of a splitmix64 generator: sufficient for jitter.
    random: u64,
}

impl Backoff {
    /// Starts at `min`.
    pub(crate) fn new(min: Duration, max: Duration, seed: u64) -> Self {
        Self { min, max, next: min, random: seed }
    }

    pub(crate) fn next_wait(&mut self) -> Duration {
        let ceiling = self.next;
        self.next = (self.next * 2).min(self.max);
        let share = 0.5 + 0.5 * self.draw();
        ceiling.mul_f64(share)
    }

    /// Resets the delay to the minimum after a success.
    pub(crate) fn reset(&mut self) {
        self.next = self.min;
    }

    /// A random number in 0..1 (Steele, Lea, Flood, "Fast splittable pseudorandom number
    /// generators", 2014).
    fn draw(&mut self) -> f64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_maximum_and_start_over_after_a_success() {
        let (min, max) = (Duration::from_millis(100), Duration::from_secs(1));
        let mut backoff = Backoff::new(min, max, 1);
        for ceiling in [100, 200, 400, 800, 1000, 1000] {
            let wait = backoff.next_wait().as_millis();
            assert!((ceiling / 2..=ceiling).contains(&wait), "{wait} of {ceiling}");
        }
        backoff.reset();
        assert!(backoff.next_wait() <= min);
    }

    #[test]
    fn two_seeds_do_not_wait_in_step() {
        let draw =
            |seed| Backoff::new(Duration::from_secs(1), Duration::from_secs(1), seed).next_wait();
        assert_ne!(draw(1), draw(2));
    }
}
