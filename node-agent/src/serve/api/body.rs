//! Reads a request's body within its limits.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::Body;
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use tokio::time::timeout;

use crate::types::error::Error;

/// Maximum size of a request body in bytes.
const BODY_BYTES_MAX: usize = 8 * 1024 * 1024;
/// A body must arrive within this time.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// How much of a body that is too large is read and discarded, and for how long.
const DISCARD_BYTES_MAX: usize = 64 * 1024 * 1024;
const DISCARD_TIME_MAX: Duration = Duration::from_secs(2);

/// Reads the body; keeps nothing of one that is too large by its content length.
pub(super) async fn read(body: Incoming) -> Result<Bytes, Error> {
    timeout(BODY_TIMEOUT, read_all(body)).await.map_err(|_| Error::SlowBody)?
}

async fn read_all(mut body: Incoming) -> Result<Bytes, Error> {
    let mut read = BytesMut::new();
    let mut too_large = body.size_hint().lower() > BODY_BYTES_MAX as u64;
    while !too_large && let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| Error::SlowBody)?;
        let data = frame.data_ref().map_or(&b""[..], |d| d);
        too_large = read.len() + data.len() > BODY_BYTES_MAX;
        read.extend_from_slice(if too_large { b"" } else { data });
    }
    if too_large {
        drop(read);
        discard(body).await;
        return Err(Error::TooLarge(BODY_BYTES_MAX));
    }
    Ok(read.freeze())
}

/// Reads on for a while without keeping anything: a client that is still sending would get a
/// connection reset instead of our response.
async fn discard(body: Incoming) {
    let mut limited = Limited::new(body, DISCARD_BYTES_MAX);
    let all = async { while let Some(Ok(_)) = limited.frame().await {} };
    let _ = timeout(DISCARD_TIME_MAX, all).await;
}
