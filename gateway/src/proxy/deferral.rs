//! What passes between the stages about a response in the background: what is stored of its
//! request, and what was made of it before.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use inference_protocol::fleet::ModelStatus;
use inference_protocol::openai::ParseError;
use inference_protocol::resume::{Resume, ResumedChoice};
use inference_protocol::time::unix_seconds;
use inference_translation::store::Stored;
use inference_translation::{Background, Origin, StreamFormat};
use serde::{Deserialize, Serialize};

use super::translation::Translation;
use crate::access::keys::Caller;
use crate::types::api::RequestedApi;
use crate::types::error::Error;
use crate::types::random::random;

/// Class header of requests and responses. It overrides `service_tier`.
pub(crate) const CLASS: HeaderName = HeaderName::from_static("x-flotilla-class");

/// How often it is stored how far a response is. Tokens since the last time are made again if the
/// gateway dies.
pub(crate) const CHECKPOINT_INTERVAL: Duration = Duration::from_secs(1);
/// How often a request records how far it is, in memory: what is stored is no older than that.
pub(super) const RECORD_INTERVAL: Duration = Duration::from_millis(200);

/// What a response in the background needs of its request.
#[derive(Debug)]
pub(crate) struct Deferral {
    /// Its body.
    pub request: Bytes,
    /// Headers on which the response depends.
    pub headers: Vec<(String, String)>,
    /// Where its ids and times come from.
    pub origin: Origin,
    /// How it is made; `None` for a stream that its client may read on.
    pub background: Option<Background>,
    /// The path of its API.
    pub path: &'static str,
    /// True if only the node that made a token can write its events.
    pub is_bound: bool,
}

/// Request header: `true` for a stream that its client may read on after its connection broke.
const RESUMABLE: HeaderName = HeaderName::from_static("x-flotilla-resumable");

/// Who wants a stream that its client may read on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReadOn {
    /// Nobody.
    No,
    /// The client.
    Client,
    /// The key, where it is possible.
    Key,
}

impl ReadOn {
    /// What the client says, or else its key.
    pub(super) fn of(headers: &HeaderMap, by_key: bool) -> Result<Self, Error> {
        match headers.get(&RESUMABLE).map(HeaderValue::as_bytes) {
            None if by_key => Ok(Self::Key),
            None | Some(b"false") => Ok(Self::No),
            Some(b"true") => Ok(Self::Client),
            Some(_) => Err(Error::Header(RESUMABLE, "true or false".into())),
        }
    }
}

impl Deferral {
    /// `None` if the response is to be sent on the request's connection.
    ///
    /// # Errors
    /// Streams of this API have no events.
    pub(crate) fn of(
        api: RequestedApi,
        translation: Option<&Translation>,
        (request, headers): (Bytes, Vec<(String, String)>),
        (read_on, has_logprobs): (ReadOn, bool),
    ) -> Result<Option<Self>, Error> {
        let background = translation.and_then(|translation| translation.background);
        let has_events =
            translation.is_none_or(|writer| writer.stream_format() == StreamFormat::Events);
        let is_wanted = read_on == ReadOn::Client || (read_on == ReadOn::Key && has_events);
        if background.is_none() && !is_wanted {
            return Ok(None);
        }
        let path = api.path().filter(|_| has_events);
        let path = path.ok_or_else(|| {
            let message = "X-Flotilla-Resumable: only server-sent events can be read on".into();
            Error::Invalid(ParseError { message, param: None })
        })?;
        let new = || Origin { random: random(), now: unix_seconds(SystemTime::now()) };
        let origin = translation.map_or_else(new, |translation| translation.origin);
        let is_bound = background.map_or(has_logprobs, |background| background.has_logprobs);
        Ok(Some(Self { request, headers, origin, background, path, is_bound }))
    }
}

/// The headers on which a response depends: its class, and its user.
pub(crate) fn kept_headers(headers: &HeaderMap, caller: &Caller) -> Vec<(String, String)> {
    let class = [CLASS];
    let names = caller.key.users.header_names().iter().chain(&class);
    let sent = names.filter_map(|name| {
        Some((name.as_str().to_string(), headers.get(name)?.to_str().ok()?.to_string()))
    });
    sent.collect()
}

/// A request that the gateway makes itself, perhaps not for the first time.
#[derive(Debug)]
pub(crate) struct Again {
    /// How far it is.
    pub latest: Arc<LatestCheckpoint>,
    /// The response that it continues, which may be gone elsewhere.
    pub previous: Option<Arc<Stored>>,
}

impl Again {
    /// Where the ids and times of the response come from: always the same.
    pub(crate) fn origin(&self) -> Origin {
        self.latest.lock().checkpoint.origin()
    }

    /// The model file that must make the rest.
    pub(crate) fn model(&self) -> Option<Arc<ModelStatus>> {
        self.latest.lock().checkpoint.model.clone().map(Arc::new)
    }

    /// The response that it continues, if that has this id.
    pub(crate) fn previous(&self, id: &str) -> Option<Arc<Stored>> {
        self.previous.clone().filter(|previous| previous.id() == id)
    }
}

/// The latest checkpoint of a request that the gateway makes itself. The drive records it, and the
/// task that makes the request stores it, so that another attempt or process can continue.
#[derive(Debug)]
pub(crate) struct LatestCheckpoint {
    state: Mutex<LatestState>,
    /// True if only the node that made a token can write its events: no tokens are kept.
    is_bound: bool,
}

