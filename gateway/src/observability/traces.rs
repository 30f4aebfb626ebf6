//! OpenTelemetry traces: one span per request, made when the request is over. [`context`] (pure)
//! decides which requests are traced, [`span`] (pure) builds the span, and the `trace_export` task
//! sends it to a collector in the background. Spans never contain prompts or responses.

use std::sync::Arc;
use std::time::SystemTime;

use hyper::header::HeaderMap;
use opentelemetry_sdk::trace::SpanData;
use tokio::sync::mpsc::{self, Receiver, Sender};

use crate::config::trace_export::{TraceExport, host};
use crate::observability::metrics::{Metrics, SpanLoss};

pub(crate) mod context;
pub(crate) mod span;

use context::{Context, Parent};

/// Spans queued for the collector; more are dropped and counted.
const QUEUE: usize = 4096;
/// Trace headers of a request, before its caller is known.
#[derive(Debug, Clone, Copy)]
pub struct Arrival {
    parent: Option<Parent>,
    begun: SystemTime,
}

impl Arrival {
    /// Reads the headers of a request that arrives now.
    pub fn now(headers: &HeaderMap) -> Self {
        Self { parent: context::parent(headers), begun: SystemTime::now() }
    }
}

/// The trace of a request; `None` if it is not traced.
pub fn start(traces: &TraceExport, arrival: Arrival, may_force: bool) -> Option<Trace> {
    let Arrival { parent, begun } = arrival;
    let (trace, span) = (crate::types::random::random(), crate::types::random::random());
    let context = context::sample(parent, may_force, traces.sample_ratio, trace, span)?;
    Some(Trace { context, begun })
}

/// A traced request.
#[derive(Debug, Clone, Copy)]
pub struct Trace {
    /// Its position in its trace.
    pub context: Context,
    /// When it arrived.
    pub begun: SystemTime,
}

/// Queue of finished spans. Clones share it.
#[derive(Debug, Clone)]
pub struct Spans {
    queue: Sender<SpanData>,
    host: Arc<str>,
    metrics: Metrics,
}

impl Spans {
    /// Creates the queue. Returns its two ends.
    pub fn new(metrics: Metrics) -> (Self, Receiver<SpanData>) {
        let (queue, spans) = mpsc::channel(QUEUE);
        (Self { queue, host: host().into(), metrics }, spans)
    }

    /// Hostname of this machine.
    pub fn host(&self) -> Arc<str> {
        self.host.clone()
    }

    /// Queues a span without waiting. Drops and counts it if the queue is full.
    pub fn push(&self, span: SpanData) {
        if self.queue.try_send(span).is_err() {
            self.metrics.record_spans_lost(SpanLoss::QueueFull, 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatcher::Dispatcher;
    use crate::scheduler::routing::Policy;
    use crate::types::limits::QueueBounds;

    #[test]
    fn spans_that_find_no_room_are_dropped_and_counted() {
        let metrics = Metrics::new().unwrap();
        let (spans, mut queue) = Spans::new(metrics.clone());
        for _ in 0..QUEUE + 3 {
            spans.push(span::any());
        }
        assert_eq!(queue.len(), QUEUE);
        assert!(queue.try_recv().is_ok());
        let none = Dispatcher::new(QueueBounds::new(1, 1), Policy::default());
        let told = metrics.render(&none.snapshot()).unwrap();
        assert!(told.contains("gateway_traces_dropped_total{reason=\"queue_full\"} 3"), "{told}");
    }
}
