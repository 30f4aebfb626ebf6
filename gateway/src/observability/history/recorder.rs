//! The shell around [`RecentHistory`]: a clock, and a mutex that each request locks once, when it
//! ends.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{HistoryEntry, Point, Rates, RecentHistory, TenantTotals};

/// The history, shared by all requests.
#[derive(Debug)]
pub struct Recorder {
    recent: Mutex<RecentHistory>,
    started: Instant,
}

impl Default for Recorder {
    fn default() -> Self {
        Self { recent: Mutex::default(), started: Instant::now() }
    }
}

impl Recorder {
    /// Time since the start of recording.
    pub(crate) fn uptime(&self) -> Duration {
        self.started.elapsed()
    }

    /// Records a request that ends now.
    pub fn record(&self, ended: &HistoryEntry<'_>) {
        let now = self.uptime();
        self.lock().record(ended, now);
    }

    /// The last ten minutes.
    pub(crate) fn points(&self) -> Vec<Point> {
        let now = self.uptime();
        self.lock().points(now)
    }

    /// The last minute.
    pub fn minute(&self) -> Rates {
        let now = self.uptime();
        self.lock().minute(now)
    }

    /// Totals of these tenants.
    pub(crate) fn tenant_totals<'a>(
        &self,
        tenants: impl IntoIterator<Item = &'a str>,
    ) -> Vec<TenantTotals> {
        let recent = self.lock();
        tenants.into_iter().map(|tenant| recent.tenant_totals(tenant)).collect()
    }

    fn lock(&self) -> MutexGuard<'_, RecentHistory> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
