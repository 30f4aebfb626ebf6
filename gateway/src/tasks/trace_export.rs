//! Exports spans to the collector in batches, in the background. A batch that the collector refuses
//! is dropped and counted.

use std::time::Duration;

use opentelemetry_sdk::trace::{SpanData, SpanExporter};
use tokio::sync::mpsc::Receiver;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::config::trace_export::EXPORT_TIMEOUT;
use crate::context::Gateway;
use crate::observability::metrics::SpanLoss;

/// Spans per batch.
const BATCH: usize = 512;
/// How long a batch waits to fill up.
const GATHER: Duration = Duration::from_secs(1);
/// Time to flush at shutdown; slightly less than all tasks have together.
const FLUSH: Duration = Duration::from_millis(1900);

/// Exports spans as currently configured until the gateway stops, then flushes.
pub(crate) async fn run(gateway: Gateway, spans: Receiver<SpanData>) {
    let stop = gateway.links.clone();
    let mut worker = Worker { gateway, spans, is_failing: false };
    let late = async {
        stop.cancelled().await;
        tokio::time::sleep(FLUSH).await;
    };
    tokio::select! {
        () = worker.work(&stop) => {}
        () = late => tracing::warn!("unexported traces dropped at shutdown"),
    }
}

struct Worker {
    gateway: Gateway,
    spans: Receiver<SpanData>,
    /// True if the last export failed.
    is_failing: bool,
}

impl Worker {
    async fn work(&mut self, stop: &CancellationToken) {
        loop {
            let batch = self.gather(stop).await;
            if batch.is_empty() {
                return;
            }
            self.export(batch).await;
        }
    }

    /// Collects the next batch; empty after the last one.
    async fn gather(&mut self, stop: &CancellationToken) -> Vec<SpanData> {
        let mut batch = Vec::new();
        self.receive(&mut batch, stop).await;
        let until = Instant::now() + GATHER;
        while batch.len() < BATCH && !self.spans.is_closed() {
            if timeout_at(until, self.receive(&mut batch, stop)).await.is_err() {
                break;
            }
        }
        batch
    }

    /// Receives at least one more span, unless the channel is closed. Cancel-safe.
    async fn receive(&mut self, batch: &mut Vec<SpanData>, stop: &CancellationToken) {
        let room = BATCH - batch.len();
        tokio::select! {
            _ = self.spans.recv_many(batch, room) => return,
            () = stop.cancelled(), if !self.spans.is_closed() => self.spans.close(),
        }
        self.spans.recv_many(batch, room).await;
    }

    async fn export(&mut self, batch: Vec<SpanData>) {
        let settings = self.gateway.settings.now();
        // Tracing was turned off in the meantime.
        let Some(traces) = &settings.config.traces else { return };
        let spans = batch.len() as u64;
        let taken = match timeout(EXPORT_TIMEOUT, traces.collector.export(batch)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("it took too long".into()),
        };
        // Log only changes.
        match &taken {
            Ok(()) if self.is_failing => tracing::info!("trace export recovered"),
            Err(why) if !self.is_failing => {
                tracing::warn!(why, "trace export failed");
            }
            _ => {}
        }
        self.is_failing = taken.is_err();
        if self.is_failing {
            self.gateway.metrics.record_spans_lost(SpanLoss::Refused, spans);
        }
    }
}
