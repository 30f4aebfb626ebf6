//! How many bytes tenants store.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::StoreError;

/// Bounds of what is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StorageLimits {
    /// Bytes of all files and results.
    pub bytes_max: u64,
    /// Bytes of one tenant's.
    pub tenant_bytes_max: u64,
}

/// What is stored, and what is being added.
#[derive(Debug)]
pub(super) struct Quota(Mutex<State>);

#[derive(Debug)]
struct State {
    limits: StorageLimits,
    stored: Bytes,
    /// What is being added.
    claimed: Bytes,
}

/// Bytes of all tenants, and of each.
#[derive(Debug, Default)]
struct Bytes {
    all: u64,
    tenants: HashMap<Arc<str>, u64>,
}

impl Bytes {
    fn of(&self, tenant: &str) -> u64 {
        self.tenants.get(tenant).copied().unwrap_or_default()
    }

    fn add(&mut self, tenant: &Arc<str>, bytes: u64) {
        self.all += bytes;
        *self.tenants.entry(tenant.clone()).or_default() += bytes;
    }

    fn remove(&mut self, tenant: &str, bytes: u64) {
        self.all = self.all.saturating_sub(bytes);
        if let Some(own) = self.tenants.get_mut(tenant) {
            *own = own.saturating_sub(bytes);
            if *own == 0 {
                self.tenants.remove(tenant);
            }
        }
    }
}

impl Quota {
    pub(super) fn new(limits: StorageLimits) -> Self {
        let (stored, claimed) = (Bytes::default(), Bytes::default());
        Self(Mutex::new(State { limits, stored, claimed }))
    }

    pub(super) fn configure(&self, limits: StorageLimits) {
        self.lock().limits = limits;
    }

    /// Learns what is stored: by an earlier run, and by other gateways.
    pub(super) fn restore(&self, stored: Vec<(String, u64)>) {
        let mut known = Bytes::default();
        for (tenant, bytes) in stored {
            known.add(&tenant.into(), bytes);
        }
        self.lock().stored = known;
    }

    pub(super) fn bytes(&self) -> u64 {
        let state = self.lock();
        state.stored.all + state.claimed.all
    }

    /// Forgets bytes that were deleted.
    pub(super) fn release(&self, tenant: &str, bytes: u64) {
        self.lock().stored.remove(tenant, bytes);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn has_room(&self, tenant: &str, bytes: u64) -> bool {
        let all = self.stored.all + self.claimed.all;
        let own = self.stored.of(tenant) + self.claimed.of(tenant);
        all + bytes <= self.limits.bytes_max && own + bytes <= self.limits.tenant_bytes_max
    }
}

/// Bytes that a tenant is about to store; released when dropped.
#[derive(Debug)]
pub struct Claim {
    quota: Arc<Quota>,
    tenant: Arc<str>,
    bytes: u64,
}

impl Claim {
    pub(super) fn new(quota: Arc<Quota>, tenant: &str) -> Self {
        Self { quota, tenant: tenant.into(), bytes: 0 }
    }

    /// Claims more.
    ///
    /// # Errors
    /// The tenant, or all together, would exceed their limit.
    pub(crate) fn grow(&mut self, bytes: u64) -> Result<(), StoreError> {
        if !self.quota.lock().has_room(&self.tenant, bytes) {
            return Err(StoreError::Full);
        }
        self.force(bytes);
        Ok(())
    }

    /// Claims more, whatever the limits are.
    pub(crate) fn force(&mut self, bytes: u64) {
        self.quota.lock().claimed.add(&self.tenant, bytes);
        self.bytes += bytes;
    }

    /// Leaves the bytes counted: they are stored.
    pub(super) fn keep(&mut self) {
        let mut state = self.quota.lock();
        state.claimed.remove(&self.tenant, self.bytes);
        state.stored.add(&self.tenant, self.bytes);
        self.bytes = 0;
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.quota.lock().claimed.remove(&self.tenant, self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenants_have_their_own_limit_and_all_together_another_one() {
        let limits = StorageLimits { bytes_max: 100, tenant_bytes_max: 60 };
        let quota = Arc::new(Quota::new(limits));
        quota.restore(vec![("a".into(), 50)]);
        let (mut a, mut b) = (Claim::new(quota.clone(), "a"), Claim::new(quota.clone(), "b"));
        assert_eq!(a.grow(11), Err(StoreError::Full), "of its own 60");
        assert_eq!(a.grow(10), Ok(()));
        assert_eq!(b.grow(41), Err(StoreError::Full), "of the 100 of all");
        assert_eq!(b.grow(40), Ok(()));
        drop(a);
        assert_eq!(quota.bytes(), 90);
        b.keep();
        assert_eq!(quota.bytes(), 90);
        quota.restore(vec![("a".into(), 50), ("b".into(), 40)]);
        assert_eq!(quota.bytes(), 90, "what is stored is counted anew");
        quota.release("b", 40);
        quota.release("a", 50);
        assert_eq!(quota.bytes(), 0);
        assert!(quota.lock().stored.tenants.is_empty());
        assert!(quota.lock().claimed.tenants.is_empty());
    }
}
