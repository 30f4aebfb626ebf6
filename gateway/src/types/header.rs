//! Formats header values of responses.

use std::fmt::{Display, Write};

use bytes::BytesMut;
use hyper::header::HeaderValue;

/// Enough for the numeric headers of one response; more cost another allocation.
const BYTES: usize = 128;

/// Formats header values into one buffer.
#[derive(Debug)]
pub(crate) struct HeaderWriter(BytesMut);

impl Default for HeaderWriter {
    fn default() -> Self {
        Self(BytesMut::with_capacity(BYTES))
    }
}

impl HeaderWriter {
    /// Formats a value. A value that is not valid in a header becomes empty.
    pub(crate) fn write(&mut self, value: impl Display) -> HeaderValue {
        // Writing into memory cannot fail.
        let _ = write!(self.0, "{value}");
        let written = self.0.split().freeze();
        HeaderValue::from_maybe_shared(written).unwrap_or(HeaderValue::from_static(""))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_what_was_written_however_long() {
        let mut values = HeaderWriter::default();
        let long = "x".repeat(2 * BYTES);
        assert_eq!([values.write(60), values.write("1m0s")], ["60", "1m0s"]);
        assert_eq!([values.write(&long), values.write(7)], [long.as_str(), "7"]);
        assert_eq!(values.write("a\nb"), "");
    }
}
