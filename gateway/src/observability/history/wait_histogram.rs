//! PURE. A histogram of waits for quantiles: 120 buckets, each an eighth wider than the one before,
//! in half a kilobyte. Quantiles are accurate to one bucket.

use std::time::Duration;

/// Buckets per decade, starting at one millisecond.
const PER_DECADE: f64 = 20.0;
/// Six decades: up to a quarter of an hour.
const SIZES: usize = 120;
const SMALLEST_SECONDS: f64 = 1e-3;

/// A histogram of waits; see the module.
#[derive(Debug, Clone)]
pub(super) struct WaitHistogram([u32; SIZES]);

impl Default for WaitHistogram {
    fn default() -> Self {
        Self([0; SIZES])
    }
}

impl WaitHistogram {
    /// Adds a wait.
    pub(super) fn add(&mut self, wait: Duration) {
        // The cast saturates: too small and too large values go to the first and last bucket.
        let size = ((wait.as_secs_f64() / SMALLEST_SECONDS).log10() * PER_DECADE) as usize;
        if let Some(count) = self.0.get_mut(size.min(SIZES - 1)) {
            *count = count.saturating_add(1);
        }
    }

    /// Adds all waits of `other`.
    pub(super) fn merge(&mut self, other: &Self) {
        self.0
            .iter_mut()
            .zip(&other.0)
            .for_each(|(count, more)| *count = count.saturating_add(*more));
    }

    /// The quantile `share` (0 to 1) in seconds; `None` without waits.
    pub(super) fn quantile(&self, share: f64) -> Option<f64> {
        let all: f64 = self.0.iter().map(|count| f64::from(*count)).sum();
        let wanted = all * share;
        let mut below = 0.0;
        for (size, count) in self.0.iter().enumerate().filter(|(_, count)| **count > 0) {
            let count = f64::from(*count);
            if below + count >= wanted {
                let exponent = (size as f64 + (wanted - below) / count) / PER_DECADE;
                return Some(SMALLEST_SECONDS * 10f64.powf(exponent));
            }
            below += count;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits(all: impl IntoIterator<Item = f64>) -> WaitHistogram {
        let mut waits = WaitHistogram::default();
        all.into_iter().for_each(|seconds| waits.add(Duration::from_secs_f64(seconds)));
        waits
    }

    #[test]
    fn quantiles_are_near_the_truth() {
        let all = waits((1..=1000).map(|ms| f64::from(ms) / 1000.0));
        for share in [0.1, 0.5, 0.95, 1.0] {
            let told = all.quantile(share).unwrap();
            assert!((told / share - 1.0).abs() < 0.13, "{share}: {told}");
        }
        assert_eq!(WaitHistogram::default().quantile(0.5), None);
    }

    #[test]
    fn no_wait_is_too_short_or_too_long() {
        let all = waits([0.0, 1e-9, 1e6]);
        assert!(all.quantile(0.5).unwrap() < 0.002);
        assert!(all.quantile(1.0).unwrap() > 900.0);
    }

    #[test]
    fn two_are_as_one() {
        let (mut one, other) = (waits([0.1; 10]), waits([10.0; 30]));
        one.merge(&other);
        assert!((one.quantile(0.5).unwrap() / 10.0 - 1.0).abs() < 0.13);
        assert!(one.quantile(0.2).unwrap() < 0.12);
    }
}
