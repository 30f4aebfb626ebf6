//! Quarantine for requests that were running when engines died. A request that killed two engines
//! would kill the next one, and most clients retry failed requests.

use std::collections::VecDeque;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a request is refused.
const QUARANTINE: Duration = Duration::from_secs(60);
/// Most requests remembered; the oldest are dropped first.
const REQUESTS_MAX: usize = 1024;

/// Fingerprints of quarantined requests. Nothing else of them is stored.
#[derive(Debug, Default)]
pub struct Quarantine {
    hasher: RandomState,
    /// In order of time.
    known: Mutex<VecDeque<(u64, Instant)>>,
}

impl Quarantine {
    /// Quarantines a tenant's request.
    pub fn add(&self, tenant: &str, body: &[u8]) {
        let mut known = self.lock();
        if known.len() >= REQUESTS_MAX {
            known.pop_front();
        }
        known.push_back((self.hasher.hash_one((tenant, body)), Instant::now()));
    }

    /// True if a tenant's request is quarantined.
    pub fn contains(&self, tenant: &str, body: &[u8]) -> bool {
        let mut known = self.lock();
        while known.front().is_some_and(|(_, since)| since.elapsed() >= QUARANTINE) {
            known.pop_front();
        }
        if known.is_empty() {
            return false;
        }
        let hash = self.hasher.hash_one((tenant, body));
        known.iter().any(|(other, _)| *other == hash)
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<(u64, Instant)>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenants_request_is_known_by_all_of_it() {
        let quarantine = Quarantine::default();
        assert!(!quarantine.contains("a", b"x"));
        quarantine.add("a", b"x");
        assert!(quarantine.contains("a", b"x"));
        assert!(!quarantine.contains("a", b"y") && !quarantine.contains("b", b"x"));
        (0..REQUESTS_MAX).for_each(|i| quarantine.add("a", &i.to_le_bytes()));
        assert!(!quarantine.contains("a", b"x"), "the oldest makes room");
    }
}
