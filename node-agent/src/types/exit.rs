//! The result of a command: exit code, and one line for the operator.

use std::fmt::Display;

pub(crate) use flotilla_manual::exit::{
    DATA as EXIT_DATA, NO_PERMISSION as EXIT_NO_PERMISSION, SOFTWARE as EXIT_SOFTWARE,
    UNAVAILABLE as EXIT_UNAVAILABLE,
};

/// Why the agent exited, with the exit code.
#[derive(Debug)]
pub(crate) struct Failed {
    /// Exit code from `sysexits.h`.
    pub code: u8,
    /// One line for the operator.
    pub message: String,
}

impl Failed {
    /// Ends the agent with `code`, and prints `why` as one line.
    pub(crate) fn new(code: u8, why: impl Display) -> Self {
        Self { code, message: why.to_string() }
    }

    /// A file or a setting cannot be used.
    pub(crate) fn data(why: impl Display) -> Self {
        Self::new(EXIT_DATA, why)
    }

    /// The agent or the system failed, whatever the operator asked for.
    pub(crate) fn software(why: impl Display) -> Self {
        Self::new(EXIT_SOFTWARE, why)
    }
}
