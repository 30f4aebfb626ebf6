//! Measures an engine: raw batches of a model, and clients of its scheduler, all on one thread and
//! one clock. Reported figures are ratios of two measurements in one run.

pub mod echo;
pub mod raw;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::scheduler::engine_thread::StepEngine;
use crate::scheduler::sequence::{CancelFlag, Job};
use crate::scheduler::step::Engine;
use crate::types::model::SeqId;
use crate::types::model::{DecodeError, Decoded, Model, Row, Shape, Stop};
use crate::types::request::{EngineStats, Event, Options, RequestId, Sampling, Tenant, Token};

/// A model whose responses never end by themselves, and that records its decode time.
#[derive(Debug)]
pub(crate) struct EndlessModel<M> {
    inner: M,
    /// Total time spent in decode.
    pub(crate) decoding: Duration,
}

impl<M> EndlessModel<M> {
    /// Wraps a model.
    pub(crate) fn new(inner: M) -> Self {
        Self { inner, decoding: Duration::ZERO }
    }
}

impl<M: Model> Model for EndlessModel<M> {
    fn shape(&self) -> Shape {
        self.inner.shape()
    }

    fn decode(&mut self, rows: &[Row], stop: Stop<'_>) -> Result<Decoded, DecodeError> {
        let begun = Instant::now();
        let decoded = self.inner.decode(rows, stop);
        self.decoding += begun.elapsed();
        decoded
    }

    fn logits(&self, row: usize) -> &[f32] {
        self.inner.logits(row)
    }

    fn hidden_state(&self, row: usize) -> &[f32] {
        self.inner.hidden_state(row)
    }

    fn set_hidden_states(&mut self, states: &[f32]) {
        self.inner.set_hidden_states(states);
    }

    fn compute_first_logits(&mut self, tokens: u32) {
        self.inner.compute_first_logits(tokens);
    }

    fn run_on_threads(&self, pieces: usize, work: &(dyn Fn(usize) + Sync)) {
        self.inner.run_on_threads(pieces, work);
    }

    fn share(&mut self, from: SeqId, to: SeqId, tokens: u32) {
        self.inner.share(from, to, tokens);
    }

    fn truncate(&mut self, seq: SeqId, tokens: u32) {
        self.inner.truncate(seq, tokens);
    }

    fn checkpoint(&mut self, seq: SeqId, spare: SeqId) {
        self.inner.checkpoint(seq, spare);
    }

    fn roll_back(&mut self, seq: SeqId, spare: SeqId) {
        self.inner.roll_back(seq, spare);
    }

    fn drop_checkpoint(&mut self, spare: SeqId) {
        self.inner.drop_checkpoint(spare);
    }

    fn clear(&mut self, seq: SeqId) {
        self.inner.clear(seq);
    }

    fn save(&mut self, seq: SeqId, tokens: u32, bytes_max: usize) -> Option<Box<[u8]>> {
        self.inner.save(seq, tokens, bytes_max)
    }

    fn restore(&mut self, seq: SeqId, state: &[u8]) -> bool {
        self.inner.restore(seq, state)
    }

    fn piece(&self, _: Token, _: bool, out: &mut Vec<u8>) {
        // Every token becomes visible text.
        out.push(b'.');
    }

    fn end_tokens(&self) -> &[Token] {
        &[]
    }
}

/// A prompt of `tokens` tokens that shares no prefix with that of another `number`.
pub fn prompt(number: u32, tokens: u32) -> Vec<Token> {
    // A full cycle of letters and digits, with another start for each prompt.
    (0..tokens).map(|i| 33 + (number * 7 + i * (1 + number % 5)) % 90).collect()
}

/// The timing of a request, as its client sees it.
#[derive(Debug, Clone, Default)]
pub struct RequestTiming {
    /// Time of the request.
    pub(crate) submitted_at: Duration,
    /// Arrival time of each token.
    pub tokens: Vec<Duration>,
    /// Time when the response was complete.
    pub(crate) completed_at: Option<Duration>,
}

impl RequestTiming {
    /// Time to first token, in seconds.
    pub fn first_token(&self) -> f64 {
        self.tokens.first().map_or(f64::NAN, |at| (*at - self.submitted_at).as_secs_f64())
    }

    /// Time between tokens, in seconds.
    pub fn gaps(&self) -> Vec<f64> {
        self.tokens.windows(2).map(|w| (w[1] - w[0]).as_secs_f64()).collect()
    }
}

