//! PURE. Texts -> embeddings. Inputs of several requests share batches, and tenants take turns.
//!
//! An embedding model processes a whole text at once and generates nothing, so steps share no
//! state. A step takes as many inputs as a batch holds and as fit into the target time of a step.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::scheduler::engine_thread::{Emit, StepEngine};
use crate::scheduler::queue::FairQueue;
use crate::scheduler::sequence::CancelFlag;
use crate::scheduler::step_pace::{PREFILL_ONLY_ROWS_MIN, ROWS_FIRST, STEP_SECONDS, smooth};
use crate::types::embedder::{Embedder, Embeddings};
use crate::types::request::{
    EngineStats, Event, Failure, FinishReason, RequestId, ResponseTimes, Tenant, Token,
};

/// A request that is ready to run: each input is tokenized and fits into a batch.
#[derive(Debug)]
pub struct EmbedJob {
    /// Id chosen by the caller.
    pub id: RequestId,
    /// Tenant that sent the request.
    pub tenant: Tenant,
    /// At least one; none is empty.
    pub inputs: Vec<Vec<Token>>,
    /// Set when the caller no longer wants the result.
    pub cancel: CancelFlag,
}

#[derive(Debug)]
struct Input {
    id: RequestId,
    index: u32,
    tokens: Vec<Token>,
    cancel: CancelFlag,
}

/// A request with inputs that have no embedding yet.
#[derive(Debug)]
struct Pending {
    left: usize,
    prompt_tokens: u32,
    started: bool,
    cancel: CancelFlag,
}

/// Embedding engine: queue, model, and statistics. See the module.
#[derive(Debug)]
pub struct EmbedEngine<M> {
    model: M,
    queue: FairQueue<Input>,
    inputs_max: usize,
    /// The input at the head of the queue that did not fit into the last batch.
    next: Option<Input>,
    pending: BTreeMap<RequestId, Pending>,
    stats: EngineStats,
}

impl<M: Embedder> EmbedEngine<M> {
    /// Creates an engine on `model` whose queue holds at most `inputs_max` inputs.
    pub fn new(model: M, inputs_max: usize) -> Self {
        let stats = EngineStats { slots: model.shape().slots, ..EngineStats::default() };
        let queue = FairQueue::new(inputs_max);
        Self { model, queue, inputs_max, next: None, pending: BTreeMap::new(), stats }
    }

    fn drop_cancelled(&mut self, emit: Emit<'_>) {
        self.queue.retain(|input| !input.cancel.is_set());
        self.next = self.next.take().filter(|input| !input.cancel.is_set());
        self.pending.retain(|id, request| {
            let wanted = !request.cancel.is_set();
            if !wanted {
                emit(*id, Event::Cancelled);
            }
            wanted
        });
    }

    /// Maximum tokens of the next batch, if it holds more than one input.
    fn rows_max(&self) -> u32 {
        let rate = self.stats.prefill_tokens_per_second;
        let timely = match rate > 0.0 {
            true => (rate * STEP_SECONDS).min(1e6) as u32,
            false => ROWS_FIRST,
        };
        timely.max(PREFILL_ONLY_ROWS_MIN).min(self.model.shape().batch_rows)
    }

    fn next_batch(&mut self) -> Vec<Input> {
        let (shape, rows_max) = (self.model.shape(), self.rows_max());
        let (mut batch, mut rows) = (Vec::new(), 0);
        while (batch.len() as u32) < shape.batch_inputs
            && let Some(input) = self.next.take().or_else(|| self.queue.pop())
        {
            rows += input.tokens.len();
            if rows > rows_max as usize && !batch.is_empty() {
                self.next = Some(input);
                break;
            }
            batch.push(input);
        }
        batch
    }

    fn begin(&mut self, batch: &[Input], emit: Emit<'_>) {
        for input in batch {
            if let Some(request) = self.pending.get_mut(&input.id)
                && !std::mem::replace(&mut request.started, true)
            {
                let prompt_tokens = request.prompt_tokens;
                emit(input.id, Event::Started { prompt_tokens, in_reasoning: false });
            }
        }
    }

    fn emit_embeddings(&mut self, batch: Vec<Input>, embeddings: Embeddings, emit: Emit<'_>) {
        for (input, values) in batch.into_iter().zip(embeddings) {
            let Some(request) = self.pending.get_mut(&input.id) else { continue };
            emit(input.id, Event::Embedded { index: input.index, values });
            request.left -= 1;
            if request.left == 0 {
                self.pending.remove(&input.id);
                let reason = FinishReason::Stop;
                emit(
                    input.id,
                    Event::Finished {
                        reason,
                        completion_tokens: 0,
                        cached_tokens: 0,
                        tokens: Vec::new(),
                        times: ResponseTimes::default(),
                    },
                );
            }
        }
    }

