//! The agent's view of its engine: submit a request, receive its events, cancel by dropping.
//!
//! One mutex guards the requests in flight. A request stays in flight until the engine has sent its
//! last event (or is dead), so the agent's figures match the engine's.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use inference_core::types::request::{
    EmbedRequest, EngineStats, Event, GenerateRequest, RequestId, SlotRequest, Tenant, TextQuery,
    Work,
};
use tokio::sync::{Notify, mpsc, watch};

use crate::engine::ipc::{Command, EngineFacts};
use crate::engine::model_files::digest::Fingerprint;
use crate::types::error::NotAccepted;

/// Maximum events buffered for a slow client. Beyond that, its request is canceled.
const EVENTS_MAX: usize = 4096;

/// The link that a request came over: a connection to the agent's port, or one that the agent
/// dialed.
pub(crate) type LinkId = u64;

/// Where a request came from, and which weights it is meant for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Via {
    /// Link it came over.
    pub link: LinkId,
    /// Digest of the intended weights; an engine with others refuses it.
    pub digest: Option<Fingerprint>,
}

/// State of the engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum EngineState {
    /// The model is being loaded for the first time.
    Loading,
    /// The engine accepts requests.
    Ready(EngineFacts),
    /// The engine died and is being restarted.
    Restarting,
    /// The agent finishes requests in flight and accepts no new ones.
    Draining,
}

impl EngineState {
    /// The facts of an engine that accepts requests, or why it refuses them.
    pub(crate) fn ready(&self) -> Result<&EngineFacts, NotAccepted> {
        match self {
            Self::Ready(facts) => Ok(facts),
            Self::Loading => Err(NotAccepted::Loading),
            Self::Restarting => Err(NotAccepted::Restarting),
            Self::Draining => Err(NotAccepted::Draining),
        }
    }
}

/// Client of the engine, shared by all requests.
#[derive(Debug, Clone)]
pub(crate) struct EngineClient(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: watch::Sender<EngineState>,
    inner: Mutex<Inner>,
    /// Wakes the task that writes commands to the engine.
    commands_ready: Notify,
    /// Wakes tasks that push status: state or load changed.
    changed: watch::Sender<u64>,
    /// Number of reports from all engines so far.
    reports: AtomicU64,
    /// Process id of the engine; 0 before the first start.
    pid: AtomicU32,
}

#[derive(Debug, Default)]
struct Inner {
    next_id: RequestId,
    in_flight: HashMap<RequestId, InFlight>,
    /// Commands to write. Limited by the requests in flight: one submit and one cancel each; and by
    /// the time that a file takes to come in.
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
pub(crate) struct Totals {
    /// Prompt tokens prefilled.
    pub prompt_tokens: u64,
    pub generated_tokens: u64,
    /// Draft tokens computed.
    pub drafted_tokens: u64,
    /// Draft tokens accepted.
    pub accepted_tokens: u64,
    pub steps: u64,
    /// Prompt tokens served from the cache.
    pub cached_tokens: u64,
    /// Requests that began with a prefix from the disk.
    pub disk_prefixes: u64,
    /// Prompt tokens of these prefixes.
    pub disk_tokens: u64,
    /// Saved prefixes that came from other nodes.
    pub received_prefixes: u64,
    /// Requests that began with a prefix saved in memory.
    pub restored_prefixes: u64,
    /// Prompt tokens of these prefixes.
    pub restored_tokens: u64,
    /// Kept prefixes evicted.
    pub evictions: u64,
    pub parkings: u64,
    /// Seconds spent on prefill.
    pub prefill_seconds: f64,
    /// Seconds spent on decoding.
    pub decode_seconds: f64,
    /// Busy slots of all steps, added up.
    pub slot_steps: u64,
}

/// A snapshot of all statistics.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Figures {
    /// The engine's last statistics.
    pub stats: EngineStats,
    /// Counters since the agent started.
    pub totals: Totals,
    pub in_flight: usize,
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
    pub(crate) fn state(&self) -> EngineState {
        self.0.state.borrow().clone()
    }

