//! Times on the wire: whole seconds since 1970 (UTC), as OpenAI writes `created`.

use std::time::{SystemTime, UNIX_EPOCH};

/// Seconds since 1970. A clock before that gives 0.
///
/// ```
/// use std::time::{Duration, UNIX_EPOCH};
///
/// use inference_protocol::time::unix_seconds;
///
/// assert_eq!(unix_seconds(UNIX_EPOCH + Duration::from_millis(1999)), 1);
/// ```
pub fn unix_seconds(now: SystemTime) -> u64 {
    now.duration_since(UNIX_EPOCH).map_or(0, |passed| passed.as_secs())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_clock_before_1970_gives_zero() {
        assert_eq!(unix_seconds(UNIX_EPOCH + Duration::from_millis(1999)), 1);
        assert_eq!(unix_seconds(UNIX_EPOCH - Duration::from_secs(9)), 0);
    }
}
