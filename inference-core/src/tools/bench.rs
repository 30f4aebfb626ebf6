//! Measures an engine: raw batches of a model, and clients of its scheduler, all on one thread and
//! one clock. Reported figures are ratios of two measurements in one run.

pub mod raw;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::scheduler::engine_thread::Steps;
use crate::scheduler::sequence::{CancelFlag, Job};
use crate::scheduler::step::Engine;
use crate::types::model::TrackId;
use crate::types::model::{DecodeError, Decoded, Model, Row, Shape, Stop};
use crate::types::request::{EngineStats, Event, Options, RequestId, Sampling, Tenant, Token};

/// A model whose responses never end by themselves, and that records its decode time.
#[derive(Debug)]
pub struct Endless<M> {
    inner: M,
    /// Total time spent in decode.
    pub decoding: Duration,
}

impl<M> Endless<M> {
    /// Wraps a model.
    pub fn new(inner: M) -> Self {
        Self { inner, decoding: Duration::ZERO }
    }
}

impl<M: Model> Model for Endless<M> {
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

    fn share(&mut self, from: TrackId, to: TrackId, tokens: u32) {
        self.inner.share(from, to, tokens);
    }

    fn truncate(&mut self, track: TrackId, tokens: u32) {
        self.inner.truncate(track, tokens);
    }

    fn clear(&mut self, track: TrackId) {
        self.inner.clear(track);
    }

    fn piece(&self, _: Token, _: bool, out: &mut Vec<u8>) {
        // Every token becomes visible text.
        out.push(b'.');
    }

    fn ends(&self) -> &[Token] {
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
pub struct Seen {
    /// Time of the request.
    pub asked: Duration,
    /// Arrival time of each token.
    pub tokens: Vec<Duration>,
    /// Time when the response was complete.
    pub done: Option<Duration>,
}

impl Seen {
    /// Time to first token, in seconds.
    pub fn first_token(&self) -> f64 {
        self.tokens.first().map_or(f64::NAN, |at| (*at - self.asked).as_secs_f64())
    }

    /// Time to last token, in seconds.
    pub fn whole(&self) -> f64 {
        self.tokens.last().map_or(f64::NAN, |at| (*at - self.asked).as_secs_f64())
    }

    /// Time between tokens, in seconds.
    pub fn gaps(&self) -> Vec<f64> {
        self.tokens.windows(2).map(|w| (w[1] - w[0]).as_secs_f64()).collect()
    }
}

/// Clients on an engine. Requests are numbered in order of submission.
#[derive(Debug)]
pub struct Bench<M> {
    engine: Engine<Endless<M>>,
    begun: Instant,
    seen: BTreeMap<RequestId, Seen>,
}

impl<M: Model> Bench<M> {
    /// Creates an idle engine on `model`.
    pub fn new(model: M) -> Self {
        let engine = Engine::new(Endless::new(model), 64);
        Self { engine, begun: Instant::now(), seen: BTreeMap::new() }
    }

    /// Submits a request; returns its id.
    pub fn ask(&mut self, prompt: Vec<Token>, max_tokens: u32, sampling: Sampling) -> RequestId {
        let id = self.seen.len() as RequestId;
        let asked = self.begun.elapsed();
        self.seen.insert(id, Seen { asked, ..Seen::default() });
        let job = Job {
            id,
            tenant: Tenant::default(),
            tokens: prompt,
            said: 0,
            options: Options { sampling, max_tokens: Some(max_tokens), ..Options::GREEDY },
            visible: Vec::new(),
            form: None,
            thinking: false,
            cancel: CancelFlag::default(),
        };
        self.engine.submit(job, &mut |_, _| {});
        id
    }

    /// Runs one step of the engine.
    pub fn step(&mut self) {
        let (begun, seen) = (self.begun, &mut self.seen);
        self.engine.step(&|| begun.elapsed(), &mut |id, event| {
            let Some(seen) = seen.get_mut(&id) else { return };
            match event {
                Event::Text(_) => seen.tokens.push(begun.elapsed()),
                Event::Started { .. } => {}
                _ => seen.done = Some(begun.elapsed()),
            }
        });
    }

    /// Steps until all of these requests are complete.
    pub fn finish(&mut self, ids: &[RequestId]) {
        while ids.iter().any(|id| self.seen[id].done.is_none()) && !self.engine.is_idle() {
            self.step();
        }
    }

    /// The timing of a request.
    pub fn seen(&self, id: RequestId) -> &Seen {
        &self.seen[&id]
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
        let first = bench.ask(prompt(0, 10), 5, Sampling::GREEDY);
        let second = bench.ask(prompt(1, 10), 7, Sampling::GREEDY);
        bench.finish(&[first, second]);
        assert_eq!((bench.seen(first).tokens.len(), bench.seen(second).tokens.len()), (5, 7));
        assert_eq!(bench.seen(second).gaps().len(), 6);
        assert!(bench.seen(first).first_token() <= bench.seen(first).whole());
        assert_eq!(bench.stats().prompt_tokens, 20, "the prompts have nothing in common");
    }

    #[test]
    fn percentiles_are_values_of_the_list() {
        let mut values = vec![3.0, 1.0, 2.0];
        assert_eq!(percentile(&mut values, 0.5), 2.0);
        assert_eq!(percentile(&mut values, 0.99), 3.0);
    }
}
