//! Limits how many requests the gateway makes itself at a time: of all tenants, and of each.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes of all requests that run or wait in the queue, in KiB.
const KIB_MAX: usize = 128 * 1024;

/// Room for requests.
#[derive(Debug)]
pub(super) struct Room {
    tenant_max: usize,
    requests: Arc<Semaphore>,
    kib: Arc<Semaphore>,
    tenants: Mutex<HashMap<String, Weak<Semaphore>>>,
}

/// Room for one request, until it is dropped.
#[derive(Debug)]
pub(super) struct Permits(#[expect(dead_code, reason = "dropped")] Vec<OwnedSemaphorePermit>);

impl Room {
    /// Room for so many requests at a time: of all tenants, and of one.
    pub(super) fn new(all_max: usize, tenant_max: usize) -> Self {
        Self {
            tenant_max,
            requests: Arc::new(Semaphore::new(all_max)),
            kib: Arc::new(Semaphore::new(KIB_MAX)),
            tenants: Mutex::default(),
        }
    }

    /// The room of one tenant.
    pub(super) fn of(&self, tenant: &str) -> Arc<Semaphore> {
        let mut tenants = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        tenants.retain(|_, room| room.strong_count() > 0);
        let known = tenants.get(tenant).and_then(Weak::upgrade);
        known.unwrap_or_else(|| {
            let room = Arc::new(Semaphore::new(self.tenant_max));
            tenants.insert(tenant.into(), Arc::downgrade(&room));
            room
        })
    }

    /// Waits for room for a request of so many bytes.
    pub(super) async fn enter(&self, tenant: &Arc<Semaphore>, bytes: usize) -> Permits {
        let kib = bytes.div_ceil(1024).min(KIB_MAX) as u32;
        let mut permits = Vec::with_capacity(3);
        permits.extend(tenant.clone().acquire_owned().await.ok());
        permits.extend(self.requests.clone().acquire_owned().await.ok());
        permits.extend(self.kib.clone().acquire_many_owned(kib).await.ok());
        Permits(permits)
    }
}
