//! Reads a request's body within its limits.

use std::time::Duration;

use bytes::Bytes;
use flotilla_listeners::request_body::{self, BodyError, BodyLimits, DISCARD_FIRST_MAX};
use hyper::Request;
use hyper::body::Incoming;

use crate::types::error::Error;

const LIMITS: BodyLimits =
    BodyLimits { bytes_max: 8 * 1024 * 1024, time_max: Duration::from_secs(30) };

/// Reads the body. One that is refused is discarded first, so that the client gets the response.
pub(super) async fn read(request: Request<Incoming>) -> Result<Bytes, Error> {
    let (head, mut body) = request.into_parts();
    let read = request_body::read(&head.headers, &mut body, LIMITS, |_| Ok(())).await;
    if matches!(read, Err(Error::TooLarge(_) | Error::EncodedBody)) {
        request_body::discard(&head.headers, body, DISCARD_FIRST_MAX).await;
    }
    read
}

impl From<BodyError> for Error {
    fn from(error: BodyError) -> Self {
        match error {
            BodyError::TooLarge(bytes_max) => Self::TooLarge(bytes_max),
            BodyError::Incomplete => Self::SlowBody,
            BodyError::Chunks => Self::InvalidChunks,
            BodyError::Encoded => Self::EncodedBody,
        }
    }
}
