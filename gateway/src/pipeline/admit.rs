//! Stage 3: the body is read, within its limits, and its model is known.

use bytes::Bytes;
use http_body::Body;
use http_body_util::{BodyExt, LengthLimitError, Limited};
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
    /// The model that it asks for.
    pub model: String,
    /// Its body, which nodes get byte for byte.
    pub body: Bytes,
}

/// Longest name of a model that can be right.
const MODEL_BYTES_MAX: usize = 128;

/// Reads a request.
pub async fn admit(
    authenticated: Authenticated,
    limits: &Limits,
    timeouts: &Timeouts,
) -> Result<Admitted, Error> {
    let Authenticated { request_id, api, body, .. } = authenticated;
    let read = read_body(body, limits.body_bytes_max);
    let body = timeout(timeouts.body, read).await.map_err(|_| Error::SlowBody)??;
    let Routed { model, .. } = openai::parse(&body)?;
    if model.len() > MODEL_BYTES_MAX {
        let start = model.chars().take(MODEL_BYTES_MAX).collect();
        return Err(Error::UnknownModel(start));
    }
    Ok(Admitted { request_id, api, model, body })
}

/// The announced length is checked before a byte is read.
async fn read_body(body: Incoming, bytes_max: usize) -> Result<Bytes, Error> {
    if body.size_hint().lower() > bytes_max as u64 {
        return Err(Error::TooLarge(bytes_max));
    }
    #[expect(clippy::disallowed_methods, reason = "the body is limited")]
    let read = Limited::new(body, bytes_max).collect().await;
    match read {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(e) if e.is::<LengthLimitError>() => Err(Error::TooLarge(bytes_max)),
        Err(_) => Err(Error::SlowBody),
    }
}