/// Clients on an engine. Requests are numbered in order of submission.
#[derive(Debug)]
pub struct Bench<M> {
    engine: Engine<EndlessModel<M>>,
    begun: Instant,
    timings: BTreeMap<RequestId, RequestTiming>,
}

impl<M: Model> Bench<M> {
    /// Creates an idle engine on `model`.
    pub fn new(model: M) -> Self {
        let engine = Engine::new(EndlessModel::new(model), 64);
        Self { engine, begun: Instant::now(), timings: BTreeMap::new() }
    }

    /// Uses speculation, which is off otherwise: what random weights write repeats itself.
    pub fn with_speculation(mut self, is_on: bool) -> Self {
        self.engine = self.engine.with_speculation(is_on);
        self
    }

    /// Adds a draft model, which needs speculation.
    pub fn with_draft_model(mut self, model: M) -> Self {
        self.engine = self.engine.with_draft_model(EndlessModel::new(model));
        self
    }

    /// Submits a request; returns its id.
    pub fn submit(&mut self, prompt: Vec<Token>, max_tokens: u32, sampling: Sampling) -> RequestId {
        let id = self.timings.len() as RequestId;
        let submitted_at = self.begun.elapsed();
        self.timings.insert(id, RequestTiming { submitted_at, ..RequestTiming::default() });
        let job = Job {
            id,
            tenant: Tenant::default(),
            tokens: prompt,
            resumed_len: 0,
            options: Options { sampling, max_tokens: Some(max_tokens), ..Options::GREEDY },
            visible: Vec::new(),
            grammar: None,
            in_reasoning: false,
            resolved: Default::default(),
            cancel: CancelFlag::default(),
        };
        self.engine.submit(job, &mut |_, _| {});
        id
    }

    /// Runs one step of the engine.
    pub fn step(&mut self) {
        let (begun, timing) = (self.begun, &mut self.timings);
        self.engine.step(&|| begun.elapsed(), &mut |id, event| {
            let Some(timing) = timing.get_mut(&id) else { return };
            match event {
                Event::Text(_) => timing.tokens.push(begun.elapsed()),
                Event::Started { .. } => {}
                _ => timing.completed_at = Some(begun.elapsed()),
            }
        });
    }

    /// Steps until all of these requests are complete.
    pub fn finish(&mut self, ids: &[RequestId]) {
        while ids.iter().any(|id| self.timings[id].completed_at.is_none()) && !self.engine.is_idle()
        {
            self.step();
        }
    }

    /// The timing of a request.
    pub fn timing(&self, id: RequestId) -> &RequestTiming {
        &self.timings[&id]
    }

    /// The engine's statistics.
    pub fn stats(&self) -> EngineStats {
        self.engine.stats()
    }

    /// Seconds since the start, and those spent in decode.
    pub fn seconds(&self) -> (f64, f64) {
        (self.begun.elapsed().as_secs_f64(), self.engine.model().decoding.as_secs_f64())
    }
}

/// Median of these values.
pub fn median(mut values: Vec<f64>) -> f64 {
    percentile(&mut values, 0.5)
}

/// The percentile `share` (0 to 1) of these values.
pub fn percentile(values: &mut [f64], share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let last = values.len().saturating_sub(1) as f64;
    values.get((last * share).round() as usize).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::fake::FakeModel;

    #[test]
    fn a_client_sees_every_token_of_an_endless_model() {
        let mut bench = Bench::new(FakeModel::new(2, 64, 16));
        let first = bench.submit(prompt(0, 10), 5, Sampling::GREEDY);
        let second = bench.submit(prompt(1, 10), 7, Sampling::GREEDY);
        bench.finish(&[first, second]);
        assert_eq!((bench.timing(first).tokens.len(), bench.timing(second).tokens.len()), (5, 7));
        assert_eq!(bench.timing(second).gaps().len(), 6);
        assert!(bench.timing(first).first_token() >= 0.0);
        assert_eq!(bench.stats().prompt_tokens, 20, "the prompts have nothing in common");
    }

    #[test]
    fn percentiles_are_values_of_the_list() {
        let mut values = vec![3.0, 1.0, 2.0];
        assert_eq!(percentile(&mut values, 0.5), 2.0);
        assert_eq!(percentile(&mut values, 0.99), 3.0);
    }
}
