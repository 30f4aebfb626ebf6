//! Responses of the Responses API in memory, each visible only to its tenant, and to the user of
//! the tenant who made it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use hyper::header::HeaderMap;
pub use inference_translation::store::Limits;
use inference_translation::store::{Store, Stored};

use super::keys::Caller;
use super::users::UserSource;
use crate::types::error::Error;
use crate::types::user::UserId;

/// Who of a tenant reads or deletes a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reader {
    /// This user, or somebody whose key has no users.
    User(Option<UserId>),
    /// Somebody whose request cannot say which user it is for.
    Unnamed,
}

impl Reader {
    /// Who sent a request without a body. If the key's requests name their users there, it may be
    /// any of them.
    ///
    /// # Errors
    /// The id of the user is too long.
    pub(crate) fn of(caller: &Caller, headers: &HeaderMap) -> Result<Self, Error> {
        match caller.key.users.source {
            UserSource::Field => Ok(Self::Unnamed),
            _ => caller.user_of_head(headers).map(Self::User),
        }
    }

    fn sees(self, stored: &Stored) -> bool {
        self.sees_those_of(stored.owner())
    }

    /// True if the reader may see responses of this owner.
    pub(crate) fn sees_those_of(self, owner: Option<u64>) -> bool {
        match self {
            Self::User(user) => owner == user.map(u64::from),
            Self::Unnamed => true,
        }
    }
}

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

    /// Stores the response of a tenant's user, whom it names. May delete older ones.
    pub(crate) fn insert(&self, tenant: &str, stored: Stored) {
        if !self.lock().insert(self.now(), tenant, stored) {
            tracing::debug!(
                tenant,
                "response not stored: it exceeds limits.stored_bytes_per_tenant_max"
            );
        }
    }

    /// A tenant's response, if the reader may see it.
    pub(crate) fn get(&self, tenant: &str, reader: Reader, id: &str) -> Option<Arc<Stored>> {
        self.lock().get(self.now(), tenant, id).filter(|stored| reader.sees(stored))
    }

    /// Deletes a tenant's response. Returns false if there is none that the reader may see.
    pub(crate) fn delete(&self, tenant: &str, reader: Reader, id: &str) -> bool {
        let (mut store, now) = (self.lock(), self.now());
        let found = store.get(now, tenant, id);
        found.is_some_and(|stored| reader.sees(&stored)) && store.delete(now, tenant, id)
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
