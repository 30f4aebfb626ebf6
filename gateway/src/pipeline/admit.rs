//! Stage 3: the body is read, within its limits, and its model is known.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::Body;
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use inference_protocol::openai::{self, Routed};
use tokio::time::timeout;

use super::authenticate::Authenticated;
use crate::api::Api;
use crate::config::{Limits, Timeouts};
use crate::error::Error;

/// A request that may wait for a slot.
#[derive(Debug)]
pub struct Admitted {
    /// Its id.
    pub request_id: String,
    /// Which endpoint.
    pub api: Api,
    /// Whose it is.
    pub tenant: String,
    /// The model that it asks for.
    pub model: String,
    /// Its body, which nodes get byte for byte.
    pub body: Bytes,
}

/// How much of a body that is too large is read all the same, and for how long.
const DISCARD_BYTES_MAX: usize = 64 * 1024 * 1024;
const DISCARD_TIME_MAX: Duration = Duration::from_secs(2);

/// Longest name of a model that can be right.
const MODEL_BYTES_MAX: usize = 128;

/// Reads a request.
pub async fn admit(
    authenticated: Authenticated,
    limits: &Limits,
    timeouts: &Timeouts,
) -> Result<Admitted, Error> {
    let Authenticated { request_id, api, tenant, body } = authenticated;
    let read = read_body(body, limits.body_bytes_max);
    let body = timeout(timeouts.body, read).await.map_err(|_| Error::SlowBody)??;
    let Routed { model, .. } = openai::parse(&body)?;
    if model.len() > MODEL_BYTES_MAX {
        let start = model.chars().take(MODEL_BYTES_MAX).collect();
        return Err(Error::UnknownModel(start));
    }
    Ok(Admitted { request_id, api, tenant, model, body })
}

/// Reads a body; one that is too large by its announced length is not kept at all.
async fn read_body(mut body: Incoming, bytes_max: usize) -> Result<Bytes, Error> {
    let mut read = BytesMut::new();
    let mut too_large = body.size_hint().lower() > bytes_max as u64;
    while !too_large && let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| Error::SlowBody)?;
        let data = frame.data_ref().map_or(&b""[..], |d| d);
        too_large = read.len() + data.len() > bytes_max;
        read.extend_from_slice(if too_large { b"" } else { data });
    }
    if too_large {
        drop(read);
        discard(body).await;
        return Err(Error::TooLarge(bytes_max));
    }
    Ok(read.freeze())
}

/// Reads on for a while without keeping anything: a client that is still sending would
/// find its connection reset instead of our answer.
async fn discard(body: Incoming) {
    let mut limited = Limited::new(body, DISCARD_BYTES_MAX);
    let all = async { while let Some(Ok(_)) = limited.frame().await {} };
    let _ = timeout(DISCARD_TIME_MAX, all).await;
}
