//! The engine's step: commands -> plan -> decode -> sample -> emit.
//!
//! [`Engine`] owns the model and every sequence. It is driven from one thread
//! ([`crate::engine`]) or from a test; time is an argument, events go to a callback.

use std::collections::VecDeque;
use std::time::Duration;

use crate::model::{Model, Row, Shape, Slot};
use crate::request::{EngineStats, Event, Failure, RequestId};
use crate::scheduler::{self, Share, Waiting};
use crate::sequence::{Job, Sequence};

/// Weight of the newest measurement in the smoothed speeds.
const SMOOTHING: f32 = 0.2;

/// Receives what happens to requests.
pub type Emit<'a> = &'a mut dyn FnMut(RequestId, Event);

/// Sequences on a model. See the module.
#[derive(Debug)]
pub struct Engine<M> {
    model: M,
    shape: Shape,
    queue: VecDeque<Job>,
    queue_max: usize,
    slots: Vec<Option<Sequence>>,
    arrivals: u64,
    stats: EngineStats,
    /// Kept between steps, so that a step allocates little.
    rows: Vec<Row>,
    piece: Vec<u8>,
}

impl<M: Model> Engine<M> {
    /// An engine on `model` with at most `queue_max` requests waiting for a slot.
    pub fn new(model: M, queue_max: usize) -> Self {
        let shape = model.shape();
        Self {
            model,
            shape,
            queue: VecDeque::new(),
            queue_max,
            slots: (0..shape.slots).map(|_| None).collect(),
            arrivals: 0,
            stats: EngineStats { slots: shape.slots, ..EngineStats::default() },
            rows: Vec::new(),
            piece: Vec::new(),
        }
    }

    /// Takes a job, or refuses it when too many wait.
    pub fn submit(&mut self, job: Job, emit: Emit<'_>) {
        if self.queue.len() >= self.queue_max {
            emit(job.id, Event::Failed(Failure::QueueFull));
        } else {
            self.queue.push_back(job);
        }
    }

