//! Responses of the Responses API in memory, each visible only to its tenant.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

pub use inference_translation::store::Limits;
use inference_translation::store::{Store, Stored};

/// The store, and when its clock began.
#[derive(Debug)]
pub struct Responses {
    store: Mutex<Store>,
    begun: Instant,
}

impl Responses {
    /// Creates an empty store.
    pub(crate) fn new(limits: Limits) -> Self {
        Self { store: Mutex::new(Store::new(limits)), begun: Instant::now() }
    }

    /// Applies other limits.
    pub(crate) fn configure(&self, limits: Limits) {
        self.lock().configure(self.now(), limits);
    }

    /// Stores a tenant's response. May delete older ones.
    pub(crate) fn insert(&self, tenant: &str, stored: Stored) {
        if !self.lock().insert(self.now(), tenant, stored) {
            tracing::debug!(
                tenant,
                "response not stored: it exceeds limits.stored_bytes_per_tenant_max"
            );
        }
    }

    /// A tenant's response.
    pub(crate) fn get(&self, tenant: &str, id: &str) -> Option<Arc<Stored>> {
        self.lock().get(self.now(), tenant, id)
    }

    /// Deletes a tenant's response. Returns false if there is none.
    pub(crate) fn delete(&self, tenant: &str, id: &str) -> bool {
        self.lock().delete(self.now(), tenant, id)
    }

    /// Number of responses, and their bytes.
    pub(crate) fn size(&self) -> (usize, usize) {
        let store = self.lock();
        (store.len(), store.bytes())
    }

    fn now(&self) -> u64 {
        self.begun.elapsed().as_secs()
    }

    fn lock(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