    /// Fails all requests in a failed batch; all other requests continue.
    fn fail(&mut self, batch: &[Input], why: &str, emit: Emit<'_>) {
        for input in batch {
            if self.pending.remove(&input.id).is_some() {
                emit(input.id, Event::Failed(Failure::Decode(why.to_string())));
            }
        }
        let pending = &self.pending;
        self.queue.retain(|input| pending.contains_key(&input.id));
        self.next = self.next.take().filter(|input| pending.contains_key(&input.id));
    }
}

impl<M: Embedder> StepEngine for EmbedEngine<M> {
    type Job = EmbedJob;

    fn submit(&mut self, job: EmbedJob, emit: Emit<'_>) {
        if self.queue.len() + job.inputs.len() > self.inputs_max {
            return emit(job.id, Event::Failed(Failure::QueueFull));
        }
        let tokens = |input: &Vec<Token>| input.len() as u32;
        let request = Pending {
            left: job.inputs.len(),
            prompt_tokens: job.inputs.iter().map(tokens).sum(),
            started: false,
            cancel: job.cancel.clone(),
        };
        self.pending.insert(job.id, request);
        for (index, tokens) in job.inputs.into_iter().enumerate() {
            let (cost, cancel) = (tokens.len() as u32, job.cancel.clone());
            let input = Input { id: job.id, index: index as u32, tokens, cancel };
            // The queue has room: checked above.
            let _ = self.queue.push(job.tenant, cost, input);
        }
    }

    fn is_idle(&self) -> bool {
        self.pending.is_empty()
    }

    fn stats(&self) -> EngineStats {
        let requests = self.pending.len() as u32;
        EngineStats {
            slots_busy: requests.min(self.stats.slots),
            queued: requests.saturating_sub(self.stats.slots),
            ..self.stats
        }
    }

