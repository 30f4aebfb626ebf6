//! The agent's view of its engine: submit a request, receive its events, cancel by Drop.
//!
//! One mutex guards the requests in flight. A request stays in flight until the engine
//! has said its last word (or is dead), so that the figures are the engine's own.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Instant;

use inference_core::types::request::{
    EmbedRequest, EngineStats, Event, GenerateRequest, Question, RequestId, Tenant, Work,
};
use tokio::sync::{Notify, mpsc, watch};

use crate::engine::ipc::{Command, EngineFacts};
use crate::engine::model_files::digest::Fingerprint;
use crate::types::error::NotTaken;

/// Events that wait for a client that does not read. Beyond, its request is cancelled.
const EVENTS_MAX: usize = 4096;

/// Which link a request came over: a connection to the agent's port, or a dialed one.
pub type LinkId = u64;

/// Where a request came from, and whom it is meant for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Via {
    /// The link.
    pub link: LinkId,
    /// The weights that it is meant for; an engine with others does not take it.
    pub digest: Option<Fingerprint>,
}

/// What the engine can do right now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EngineState {
    /// The first load goes on.
    Loading,
    /// Requests are answered.
    Ready(EngineFacts),
    /// It died and is being started again.
    Restarting,
    /// The agent finishes what it has and takes nothing new.
    Draining,
}

/// The engine, as all requests share it.
#[derive(Debug, Clone)]
pub struct EngineClient(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: watch::Sender<EngineState>,
    inner: Mutex<Inner>,
    /// Wakes the task that writes to the engine.
    commands_ready: Notify,
    /// Wakes whoever pushes status: state or load changed.
    changed: watch::Sender<u64>,
    /// Reports of engines.
    reports: AtomicU64,
    /// The engine's process; 0 before the first.
    pid: AtomicU32,
}

#[derive(Debug, Default)]
struct Inner {
    next_id: RequestId,
    in_flight: HashMap<RequestId, InFlight>,
    /// Bounded by the requests in flight: one submit and one cancel each.
    commands: Vec<Command>,
    stats: EngineStats,
    totals: Totals,
    restarts: u64,
}

#[derive(Debug)]
struct InFlight {
    link: LinkId,
    events: mpsc::Sender<Event>,
}

/// Counters that survive a restart of the engine.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Totals {
    /// Prompt tokens prefilled.
    pub prompt_tokens: u64,
    /// Tokens generated.
    pub generated_tokens: u64,
    /// Steps.
    pub steps: u64,
    /// Prompt tokens that were found in the cache.
    pub cached_tokens: u64,
    /// Kept prefixes that were evicted.
    pub evictions: u64,
    /// Times that a request gave up its cells.
    pub parkings: u64,
    /// Time spent on prompts.
    pub prefill_seconds: f64,
    /// Time spent on readers.
    pub decode_seconds: f64,
    /// Slots that steps worked on.
    pub slot_steps: u64,
}

/// Everything countable, read at one moment.
#[derive(Debug, Clone, Copy)]
pub struct Figures {
    /// The engine's last report.
    pub stats: EngineStats,
    /// Counters since the agent started.
    pub totals: Totals,
    /// Requests in flight.
    pub in_flight: usize,
    /// Times that the engine was started again.
    pub restarts: u64,
}

impl Default for EngineClient {
    fn default() -> Self {
        Self(Arc::new(Shared {
            state: watch::Sender::new(EngineState::Loading),
            inner: Mutex::default(),
            commands_ready: Notify::new(),
            changed: watch::Sender::new(0),
            reports: AtomicU64::new(0),
            pid: AtomicU32::new(0),
        }))
    }
}

impl EngineClient {
    /// What the engine can do right now.
    pub fn state(&self) -> EngineState {
        self.0.state.borrow().clone()
    }

    /// Follows the state.
    pub fn watch_state(&self) -> watch::Receiver<EngineState> {
        self.0.state.subscribe()
    }

    /// Follows everything that a status tells.
    pub fn watch_changes(&self) -> watch::Receiver<u64> {
        self.0.changed.subscribe()
    }

    /// All figures.
    pub fn figures(&self) -> Figures {
        let inner = self.lock();
        Figures {
            stats: inner.stats,
            totals: inner.totals_now(),
            in_flight: inner.in_flight.len(),
            restarts: inner.restarts,
        }
    }

    /// Requests in flight that came over another link than `link`.
    pub fn in_flight_elsewhere(&self, link: LinkId) -> usize {
        self.lock().in_flight.values().filter(|r| r.link != link).count()
    }

    /// Submits a request: a generation for each answer that it asks for.
    pub fn submit(&self, request: GenerateRequest, via: Via) -> Result<Vec<Generation>, NotTaken> {
        self.start(Work::Generate(Box::new(request)), via)
    }

    /// Asks for vectors.
    pub fn embed(&self, request: EmbedRequest, via: Via) -> Result<Generation, NotTaken> {
        Ok(self.start(Work::Embed(request), via)?.remove(0))
    }

    /// Asks a question; its answer is one [`Event::Told`].
    pub fn ask(
        &self,
        tenant: Tenant,
        question: Question,
        via: Via,
    ) -> Result<Generation, NotTaken> {
        Ok(self.start(Work::Ask(tenant, question), via)?.remove(0))
    }

