//! Responses of the Responses API in memory.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use inference_core::types::request::Tenant;
use inference_translation::store::{Limits, Store, Stored};

/// A node's clients are few: gateways send chat completions.
const LIMITS: Limits = Limits {
    bytes_max: 16 * 1024 * 1024,
    tenant_bytes_max: 16 * 1024 * 1024,
    age_s_max: 24 * 60 * 60,
};

/// The store, and when its clock began.
#[derive(Debug)]
pub(crate) struct Responses {
    store: Mutex<Store>,
    begun: Instant,
}

impl Default for Responses {
    fn default() -> Self {
        Self { store: Mutex::new(Store::new(LIMITS)), begun: Instant::now() }
    }
}

impl Responses {
    /// Stores a response. May delete older ones.
    pub(crate) fn insert(&self, tenant: Tenant, stored: Stored) {
        self.lock().insert(self.now(), &name(tenant), stored);
    }

    /// A tenant's response.
    pub(crate) fn get(&self, tenant: Tenant, id: &str) -> Option<Arc<Stored>> {
        self.lock().get(self.now(), &name(tenant), id)
    }

    /// Deletes a tenant's response. Returns false if there is none.
    pub(crate) fn delete(&self, tenant: Tenant, id: &str) -> bool {
        self.lock().delete(self.now(), &name(tenant), id)
    }

    fn now(&self) -> u64 {
        self.begun.elapsed().as_secs()
    }

    fn lock(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn name(tenant: Tenant) -> String {
    format!("{:016x}", tenant.0)
}
