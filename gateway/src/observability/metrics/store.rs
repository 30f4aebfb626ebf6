//! Metrics of the store, of batches, and of responses in the background.

use inference_metrics::MetricsBuilder;
use prometheus::{IntCounter, IntCounterVec, IntGauge, Result};

use super::Metrics;
use crate::store::Batch;

/// What becomes of lines of batches.
const LINE_OUTCOMES: [&str; 2] = ["completed", "failed"];

/// The families.
#[derive(Debug)]
pub(super) struct StoreFamilies {
    is_available: IntGauge,
    bytes: IntGauge,
    active: IntGauge,
    oldest: IntGauge,
    lines: IntCounterVec,
    retries: IntCounter,
    responses_active: IntGauge,
    oldest_response: IntGauge,
    responses: IntCounterVec,
    response_retries: IntCounter,
    webhooks: IntCounterVec,
    webhooks_waiting: IntGauge,
}

/// How a response in the background ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BackgroundOutcome {
    /// It is complete.
    Completed,
    /// It failed.
    Failed,
    /// Its client has canceled it.
    Canceled,
}

impl BackgroundOutcome {
    const ALL: [Self; 3] = [Self::Completed, Self::Failed, Self::Canceled];

    /// Label of metrics and logs.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Canceled => "canceled",
        }
    }
}

/// What became of an attempt to send a webhook.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WebhookOutcome {
    /// The receiver has it.
    Delivered,
    /// It is sent again after a pause.
    Failed,
    /// It is given up.
    Dropped,
}

impl WebhookOutcome {
    const ALL: [Self; 3] = [Self::Delivered, Self::Failed, Self::Dropped];

    fn name(self) -> &'static str {
        match self {
            Self::Delivered => "delivered",
            Self::Failed => "failed",
            Self::Dropped => "dropped",
        }
    }
}

impl StoreFamilies {
    pub(super) fn register(builder: &mut MetricsBuilder) -> Result<Self> {
        let families = Self::build(builder)?;
        families.is_available.set(1);
        for outcome in LINE_OUTCOMES {
            families.lines.with_label_values(&[outcome]);
        }
        // Alerts need them before the first one.
        for outcome in BackgroundOutcome::ALL {
            families.responses.with_label_values(&[outcome.name()]);
        }
        Ok(families)
    }

    fn build(builder: &mut MetricsBuilder) -> Result<Self> {
        Ok(Self {
            is_available: builder.gauge(
                "gateway_store_available",
                "0 while the store fails and requests that need it are refused, otherwise 1.",
            )?,
            bytes: builder.gauge(
                "gateway_store_bytes",
                "Bytes of stored files, results of batches, and responses in the background \
                 (store.bytes_max).",
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
            responses_active: builder.gauge(
                "gateway_background_tasks_active",
                "Responses and jobs in the background that have not ended.",
            )?,
            oldest_response: builder.gauge(
                "gateway_background_tasks_oldest_timestamp_seconds",
                "When the oldest response or job in the background that has not ended was asked for, in \
                 seconds since 1970; 0 without one.",
            )?,
            responses: builder.counters(
                "gateway_background_tasks_total",
                "Responses and jobs in the background that have ended, by outcome: completed, failed, or \
                 canceled.",
                &["outcome"],
            )?,
            response_retries: builder.counter(
                "gateway_background_task_retries_total",
                "Responses and jobs in the background that failed for a while and are tried again after a \
                 pause.",
            )?,
            webhooks: builder.counters(
                "gateway_webhooks_total",
                "Attempts to send a webhook, by receiver and outcome: delivered, failed (it is sent again), \
                 or dropped (it is given up).",
                &["webhook", "outcome"],
            )?,
            webhooks_waiting: builder.gauge(
                "gateway_webhooks_waiting",
                "Webhooks that were not delivered yet. Gateways that share a store count the same ones.",
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

    /// How many batches, and how many responses and jobs in the background, have not ended, and
    /// when the oldest of each was asked for, in seconds since 1970.
    pub(crate) fn unfinished(&self) -> [(u64, Option<u64>); 2] {
        let families = &self.0.families.store;
        let read = |gauge: &IntGauge| u64::try_from(gauge.get()).unwrap_or_default();
        let pair = |count, oldest| (read(count), Some(read(oldest)).filter(|at| *at > 0));
        [
            pair(&families.active, &families.oldest),
            pair(&families.responses_active, &families.oldest_response),
        ]
    }

    /// Counts a line that is done.
    pub(crate) fn record_batch_line(&self, is_error: bool) {
        let outcome = LINE_OUTCOMES[usize::from(is_error)];
        self.0.families.store.lines.with_label_values(&[outcome]).inc();
    }

    /// Sets how many responses in the background have not ended, and when the oldest was asked for,
    /// in seconds since 1970.
    pub(crate) fn set_active_tasks(&self, count: usize, oldest: u64) {
        let families = &self.0.families.store;
        families.responses_active.set(i64::try_from(count).unwrap_or(i64::MAX));
        families.oldest_response.set(i64::try_from(oldest).unwrap_or(i64::MAX));
    }

    /// Counts a response in the background that has ended.
    pub(crate) fn record_task(&self, outcome: BackgroundOutcome) {
        self.0.families.store.responses.with_label_values(&[outcome.name()]).inc();
    }

    /// Counts a response in the background that will be tried again.
    pub(crate) fn record_task_retry(&self) {
        self.0.families.store.response_retries.inc();
    }

    /// Shows a receiver before the first attempt, which alerts need.
    pub(crate) fn show_webhook(&self, webhook: &str) {
        for outcome in WebhookOutcome::ALL {
            self.0.families.store.webhooks.with_label_values(&[webhook, outcome.name()]);
        }
    }

    /// Counts an attempt to send a webhook.
    pub(crate) fn record_webhook(&self, webhook: &str, outcome: WebhookOutcome) {
        self.0.families.store.webhooks.with_label_values(&[webhook, outcome.name()]).inc();
    }

    /// Sets how many webhooks wait.
    pub(crate) fn set_webhooks_waiting(&self, count: u64) {
        self.0.families.store.webhooks_waiting.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// Counts a request of a line that will be repeated.
    pub(crate) fn record_batch_retry(&self) {
        self.0.families.store.retries.inc();
    }
}
