//! Reads a request's body within its limits.

use std::time::Duration;

use bytes::Bytes;
use flotilla_listeners::request_body::{self, BodyError, BodyLimits, DISCARD_FIRST_MAX};
use hyper::body::Incoming;

use crate::types::error::Error;

const LIMITS: BodyLimits =
    BodyLimits { bytes_max: 8 * 1024 * 1024, time_max: Duration::from_secs(30) };

/// Reads the body. One that is too large is discarded first, so that the client gets the response.
pub(super) async fn read(mut body: Incoming) -> Result<Bytes, Error> {
    let read = request_body::read(&mut body, LIMITS, |_| Ok(())).await;
    if matches!(read, Err(Error::TooLarge(_))) {
        request_body::discard(body, DISCARD_FIRST_MAX).await;
    }
    read
}

impl From<BodyError> for Error {
    fn from(error: BodyError) -> Self {
        match error {
            BodyError::TooLarge(bytes_max) => Self::TooLarge(bytes_max),
            BodyError::Incomplete => Self::SlowBody,
        }
    }
}
