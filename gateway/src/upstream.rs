//! Sending to a node: one HTTP/2 connection, whoever dialled it.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, Connection, SendRequest};
use hyper::header::{self, HeaderValue};
use hyper::rt::{Read, Write};
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use crate::error::Error;

mod gather;

use gather::Gather;

/// A dead peer is noticed within the sum of these, or by its silence about its status.
const PING_INTERVAL: Duration = Duration::from_secs(5);
const PING_TIMEOUT: Duration = Duration::from_secs(5);
const STREAM_WINDOW: u32 = 1024 * 1024;
const CONNECTION_WINDOW: u32 = 16 * 1024 * 1024;
const HEADER_BYTES_MAX: u32 = 32 * 1024;

/// A live connection to a node. Cloning shares it.
#[derive(Debug, Clone)]
pub struct Upstream {
    sender: SendRequest<Full<Bytes>>,
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
) -> hyper::Result<(Upstream, Connection<Gather<T>, Full<Bytes>, TokioExecutor>)>
where
    T: Read + Write + Unpin + Send + 'static,
{
    let (sender, connection) = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT)
        .keep_alive_while_idle(true)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_header_list_size(HEADER_BYTES_MAX)
        .handshake(Gather(io))
        .await?;
    let (lost, leaving) = (CancellationToken::new(), CancellationToken::new());
    Ok((Upstream { sender, authorization, lost, leaving }, connection))
}

impl Upstream {
    /// Sends a request and waits for the head of its response.
    pub async fn send(
        &self,
        mut request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, Error> {
        if let Some(authorization) = &self.authorization {
            request.headers_mut().insert(header::AUTHORIZATION, authorization.clone());
        }
        let mut sender = self.sender.clone();
        tokio::select! {
            sent = sender.send_request(request) => sent.map_err(|_| Error::NodeLost),
            () = self.lost.cancelled() => Err(Error::NodeLost),
        }
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
