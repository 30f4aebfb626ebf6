//! Sending to a node: one HTTP/2 connection, whoever dialled it. Or to an external endpoint, which
//! is an HTTP client ([`crate::upstream::external`]).
//!
//! For nodes h2 itself, and not hyper's client on top of it: that sends the head and the body of a
//! request from different tasks, so that each costs a system call and two wake-ups. Here both are
//! queued at once, and what several requests have queued leaves together ([`driver`]).

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use h2::RecvStream;
use h2::client::{self, SendRequest};
use hyper::header::{self, HeaderValue};
use hyper::{Request, Response};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use crate::scheduler::fleet::Origin;
use crate::types::error::Error;
use crate::upstream::external::Client;

mod driver;
pub mod external;
mod gather;

pub use driver::Driver;
use gather::Gather;

const STREAM_WINDOW: u32 = 1024 * 1024;
const CONNECTION_WINDOW: u32 = 16 * 1024 * 1024;
const HEADER_BYTES_MAX: u32 = 32 * 1024;

/// A live connection to a node. Cloning shares it.
#[derive(Debug, Clone)]
pub struct Upstream {
    via: Via,
    /// Cancelled when the link must end, with all that waits for it.
    lost: CancellationToken,
    /// Cancelled when the node is about to leave: what it has may go on elsewhere.
    leaving: CancellationToken,
    /// Whether we dialled the node, because it is configured.
    is_configured: bool,
}

/// How requests get there.
#[derive(Debug, Clone)]
enum Via {
    /// A node.
    Link {
        sender: SendRequest<Bytes>,
        /// What the node wants to see with every request, if it has a key of its own.
        authorization: Option<HeaderValue>,
    },
    /// Somebody else.
    External(Arc<Client>),
}

/// Makes the client side of HTTP/2 on a connected stream; the second value must be driven.
pub async fn connect<T>(
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

    /// The same, to a node that we dialled.
    pub fn configured(self) -> Self {
        Self { is_configured: true, ..self }
    }

    /// Who dialed.
    pub fn origin(&self) -> Origin {
        if self.is_configured { Origin::Configured } else { Origin::Joined }
    }

    /// How we came to it: `joined`, `configured` or `external`.
    pub fn address(&self) -> &'static str {
        match self.via {
            Via::External(_) => "external",
            Via::Link { .. } if self.is_configured => "configured",
            Via::Link { .. } => "joined",
        }
    }

    /// An external endpoint.
    pub fn external(client: Arc<Client>) -> Self {
        Self::new(Via::External(client))
    }

    /// The client of an external endpoint, if it is one.
    pub fn client(&self) -> Option<&Arc<Client>> {
        match &self.via {
            Via::Link { .. } => None,
            Via::External(client) => Some(client),
        }
    }

    /// Sends a request and waits for the head of its response. Dropping the future, or what is
    /// left of the response, ends the request at the node. When the link is over its driver is
    /// dropped, and that fails whatever waits for it.
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

    /// The link must end.
    pub fn close(&self) {
        self.lost.cancel();
    }

    /// The node is about to leave.
    pub fn leave(&self) {
        self.leaving.cancel();
    }

    /// It is not about to leave after all; what was told otherwise goes its way.
    pub fn stay(&mut self) {
        self.leaving = CancellationToken::new();
    }

    /// Waits until the node is about to leave.
    pub fn leaving(&self) -> WaitForCancellationFutureOwned {
        self.leaving.clone().cancelled_owned()
    }

    /// Waits until the link must end.
    pub fn lost(&self) -> WaitForCancellationFutureOwned {
        self.lost.clone().cancelled_owned()
    }
}

/// The body of a node's response. Dropping it ends the request there.
#[derive(Debug)]
pub enum NodeBody {
    /// A node's.
    Link(RecvStream),
    /// An external endpoint's.
    External(Box<reqwest::Response>),
}

/// More bytes than were asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooLong;

impl NodeBody {
    /// The next bytes; `None` at the end. May be cancelled.
    pub async fn data(&mut self) -> Option<Result<Bytes, Error>> {
        let read = match self {
            Self::Link(stream) => match stream.data().await? {
                // What was read may be sent anew.
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

    /// All of it, up to a limit.
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
