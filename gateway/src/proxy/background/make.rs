//! Makes a response in the background, from what was stored of its request.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use inference_protocol::openai::{ErrorBody, ErrorDetail};
use inference_protocol::sse;
use inference_translation::ClientApi;
use inference_translation::store::Stored;
use tokio::time::{MissedTickBehavior, interval};

use super::super::accept::Received;
use super::super::account::Record;
use super::super::admit::{Admission, DEADLINE};
use super::super::authenticate::{Authenticated, Known};
use super::super::deferral::{Again, CHECKPOINT_INTERVAL, LatestCheckpoint};
use super::super::drive::{Drive, Next};
use super::super::forward::Whole;
use super::super::stream::{error_event, refusal_event};
use super::now;
use crate::access::keys::Caller;
use crate::context::Gateway;
use crate::store::{BackgroundTask, Live, Store, TaskKind};
use crate::types::api::RequestedApi;
use crate::types::error::Error;
use crate::types::request_body::RequestBody;
use crate::types::request_context::RequestContext;
use crate::types::response;

/// How long an attempt waits for an endpoint, in seconds: one whose only node has failed it waits
/// for another one until then.
const PATIENCE_S_MAX: u64 = 10 * 60;

/// A response that is being made.
pub(crate) struct Making<'a> {
    /// The gateway.
    pub gateway: &'a Gateway,
    /// Its store.
    pub store: &'a Store,
    /// The response.
    pub response: &'a BackgroundTask,
    /// The body of its request.
    pub request: Bytes,
    /// Where its events go.
    pub live: &'a Live,
    /// What was made of it.
    pub latest: Arc<LatestCheckpoint>,
    /// The response that it continues.
    pub previous: Option<Arc<Stored>>,
}

/// What became of an attempt.
#[derive(Debug)]
pub(crate) enum Made {
    /// It is complete: the response with the turns before it, as JSON.
    Complete(Vec<u8>),
    /// Its client wants no more of it.
    Canceled,
    /// The gateway stops.
    Interrupted,
    /// It failed.
    Failed(Failure),
}

/// Why an attempt failed.
#[derive(Debug)]
pub(crate) struct Failure {
    /// What went wrong.
    pub detail: ErrorDetail,
    /// The status that the response would otherwise have had.
    pub status: u16,
    /// When to try again at the earliest; `None` if that would not help.
    pub retry_after: Option<Duration>,
    /// True if an endpoint had the request.
    pub is_of_endpoint: bool,
    /// What ends a stream that failed so, in the format of its API.
    pub event: Bytes,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let status = error.status();
        Self {
            detail: response::error_detail(&error),
            status,
            retry_after: error.is_temporary().then(|| error.retry_after().unwrap_or_default()),
            is_of_endpoint: false,
            event: response::error_event(&error),
        }
    }
}

impl Failure {
    /// Nobody can make again what an external endpoint has made.
    fn lost() -> Self {
        let message = "the gateway was restarted while an external endpoint made this response";
        let (message, kind) = (message.into(), "server_error".into());
        let detail = ErrorDetail { message, kind, param: None, code: None };
        let event = sse::data(&ErrorBody { error: detail.clone() }.to_json()).into();
        Self { detail, status: 500, retry_after: None, is_of_endpoint: true, event }
    }

    /// An endpoint's refusal.
    fn of_refusal(whole: &Whole) -> Self {
        let status = whole.status.as_u16();
        let body: Option<ErrorBody> = serde_json::from_slice(&whole.body).ok();
        match body {
            Some(ErrorBody { error }) if status < 500 => {
                let event = sse::data(&String::from_utf8_lossy(&whole.body)).into();
                Self { detail: error, status, retry_after: None, is_of_endpoint: true, event }
            }
            _ => Error::NodeRefused(status).into(),
        }
    }
}

