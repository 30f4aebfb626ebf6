//! The result of a command: exit code, and one line for the operator.

pub use flotilla_manual::exit::{
    DATA as EXIT_DATA, NO_PERMISSION as EXIT_NO_PERMISSION, SOFTWARE as EXIT_SOFTWARE,
    UNAVAILABLE as EXIT_UNAVAILABLE,
};

/// Why the agent exited, with the exit code.
#[derive(Debug)]
pub struct Failed {
    /// Exit code from `sysexits.h`.
    pub code: u8,
    /// One line for the operator.
    pub message: String,
}
