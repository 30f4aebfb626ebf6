//! The body of a request.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;
use hyper::body::Incoming;

/// The body of a client's request, or of one that the gateway makes itself.
#[derive(Debug)]
pub(crate) enum RequestBody {
    /// It arrives on a connection.
    Client(Incoming),
    /// It is there.
    Own(Full<Bytes>),
}

impl From<Incoming> for RequestBody {
    fn from(body: Incoming) -> Self {
        Self::Client(body)
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match self.get_mut() {
            Self::Client(body) => Pin::new(body).poll_frame(context),
            Self::Own(body) => Pin::new(body).poll_frame(context).map_err(|never| match never {}),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Client(body) => body.is_end_stream(),
            Self::Own(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Client(body) => body.size_hint(),
            Self::Own(body) => body.size_hint(),
        }
    }
}
