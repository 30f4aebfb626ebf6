//! Sends requests to endpoints: to nodes over one HTTP/2 connection, whichever side dialed, and to
//! external endpoints with an HTTP client ([`crate::upstream::external`]). Messages to receivers of
//! webhooks have another one ([`webhook`]).
//!
//! For nodes this uses h2 directly, not hyper's client on top of it: hyper sends head and body of a
//! request from different tasks, which costs a system call and two wake-ups each. Here both are
//! queued at once, and what several requests have queued is written together ([`driver`]).

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use h2::client::{self, SendRequest};
use h2::{RecvStream, SendStream};
use hyper::header::{self, HeaderValue};
use hyper::{Request, Response};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use crate::scheduler::fleet::NodeOrigin;
use crate::types::error::Error;
use crate::upstream::external::Client;

mod driver;
pub(crate) mod external;
mod gather;
pub(crate) mod webhook;

pub(crate) use driver::{ConnectionEnd, Driver};
use gather::Gather;

const STREAM_WINDOW: u32 = 1024 * 1024;
const CONNECTION_WINDOW: u32 = 16 * 1024 * 1024;
const HEADER_BYTES_MAX: u32 = 32 * 1024;

/// A live connection to an endpoint. Clones share it.
#[derive(Debug, Clone)]
pub struct Upstream {
    via: Via,
    /// Canceled when the link must end, along with all its requests.
    lost: CancellationToken,
    /// Canceled when the node is about to leave and its requests may move elsewhere.
    leaving: CancellationToken,
    /// True if the gateway dialed the node because it is configured.
    is_configured: bool,
}

/// How requests reach the endpoint.
#[derive(Debug, Clone)]
enum Via {
    /// Over the link of a node.
    Link {
        sender: SendRequest<Bytes>,
        /// `Authorization` header for every request, if the node has a key of its own.
        authorization: Option<HeaderValue>,
    },
    /// With the client of an external endpoint.
    External(Arc<Client>),
}

/// Opens the client side of HTTP/2 on a connected stream. The caller must run the [`Driver`].
pub(crate) async fn connect<T>(
    io: T,
    authorization: Option<HeaderValue>,
) -> Result<(Upstream, Driver<T>), h2::Error>
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let (sender, connection) = client::Builder::new()
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_header_list_size(HEADER_BYTES_MAX)
        .enable_push(false)
        .handshake(Gather(io))
        .await?;
    let via = Via::Link { sender, authorization };
    Ok((Upstream::new(via), Driver::new(connection)))
}

impl Upstream {
    fn new(via: Via) -> Self {
        let (lost, leaving) = (CancellationToken::new(), CancellationToken::new());
        Self { via, lost, leaving, is_configured: false }
    }

    /// Marks the connection as dialed by the gateway.
    pub fn configured(self) -> Self {
        Self { is_configured: true, ..self }
    }

    /// Which side dialed.
    pub fn origin(&self) -> NodeOrigin {
        if self.is_configured { NodeOrigin::Configured } else { NodeOrigin::Joined }
    }