    pub(crate) fn watch_state(&self) -> watch::Receiver<EngineState> {
        self.0.state.subscribe()
    }

    /// Subscribes to all changes that a status reports.
    pub(crate) fn watch_changes(&self) -> watch::Receiver<u64> {
        self.0.changed.subscribe()
    }

    pub(crate) fn figures(&self) -> Figures {
        let inner = self.lock();
        Figures {
            stats: inner.stats,
            totals: inner.totals_now(),
            in_flight: inner.in_flight.len(),
            restarts: inner.restarts,
        }
    }

    /// Number of requests in flight from links other than `link`.
    pub(crate) fn in_flight_elsewhere(&self, link: LinkId) -> usize {
        self.lock().in_flight.values().filter(|r| r.link != link).count()
    }

    /// Submits a request; returns one generation for each choice.
    pub(crate) fn submit(
        &self,
        request: GenerateRequest,
        via: Via,
    ) -> Result<Vec<Generation>, NotAccepted> {
        self.start(Work::Generate(Box::new(request)), via)
    }

    pub(crate) fn embed(&self, request: EmbedRequest, via: Via) -> Result<Generation, NotAccepted> {
        Ok(self.start(Work::Embed(request), via)?.remove(0))
    }

    /// Submits a query; the response is one [`Event::QueryResult`].
    pub(crate) fn query(
        &self,
        tenant: Tenant,
        query: TextQuery,
        via: Via,
    ) -> Result<Generation, NotAccepted> {
        Ok(self.start(Work::Query(tenant, query), via)?.remove(0))
    }

    /// Has something done with what a slot holds; the response is one [`Event::SlotDone`].
    pub(crate) fn slot(&self, request: SlotRequest, via: Via) -> Result<Generation, NotAccepted> {
        Ok(self.command(1, via, |id| Command::Slot(id, request))?.remove(0))
    }

    /// Submits work; returns one generation for each of its requests, at least one.
    fn start(&self, work: Work, via: Via) -> Result<Vec<Generation>, NotAccepted> {
        self.command(work.requests(), via, |first| Command::Submit(first, work))
    }

    /// Gives a command with events to the engine. `command`: made with the id of its first request.
    fn command(
        &self,
        requests: usize,
        via: Via,
        command: impl FnOnce(RequestId) -> Command,
    ) -> Result<Vec<Generation>, NotAccepted> {
        // Held while the state is read, so that the death of the engine in between is not missed.
        let mut inner = self.lock();
        let digest = self.0.state.borrow().ready()?.digest;
        if via.digest.is_some_and(|meant| meant != digest) {
            return Err(NotAccepted::OtherWeights);
        }
        let first = inner.next_id + 1;
        inner.next_id += requests as RequestId;
        let started = (first..=inner.next_id).map(|id| {
            let (sender, events) = mpsc::channel(EVENTS_MAX);
            inner.in_flight.insert(id, InFlight { link: via.link, events: sender });
            Generation { id, events, client: self.clone() }
        });
        let started = started.collect();
        inner.commands.push(command(first));
        drop(inner);
        self.0.commands_ready.notify_one();
        self.bump();
        Ok(started)
    }

    /// Called by the supervisor: the engine accepts requests.
    pub(crate) fn set_ready(&self, facts: EngineFacts) {
        self.transition(EngineState::Ready(facts));
    }

    /// Called by the supervisor: the engine is dead, and all requests in flight are lost.
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

    /// Accepts no new requests from now on.
    pub(crate) fn drain(&self) {
        self.0.state.send_replace(EngineState::Draining);
        self.bump();
    }

    /// Changes the state; draining is final.
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

    /// Called by the supervisor: the engine process has started.
    pub(crate) fn set_pid(&self, pid: u32) {
        self.0.pid.store(pid, Ordering::Relaxed);
    }

