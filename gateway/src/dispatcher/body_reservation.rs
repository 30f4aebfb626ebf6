//! Reserves queue space for bodies while they are being read.

use std::sync::Arc;

use super::{Dispatcher, RETRY_UNKNOWN, jittered_seconds};
use crate::types::class::Class;
use crate::types::error::Error;
use crate::types::limits::QueueShare;

/// Space for a body without a length is reserved in steps of this size.
const STEP_BYTES: usize = 64 * 1024;

/// Queue space reserved for a body. Dropping it frees the space.
#[derive(Debug)]
pub(crate) struct BodyReservation {
    dispatcher: Dispatcher,
    tenant: Arc<str>,
    share: QueueShare,
    class: Class,
    bytes: usize,
}

impl Dispatcher {
    /// Starts with no space. `class` is the most urgent class that the request may turn out to
    /// have.
    pub(crate) fn body_reservation(
        &self,
        tenant: &Arc<str>,
        share: QueueShare,
        class: Class,
    ) -> BodyReservation {
        BodyReservation { dispatcher: self.clone(), tenant: tenant.clone(), share, class, bytes: 0 }
    }
}

impl BodyReservation {
    /// Extends the reservation to `bytes` in total.
    ///
    /// # Errors
    /// The queue, or the tenant's share of it, is full.
    pub(crate) fn reserve(&mut self, bytes: usize) -> Result<(), Error> {
        let Some(more) = bytes.checked_sub(self.bytes).filter(|more| *more > 0) else {
            return Ok(());
        };
        let Self { dispatcher, tenant, share, class, .. } = self;
        let read = dispatcher.lock().scheduler.reserve_body(tenant, *share, *class, more);
        let refused =
            |full| Error::QueueFull { full, retry_after_seconds: jittered_seconds(RETRY_UNKNOWN) };
        read.map_err(refused)?;
        self.bytes += more;
        Ok(())
    }

    /// Extends the reservation in steps as bytes arrive, up to `bytes_max`.
    ///
    /// # Errors
    /// The queue, or the tenant's share of it, is full.
    pub(crate) fn grow_to(&mut self, bytes: usize, bytes_max: usize) -> Result<(), Error> {
        match bytes <= self.bytes {
            true => Ok(()),
            false => self.reserve((self.bytes + STEP_BYTES).min(bytes_max).max(bytes)),
        }
    }
}

impl Drop for BodyReservation {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.dispatcher.lock().scheduler.release_body(&self.tenant, self.bytes);
        }
    }
}
