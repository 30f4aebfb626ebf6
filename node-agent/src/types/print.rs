//! Writes a command's output to stdout.

use std::io::{self, Write};

use flotilla_manual::exit::WRITE;

use crate::types::exit::Failed;

/// Why the output could not be written. It has an exit code of its own.
#[derive(Debug)]
pub(crate) struct PrintError(pub io::Error);

impl std::fmt::Display for PrintError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "cannot write the output: {}", self.0)
    }
}

impl std::error::Error for PrintError {}

impl From<PrintError> for Failed {
    fn from(error: PrintError) -> Self {
        Self::new(WRITE, error)
    }
}

/// Writes text and a newline to stdout.
pub(crate) fn print_line(text: &str) -> Result<(), PrintError> {
    let mut out = io::stdout();
    writeln!(out, "{text}").and_then(|()| out.flush()).map_err(PrintError)
}
