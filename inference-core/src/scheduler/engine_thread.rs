//! The engine thread: owns the engine and steps it until the last handle is dropped.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, TrySendError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::scheduler::slots::{SlotContent, SlotOrder};
use crate::types::request::{EngineStats, Event, Failure, RequestId, SlotFailure, TextChunk};

/// Maximum jobs that may wait between two steps, in addition to the engine's own queue.
const INBOX_MAX: usize = 256;
/// Interval of statistics reports while the engine is busy.
const STATS_INTERVAL: Duration = Duration::from_millis(250);
/// How long an idle thread waits for jobs before the engine rests. The next step notices the
/// cancellation of a request that waits in an idle inbox.
const IDLE_WAIT: Duration = Duration::from_secs(30);
/// The same while the engine has more to do when it rests.
const REST_WAIT: Duration = Duration::from_millis(200);

/// How long the answer to a [`SlotOrder`] may take: some long steps.
const SLOT_WAIT: Duration = Duration::from_secs(60);

/// Callback that receives the events of requests.
pub type Emit<'a> = &'a mut dyn FnMut(RequestId, Event);

/// An engine that works in steps: [`crate::scheduler::step::Engine`] and
/// [`crate::scheduler::embed::EmbedEngine`].
pub trait StepEngine {
    /// A request that is ready to run.
    type Job;
    /// Queues a job, or emits a failure when the queue is full.
    fn submit(&mut self, job: Self::Job, emit: Emit<'_>);
    /// True if there is nothing to do.
    fn is_idle(&self) -> bool;
    /// Gives slots to requests that wait for one, as a step does first.
    fn admit(&mut self, _clock: &dyn Fn() -> Duration, _emit: Emit<'_>) {}
    /// Runs one step. The engine reads `clock` before and after computing to learn the model's
    /// speed.
    fn step(&mut self, clock: &dyn Fn() -> Duration, emit: Emit<'_>);
    /// Current statistics.
    fn stats(&self) -> EngineStats;
    /// Called when there has been nothing to do for a while: writes what should survive a restart.
    /// True if it should be called again soon.
    fn rest(&mut self, _clock: &dyn Fn() -> Duration) -> bool {
        false
    }
    /// Takes a file with a prefix from another node
    /// ([`crate::scheduler::prefix_disk::incoming_file`]).
    fn take_file(&mut self, _number: u64) {}
    /// Carries out an order about what a slot holds.
    ///
    /// # Errors
    /// It holds nothing, or there is no room for what it should hold.
    fn order_slot(&mut self, order: SlotOrder) -> Result<SlotContent, SlotFailure> {
        Err(SlotFailure::Empty(order.slot))
    }
    /// Writes what should survive a restart, until this point in time.
    fn finish_writing(&mut self, _clock: &dyn Fn() -> Duration, _until: Duration) {}
}

/// Receives the engine's events and statistics. Called on the engine thread, so it must not block
/// for long.
pub trait Listener: Send {
    /// Receives an event of a request.
    fn event(&mut self, id: RequestId, event: Event);
    /// Receives the statistics: whenever the load changes, and at intervals while busy.
    fn stats(&mut self, stats: EngineStats);
}

#[derive(Debug)]
enum Message<Job> {
    Job(Job),
    /// Write what should survive a restart for this long, and say so.
    Finish(Duration, SyncSender<()>),
    /// Write it soon, as after a while with nothing to do.
    Rest,
    /// Take the incoming file with this number.
    TakeFile(u64),
    Slot(SlotOrder, SyncSender<Result<SlotContent, SlotFailure>>),
}

/// Tells the engine what to do with its files.
#[derive(Debug)]
pub struct FileCommands<Job>(SyncSender<Message<Job>>);

impl<Job> FileCommands<Job> {
    /// Has the engine take a file that came from another node. An engine with a full inbox does
    /// not: then its tokens are computed again.
    pub fn take_file(&self, number: u64) {
        let _ = self.0.try_send(Message::TakeFile(number));
    }

    /// Has the engine write what should survive a restart, once it has nothing to do. An engine
    /// with a full inbox does so later, by itself.
    pub fn write_soon(&self) {
        let _ = self.0.try_send(Message::Rest);
    }

    /// Waits until the engine has carried out an order about a slot.
    ///
    /// # Errors
    /// [`Failure::QueueFull`] if the engine is too busy; [`Failure::Slot`] if it cannot.
    pub fn order_slot(&self, order: SlotOrder) -> Result<SlotContent, Failure> {
        let (reply, replied) = std::sync::mpsc::sync_channel(1);
        self.0.try_send(Message::Slot(order, reply)).map_err(|_| Failure::QueueFull)?;
        replied.recv_timeout(SLOT_WAIT).map_err(|_| Failure::QueueFull)?.map_err(Failure::Slot)
    }

    /// Waits until the engine has written that, or for `limit` and the end of a step.
    pub fn finish_writing(&self, limit: Duration) {
        let (done, finished) = std::sync::mpsc::sync_channel(1);
        if self.0.try_send(Message::Finish(limit, done)).is_ok() {
            // Too late or not at all is the same: the process ends.
            let _ = finished.recv_timeout(limit);
        }
    }
}

/// Submits jobs to the engine. The engine stops when its handle is dropped or closed.
#[derive(Debug)]
pub struct EngineHandle<Job> {
    inbox: SyncSender<Message<Job>>,
    thread: JoinHandle<()>,
}

impl<Job> EngineHandle<Job> {
    /// Submits a job.
    ///
    /// # Errors
    /// [`Failure::QueueFull`] if the inbox is full.
    pub fn submit(&self, job: Job) -> Result<(), Failure> {
        self.inbox.try_send(Message::Job(job)).map_err(|e| match e {
            TrySendError::Full(_) => Failure::QueueFull,
            TrySendError::Disconnected(_) => Failure::Decode("the engine thread has ended".into()),
        })
    }

    /// Commands about files. The engine runs as long as this exists.
    pub fn file_commands(&self) -> FileCommands<Job> {
        FileCommands(self.inbox.clone())
    }

    /// Lets the engine finish all submitted jobs and waits for its thread to exit.
    pub fn close(self) {
        drop(self.inbox);
        // If the engine thread panicked, it has already printed its own message.
        let _ = self.thread.join();
    }
}

/// Starts the engine thread.
pub fn start<E>(
    engine: E,
    listener: impl Listener + 'static,
) -> std::io::Result<EngineHandle<E::Job>>
where
    E: StepEngine<Job: Send> + Send + 'static,
{
    let (inbox, messages) = std::sync::mpsc::sync_channel(INBOX_MAX);
    let thread = std::thread::Builder::new()
        .name("engine".into())
        .spawn(move || run(engine, &messages, listener))?;
    Ok(EngineHandle { inbox, thread })
}

fn run<E: StepEngine>(
    mut engine: E,
    inbox: &Receiver<Message<E::Job>>,
    mut listener: impl Listener,
) {
    let epoch = Instant::now();
    let clock = || epoch.elapsed();
    let mut report = Report::default();
    loop {
        if !take_messages(&mut engine, inbox, &clock, &mut listener) {
            return;
        }
        engine.admit(&clock, &mut |id, event| report.record(clock(), id, event));
        // Before a step, which takes as long as the prompt of what has started.
        if !report.events.is_empty() {
            report.publish(engine.stats(), &mut listener);
        }
        engine.step(&clock, &mut |id, event| report.record(clock(), id, event));
        report.publish(engine.stats(), &mut listener);
    }
}

/// Events and statistics on their way to a listener.
struct Report {
    events: Vec<(RequestId, Event)>,
    stopwatch: Stopwatch,
    published: EngineStats,
    published_at: Instant,
}

impl Default for Report {
    fn default() -> Report {
        Report {
            events: Vec::new(),
            stopwatch: Stopwatch::default(),
            published: EngineStats::default(),
            published_at: Instant::now(),
        }
    }
}

impl Report {
    fn record(&mut self, now: Duration, id: RequestId, mut event: Event) {
        self.stopwatch.record(now, id, &mut event);
        self.events.push((id, event));
    }

    fn publish(&mut self, stats: EngineStats, listener: &mut impl Listener) {
        // A response may begin and end in one step, which leaves the load as it was.
        let load_changed = (stats.slots_busy, stats.queued)
            != (self.published.slots_busy, self.published.queued)
            || self.events.iter().any(|(_, event)| event.is_last());
        if load_changed || self.published_at.elapsed() >= STATS_INTERVAL {
            listener.stats(stats);
            (self.published, self.published_at) = (stats, Instant::now());
        }
        // Events go out after the statistics, so whoever has a response finds it counted.
        self.events.drain(..).for_each(|(id, event)| listener.event(id, event));
    }
}

/// Measures how long each running response takes.
#[derive(Default)]
struct Stopwatch(HashMap<RequestId, RunningResponse>);

struct RunningResponse {
    started: Duration,
    first_text: Option<Duration>,
}

impl Stopwatch {
    /// Records the time of an event, and adds the times of the response to its text and its end.
    fn record(&mut self, now: Duration, id: RequestId, event: &mut Event) {
        if let Event::Started { .. } = event {
            self.0.insert(id, RunningResponse { started: now, first_text: None });
        }
        let Some(running) = self.0.get_mut(&id) else { return };
        if let Event::Text(_) = event {
            running.first_text.get_or_insert(now);
        }
        if let Event::Finished { times, .. } | Event::Text(TextChunk { times, .. }) = event {
            let first = running.first_text.unwrap_or(now);
            (times.prefill, times.decode) = (first - running.started, now - first);
        }
        if event.is_last() {
            self.0.remove(&id);
        }
    }
}

/// Handles all messages in the inbox; blocks there while there is nothing else to do. Returns false
/// once all handles are gone and all work is finished.
fn take_messages<E: StepEngine>(
    engine: &mut E,
    inbox: &Receiver<Message<E::Job>>,
    clock: &dyn Fn() -> Duration,
    listener: &mut impl Listener,
) -> bool {
    let mut wait = IDLE_WAIT;
    loop {
        let message = match inbox.try_recv() {
            Ok(message) => message,
            Err(TryRecvError::Empty) if !engine.is_idle() => return true,
            Err(TryRecvError::Empty) => match inbox.recv_timeout(wait) {
                Ok(message) => message,
                Err(RecvTimeoutError::Timeout) => {
                    wait = if engine.rest(clock) { REST_WAIT } else { IDLE_WAIT };
                    listener.stats(engine.stats());
                    continue;
                }
                Err(RecvTimeoutError::Disconnected) => return false,
            },
            Err(TryRecvError::Disconnected) => return !engine.is_idle(),
        };
        match message {
            Message::Job(job) => engine.submit(job, &mut |id, event| listener.event(id, event)),
            Message::Rest => wait = REST_WAIT,
            Message::TakeFile(number) => {
                engine.take_file(number);
                // Its rest counts the file.
                wait = REST_WAIT;
            }
            Message::Slot(order, reply) => {
                // The thread that asked may have stopped waiting.
                let _ = reply.try_send(engine.order_slot(order));
                wait = REST_WAIT;
            }
            Message::Finish(limit, done) => {
                engine.finish_writing(clock, clock() + limit);
                // Whoever asked may have stopped waiting.
                let _ = done.try_send(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::fake::{FakeModel, FakeTokenizer};
    use crate::scheduler::sequence::{CancelFlag, Job};
    use crate::scheduler::step::Engine;
    use crate::types::model::Tokenizer;
    use crate::types::request::{FinishReason, Options, ResponseTimes, Tenant};

    struct ToChannel(SyncSender<(RequestId, Event)>);

    impl Listener for ToChannel {
        fn event(&mut self, id: RequestId, event: Event) {
            self.0.send((id, event)).unwrap();
        }
        fn stats(&mut self, _: EngineStats) {}
    }

    #[test]
    fn a_response_is_timed_by_when_its_events_arise() {
        let mut stopwatch = Stopwatch::default();
        let mut record = |ms, id, mut event: Event| {
            stopwatch.record(Duration::from_millis(ms), id, &mut event);
            let count = stopwatch.0.len();
            (count, event)
        };
        let started = || Event::Started { prompt_tokens: 1, in_reasoning: false };
        let finished = || Event::Finished {
            reason: FinishReason::Stop,
            completion_tokens: 1,
            cached_tokens: 0,
            tokens: Vec::new(),
            times: ResponseTimes::default(),
        };
        let times = |event| match event {
            Event::Finished { times: ResponseTimes { prefill, decode, .. }, .. }
            | Event::Text(TextChunk { times: ResponseTimes { prefill, decode, .. }, .. }) => {
                (prefill.as_millis(), decode.as_millis())
            }
            other => panic!("{other:?}"),
        };
        record(10, 1, started());
        record(15, 2, started());
        record(30, 1, Event::Text(TextChunk::default()));
        let second = record(40, 1, Event::Text(TextChunk::default())).1;
        assert_eq!(times(second), (20, 10));
        assert_eq!(times(record(90, 1, finished()).1), (20, 60));
        assert_eq!(times(record(95, 2, finished()).1), (80, 0), "it has no text");
        record(100, 3, started());
        assert_eq!(record(110, 3, Event::Cancelled).0, 0, "nothing is remembered");
    }

    fn job(id: RequestId) -> Job {
        Job {
            id,
            tenant: Tenant(0),
            tokens: FakeTokenizer.tokenize("hello\0", false).unwrap(),
            resumed_len: 0,
            options: Options::GREEDY,
            visible: Vec::new(),
            grammar: None,
            in_reasoning: false,
            resolved: Default::default(),
            cancel: CancelFlag::default(),
        }
    }

    /// An engine whose steps each wait until the test allows them.
    struct Held(Engine<FakeModel>, Receiver<()>);

    impl StepEngine for Held {
        type Job = Job;
        fn submit(&mut self, job: Job, emit: Emit<'_>) {
            self.0.submit(job, emit);
        }
        fn is_idle(&self) -> bool {
            self.0.is_idle()
        }
        fn admit(&mut self, clock: &dyn Fn() -> Duration, emit: Emit<'_>) {
            self.0.admit(clock, emit);
        }
        fn step(&mut self, clock: &dyn Fn() -> Duration, emit: Emit<'_>) {
            self.1.recv().unwrap();
            self.0.step(clock, emit);
        }
        fn stats(&self) -> EngineStats {
            self.0.stats()
        }
    }

    #[test]
    fn a_response_has_started_before_the_first_step_of_its_prompt_ends() {
        let (sender, events) = std::sync::mpsc::sync_channel(1024);
        let (allow, allowed) = std::sync::mpsc::sync_channel(64);
        let engine = Held(Engine::new(FakeModel::new(2, 64, 16), 8), allowed);
        let handle = start(engine, ToChannel(sender)).unwrap();
        handle.submit(job(7)).unwrap();
        let (id, event) = events.recv_timeout(Duration::from_secs(20)).unwrap();
        assert!(id == 7 && matches!(event, Event::Started { .. }), "{event:?}");
        (0..64).for_each(|_| allow.send(()).unwrap());
        handle.close();
        assert!(events.iter().any(|(_, event)| matches!(event, Event::Finished { .. })));
    }

    #[test]
    fn the_thread_answers_and_ends_with_its_handle() {
        let (sender, events) = std::sync::mpsc::sync_channel(1024);
        let engine = Engine::new(FakeModel::new(2, 64, 16), 8);
        let handle = start(engine, ToChannel(sender)).unwrap();
        (0..4).for_each(|id| handle.submit(job(id)).unwrap());
        handle.close();
        let finished = events.iter().filter(|(_, e)| matches!(e, Event::Finished { .. })).count();
        assert_eq!(finished, 4, "closing lets it finish");
    }
}
