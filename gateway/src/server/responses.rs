//! Stored responses of the Responses API: `/v1/responses/{id}` and what is below it. Those that
//! were sent to their clients are in memory, those in the background in the store.

use std::time::SystemTime;

use hyper::{Method, Request, Response};
use inference_protocol::ids::ID_BYTES_MAX;
use inference_protocol::openai::ParseError;
use inference_protocol::time::unix_seconds;
use inference_translation::responses;
use inference_translation::store::{Path, Stored};

use super::lists::invalid;
use crate::access::responses::Reader;
use crate::context::Gateway;
use crate::context::settings::Settings;
use crate::control::only;
use crate::proxy::background::{live_events, past_events};
use crate::proxy::stored::sent_response;
use crate::store::{BackgroundTask, Store, StoreError, TaskKind};
use crate::types::error::Error;
use crate::types::response::{self, Body};

/// A client that asks for a response of its tenant.
struct Caller<'a> {
    gateway: &'a Gateway,
    tenant: &'a str,
    reader: Reader,
    id: &'a str,
}

/// Handles a request for a stored response of the caller's tenant. It has no body: if the key's
/// requests name their users there, the response may be any user's.
pub(crate) async fn serve<B>(
    gateway: &Gateway,
    request: &Request<B>,
    path: Path<'_>,
) -> Result<Response<Body>, Error> {
    only(request, path.methods())?;
    let settings = gateway.settings.now();
    let known = settings.keys.authenticate(request.headers())?;
    let reader = Reader::of(&known, request.headers())?;
    let caller = Caller { gateway, tenant: &known.tenant, reader, id: path.id() };
    if request.method() == Method::DELETE {
        return caller.delete().await;
    }
    let from = match path {
        Path::Response(_) => stream_from(request.uri().query())?,
        _ => None,
    };
    if let Some(from) = from {
        return caller.stream(&settings, from).await;
    }
    let found = gateway.responses.get(caller.tenant, reader, caller.id);
    let kept = match (&found, path) {
        // One in the background may still be in memory after its end.
        (Some(_), Path::Response(_) | Path::InputItems(_)) => None,
        _ => caller.kept().await?,
    };
    let found = match (found, &kept) {
        (None, None) => caller.sent().await?.map(Into::into),
        (found, _) => found,
    };
    match (kept, found) {
        (Some((record, stored)), _) => match path {
            Path::Cancel(_) => caller.cancel(&record).await,
            Path::Response(_) => Ok(response::json(view(caller.store(), &record, &stored))),
            Path::InputItems(_) => read(path, &stored, request),
        },
        (None, Some(stored)) => read(path, &stored, request),
        (None, None) => Err(caller.unknown()),
    }
}

fn read<B>(path: Path<'_>, stored: &Stored, request: &Request<B>) -> Result<Response<Body>, Error> {
    path.read(stored, request.uri().query()).map(response::json).map_err(Error::Invalid)
}

/// The response as it is now.
fn view(store: Option<&Store>, record: &BackgroundTask, stored: &Stored) -> Vec<u8> {
    let has_begun = record.has_begun || store.is_some_and(|store| store.live(record).has_begun());
    match record.is_active && has_begun {
        true => stored.with_status("in_progress"),
        false => stored.response().to_vec(),
    }
}

/// From which event on to stream, if the query asks for that.
fn stream_from(query: Option<&str>) -> Result<Option<usize>, Error> {
    let (mut is_streamed, mut from) = (false, 0);
    for pair in query.unwrap_or_default().split('&') {
        match pair.split_once('=') {
            Some(("stream", "true")) => is_streamed = true,
            Some(("stream", "false")) => is_streamed = false,
            Some(("stream", _)) => return Err(invalid("stream", "expected true or false")),
            Some(("starting_after", number)) => {
                let number = number.parse::<u32>().ok();
                let expected = || invalid("starting_after", "expected the number of an event");
                from = number.ok_or_else(expected)? as usize + 1;
            }
            _ => {}
        }
    }
    Ok(is_streamed.then_some(from))
}

