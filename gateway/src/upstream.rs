//! Sending to a node: one HTTP/2 connection, whoever dialled it.
//!
//! h2 itself, and not hyper's client on top of it: that sends the head and the body of a request from
//! different tasks, so that each costs a system call and two wake-ups. Here both are
//! queued at once, and what several requests have queued leaves together ([`driver`]).

use bytes::{Bytes, BytesMut};
use h2::RecvStream;
use h2::client::{self, SendRequest};
use hyper::header::{self, HeaderValue};
use hyper::{Request, Response};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use crate::error::Error;

mod driver;
mod gather;

pub use driver::Driver;
use gather::Gather;

const STREAM_WINDOW: u32 = 1024 * 1024;
const CONNECTION_WINDOW: u32 = 16 * 1024 * 1024;
const HEADER_BYTES_MAX: u32 = 32 * 1024;

/// A live connection to a node. Cloning shares it.
#[derive(Debug, Clone)]
pub struct Upstream {
    sender: SendRequest<Bytes>,
    /// What the node wants to see with every request, if it has a key of its own.
    authorization: Option<HeaderValue>,
    /// Cancelled when the link is over: whatever waits for it must fail over.
    lost: CancellationToken,
    /// Cancelled when the node is about to leave: what it has may go on elsewhere.
    leaving: CancellationToken,
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
    let (lost, leaving) = (CancellationToken::new(), CancellationToken::new());
    Ok((Upstream { sender, authorization, lost, leaving }, Driver::new(connection)))
}

impl Upstream {
    /// Sends a request and waits for the head of its response. Dropping the future, or what is
    /// left of the response, ends the request at the node.
    pub async fn send(&self, request: Request<Bytes>) -> Result<Response<NodeBody>, Error> {
        tokio::select! {
            biased;
            sent = self.exchange(request) => sent,
            () = self.lost.cancelled() => Err(Error::NodeLost),
        }
    }

    async fn exchange(&self, request: Request<Bytes>) -> Result<Response<NodeBody>, Error> {
        let lost = |_: h2::Error| Error::NodeLost;
        let (mut head, body) = request.into_parts();
        if let Some(authorization) = &self.authorization {
            head.headers.insert(header::AUTHORIZATION, authorization.clone());
        }
        let mut sender = self.sender.clone().ready().await.map_err(lost)?;
        let request = Request::from_parts(head, ());
        let (response, mut stream) = sender.send_request(request, body.is_empty()).map_err(lost)?;
        if !body.is_empty() {
            stream.send_data(body, true).map_err(lost)?;
        }
        response.await.map(|response| response.map(NodeBody)).map_err(lost)
    }

    /// The link is over.
    pub fn close(&self) {
        self.lost.cancel();
    }

    /// The node is about to leave.
    pub fn leave(&self) {
        self.leaving.cancel();
    }

    /// Waits until the node is about to leave.
    pub fn leaving(&self) -> WaitForCancellationFutureOwned {
        self.leaving.clone().cancelled_owned()
    }

    /// Waits for the end of the link.
    pub fn lost(&self) -> WaitForCancellationFutureOwned {
        self.lost.clone().cancelled_owned()
    }
}

/// The body of a node's response. Dropping it resets the stream.
#[derive(Debug)]
pub struct NodeBody(RecvStream);

/// More bytes than were asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooLong;

impl NodeBody {
    /// The next bytes; `None` at the end. May be cancelled.
    pub async fn data(&mut self) -> Option<Result<Bytes, h2::Error>> {
        let data = self.0.data().await?;
        Some(data.and_then(|bytes| {
            // What was read may be sent anew.
            self.0.flow_control().release_capacity(bytes.len())?;
            Ok(bytes)
        }))
    }

    /// All of it, up to a limit.
    pub async fn whole(mut self, bytes_max: usize) -> Result<Result<Bytes, TooLong>, h2::Error> {
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