    fn step(&mut self, clock: &dyn Fn() -> Duration, emit: Emit<'_>) {
        self.drop_cancelled(emit);
        let batch = self.next_batch();
        if batch.is_empty() {
            return;
        }
        self.begin(&batch, emit);
        let started = clock();
        let inputs: Vec<&[Token]> = batch.iter().map(|input| input.tokens.as_slice()).collect();
        let rows: usize = inputs.iter().map(|tokens| tokens.len()).sum();
        let is_unwanted = || batch.iter().all(|input| input.cancel.is_set());
        let embedded = self.model.embed(&inputs, &is_unwanted);
        let seconds = clock().saturating_sub(started).as_secs_f32();
        self.stats.steps += 1;
        self.stats.slot_steps += inputs.len() as u64;
        self.stats.prefill_seconds += f64::from(seconds);
        match embedded {
            Ok(None) => self.drop_cancelled(emit),
            Ok(Some(embeddings)) => {
                self.stats.prompt_tokens += rows as u64;
                if seconds > 0.0 {
                    smooth(&mut self.stats.prefill_tokens_per_second, rows as f32 / seconds);
                }
                self.emit_embeddings(batch, embeddings, emit);
            }
            Err(error) => self.fail(&batch, &error.0, emit),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::*;
    use crate::types::embedder::EmbedShape;
    use crate::types::model::{DecodeError, Stop};

    /// Fake embedder: the embedding of an input is its tokens; token 9 cannot be embedded.
    #[derive(Default)]
    struct Mirror {
        batches: Vec<usize>,
        /// Seconds that each token takes, on the fake's own clock.
        seconds: f64,
        now: Rc<Cell<f64>>,
        batch_rows: u32,
    }

    fn mirror() -> Mirror {
        Mirror { batch_rows: 8, ..Mirror::default() }
    }

    impl Embedder for Mirror {
        fn shape(&self) -> EmbedShape {
            let batch_rows = self.batch_rows;
            EmbedShape { slots: 2, batch_inputs: 3, batch_rows, input_rows: 4 * batch_rows }
        }

        fn embed(
            &mut self,
            inputs: &[&[Token]],
            stop: Stop<'_>,
        ) -> Result<Option<Embeddings>, DecodeError> {
            let rows: usize = inputs.iter().map(|i| i.len()).sum();
            assert!(inputs.len() <= 3 && (rows <= self.batch_rows as usize || inputs.len() == 1));
            self.batches.push(rows);
            if stop() {
                return Ok(None);
            }
            self.now.set(self.now.get() + self.seconds * rows as f64);
            if inputs.iter().any(|i| i.contains(&9)) {
                return Err(DecodeError("nine".into()));
            }
            Ok(Some(inputs.iter().map(|i| i.iter().map(|t| *t as f32).collect()).collect()))
        }
    }

    struct Run {
        engine: EmbedEngine<Mirror>,
        events: Vec<(RequestId, Event)>,
    }

    impl Run {
        fn new() -> Self {
            Self::on(mirror())
        }

        fn on(model: Mirror) -> Self {
            Self { engine: EmbedEngine::new(model, 64), events: Vec::new() }
        }

        fn submit(&mut self, id: RequestId, inputs: &[&[Token]]) -> CancelFlag {
            let cancel = CancelFlag::default();
            let inputs = inputs.iter().map(|i| i.to_vec()).collect();
            let job = EmbedJob { id, tenant: Tenant(id), inputs, cancel: cancel.clone() };
            let events = &mut self.events;
            self.engine.submit(job, &mut |id, e| events.push((id, e)));
            cancel
        }

        fn step(&mut self) {
            self.step_while(|| {});
        }

        /// Runs a step and calls `happens` right before its batch.
        fn step_while(&mut self, happens: impl Fn()) {
            let events = &mut self.events;
            let now = self.engine.model.now.clone();
            let clock = || {
                happens();
                Duration::from_secs_f64(now.get())
            };
            self.engine.step(&clock, &mut |id, e| events.push((id, e)));
        }

        fn finish(&mut self) {
            while !self.engine.is_idle() {
                self.step();
            }
        }

        fn embeddings(&self, of: RequestId) -> Vec<(u32, Vec<f32>)> {
            let embedding = |(id, event): &(RequestId, Event)| match event {
                Event::Embedded { index, values } if *id == of => Some((*index, values.clone())),
                _ => None,
            };
            self.events.iter().filter_map(embedding).collect()
        }

        fn last(&self, of: RequestId) -> &Event {
            &self.events.iter().rfind(|(id, _)| *id == of).unwrap().1
        }
    }

    #[test]
    fn inputs_of_several_requests_share_batches_and_keep_their_places() {
        let mut run = Run::new();
        run.submit(1, &[&[1, 2], &[3], &[4, 5, 6]]);
        run.submit(2, &[&[7; 8]]);
        run.finish();
        assert_eq!(
            run.embeddings(1),
            [(0, vec![1.0, 2.0]), (1, vec![3.0]), (2, vec![4.0, 5.0, 6.0])]
        );
        assert_eq!(run.embeddings(2), [(0, vec![7.0; 8])]);
        assert!(matches!(run.last(1), Event::Finished { .. }));
        assert_eq!(run.engine.model.batches.iter().sum::<usize>(), 14);
        assert!(run.engine.model.batches.len() < 4, "{:?}", run.engine.model.batches);
        assert_eq!(run.engine.stats().prompt_tokens, 14);
    }

    #[test]
    fn a_batch_that_fails_takes_only_its_own_requests() {
        let mut run = Run::new();
        run.submit(1, &[&[9; 8], &[1]]);
        run.submit(2, &[&[2; 8]]);
        run.finish();
        assert_eq!(run.last(1), &Event::Failed(Failure::Decode("nine".into())));
        assert_eq!(run.embeddings(1), []);
        assert!(matches!(run.last(2), Event::Finished { .. }));
    }

    #[test]
    fn a_cancelled_request_is_dropped_and_a_full_queue_refuses_whole_requests() {
        let mut run = Run::new();
        let cancel = run.submit(1, &[[1].as_slice(); 60]);
        run.submit(2, &[[2].as_slice(); 5]);
        assert_eq!(run.last(2), &Event::Failed(Failure::QueueFull));
        run.step();
        cancel.set();
        run.finish();
        assert_eq!(run.last(1), &Event::Cancelled);
        assert_eq!(run.embeddings(1).len(), 3);
        assert_eq!(run.engine.stats().slots_busy, 0);
    }

    #[test]
    fn a_batch_of_several_inputs_takes_as_long_as_a_step_may_and_a_long_input_goes_alone() {
        let mut run = Run::on(Mirror { seconds: 0.02, batch_rows: 512, ..mirror() });
        run.submit(1, &[[1; 12].as_slice(); 40]);
        run.submit(2, &[&[2; 700]]);
        run.finish();
        let batches = &run.engine.model.batches;
        assert!(batches.iter().all(|rows| *rows <= ROWS_FIRST as usize || *rows == 700));
        assert_eq!((run.embeddings(1).len(), run.embeddings(2).len()), (40, 1));
        assert_eq!(batches.iter().filter(|rows| **rows == 700).count(), 1, "{batches:?}");
    }

    #[test]
    fn inputs_that_nobody_wants_any_more_are_stopped_in_the_middle_of_their_batch() {
        let mut run = Run::new();
        let cancel = run.submit(1, &[&[1; 8], &[2; 8]]);
        run.step_while(|| cancel.set());
        assert_eq!((run.last(1), run.embeddings(1).len()), (&Event::Cancelled, 0));
        assert!(run.engine.is_idle());
        // Another request in the batch is still wanted.
        let cancel = run.submit(2, &[&[1; 2]]);
        run.submit(3, &[&[3; 2]]);
        run.step_while(|| cancel.set());
        assert_eq!(run.embeddings(3), [(0, vec![3.0; 2])]);
    }
}
