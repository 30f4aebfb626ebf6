//! The bytes of a form as its parser gets them: in small amounts, and not more than it hands on.
//!
//! The parser takes all that has arrived into its buffer, and looks for the end of a header in all
//! of it. Without this, a client could fill the memory with one upload.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::Stream;

/// Most bytes that the parser may keep: those of a header, and of one frame.
const UNREAD_MAX: usize = 1024 * 1024;
/// Most bytes of a refused upload that are read, so that its client sees why.
const DISCARDED_MAX: usize = 8 * 1024 * 1024;

/// What the parser was given and has not handed on.
#[derive(Debug, Clone)]
pub(super) struct Unread(Arc<Counts>);

#[derive(Debug)]
struct Counts {
    bytes: AtomicUsize,
    max: AtomicUsize,
}

impl Unread {
    pub(super) fn new() -> Self {
        Self(Arc::new(Counts { bytes: AtomicUsize::new(0), max: AtomicUsize::new(UNREAD_MAX) }))
    }

    /// Counts bytes that the parser has handed on.
    pub(super) fn record_read(&self, bytes: usize) {
        let less = |unread: usize| Some(unread.saturating_sub(bytes));
        let _ = self.0.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// What comes now is discarded.
    pub(super) fn discard(&self) {
        self.0.max.store(DISCARDED_MAX, Ordering::Relaxed);
    }

    fn add(&self, bytes: usize) -> io::Result<()> {
        let unread = self.0.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if unread > self.0.max.load(Ordering::Relaxed) {
            let why = format!("a part has no end of its header within {UNREAD_MAX} bytes");
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        Ok(())
    }
}

/// A stream that pauses after each item, until it is polled again.
pub(super) struct FormSource<S> {
    stream: S,
    unread: Unread,
    pauses: bool,
}

impl<S> FormSource<S> {
    pub(super) fn new(stream: S, unread: Unread) -> Self {
        Self { stream, unread, pauses: false }
    }
}

impl<S: Stream<Item = io::Result<Bytes>> + Unpin> Stream for FormSource<S> {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if std::mem::take(&mut self.pauses) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let next = Pin::new(&mut self.stream).poll_next(context);
        if let Poll::Ready(Some(Ok(bytes))) = &next {
            self.pauses = true;
            self.unread.add(bytes.len())?;
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use futures_util::{StreamExt, stream};
    use multer::Multipart;

    use super::*;

    fn source(parts: Vec<Bytes>, unread: &Unread) -> Multipart<'static> {
        let parts = stream::iter(parts.into_iter().map(io::Result::Ok));
        Multipart::new(FormSource::new(parts.boxed(), unread.clone()), "b")
    }

    #[tokio::test]
    async fn a_long_part_is_handed_on_piece_by_piece() {
        let unread = Unread::new();
        let head = "--b\r\ncontent-disposition: form-data; name=\"f\"\r\n\r\n";
        let piece = Bytes::from(vec![b'x'; 300_000]);
        let mut parts = vec![Bytes::from(head)];
        parts.extend(std::iter::repeat_n(piece, 20));
        parts.push("\r\n--b--\r\n".into());
        let mut form = source(parts, &unread);
        let mut field = form.next_field().await.unwrap().unwrap();
        let mut bytes = 0;
        while let Some(chunk) = field.chunk().await.unwrap() {
            assert!(chunk.len() <= 600_000, "{} at once", chunk.len());
            unread.record_read(chunk.len());
            bytes += chunk.len();
        }
        assert_eq!(bytes, 6_000_000);
    }

    #[tokio::test]
    async fn a_header_without_an_end_is_refused() {
        let unread = Unread::new();
        let endless = Bytes::from(format!("--b\r\n{}", "x".repeat(300_000)));
        let mut form = source(vec![endless; 10], &unread);
        let refused = form.next_field().await.unwrap_err();
        assert!(matches!(refused, multer::Error::StreamReadFailed(_)), "{refused}");
    }
}
