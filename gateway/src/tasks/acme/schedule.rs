//! PURE. When a certificate is renewed, and when a failed attempt is repeated. Times are in seconds
//! since 1970.

use std::time::Duration;

use crate::config::tls::live::Validity;

/// Attempts within [`LIMIT_PERIOD_S`] that may fail. Let's Encrypt refuses more than five failed
/// validations of a domain in an hour.
pub(super) const ATTEMPTS_MAX: usize = 4;
pub(super) const LIMIT_PERIOD_S: u64 = 3600;

/// Wait after the first failure; three times as long after each further one.
const RETRY_FIRST_S: f64 = 120.0;
const RETRY_FACTOR: f64 = 3.0;
const RETRY_MAX_S: f64 = 6.0 * 3600.0;
/// Waits differ by up to this share, so that gateways that failed together do not retry together.
const JITTER: f64 = 0.25;

/// Time until a certificate is due: two thirds of its lifetime after it began.
pub(super) fn renewal_delay(validity: Validity, now: u64) -> Duration {
    let due = validity.not_before.saturating_add(lifetime(validity) / 3 * 2);
    Duration::from_secs(due.saturating_sub(now))
}

/// The same for a certificate that was issued just now. If the clock of this machine is wrong, it
/// may seem due at once; waiting for a third of its lifetime keeps the gateway from ordering one
/// after another.
pub(super) fn next_renewal_delay(validity: Validity, now: u64) -> Duration {
    let least = Duration::from_secs((lifetime(validity) / 3).max(1));
    renewal_delay(validity, now).max(least)
}

fn lifetime(validity: Validity) -> u64 {
    validity.not_after.saturating_sub(validity.not_before)
}

/// Wait after this many failures in a row. `random` is from 0 to 1.
pub(super) fn retry_delay(failures: u32, random: f64) -> Duration {
    let factor = RETRY_FACTOR.powf(f64::from(failures.saturating_sub(1)));
    let seconds = (RETRY_FIRST_S * factor).min(RETRY_MAX_S);
    Duration::from_secs_f64(seconds * (1.0 + JITTER * (2.0 * random - 1.0)))
}

/// Removes attempts that no longer count.
pub(super) fn forget_old(attempts: &mut Vec<u64>, now: u64) {
    // An attempt in the future is from before the clock was set.
    attempts.retain(|at| *at <= now && now - at < LIMIT_PERIOD_S);
}

/// Time until another attempt is within the limit. `attempts` are those that have not succeeded,
/// the oldest first.
pub(super) fn limit_delay(attempts: &[u64], now: u64) -> Duration {
    let Some(at) = attempts.len().checked_sub(ATTEMPTS_MAX) else { return Duration::ZERO };
    let oldest = attempts.get(at).copied().unwrap_or(now);
    Duration::from_secs((oldest + LIMIT_PERIOD_S).saturating_sub(now))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u64 = 24 * 3600;

    fn days(count: u64) -> Validity {
        Validity { not_before: 1000 * DAY, not_after: (1000 + count) * DAY }
    }

    #[test]
    fn a_certificate_is_renewed_at_two_thirds_of_its_lifetime() {
        let at = |count, day| renewal_delay(days(count), day * DAY).as_secs() / DAY;
        assert_eq!(at(90, 1000), 60);
        assert_eq!(at(90, 1059), 1);
        assert_eq!((at(90, 1060), at(90, 1100)), (0, 0), "due, and expired");
        assert_eq!(at(6, 1000), 4);
    }

    #[test]
    fn a_wrong_clock_does_not_order_one_certificate_after_another() {
        let at = |day| next_renewal_delay(days(90), day * DAY).as_secs() / DAY;
        assert_eq!((at(1000), at(1100), at(990)), (60, 30, 70));
        let nothing = Validity { not_before: 5, not_after: 5 };
        assert_eq!(next_renewal_delay(nothing, 9), Duration::from_secs(1));
    }

    #[test]
    fn failures_are_repeated_less_and_less_often() {
        let minutes: Vec<u64> =
            (1..9).map(|failures| retry_delay(failures, 0.5).as_secs() / 60).collect();
        assert_eq!(minutes, [2, 6, 18, 54, 162, 360, 360, 360]);
        assert_eq!(retry_delay(1, 0.0), Duration::from_secs(90));
        assert_eq!(retry_delay(1, 1.0), Duration::from_secs(150));
        assert_eq!(retry_delay(u32::MAX, 0.5), Duration::from_secs(6 * 3600));
    }

    #[test]
    fn four_attempts_may_fail_in_an_hour() {
        let now = 1_000_000;
        let mut attempts = vec![now - 3700, now - 3000, now - 2000, now - 1000];
        forget_old(&mut attempts, now);
        assert_eq!(attempts.len(), 3);
        assert_eq!(limit_delay(&attempts, now), Duration::ZERO);
        attempts.push(now);
        assert_eq!(limit_delay(&attempts, now), Duration::from_secs(600));
        attempts.push(now + 1);
        assert_eq!(limit_delay(&attempts, now + 1), Duration::from_secs(1599));
        forget_old(&mut attempts, now - 5000);
        assert_eq!(attempts, [0; 0]);
    }
}
