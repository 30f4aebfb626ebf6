//! Measurements of one request, counted on drop.

use std::sync::Arc;
use std::time::Instant;

use inference_protocol::openai::Usage;
use prometheus::Histogram;

use super::Metrics;
use crate::serve::request_id;
use crate::types::error::Error;

/// The record of one request.
#[derive(Debug)]
pub(crate) struct Record {
    metrics: Metrics,
    api: &'static str,
    begun: Instant,
    outcome: &'static str,
    /// When it got a slot.
    started: Option<Instant>,
    /// Times of its first and its latest text.
    texts: Option<(Instant, Instant)>,
    usage: Option<Usage>,
    request_id: Option<Arc<str>>,
}

impl Record {
    pub(super) fn new(metrics: Metrics, api: &'static str) -> Self {
        metrics.0.families.in_flight.inc();
        Self {
            metrics,
            api,
            begun: Instant::now(),
            outcome: "client_gone",
            started: None,
            texts: None,
            usage: None,
            request_id: request_id::current(),
        }
    }

    /// Records that it got a slot; later calls have no effect.
    pub(crate) fn record_start(&mut self) {
        if self.started.is_none() {
            let now = Instant::now();
            observe(&self.metrics.0.families.queue_wait, self.begun, now);
            self.started = Some(now);
        }
    }

    pub(crate) fn record_text(&mut self) {
        let now = Instant::now();
        self.texts = match self.texts {
            None => {
                observe(&self.metrics.0.families.first_token, self.begun, now);
                Some((now, now))
            }
            Some((first, last)) => {
                observe(&self.metrics.0.families.gap, last, now);
                Some((first, now))
            }
        };
    }

    /// Records that one of its choices ended for this reason.
    pub(crate) fn record_finish(&mut self, reason: &'static str) {
        self.metrics.0.families.finished.with_label_values(&[reason]).inc();
    }

    pub(crate) fn record_usage(&mut self, usage: Usage) {
        self.usage = Some(usage);
    }

    pub(crate) fn succeed(&mut self) {
        self.outcome = "ok";
    }

    pub(crate) fn fail(&mut self, code: &'static str) {
        self.outcome = code;
    }

    /// Records the code of an error that is passed through.
    pub(crate) fn check<T>(&mut self, result: Result<T, Error>) -> Result<T, Error> {
        if let Err(e) = &result {
            self.outcome = e.code();
        }
        result
    }
}

impl Record {
    /// One line in the access log. Prompts and responses are never part of it.
    fn log(&self, now: Instant) {
        let since = |time: Instant| time.saturating_duration_since(self.begun).as_millis() as u64;
        tracing::info!(
            target: "access",
            request_id = self.request_id.as_deref(),
            api = self.api,
            outcome = self.outcome,
            duration_ms = since(now),
            queued_ms = self.started.map(since),
            first_token_ms = self.texts.map(|(first, _)| since(first)),
            prompt_tokens = self.usage.as_ref().map(|usage| usage.prompt_tokens),
            completion_tokens = self.usage.as_ref().map(|usage| usage.completion_tokens),
        );
    }
}

fn observe(histogram: &Histogram, from: Instant, to: Instant) {
    histogram.observe(to.saturating_duration_since(from).as_secs_f64());
}

impl Drop for Record {
    fn drop(&mut self) {
        let (families, now) = (&self.metrics.0.families, Instant::now());
        families.in_flight.dec();
        families.requests.with_label_values(&[self.api, self.outcome]).inc();
        observe(&families.duration, self.begun, now);
        if let Some((first, last)) = self.texts {
            observe(&families.prefill, self.started.unwrap_or(self.begun), first);
            observe(&families.decode, first, last);
        }
        if let Some(usage) = self.usage {
            families.prompt_tokens.observe(f64::from(usage.prompt_tokens));
            families.completion_tokens.observe(f64::from(usage.completion_tokens));
        }
        self.log(now);
    }
}
