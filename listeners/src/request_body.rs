//! Reads request bodies within limits, and discards those of refused requests.

use std::error::Error;
use std::io;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::Body;
use http_body_util::{BodyExt, Limited};
use hyper::header::{self, HeaderMap};
use tokio::time::timeout;

use crate::request_head::is_encoded;

/// Most bytes of a refused request's body that are read and discarded.
const DISCARD_BYTES_MAX: usize = 64 * 1024 * 1024;
/// A byte order mark, which RFC 8259 forbids to write and allows to ignore.
const BOM: &[u8] = "\u{feff}".as_bytes();
/// Longest time to read such a body before the response, where it must be read first.
pub const DISCARD_FIRST_MAX: Duration = Duration::from_secs(2);

/// Why a body was not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyError {
    /// It has more than this many bytes.
    TooLarge(usize),
    /// It did not arrive in time, or its connection broke.
    Incomplete,
    /// Its chunked encoding is invalid.
    Chunks,
    /// It is compressed, or encoded in another way.
    Encoded,
}

/// Limits of a body.
#[derive(Debug, Clone, Copy)]
pub struct BodyLimits {
    /// Maximum size in bytes.
    pub bytes_max: usize,
    /// Time to receive it.
    pub time_max: Duration,
}

/// Returns the length that the client has announced, or 0.
///
/// # Errors
/// It is more than `bytes_max`.
pub fn announced_bytes(body: &impl Body, bytes_max: usize) -> Result<usize, BodyError> {
    let announced = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    if announced > bytes_max { Err(BodyError::TooLarge(bytes_max)) } else { Ok(announced) }
}

/// Reads the body of a request with these headers, without a byte order mark. Before each part is
/// kept, `reserve` is asked for the bytes so far, this part included. A body that is encoded, or
/// whose announced length is too large, is not read.
///
/// # Errors
/// The body exceeds a limit or ends early, or `reserve` refuses.
pub async fn read<B, E>(
    headers: &HeaderMap,
    body: &mut B,
    limits: BodyLimits,
    reserve: impl FnMut(usize) -> Result<(), E>,
) -> Result<Bytes, E>
where
    B: Body<Data = Bytes, Error: Error + 'static> + Unpin,
    E: From<BodyError>,
{
    if is_encoded(headers) {
        return Err(BodyError::Encoded.into());
    }
    let reading = timeout(limits.time_max, read_all(body, limits.bytes_max, reserve));
    reading.await.unwrap_or_else(|_| Err(BodyError::Incomplete.into()))
}

async fn read_all<B, E>(
    body: &mut B,
    bytes_max: usize,
    mut reserve: impl FnMut(usize) -> Result<(), E>,
) -> Result<Bytes, E>
where
    B: Body<Data = Bytes, Error: Error + 'static> + Unpin,
    E: From<BodyError>,
{
    announced_bytes(body, bytes_max)?;
    let mut read = BytesMut::new();
    while let Some(data) = next_part(body).await? {
        let bytes = read.len() + data.len();
        if bytes > bytes_max {
            return Err(BodyError::TooLarge(bytes_max).into());
        }
        reserve(bytes)?;
        read.extend_from_slice(&data);
    }
    let mut read = read.freeze();
    if read.starts_with(BOM) {
        bytes::Buf::advance(&mut read, BOM.len());
    }
    Ok(read)
}

/// Reads the next part of a body; `None` at its end.
///
/// # Errors
/// The body ends early.
pub async fn next_part<B>(body: &mut B) -> Result<Option<Bytes>, BodyError>
where
    B: Body<Data = Bytes, Error: Error + 'static> + Unpin,
{
    let Some(frame) = body.frame().await else { return Ok(None) };
    let frame = frame.map_err(|error| why_broken(&error))?;
    // Trailers mean nothing here.
    Ok(Some(frame.into_data().unwrap_or_default()))
}

/// hyper reports chunks that it cannot parse as invalid data or input.
fn why_broken(error: &(dyn Error + 'static)) -> BodyError {
    let mut cause = Some(error);
    while let Some(error) = cause {
        let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
        if matches!(kind, Some(io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput)) {
            return BodyError::Chunks;
        }
        cause = error.source();
    }
    BodyError::Incomplete
}

/// Reads and discards the rest of the body of a request with these headers for a while. Otherwise a
/// client that is still sending would see a connection reset instead of our response. A client that
/// waits for `100 Continue` sends nothing after a refusal.
pub async fn discard(
    headers: &HeaderMap,
    body: impl Body<Error: Into<Box<dyn Error + Send + Sync>>> + Unpin,
    time_max: Duration,
) {
    if headers.contains_key(header::EXPECT) {
        return;
    }
    let mut limited = Limited::new(body, DISCARD_BYTES_MAX);
    let all = async { while let Some(Ok(_)) = limited.frame().await {} };
    let _ = timeout(time_max, all).await;
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures_util::{StreamExt, stream};
    use http_body::Frame;
    use http_body_util::{Full, StreamBody};

    use super::*;

    #[derive(Debug, PartialEq)]
    enum Refused {
        Body(BodyError),
        Memory(usize),
    }

    impl From<BodyError> for Refused {
        fn from(error: BodyError) -> Self {
            Self::Body(error)
        }
    }

    /// A body without an announced length.
    fn parts(
        parts: &'static [&'static str],
    ) -> impl Body<Data = Bytes, Error = Infallible> + Unpin {
        let frame = |part: &'static str| Ok::<_, Infallible>(Frame::data(Bytes::from(part)));
        StreamBody::new(stream::iter(parts).map(move |part| frame(part)))
    }

    async fn read_parts(
        mut body: impl Body<Data = Bytes, Error = Infallible> + Unpin,
        memory: usize,
    ) -> Result<Bytes, Refused> {
        let limits = BodyLimits { bytes_max: 5, time_max: Duration::from_secs(60) };
        let reserve = |bytes| if bytes > memory { Err(Refused::Memory(bytes)) } else { Ok(()) };
        read(&HeaderMap::new(), &mut body, limits, reserve).await
    }

    #[tokio::test]
    async fn a_body_is_read_up_to_its_limits() {
        let too_large = Err(Refused::Body(BodyError::TooLarge(5)));
        assert_eq!(read_parts(parts(&["ab", "cde"]), 9).await, Ok("abcde".into()));
        assert_eq!(read_parts(parts(&["ab", "cdef"]), 9).await, too_large);
        assert_eq!(read_parts(parts(&["ab", "cd"]), 3).await, Err(Refused::Memory(4)));
        assert_eq!(read_parts(Full::from("abcde"), 9).await, Ok("abcde".into()));
        assert_eq!(read_parts(Full::from("abcdef"), 9).await, too_large);
        assert_eq!(read_parts(parts(&["\u{feff}", "{}"]), 9).await, Ok("{}".into()));
        assert_eq!(read_parts(parts(&["{", "\u{feff}", "}"]), 9).await, Ok("{\u{feff}}".into()));
    }

    #[tokio::test]
    async fn a_body_that_does_not_come_in_time_is_incomplete() {
        let mut body = StreamBody::new(stream::pending::<Result<Frame<Bytes>, Infallible>>());
        let limits = BodyLimits { bytes_max: 5, time_max: Duration::ZERO };
        let read = read(&HeaderMap::new(), &mut body, limits, |_| Ok::<(), Refused>(())).await;
        assert_eq!(read, Err(Refused::Body(BodyError::Incomplete)));
    }
}