impl Caller<'_> {
    fn store(&self) -> Option<&Store> {
        self.gateway.store.as_ref()
    }

    fn unknown(&self) -> Error {
        Error::UnknownResponse(self.id.chars().take(ID_BYTES_MAX).collect())
    }

    /// The response in the background, if the caller may see it.
    async fn kept(&self) -> Result<Option<(BackgroundTask, Stored)>, Error> {
        let Some(store) = self.store() else { return Ok(None) };
        let (record, conversation) = match store.task(self.tenant, self.id).await {
            Ok(found) => found,
            Err(StoreError::Unknown) => return Ok(None),
            Err(error) => return Err(error.of(self.id)),
        };
        let is_response = record.kind() == TaskKind::Response;
        if !is_response || !self.reader.sees_those_of(record.user) {
            return Ok(None);
        }
        let unreadable = || Error::internal("a stored response cannot be read");
        let stored = Stored::from_json(&conversation).ok_or_else(unreadable)?;
        Ok(Some((record, stored)))
    }

    /// The response that was sent to its client, from the store, if the caller may see it.
    async fn sent(&self) -> Result<Option<Stored>, Error> {
        let Some(store) = self.store() else { return Ok(None) };
        match sent_response(self.gateway, store, self.tenant, self.id).await {
            Ok(stored) => Ok(Some(stored).filter(|s| self.reader.sees_those_of(s.owner()))),
            Err(StoreError::Unknown) => Ok(None),
            Err(error) => Err(error.of(self.id)),
        }
    }

    /// Deletes one that was sent to its client, from the store. Returns false if there is none.
    async fn delete_sent(&self) -> Result<bool, Error> {
        let Some(store) = self.store() else { return Ok(false) };
        let in_memory = self.gateway.responses.get(self.tenant, self.reader, self.id);
        if in_memory.is_none() && self.sent().await?.is_none() {
            return Ok(false);
        }
        let now = unix_seconds(SystemTime::now());
        let deleted = store.delete_turn(self.tenant, self.id, now).await;
        deleted.map(|()| true).map_err(|error| error.of(self.id))
    }

    async fn delete(&self) -> Result<Response<Body>, Error> {
        // First where it may fail: what was not deleted must not seem to be.
        let was_sent = self.delete_sent().await?;
        let was_in_memory = self.gateway.responses.delete(self.tenant, self.reader, self.id);
        let kept = self.kept().await?;
        let was_kept = kept.is_some();
        if let Some((record, store)) = kept.map(|(record, _)| record).zip(self.store()) {
            let live = store.live(&record);
            let deleted = store.delete_task(self.tenant, self.id).await;
            deleted.map_err(|error| error.of(self.id))?;
            live.cancel();
        }
        match was_sent || was_in_memory || was_kept {
            true => Ok(response::json(responses::deleted(self.id))),
            false => Err(self.unknown()),
        }
    }

    /// Ends a response, and returns it as it is then.
    async fn cancel(&self, record: &BackgroundTask) -> Result<Response<Body>, Error> {
        let store = self.store().ok_or(Error::StoreOff)?;
        if record.is_active {
            store.end_task(record).await.map_err(|error| error.of(self.id))?;
        }
        let (record, stored) = self.kept().await?.ok_or_else(|| self.unknown())?;
        match (record.is_canceled, record.is_active) {
            (true, true) => Ok(response::json(stored.with_status("cancelled"))),
            (true, false) => Ok(response::json(stored.response().to_vec())),
            (false, _) => {
                let message = "only a response that has not ended can be canceled".into();
                Err(Error::Invalid(ParseError { message, param: None }))
            }
        }
    }

    /// Streams its events from a number on.
    async fn stream(&self, settings: &Settings, from: usize) -> Result<Response<Body>, Error> {
        let (Some((record, _)), Some(store)) = (self.kept().await?, self.store()) else {
            let is_known = self.gateway.responses.get(self.tenant, self.reader, self.id).is_some();
            return Err(if is_known { not_streamed() } else { self.unknown() });
        };
        if !record.is_streamed {
            return Err(not_streamed());
        }
        let live = store.live(&record);
        // Read again: if it has ended before it was entered, nobody else is in it.
        let (record, _) = self.kept().await?.ok_or_else(|| self.unknown())?;
        if record.is_active {
            return Ok(live_events(self.gateway, settings, self.id, live, (from, false)));
        }
        let events = store.task_events(self.id).await.map_err(|error| error.of(self.id))?;
        Ok(past_events(self.id, events, (from, false)))
    }
}

fn not_streamed() -> Error {
    let message = "only a response that was asked for with background and stream can be streamed";
    Error::Invalid(ParseError { message: message.into(), param: Some("stream".into()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_continues_after_the_event_that_the_client_has() {
        for (query, from) in [
            (None, None),
            (Some("include[]=x"), None),
            (Some("starting_after=3"), None),
            (Some("stream=false&starting_after=3"), None),
            (Some("stream=true"), Some(0)),
            (Some("stream=true&starting_after=0"), Some(1)),
            (Some("starting_after=41&stream=true"), Some(42)),
        ] {
            assert_eq!(stream_from(query).unwrap(), from, "{query:?}");
        }
        for wrong in ["stream=yes", "stream=true&starting_after=-1", "stream=true&starting_after=x"]
        {
            assert!(stream_from(Some(wrong)).is_err(), "{wrong}");
        }
    }
}
