//! PURE. A buffer for rendered text with a size limit.

use std::io::{Error, ErrorKind, Result, Write};

use super::error::{TOO_LARGE, TemplateError};

/// Maximum size of a rendered prompt in bytes: several million tokens.
const BYTES_MAX: usize = 32 << 20;

/// Collects a template's output.
#[derive(Debug, Default)]
pub(crate) struct Bounded {
    bytes: Vec<u8>,
    full: bool,
}

impl Bounded {
    /// True if some output did not fit.
    pub(crate) fn is_full(&self) -> bool {
        self.full
    }

    /// The collected text; an error if it is invalid UTF-8.
    pub(crate) fn into_text(self) -> std::result::Result<String, TemplateError> {
        String::from_utf8(self.bytes).map_err(|_| TemplateError::BrokenText)
    }
}

impl Write for Bounded {
    fn write(&mut self, text: &[u8]) -> Result<usize> {
        if self.bytes.len() + text.len() > BYTES_MAX {
            self.full = true;
            return Err(Error::new(ErrorKind::OutOfMemory, TOO_LARGE));
        }
        self.bytes.extend_from_slice(text);
        Ok(text.len())
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}
