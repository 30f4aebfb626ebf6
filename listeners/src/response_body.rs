//! Wraps a response body. The request counts as in flight until its body is dropped.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Frame, SizeHint};

use super::monitor::InFlight;
use super::streams;

/// A response body that reports its progress to the slow-read timer of its HTTP/2 stream.
#[derive(Debug)]
pub(crate) struct TrackedBody<B> {
    body: B,
    _in_flight: InFlight,
}

impl<B> TrackedBody<B> {
    /// Wraps `body`. Dropping the wrapper drops `in_flight`, which ends the request.
    pub(crate) fn new(body: B, in_flight: InFlight) -> Self {
        Self { body, _in_flight: in_flight }
    }
}

impl<B: http_body::Body<Data = Bytes> + Unpin> http_body::Body for TrackedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        streams::record_poll();
        let frame = Pin::new(&mut self.body).poll_frame(context);
        if let Poll::Ready(Some(Ok(frame))) = &frame {
            streams::record_frame(frame.data_ref().map_or(0, Bytes::len));
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
