//! The event stream of an endpoint.

use std::borrow::Cow;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use inference_protocol::sse::Splitter;
use tokio::time::{Instant, Sleep};

use super::meter::Meter;
use crate::types::api::Api;
use crate::types::error::Error;
use crate::upstream::NodeBody;
use crate::upstream::external::refusal::Refusal;
use crate::upstream::external::response::StreamReader;

/// The event stream of an endpoint. Dropping it resets the stream.
#[derive(Debug)]
pub(crate) struct Source {
    parts: SourceParts,
    /// `None` for a node.
    outside: Option<Box<Outside>>,
}

/// What every stream has.
#[derive(Debug)]
pub(super) struct SourceParts {
    pub rest: NodeBody,
    pub splitter: Splitter,
    pub silence: Pin<Box<Sleep>>,
    /// The error for an event over the limit.
    pub too_large: Error,
}

/// Reads the stream of an external endpoint.
#[derive(Debug)]
pub(super) struct Outside {
    pub reader: StreamReader,
    pub meter: Meter,
    pub api: Api,
    /// Name of the endpoint.
    pub endpoint: Arc<str>,
}

impl Source {
    pub(super) fn new(parts: SourceParts, outside: Option<Outside>) -> Self {
        Self { parts, outside: outside.map(Box::new) }
    }

    /// Sets the deadline of the next events.
    pub(crate) fn expect_within(&mut self, within: Duration) {
        self.parts.silence.as_mut().reset(Instant::now() + within);
    }

    /// Returns the next whole events. Cancel-safe. A stream that ends early means that the endpoint
    /// is lost: the last event of a complete response is marked.
    pub(crate) async fn next(&mut self) -> Result<Bytes, Error> {
        let SourceParts { rest, splitter, silence, too_large } = &mut self.parts;
        loop {
            let data = tokio::select! {
                biased;
                data = rest.data() => data,
                () = &mut *silence => return Err(Error::NodeTimeout),
            };
            let bytes = match (data, &mut self.outside) {
                (Some(Ok(bytes)), _) => bytes,
                (None, Some(outside)) => return outside.end(&splitter.take_rest()),
                _ => return Err(Error::NodeLost),
            };
            let events = match splitter.push(&bytes).map_err(|_| too_large.clone())? {
                Cow::Borrowed(_) => bytes.clone(),
                Cow::Owned(events) => events.into(),
            };
            let events = match &mut self.outside {
                Some(outside) => outside.read(&events)?,
                None => events,
            };
            if !events.is_empty() {
                return Ok(events);
            }
        }
    }
}

impl Outside {
    fn read(&mut self, events: &[u8]) -> Result<Bytes, Error> {
        let events = self.reader.read(events);
        self.measure()?;
        Ok(events)
    }

    /// The last events, of a stream that ended without saying so.
    fn end(&mut self, rest: &[u8]) -> Result<Bytes, Error> {
        let events = self.reader.end(rest).ok_or(Error::NodeLost)?;
        self.measure()?;
        Ok(events)
    }

    /// A stream that begins with an error about the request is a refusal, which is free of charge.
    fn measure(&self) -> Result<(), Error> {
        let refused = self.reader.refused().map(Refusal::read);
        let error = refused.as_ref().and_then(|refusal| refusal.request_error(self.api));
        let reported = self.reader.reported();
        self.meter.measure(|measured| {
            measured.is_sent &= error.is_none();
            measured.reported = reported.or(measured.reported);
        });
        let (Some(error), Some(refusal)) = (error, refused) else { return Ok(()) };
        let endpoint = &*self.endpoint;
        tracing::warn!(endpoint, %refusal, "external endpoint refused the request");
        Err(error)
    }
}
