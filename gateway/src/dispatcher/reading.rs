//! Room in the queue for bodies while they are being read.

use std::sync::Arc;

use super::{Dispatcher, RETRY_UNKNOWN, spread};
use crate::types::class::Class;
use crate::types::error::Error;
use crate::types::limits::Share;

/// Room of a body without a length is taken in such steps.
const STEP_BYTES: usize = 64 * 1024;

/// The room that a body takes in the queue while it is being read. Dropping it gives the room back.
#[derive(Debug)]
pub struct Reading {
    dispatcher: Dispatcher,
    tenant: Arc<str>,
    share: Share,
    class: Class,
    bytes: usize,
}

impl Dispatcher {
    /// Room for nothing yet. `class`: the most urgent one that the request may turn out to have.
    pub fn reading(&self, tenant: &Arc<str>, share: Share, class: Class) -> Reading {
        Reading { dispatcher: self.clone(), tenant: tenant.clone(), share, class, bytes: 0 }
    }
}

impl Reading {
    /// Makes room for so many bytes in all.
    ///
    /// # Errors
    /// The queue, or the tenant's share of it, is full.
    pub fn reserve(&mut self, bytes: usize) -> Result<(), Error> {
        let Some(more) = bytes.checked_sub(self.bytes).filter(|more| *more > 0) else {
            return Ok(());
        };
        let Self { dispatcher, tenant, share, class, .. } = self;
        let read = dispatcher.lock().scheduler.read(tenant, *share, *class, more);
        let refused = |full| Error::QueueFull { full, retry_after_seconds: spread(RETRY_UNKNOWN) };
        read.map_err(refused)?;
        self.bytes += more;
        Ok(())
    }

    /// The same as the bytes come, of `bytes_max` at most.
    ///
    /// # Errors
    /// The queue, or the tenant's share of it, is full.
    pub fn cover(&mut self, bytes: usize, bytes_max: usize) -> Result<(), Error> {
        match bytes <= self.bytes {
            true => Ok(()),
            false => self.reserve((self.bytes + STEP_BYTES).min(bytes_max).max(bytes)),
        }
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.dispatcher.lock().scheduler.forget(&self.tenant, self.bytes);
        }
    }
}