    /// One generation for each request that the work stands for, at least one.
    fn start(&self, work: Work, via: Via) -> Result<Vec<Generation>, NotTaken> {
        // Held while the state is read, so that a death in between is not missed.
        let mut inner = self.lock();
        match &*self.0.state.borrow() {
            EngineState::Ready(facts) if via.digest.is_none_or(|d| d == facts.digest) => {}
            EngineState::Ready(_) => return Err(NotTaken::OtherWeights),
            EngineState::Loading => return Err(NotTaken::Loading),
            EngineState::Restarting => return Err(NotTaken::Restarting),
            EngineState::Draining => return Err(NotTaken::Draining),
        }
        let (first, begun) = (inner.next_id + 1, Instant::now());
        inner.next_id += work.requests() as RequestId;
        let started = (first..=inner.next_id).map(|id| {
            let (sender, events) = mpsc::channel(EVENTS_MAX);
            inner.in_flight.insert(id, InFlight { link: via.link, events: sender });
            Generation { id, events, client: self.clone(), begun }
        });
        let started = started.collect();
        inner.commands.push(Command::Submit(first, work));
        drop(inner);
        self.0.commands_ready.notify_one();
        self.bump();
        Ok(started)
    }

    /// The supervisor's side: the engine can take requests.
    pub(crate) fn set_ready(&self, facts: EngineFacts) {
        self.transition(EngineState::Ready(facts));
    }

    /// The supervisor's side: the engine is dead; everything in flight is lost.
    pub(crate) fn set_dead(&self) {
        let mut inner = self.lock();
        self.transition(EngineState::Restarting);
        inner.restarts += 1;
        inner.totals = inner.totals_now();
        inner.stats = EngineStats::default();
        inner.commands.clear();
        // Dropping the senders tells every request that its engine is gone.
        inner.in_flight.clear();
        drop(inner);
        self.bump();
    }

    /// Takes nothing new from now on.
    pub fn drain(&self) {
        self.0.state.send_replace(EngineState::Draining);
        self.bump();
    }

    /// Draining is final.
    fn transition(&self, to: EngineState) {
        self.0.state.send_if_modified(|state| {
            let open = *state != EngineState::Draining;
            if open {
                *state = to;
            }
            open
        });
        self.bump();
    }

    /// The supervisor's side: there is a process.
    pub(crate) fn set_pid(&self, pid: u32) {
        self.0.pid.store(pid, Ordering::Relaxed);
    }

    /// The engine's process, or the last one.
    pub fn pid(&self) -> Option<u32> {
        Some(self.0.pid.load(Ordering::Relaxed)).filter(|pid| *pid > 0)
    }

    /// The supervisor's side: the engine has said something.
    pub(crate) fn count_report(&self) {
        self.0.reports.fetch_add(1, Ordering::Relaxed);
    }

    /// How often it has.
    pub(crate) fn reports(&self) -> u64 {
        self.0.reports.load(Ordering::Relaxed)
    }

    /// The supervisor's side: an event of a request.
    pub(crate) fn deliver(&self, id: RequestId, event: Event) {
        let last = event.is_last();
        let mut inner = self.lock();
        let Some(request) = inner.in_flight.get(&id) else { return };
        let delivered = request.events.try_send(event).is_ok();
        if last {
            inner.in_flight.remove(&id);
            drop(inner);
            self.bump();
        } else if !delivered {
            // The client is gone or does not read; its Generation cancels when dropped,
            // and a reader that is merely stuck must not hold a slot either.
            self.request_cancel(inner, id);
        }
    }

    pub(crate) fn set_stats(&self, stats: EngineStats) {
        self.lock().stats = stats;
    }

    /// Commands for the engine, when there are any.
    pub(crate) async fn next_commands(&self) -> Vec<Command> {
        loop {
            let commands = std::mem::take(&mut self.lock().commands);
            if !commands.is_empty() {
                return commands;
            }
            self.0.commands_ready.notified().await;
        }
    }

    fn cancel(&self, id: RequestId) {
        let inner = self.lock();
        if inner.in_flight.contains_key(&id) {
            self.request_cancel(inner, id);
        }
    }

    fn request_cancel(&self, mut inner: MutexGuard<'_, Inner>, id: RequestId) {
        if !inner.commands.contains(&Command::Cancel(id)) {
            inner.commands.push(Command::Cancel(id));
        }
        drop(inner);
        self.0.commands_ready.notify_one();
    }

    fn bump(&self) {
        self.0.changed.send_modify(|n| *n += 1);
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn totals_now(&self) -> Totals {
        Totals {
            prompt_tokens: self.totals.prompt_tokens + self.stats.prompt_tokens,
            generated_tokens: self.totals.generated_tokens + self.stats.generated_tokens,
            steps: self.totals.steps + self.stats.steps,
            cached_tokens: self.totals.cached_tokens + self.stats.cached_tokens,
            evictions: self.totals.evictions + self.stats.evictions,
            parkings: self.totals.parkings + self.stats.parkings,
            prefill_seconds: self.totals.prefill_seconds + self.stats.prefill_seconds,
            decode_seconds: self.totals.decode_seconds + self.stats.decode_seconds,
            slot_steps: self.totals.slot_steps + self.stats.slot_steps,
        }
    }
}

/// One request's events. Dropping it cancels the request.
#[derive(Debug)]
pub struct Generation {
    id: RequestId,
    events: mpsc::Receiver<Event>,
    client: EngineClient,
    begun: Instant,
}

impl Generation {
    /// The next event; `None`: the engine died (or cut a client that does not read).
    pub async fn next(&mut self) -> Option<Event> {
        self.events.recv().await
    }

    /// As [`Generation::next`], for a response body.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        self.events.poll_recv(cx)
    }

    /// When it was submitted.
    pub fn begun(&self) -> Instant {
        self.begun
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        self.client.cancel(self.id);
    }
}

#[cfg(test)]
mod tests;