    /// Process id of the current or last engine; `None` before the first.
    pub(crate) fn pid(&self) -> Option<u32> {
        Some(self.0.pid.load(Ordering::Relaxed)).filter(|pid| *pid > 0)
    }

    /// Called by the supervisor: the engine has sent a report.
    pub(crate) fn count_report(&self) {
        self.0.reports.fetch_add(1, Ordering::Relaxed);
    }

    /// Number of reports received.
    pub(crate) fn reports(&self) -> u64 {
        self.0.reports.load(Ordering::Relaxed)
    }

    /// Called by the supervisor: delivers an event to its request.
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
            // The client is gone or does not read. Dropping its `Generation` cancels it; a client
            // that is merely stuck must not hold a slot either.
            self.request_cancel(inner, id);
        }
    }

    pub(crate) fn set_stats(&self, stats: EngineStats) {
        let before = std::mem::replace(&mut self.lock().stats, stats);
        if before.is_written != stats.is_written {
            self.bump();
        }
    }

    /// Waits for commands for the engine.
    pub(crate) async fn next_commands(&self) -> Vec<Command> {
        loop {
            let commands = std::mem::take(&mut self.lock().commands);
            if !commands.is_empty() {
                return commands;
            }
            self.0.commands_ready.notified().await;
        }
    }

    /// Has the engine write what should survive a restart, and exit.
    pub(crate) fn stop_engine(&self, limit: Duration) {
        self.lock().commands.push(Command::Stop(limit));
        self.0.commands_ready.notify_one();
    }

    /// Has the engine take an incoming file with a prefix.
    pub(crate) fn take_prefix(&self, number: u64) {
        self.lock().commands.push(Command::TakePrefix(number));
        self.0.commands_ready.notify_one();
    }

    /// Has the engine write its prefixes to files once it has nothing to do.
    pub(crate) fn write_prefixes(&self) {
        let mut inner = self.lock();
        if !inner.commands.contains(&Command::WritePrefixes) {
            inner.commands.push(Command::WritePrefixes);
        }
        drop(inner);
        self.0.commands_ready.notify_one();
    }

    /// Something that a status reports has changed.
    pub(crate) fn announce_change(&self) {
        self.bump();
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
            drafted_tokens: self.totals.drafted_tokens + self.stats.drafted_tokens,
            accepted_tokens: self.totals.accepted_tokens + self.stats.accepted_tokens,
            steps: self.totals.steps + self.stats.steps,
            cached_tokens: self.totals.cached_tokens + self.stats.cached_tokens,
            disk_prefixes: self.totals.disk_prefixes + self.stats.disk_prefixes,
            disk_tokens: self.totals.disk_tokens + self.stats.disk_tokens,
            received_prefixes: self.totals.received_prefixes + self.stats.received_prefixes,
            restored_prefixes: self.totals.restored_prefixes + self.stats.restored_prefixes,
            restored_tokens: self.totals.restored_tokens + self.stats.restored_tokens,
            evictions: self.totals.evictions + self.stats.evictions,
            parkings: self.totals.parkings + self.stats.preemptions,
            prefill_seconds: self.totals.prefill_seconds + self.stats.prefill_seconds,
            decode_seconds: self.totals.decode_seconds + self.stats.decode_seconds,
            slot_steps: self.totals.slot_steps + self.stats.slot_steps,
        }
    }
}

/// Events of one request. Dropping it cancels the request.
#[derive(Debug)]
pub(crate) struct Generation {
    id: RequestId,
    events: mpsc::Receiver<Event>,
    client: EngineClient,
}

impl Generation {
    /// Waits for the next event; `None` if the engine died (or the client was too slow).
    pub(crate) async fn next(&mut self) -> Option<Event> {
        self.events.recv().await
    }

    /// Like [`Generation::next`], for a response body.
    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        self.events.poll_recv(cx)
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        self.client.cancel(self.id);
    }
}

#[cfg(test)]
mod tests;
