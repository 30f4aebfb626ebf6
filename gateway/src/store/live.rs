//! What is made in the background, by this process or by another gateway: how far it is, and its
//! events, for those who read them here.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bytes::Bytes;
use inference_protocol::sse;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// A response that is being made. Its events have the numbers 0, 1, and so on.
#[derive(Debug)]
pub(crate) struct Live {
    state: watch::Sender<State>,
    /// True if its events are kept.
    is_streamed: bool,
    /// True while this process makes it.
    is_own: AtomicBool,
    /// How many events this process has stored.
    saved: AtomicUsize,
    canceled: CancellationToken,
}

#[derive(Debug, Default)]
struct State {
    events: Vec<Bytes>,
    bytes: usize,
    has_begun: bool,
    is_over: bool,
}

/// Some of the events.
#[derive(Debug, Clone)]
pub(crate) struct Part {
    /// The number of the first.
    pub first: usize,
    /// The number after the last.
    pub next: usize,
    /// The events.
    pub data: Vec<u8>,
}

/// What a reader gets next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Read {
    /// Whole events.
    Events(Bytes),
    /// There will be no more.
    End,
}

impl Live {
    fn new(is_streamed: bool) -> Self {
        let (state, canceled) = (watch::Sender::new(State::default()), CancellationToken::new());
        let (is_own, saved) = (AtomicBool::new(false), AtomicUsize::new(0));
        Self { state, is_streamed, is_own, saved, canceled }
    }

    /// Adds events, the first of which has the number `first`. Those that are known are left out:
    /// what is made again is the same. So are those after a gap.
    pub(crate) fn push(&self, first: usize, events: &Bytes) {
        if !self.is_streamed {
            return;
        }
        self.state.send_if_modified(|state| {
            let known = state.events.len();
            if first > known {
                return false;
            }
            let new = sse::events(events).zip(first..).filter(|(_, number)| *number >= known);
            // The whole block would stay in memory with a part of it.
            state.events.extend(new.map(|(event, _)| Bytes::copy_from_slice(event)));
            state.bytes += state.events[known..].iter().map(Bytes::len).sum::<usize>();
            state.events.len() > known
        });
    }

    /// The number of the next event.
    pub(crate) fn len(&self) -> usize {
        self.state.borrow().events.len()
    }

    /// Bytes of the events.
    pub(crate) fn bytes(&self) -> usize {
        self.state.borrow().bytes
    }

    /// All events.
    pub(crate) fn events(&self) -> Vec<u8> {
        self.state.borrow().events.concat()
    }

    /// The events that are not in the store.
    pub(crate) fn unsaved(&self) -> Part {
        let first = self.saved.load(Ordering::Relaxed);
        let state = self.state.borrow();
        let data = state.events.get(first..).unwrap_or_default().concat();
        Part { first, next: state.events.len(), data }
    }

    /// Records that the events before the number `next` are in the store.
    pub(crate) fn set_saved(&self, next: usize) {
        self.saved.store(next, Ordering::Relaxed);
    }

    /// Records whether this process makes it.
    pub(crate) fn set_own(&self, is_own: bool) {
        self.is_own.store(is_own, Ordering::Relaxed);
    }

    /// True while this process makes it.
    pub(crate) fn is_own(&self) -> bool {
        self.is_own.load(Ordering::Relaxed)
    }

    /// Records that a node works on it.
    pub(crate) fn begin(&self) {
        self.state.send_if_modified(|state| !std::mem::replace(&mut state.has_begun, true));
    }

    /// True once a node works on it.
    pub(crate) fn has_begun(&self) -> bool {
        self.state.borrow().has_begun
    }

    /// Ends it: it is stored as it is then.
    pub(crate) fn end(&self) {
        self.state.send_modify(|state| state.is_over = true);
    }

    /// Waits until it has ended.
    pub(crate) async fn ended(&self) {
        let _ = self.state.subscribe().wait_for(|state| state.is_over).await;
    }

    /// Asks for its end.
    pub(crate) fn cancel(&self) {
        self.canceled.cancel();
    }

    /// Waits until somebody asks for its end.
    pub(crate) async fn canceled(&self) {
        self.canceled.cancelled().await;
    }

    /// Waits for events from the number `next` on, which becomes that of the event after them.
    pub(crate) async fn read(&self, next: &mut usize) -> Read {
        let mut changes = self.state.subscribe();
        let found = changes.wait_for(|state| state.is_over || state.events.len() > *next).await;
        let Ok(state) = found else { return Read::End };
        let Some(new @ [_, ..]) = state.events.get(*next..) else { return Read::End };
        *next += new.len();
        Read::Events(new.concat().into())
    }
}

/// Those of all tenants, by id. One that nobody makes or reads any more is forgotten.
#[derive(Debug, Default)]
pub(super) struct LiveTasks(Mutex<HashMap<String, Weak<Live>>>);

impl LiveTasks {
    /// The response with this id; a new one if there is none.
    pub(super) fn enter(&self, id: &str, is_streamed: bool) -> Arc<Live> {
        let mut all = self.lock();
        if let Some(live) = all.get(id).and_then(Weak::upgrade) {
            return live;
        }
        all.retain(|_, live| live.strong_count() > 0);
        let live = Arc::new(Live::new(is_streamed));
        all.insert(id.into(), Arc::downgrade(&live));
        live
    }

    /// True if a node works on the one with this id, as far as this process knows.
    pub(super) fn has_begun(&self, id: &str) -> bool {
        let live = self.lock().get(id).and_then(Weak::upgrade);
        live.is_some_and(|live| live.has_begun())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Weak<Live>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(numbers: std::ops::Range<usize>) -> Bytes {
        numbers.map(|n| format!("data: {n}\n\n")).collect::<String>().into()
    }

    #[tokio::test]
    async fn readers_get_every_event_once_whatever_is_made_again() {
        let all = LiveTasks::default();
        let live = all.enter("a", true);
        assert!(Arc::ptr_eq(&live, &all.enter("a", true)));
        live.push(0, &events(0..3));
        live.push(0, &events(0..2));
        live.push(2, &events(2..5));
        live.push(7, &events(7..8));
        let mut next = 1;
        assert_eq!(live.read(&mut next).await, Read::Events(events(1..5)));
        let reader = tokio::spawn({
            let live = live.clone();
            async move { (live.read(&mut next).await, live.read(&mut next).await) }
        });
        live.push(5, &events(5..6));
        live.end();
        let (last, end) = reader.await.unwrap();
        assert_eq!((last, end), (Read::Events(events(5..6)), Read::End));
        assert_eq!((live.events(), live.bytes()), (events(0..6).to_vec(), events(0..6).len()));
        let mut after_the_end = 7;
        assert_eq!(live.read(&mut after_the_end).await, Read::End);
    }

    #[tokio::test]
    async fn one_that_nobody_uses_is_forgotten() {
        let all = LiveTasks::default();
        drop(all.enter("a", true));
        let plain = all.enter("b", false);
        assert_eq!(all.lock().len(), 1);
        plain.push(0, &events(0..3));
        assert!(plain.events().is_empty(), "nobody may read them");
        plain.cancel();
        plain.canceled().await;
        plain.end();
        plain.ended().await;
    }
}