impl Making<'_> {
    /// True if it is too late for another attempt.
    pub(crate) fn is_too_old(&self) -> bool {
        now() >= self.response.expires_at()
    }

    /// Makes the response, or what is left of it.
    pub(crate) async fn run(&self) -> Made {
        if self.latest.get().is_lost {
            return Made::Failed(Failure::lost());
        }
        let mut drive = match self.admit().await {
            Ok(drive) => drive,
            Err(error) => {
                let event = self.error_event(&error);
                return Made::Failed(Failure { event, ..error.into() });
            }
        };
        match self.follow(&mut drive).await {
            Made::Failed(failure) => {
                Made::Failed(Failure { is_of_endpoint: drive.node().is_some(), ..failure })
            }
            made => made,
        }
    }

    /// What ends a stream of the request's API that nobody has begun.
    fn error_event(&self, error: &Error) -> Bytes {
        match RequestedApi::at(&self.response.path) {
            Some(RequestedApi::Translated(ClientApi::Messages)) => {
                let detail = response::error_detail(error);
                let body = ClientApi::Messages.error_body(error.status(), &detail, None);
                format!("event: error\n{}", sse::data(&body)).into()
            }
            _ => response::error_event(error),
        }
    }

    /// Admits the request again: keys, models and limits may have changed.
    async fn admit(&self) -> Result<Drive, Error> {
        let settings = self.gateway.settings.now();
        let caller = settings.keys.tenants().find(|known| *known.tenant == self.response.tenant);
        let caller = caller.cloned().ok_or(Error::KeyWrong)?;
        let received = self.received();
        let mut record = Record::open(self.gateway, &received);
        let authenticated = self.authenticated(received, caller);
        let admitted = super::super::admit(self.gateway, &settings, authenticated, &mut record);
        match admitted.await {
            Ok(Admission::Request(admitted)) => {
                Ok(Drive::new(self.gateway.clone(), settings, admitted, record))
            }
            Ok(Admission::Reply(_)) => Err(Error::internal("a response needs no endpoint")),
            Err(error) => {
                record.record_failure(&error);
                Err(error)
            }
        }
    }

    fn received(&self) -> Received {
        let mut headers = HeaderMap::new();
        for (name, value) in &self.response.headers {
            let name = HeaderName::from_bytes(name.as_bytes());
            if let (Ok(name), Ok(value)) = (name, HeaderValue::from_str(value)) {
                headers.insert(name, value);
            }
        }
        let left = self.response.expires_at().saturating_sub(now());
        headers.insert(DEADLINE, (left.clamp(1, PATIENCE_S_MAX) * 1000).into());
        let client = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        Received {
            context: RequestContext::open(client, &headers),
            api: RequestedApi::at(&self.response.path)
                .unwrap_or(RequestedApi::Translated(ClientApi::Responses)),
            query_model: None,
            arrived: Instant::now(),
            headers,
            body: RequestBody::Own(Full::new(self.request.clone())),
        }
    }

    fn authenticated(&self, received: Received, caller: Caller) -> Authenticated {
        let (latest, previous) = (self.latest.clone(), self.previous.clone());
        Authenticated::new(received, Known { caller, again: Some(Again { latest, previous }) })
    }

    /// Passes its events on, and stores how far it is.
    async fn follow(&self, drive: &mut Drive) -> Made {
        let bytes_max = self.gateway.settings.now().config.limits.response_bytes_max;
        // They were passed on when the request was stored.
        let is_stream = self.response.kind() == TaskKind::Stream;
        let translation = drive.translation().filter(|_| !is_stream);
        let first = translation.and_then(|translation| translation.enqueue());
        let mut number = first.map_or(0, |(events, _)| sse::events(&events).count());
        let mut ticks = interval(CHECKPOINT_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut saving = None;
        loop {
            let next = tokio::select! {
                next = drive.next() => next,
                _ = ticks.tick(), if saving.is_none() => {
                    // Events are stored with the tokens that led to them, or not yet.
                    if drive.record_checkpoint() {
                        saving = Some(Box::pin(self.save()));
                    }
                    continue;
                }
                () = saved(&mut saving) => {
                    saving = None;
                    continue;
                }
                () = self.live.canceled() => return Made::Canceled,
                () = self.gateway.stop.cancelled() => {
                    drive.record_checkpoint();
                    self.save().await;
                    return Made::Interrupted;
                }
            };
            match next {
                Ok(Next::Events(events)) => {
                    self.live.begin();
                    self.live.push(number, &events);
                    number += sse::events(&events).count();
                    if self.live.bytes() > bytes_max {
                        return Made::Failed(Error::ResponseTooLarge(bytes_max).into());
                    }
                }
                Ok(Next::Whole(whole)) if !whole.status.is_success() => {
                    let event = refusal_event(drive, &whole);
                    return Made::Failed(Failure { event, ..Failure::of_refusal(&whole) });
                }
                // It came without events.
                Ok(Next::Whole(whole)) if is_stream => {
                    self.live.push(number, &refusal_event(drive, &whole));
                    return Made::Complete(NOTHING.into());
                }
                Ok(Next::Whole(_)) => return self.complete(drive, Some(number)),
                Ok(Next::End) if is_stream => return Made::Complete(NOTHING.into()),
                Ok(Next::End) => return self.complete(drive, None),
                Err(error) => {
                    let event = error_event(drive, &error);
                    return Made::Failed(Failure { event, ..error.into() });
                }
            }
        }
    }

    fn complete(&self, drive: &mut Drive, last: Option<usize>) -> Made {
        let Some(conversation) = drive.take_conversation() else {
            return Made::Failed(Error::internal("a response ended that is not complete").into());
        };
        if let Some((number, stored)) = last.zip(Stored::from_json(&conversation)) {
            self.live.push(number, &stored.last_event(number).into());
        }
        Made::Complete(conversation)
    }

    /// Stores what another process needs, as it is now and not when the future is polled. If that
    /// fails, more is made again.
    fn save(&self) -> impl Future<Output = ()> {
        let progress = self.latest.take();
        // Readers at this gateway need no events from the store.
        let events = self.store.is_shared().then(|| self.live.unsaved());
        async move {
            let Some(progress) = progress else { return };
            let saved = self.store.record_progress(self.response, progress, events.clone());
            if let (Ok(()), Some(events)) = (saved.await, events) {
                self.live.set_saved(events.next);
            }
        }
    }
}

/// The result of a stream, which has only events.
pub(crate) const NOTHING: &[u8] = b"null";

/// Waits for what is being saved; without it, forever.
async fn saved<F: Future<Output = ()> + Unpin>(saving: &mut Option<F>) {
    match saving {
        Some(saving) => saving.await,
        None => std::future::pending().await,
    }
}