#[derive(Debug)]
struct LatestState {
    checkpoint: Checkpoint,
    /// True once the checkpoint was taken.
    is_taken: bool,
}

impl LatestCheckpoint {
    /// A request that continues at a checkpoint, which is stored.
    pub(crate) fn new(checkpoint: Checkpoint, is_bound: bool) -> Self {
        Self { state: Mutex::new(LatestState { checkpoint, is_taken: true }), is_bound }
    }

    /// Records how far the request is now, with an external endpoint if `is_external`. Not if there
    /// is no mark for what a node has sent last: it makes that again from an earlier checkpoint.
    pub(super) fn record(&self, mut checkpoint: Checkpoint, is_external: bool) -> bool {
        if checkpoint.is_lost && !is_external {
            return false;
        }
        if self.is_bound {
            checkpoint.resume.choices.clear();
        }
        *self.lock() = LatestState { checkpoint, is_taken: false };
        true
    }

    /// How far it is.
    pub(crate) fn get(&self) -> Checkpoint {
        self.lock().checkpoint.clone()
    }

    /// How far it is as JSON, unless that was taken before.
    pub(crate) fn take(&self) -> Option<Vec<u8>> {
        let mut state = self.lock();
        let is_new = !std::mem::replace(&mut state.is_taken, true);
        is_new.then(|| serde_json::to_vec(&state.checkpoint).ok()).flatten()
    }

    /// Makes the next attempt begin from the start, with the same ids and seed.
    pub(crate) fn restart(&self) {
        let state = &mut *self.lock();
        state.checkpoint.restart();
        state.is_taken = false;
    }

    fn lock(&self) -> MutexGuard<'_, LatestState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What another gateway process needs to continue a response.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Checkpoint {
    /// The seed, and the tokens so far. Their events are written again.
    pub resume: Resume,
    /// The model file that has made them.
    model: Option<ModelStatus>,
    /// True if nobody can make the same again: an external endpoint has begun.
    pub is_lost: bool,
}

impl Checkpoint {
    /// Before anything is made. `random` provides the ids and the seed of the response, and
    /// `created_at` its time, in seconds since 1970.
    pub(crate) fn first(random: u128, created_at: u64) -> Self {
        Self { resume: Resume::new(random, created_at), model: None, is_lost: false }
    }

    pub(super) fn new(
        resume: &Resume,
        is_resumable: bool,
        model: Option<&Arc<ModelStatus>>,
    ) -> Self {
        let mut resume = Resume { is_usage_sent: false, ..resume.clone() };
        for choice in &mut resume.choices {
            *choice =
                ResumedChoice { tokens: std::mem::take(&mut choice.tokens), events: 0, bytes: 0 };
        }
        let model = model.filter(|_| !resume.choices.is_empty()).map(|model| (**model).clone());
        Self { resume, model, is_lost: !is_resumable }
    }

    fn origin(&self) -> Origin {
        let random = u128::from_str_radix(&self.resume.id, 16).unwrap_or_default();
        Origin { random, now: self.resume.created }
    }

    /// Tokens that were made.
    pub(crate) fn tokens(&self) -> usize {
        self.resume.choices.iter().map(|choice| choice.tokens.len()).sum()
    }

    /// Drops the tokens, so that the next attempt begins from the start.
    fn restart(&mut self) {
        self.resume.choices.clear();
        (self.model, self.is_lost) = (None, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reached(tokens: &[u32]) -> Checkpoint {
        let mut resume = Resume::new(7, 9);
        resume.choices.push(ResumedChoice { tokens: tokens.to_vec(), events: 3, bytes: 99 });
        let model = ModelStatus { id: "m".into(), ..ModelStatus::default() };
        Checkpoint::new(&resume, true, Some(&Arc::new(model)))
    }

    #[test]
    fn a_checkpoint_is_taken_once_and_is_read_as_it_was_written() {
        let latest = LatestCheckpoint::new(Checkpoint::first(7, 9), false);
        assert_eq!(latest.take(), None, "there is nothing to store yet");
        assert!(latest.record(reached(&[1, 2]), false));
        let taken = latest.take().unwrap();
        assert_eq!(latest.take(), None);
        let read: Checkpoint = serde_json::from_slice(&taken).unwrap();
        assert_eq!((read.tokens(), &read), (2, &latest.get()));
        assert_eq!(read.resume.choices[0].events, 0, "no client has any");
    }

    #[test]
    fn one_that_restarts_keeps_its_ids_and_needs_no_model_file() {
        let latest = Arc::new(LatestCheckpoint::new(reached(&[1, 2]), false));
        let again = Again { latest: latest.clone(), previous: None };
        assert!(again.model().is_some());
        latest.restart();
        assert_eq!((again.model(), latest.get()), (None, Checkpoint::first(7, 9)));
        assert_eq!((again.origin().random, again.origin().now), (7, 9));
        assert!(latest.take().is_some(), "the tokens must go from the store, too");
    }

    #[test]
    fn what_a_node_has_sent_without_a_mark_is_not_lost_and_what_an_external_endpoint_has_is() {
        let latest = LatestCheckpoint::new(Checkpoint::first(7, 9), false);
        assert!(latest.record(reached(&[1, 2]), false));
        let lost = || Checkpoint { is_lost: true, ..reached(&[1, 2, 3]) };
        assert!(!latest.record(lost(), false));
        assert_eq!(latest.get(), reached(&[1, 2]));
        assert!(latest.record(lost(), true));
        assert!(latest.get().is_lost);
    }
}
