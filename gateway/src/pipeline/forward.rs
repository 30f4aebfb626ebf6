//! Stage 5: the request goes to its node, and the answer begins.
//!
//! Nothing is sent to the client before the node has begun to answer: a whole answer is
//! read to its end, a stream to its first event. Until then a lost node costs the client
//! nothing, because the request can go to another one.

use bytes::Bytes;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::header::{self, HeaderMap};
use hyper::{Request, Response, StatusCode, Uri};
use inference_protocol::fleet::TENANT_HEADER;
use inference_protocol::sse::{Splitter, payloads};
use tokio::time::timeout;

use super::accept::REQUEST_ID;
use super::admit::Admitted;
use crate::config::{Limits, Timeouts};
use crate::dispatcher::Lease;
use crate::error::Error;

/// A node's answer that has begun.
#[derive(Debug)]
pub enum Forwarded {
    /// It is here in full, and the slot is free again.
    Whole {
        /// The node's status.
        status: StatusCode,
        /// The node's headers that concern the client.
        headers: HeaderMap,
        /// The body.
        body: Bytes,
        /// The node's name.
        node: String,
    },
    /// Its first events are here.
    Begun {
        /// The first events, whole.
        first: Bytes,
        /// Cuts the rest into events.
        splitter: Splitter,
        /// The rest.
        rest: Incoming,
        /// The slot.
        lease: Lease,
    },
}

/// Sends a request to the node of `lease`.
pub async fn forward(
    lease: Lease,
    admitted: &Admitted,
    limits: &Limits,
    timeouts: &Timeouts,
) -> Result<Forwarded, Error> {
    let lost = lease.upstream().lost();
    let attempt = attempt(lease, admitted, limits);
    tokio::select! {
        outcome = timeout(timeouts.first_token, attempt) => {
            outcome.unwrap_or(Err(Error::NodeTimeout))
        }
        () = lost => Err(Error::NodeLost),
    }
}

async fn attempt(lease: Lease, admitted: &Admitted, limits: &Limits) -> Result<Forwarded, Error> {
    let response = lease.upstream().send(upstream_request(admitted)?).await?;
    let status = response.status();
    if is_about_the_node(status) {
        return Err(Error::NodeRefused(status.as_u16()));
    }
    if is_event_stream(&response) {
        begin(lease, response.into_body(), limits).await
    } else {
        read_whole(lease, response, limits).await
    }
}

/// Whether another node may answer better: this one failed, is full, or refuses our key,
/// which is not the client's.
fn is_about_the_node(status: StatusCode) -> bool {
    status.is_server_error()
        || [StatusCode::TOO_MANY_REQUESTS, StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN]
            .contains(&status)
}

fn upstream_request(admitted: &Admitted) -> Result<Request<Full<Bytes>>, Error> {
    let uri = Uri::builder().scheme("http").authority("node").path_and_query(admitted.api.path());
    let uri = uri.build().map_err(|_| Error::UnknownPath)?;
    Request::post(uri)
        .header(header::CONTENT_TYPE, "application/json")
        .header(REQUEST_ID, &admitted.request_id)
        .header(TENANT_HEADER, &admitted.tenant)
        .body(Full::new(admitted.body.clone()))
        .map_err(|_| Error::UnknownPath)
}

fn is_event_stream(response: &Response<Incoming>) -> bool {
    let content_type = response.headers().get(header::CONTENT_TYPE);
    content_type.is_some_and(|v| v.as_bytes().starts_with(b"text/event-stream"))
}

async fn read_whole(
    lease: Lease,
    response: Response<Incoming>,
    limits: &Limits,
) -> Result<Forwarded, Error> {
    let (head, body) = response.into_parts();
    #[expect(clippy::disallowed_methods, reason = "the body is limited")]
    let read = Limited::new(body, limits.response_bytes_max).collect().await;
    let body = match read {
        Ok(collected) => collected.to_bytes(),
        Err(e) if e.is::<LengthLimitError>() => {
            return Err(Error::NodeAnswer("it is larger than limits.response_bytes_max"));
        }
        Err(_) => return Err(Error::NodeLost),
    };
    let mut headers = HeaderMap::new();
    for name in [header::CONTENT_TYPE, header::RETRY_AFTER] {
        if let Some(value) = head.headers.get(&name) {
            headers.insert(name, value.clone());
        }
    }
    Ok(Forwarded::Whole { status: head.status, headers, body, node: lease.node().to_string() })
}

/// Reads up to the first event with data. An error there means that the node failed
/// before its first token.
async fn begin(lease: Lease, mut rest: Incoming, limits: &Limits) -> Result<Forwarded, Error> {
    let mut splitter = Splitter::new(limits.event_bytes_max);
    loop {
        let Some(Ok(frame)) = rest.frame().await else { return Err(Error::NodeLost) };
        let Some(bytes) = frame.data_ref() else { continue };
        let events = splitter.push(bytes).map_err(|_| TOO_LARGE)?;
        let first_is_error = payloads(&events).next().map(is_error);
        match first_is_error {
            Some(true) => return Err(Error::NodeLost),
            Some(false) => {
                return Ok(Forwarded::Begun { first: events.into(), splitter, rest, lease });
            }
            None => {}
        }
    }
}

/// An event beyond its limit.
pub const TOO_LARGE: Error = Error::NodeAnswer("an event is larger than limits.event_bytes_max");

/// Whether an event tells of an error.
pub fn is_error(payload: &[u8]) -> bool {
    payload.starts_with(b"{\"error\"")
}