    /// Whether there is nothing to do.
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.slots.iter().all(Option::is_none)
    }

    /// How it is doing.
    pub fn stats(&self) -> EngineStats {
        EngineStats {
            slots_busy: self.slots.iter().flatten().count() as u32,
            queued: self.queue.len() as u32,
            ..self.stats
        }
    }

    /// The model, for tests.
    pub fn model_mut(&mut self) -> &mut M {
        &mut self.model
    }

    /// One step. `clock` is read before and after decoding, to learn the model's speed.
    pub fn step(&mut self, clock: &dyn Fn() -> Duration, emit: Emit<'_>) {
        self.drop_cancelled(emit);
        self.fill_slots(emit);
        let shares = scheduler::plan(&self.waiting(), self.shape.batch_rows);
        if shares.is_empty() {
            return;
        }
        self.collect_rows(&shares);
        let begun = clock();
        let decoded = self.model.decode(&self.rows);
        let spent = clock().saturating_sub(begun);
        self.stats.steps += 1;
        match decoded {
            Ok(()) => {
                self.learn_speed(&shares, spent);
                self.sample_all(&shares, emit);
            }
            Err(error) => self.fail(&shares, &error.0, emit),
        }
    }

    fn drop_cancelled(&mut self, emit: Emit<'_>) {
        self.queue.retain(|job| {
            let wanted = !job.cancel.is_set();
            if !wanted {
                emit(job.id, Event::Cancelled);
            }
            wanted
        });
        for slot in 0..self.shape.slots {
            if let Some(sequence) = &self.slots[slot as usize]
                && sequence.cancel.is_set()
            {
                emit(sequence.id, Event::Cancelled);
                self.free(slot);
            }
        }
    }

    fn fill_slots(&mut self, emit: Emit<'_>) {
        for entry in &mut self.slots {
            if entry.is_some() {
                continue;
            }
            let Some(job) = self.queue.pop_front() else { return };
            self.arrivals += 1;
            let sequence = Sequence::new(job, self.arrivals, self.shape.context_tokens);
            let prompt_tokens = sequence.prompt_tokens();
            emit(sequence.id, Event::Started { prompt_tokens });
            *entry = Some(sequence);
        }
    }

    fn waiting(&self) -> Vec<Waiting> {
        let view = |(slot, entry): (usize, &Option<Sequence>)| {
            entry.as_ref().map(|s| Waiting {
                slot: slot as Slot,
                rows: s.undecoded().len() as u32,
                decoding: s.is_decoding(),
                arrival: s.arrival,
            })
        };
        self.slots.iter().enumerate().filter_map(view).collect()
    }

    fn collect_rows(&mut self, shares: &[Share]) {
        self.rows.clear();
        for share in shares {
            let Some(sequence) = &self.slots[share.slot as usize] else { continue };
            let tokens = sequence.undecoded();
            let last = tokens.len() - 1;
            for (i, token) in tokens.iter().take(share.rows as usize).enumerate() {
                self.rows.push(Row {
                    slot: share.slot,
                    position: sequence.position() + i as u32,
                    token: *token,
                    logits: i == last,
                });
            }
        }
        debug_assert!(self.rows.len() <= self.shape.batch_rows as usize);
    }

    fn sample_all(&mut self, shares: &[Share], emit: Emit<'_>) {
        let mut row = 0;
        for share in shares {
            row += share.rows as usize;
            let Some(sequence) = &mut self.slots[share.slot as usize] else { continue };
            sequence.mark_decoded(share.rows);
            // A reader that left during the decode gets no further token.
            if !sequence.undecoded().is_empty() || sequence.cancel.is_set() {
                continue;
            }
            let token = sequence.sample(self.model.logits(row - 1));
            self.stats.generated_tokens += 1;
            self.piece.clear();
            self.model.piece(token, &mut self.piece);
            let advance = sequence.advance(token, &self.piece, self.model.is_end(token));
            if !advance.text.is_empty() {
                emit(sequence.id, Event::Text { text: advance.text });
            }
            if let Some(reason) = advance.finished {
                let completion_tokens = sequence.completion_tokens();
                emit(sequence.id, Event::Finished { reason, completion_tokens });
                self.free(share.slot);
            }
        }
    }

    /// A batch that failed takes its sequences with it; everybody else goes on.
    fn fail(&mut self, shares: &[Share], why: &str, emit: Emit<'_>) {
        for share in shares {
            if let Some(sequence) = &self.slots[share.slot as usize] {
                emit(sequence.id, Event::Failed(Failure::Decode(why.to_string())));
                self.free(share.slot);
            }
        }
    }

    fn free(&mut self, slot: Slot) {
        self.slots[slot as usize] = None;
        self.model.clear(slot);
    }

    fn learn_speed(&mut self, shares: &[Share], spent: Duration) {
        let decoding = |share: &&Share| {
            self.slots[share.slot as usize].as_ref().is_some_and(Sequence::is_decoding)
        };
        let decoded: u32 = shares.iter().filter(decoding).map(|s| s.rows).sum();
        let prefilled = self.rows.len() as u32 - decoded;
        self.stats.prompt_tokens += u64::from(prefilled);
        let seconds = spent.as_secs_f32();
        if seconds <= 0.0 {
            return;
        }
        // Only steps of one kind measure that kind.
        match (decoded, prefilled) {
            (n, 0) => smooth(&mut self.stats.decode_tokens_per_second, n as f32 / seconds),
            (0, n) => smooth(&mut self.stats.prefill_tokens_per_second, n as f32 / seconds),
            _ => {}
        }
    }
}