    /// `joined`, `configured`, or `external`.
    pub fn address(&self) -> &'static str {
        match self.via {
            Via::External(_) => "external",
            Via::Link { .. } if self.is_configured => "configured",
            Via::Link { .. } => "joined",
        }
    }

    /// Creates the upstream of an external endpoint.
    pub fn external(client: Arc<Client>) -> Self {
        Self::new(Via::External(client))
    }

    /// The client of an external endpoint; `None` for nodes.
    pub fn client(&self) -> Option<&Arc<Client>> {
        match &self.via {
            Via::Link { .. } => None,
            Via::External(client) => Some(client),
        }
    }

    /// Sends a request and waits for the head of the response. Dropping the future, or the response
    /// body, cancels the request on the node. When the link ends its driver is dropped, which fails
    /// all pending requests.
    pub async fn send(&self, request: Request<Bytes>) -> Result<Response<NodeBody>, Error> {
        let lost = |_: h2::Error| Error::NodeLost;
        let (mut head, body) = request.into_parts();
        let (sender, authorization) = match &self.via {
            Via::Link { sender, authorization } => (sender, authorization),
            Via::External(client) => {
                return client.send(head, body).await.map_err(|_| Error::NodeLost);
            }
        };
        if let Some(authorization) = authorization {
            head.headers.insert(header::AUTHORIZATION, authorization.clone());
        }
        let mut sender = sender.clone().ready().await.map_err(lost)?;
        let request = Request::from_parts(head, ());
        let (response, mut stream) = sender.send_request(request, body.is_empty()).map_err(lost)?;
        if !body.is_empty() {
            stream.send_data(body, true).map_err(lost)?;
        }
        response.await.map(|response| response.map(NodeBody::Link)).map_err(lost)
    }

    /// Sends a request to a node whose body is that of another response, of `bytes` bytes, as fast
    /// as both sides can. Dropping the future cancels both.
    pub(crate) async fn send_body(
        &self,
        head: Request<()>,
        body: NodeBody,
        bytes: u64,
    ) -> Result<Response<NodeBody>, Error> {
        let lost = |_: h2::Error| Error::NodeLost;
        let Via::Link { sender, .. } = &self.via else { return Err(Error::NodeLost) };
        let mut sender = sender.clone().ready().await.map_err(lost)?;
        let (response, stream) = sender.send_request(head, false).map_err(lost)?;
        let mut response = pin!(response);
        let response = tokio::select! {
            // It may refuse before it has read everything.
            response = &mut response => response,
            sent = copy(body, stream, bytes) => {
                sent?;
                response.await
            }
        };
        response.map(|response| response.map(NodeBody::Link)).map_err(lost)
    }

    /// Ends the link.
    pub fn close(&self) {
        self.lost.cancel();
    }

    /// Signals that the node is about to leave.
    pub(crate) fn start_leaving(&self) {
        self.leaving.cancel();
    }

    /// Undoes [`Upstream::start_leaving`] for future requests. Those already told to leave still
    /// do.
    pub(crate) fn cancel_leaving(&mut self) {
        self.leaving = CancellationToken::new();
    }

    /// Completes when the node is about to leave.
    pub fn leaving(&self) -> WaitForCancellationFutureOwned {
        self.leaving.clone().cancelled_owned()
    }

    /// Completes when the link must end.
    pub fn lost(&self) -> WaitForCancellationFutureOwned {
        self.lost.clone().cancelled_owned()
    }
}

/// A response body. Dropping it cancels the request on the endpoint.
#[derive(Debug)]
pub enum NodeBody {
    /// From a node.
    Link(RecvStream),
    /// From an external endpoint.
    External(Box<reqwest::Response>),
}

/// The body is larger than requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooLong;

impl NodeBody {
    /// The next bytes; `None` at the end. Cancel-safe.
    pub async fn data(&mut self) -> Option<Result<Bytes, Error>> {
        let read = match self {
            Self::Link(stream) => match stream.data().await? {
                // Lets the node send as many bytes again.
                Ok(bytes) => {
                    let released = stream.flow_control().release_capacity(bytes.len());
                    released.map(|()| bytes).ok()
                }
                Err(_) => None,
            },
            Self::External(response) => match response.chunk().await {
                Ok(chunk) => Some(chunk?),
                Err(_) => None,
            },
        };
        Some(read.ok_or(Error::NodeLost))
    }

    /// Reads the whole body, up to `bytes_max`.
    pub async fn whole(mut self, bytes_max: usize) -> Result<Result<Bytes, TooLong>, Error> {
        let mut whole = BytesMut::new();
        while let Some(bytes) = self.data().await {
            let bytes = bytes?;
            if whole.len() + bytes.len() > bytes_max {
                return Ok(Err(TooLong));
            }
            whole.extend_from_slice(&bytes);
        }
        Ok(Ok(whole.freeze()))
    }
}

/// Sends a body of `bytes` bytes over a stream. If the body is longer or shorter, the stream is
/// reset.
async fn copy(mut body: NodeBody, mut to: SendStream<Bytes>, bytes: u64) -> Result<(), Error> {
    let lost = |_: h2::Error| Error::NodeLost;
    let mut left = bytes;
    while let Some(data) = body.data().await {
        let mut data = data?;
        left = left.checked_sub(data.len() as u64).ok_or(Error::NodeLost)?;
        while !data.is_empty() {
            to.reserve_capacity(data.len());
            let capacity = poll_fn(|context| to.poll_capacity(context)).await;
            let capacity = capacity.ok_or(Error::NodeLost)?.map_err(lost)?;
            let part = data.split_to(capacity.min(data.len()));
            to.send_data(part, false).map_err(lost)?;
        }
    }
    if left > 0 {
        return Err(Error::NodeLost);
    }
    to.send_data(Bytes::new(), true).map_err(lost)
}
