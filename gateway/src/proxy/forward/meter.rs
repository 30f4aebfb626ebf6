//! Measures what an attempt at an external endpoint may cost.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::scheduler::usage::MeasuredUsage;

/// Measurements of an attempt at an external endpoint, which bills per attempt. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Meter(Option<Arc<Mutex<MeasuredUsage>>>);

impl Meter {
    /// Starts with no measurements. Measures external endpoints only.
    pub(crate) fn new(is_external: bool) -> Self {
        Self(is_external.then(Arc::default))
    }

    /// The measurements so far; `None` for a node.
    pub(crate) fn read(&self) -> Option<MeasuredUsage> {
        self.0.as_ref().map(|shared| *lock(shared))
    }

    pub(super) fn measure(&self, change: impl FnOnce(&mut MeasuredUsage)) {
        if let Some(shared) = &self.0 {
            change(&mut lock(shared));
        }
    }
}

fn lock(shared: &Mutex<MeasuredUsage>) -> MutexGuard<'_, MeasuredUsage> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