fn smooth(value: &mut f32, newest: f32) {
    *value = if *value == 0.0 { newest } else { *value + SMOOTHING * (newest - *value) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{FakeModel, FakeTokenizer};
    use crate::model::Tokenizer;
    use crate::request::{FinishReason, Sampling};
    use crate::sequence::CancelFlag;
    use std::collections::BTreeMap;

    struct Bench {
        engine: Engine<FakeModel>,
        events: BTreeMap<RequestId, Vec<Event>>,
    }

    impl Bench {
        fn new(slots: u32, batch_rows: u32) -> Self {
            let engine = Engine::new(FakeModel::new(slots, 64, batch_rows), 8);
            Self { engine, events: BTreeMap::new() }
        }

        fn submit(&mut self, id: RequestId, prompt: &str) -> CancelFlag {
            let cancel = CancelFlag::default();
            let job = Job {
                id,
                prompt: FakeTokenizer.tokenize(prompt, false),
                sampling: Sampling::GREEDY,
                max_tokens: None,
                stop: Vec::new(),
                cancel: cancel.clone(),
            };
            let events = &mut self.events;
            self.engine.submit(job, &mut |id, e| events.entry(id).or_default().push(e));
            cancel
        }

        fn step(&mut self) {
            let events = &mut self.events;
            self.engine
                .step(&|| Duration::ZERO, &mut |id, e| events.entry(id).or_default().push(e));
        }

        fn run(&mut self) {
            for _ in 0..1000 {
                if self.engine.is_idle() {
                    return;
                }
                self.step();
            }
            panic!("the engine never became idle");
        }

        fn text(&self, id: RequestId) -> String {
            let text = |e: &Event| match e {
                Event::Text { text } => Some(text.clone()),
                _ => None,
            };
            self.events[&id].iter().filter_map(text).collect()
        }

        fn last(&self, id: RequestId) -> &Event {
            let events = &self.events[&id];
            assert_eq!(events.iter().filter(|e| e.is_last()).count(), 1, "one outcome each");
            events.last().unwrap()
        }
    }

    #[test]
    fn more_requests_than_slots_are_all_answered_and_none_gets_anothers_text() {
        let mut bench = Bench::new(3, 16);
        let prompt = |id| format!("<{}>\0", "xyz".repeat(id as usize + 1));
        (0..8).for_each(|id| drop(bench.submit(id, &prompt(id))));
        bench.run();
        for id in 0..8 {
            assert_eq!(bench.text(id), prompt(id).trim_end_matches('\0'));
            assert!(matches!(bench.last(id), Event::Finished { reason: FinishReason::Stop, .. }));
        }
        assert_eq!(bench.engine.model_mut().cells(), 0, "no cell is left behind");
    }

    #[test]
    fn every_reader_advances_in_every_step_whatever_is_prefilled() {
        let mut bench = Bench::new(2, 8);
        bench.submit(1, "a");
        bench.step();
        bench.submit(2, &"long".repeat(10));
        for _ in 0..5 {
            let before = bench.text(1).len();
            bench.step();
            assert_eq!(bench.text(1).len(), before + 1);
        }
    }

    #[test]
    fn a_cancelled_request_gets_no_token_after_the_flag_is_set() {
        let mut bench = Bench::new(1, 8);
        let running = bench.submit(1, "a");
        let queued = bench.submit(2, "b");
        bench.step();
        running.set();
        queued.set();
        let text = bench.text(1);
        bench.run();
        assert_eq!(bench.text(1), text);
        assert_eq!((bench.last(1), bench.last(2)), (&Event::Cancelled, &Event::Cancelled));
        assert_eq!(bench.engine.stats().generated_tokens, text.len() as u64);
    }

    #[test]
    fn a_failed_batch_fails_its_requests_and_no_others() {
        let mut bench = Bench::new(1, 8);
        bench.submit(1, "a\0");
        bench.submit(2, "b\0");
        bench.engine.model_mut().fail_next = true;
        bench.run();
        assert!(matches!(bench.last(1), Event::Failed(Failure::Decode(_))));
        assert_eq!(bench.text(2), "b");
    }

    #[test]
    fn a_full_queue_refuses_and_the_rest_goes_on() {
        let mut bench = Bench::new(1, 8);
        (0..9).for_each(|id| drop(bench.submit(id, "a\0")));
        assert_eq!(bench.last(8), &Event::Failed(Failure::QueueFull));
        bench.run();
        assert!(matches!(bench.last(7), Event::Finished { .. }));
    }

    #[test]
    fn an_endless_answer_ends_with_the_context() {
        let mut bench = Bench::new(1, 8);
        bench.submit(1, "a");
        bench.run();
        let expected = Event::Finished { reason: FinishReason::Length, completion_tokens: 63 };
        assert_eq!(bench.last(1), &expected);
    }
}
