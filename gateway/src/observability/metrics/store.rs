//! Metrics of the store and of batches.

use inference_metrics::MetricsBuilder;
use prometheus::{IntCounter, IntCounterVec, IntGauge, Result};

use super::Metrics;
use crate::store::Batch;

/// The families.
#[derive(Debug)]
pub(super) struct StoreFamilies {
    is_available: IntGauge,
    bytes: IntGauge,
    active: IntGauge,
    oldest: IntGauge,
    lines: IntCounterVec,
    retries: IntCounter,
}

impl StoreFamilies {
    pub(super) fn register(builder: &mut MetricsBuilder) -> Result<Self> {
        Ok(Self {
            is_available: builder.gauge(
                "gateway_store_available",
                "1 if the store of files and batches works, 0 while requests that need it are refused. \
                 0 without store.dir, too.",
            )?,
            bytes: builder.gauge(
                "gateway_store_bytes",
                "Bytes of stored files and of results of batches (store.bytes_max).",
            )?,
            active: builder.gauge("gateway_batches_active", "Batches that have not ended.")?,
            oldest: builder.gauge(
                "gateway_batches_oldest_timestamp_seconds",
                "When the oldest batch that has not ended was created, in seconds since 1970; 0 \
                 without one.",
            )?,
            lines: builder.counters(
                "gateway_batch_lines_total",
                "Lines of batches that are done, by outcome: completed, or failed (in the error file).",
                &["outcome"],
            )?,
            retries: builder.counter(
                "gateway_batch_line_retries_total",
                "Requests of batches that failed for a while and are repeated after a pause.",
            )?,
        })
    }
}

impl Metrics {
    /// Sets whether the store works, and how much it holds.
    pub(crate) fn set_store(&self, is_available: bool, bytes: u64) {
        let families = &self.0.families.store;
        families.is_available.set(is_available.into());
        families.bytes.set(i64::try_from(bytes).unwrap_or(i64::MAX));
    }

    /// Sets which batches have not ended, oldest first.
    pub(crate) fn set_active_batches(&self, active: &[Batch]) {
        let families = &self.0.families.store;
        families.active.set(i64::try_from(active.len()).unwrap_or(i64::MAX));
        let oldest = active.first().map_or(0, |batch| batch.times.created_at);
        families.oldest.set(i64::try_from(oldest).unwrap_or(i64::MAX));
    }

    /// Counts a line that is done.
    pub(crate) fn record_batch_line(&self, is_error: bool) {
        let outcome = if is_error { "failed" } else { "completed" };
        self.0.families.store.lines.with_label_values(&[outcome]).inc();
    }

    /// Counts a request of a line that will be repeated.
    pub(crate) fn record_batch_retry(&self) {
        self.0.families.store.retries.inc();
    }
}
