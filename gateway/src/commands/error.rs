//! Errors of commands. Their kind decides the exit code.

use std::fmt::{self, Display, Formatter};

use flotilla_manual::exit;

/// Exit code of `health` for an unhealthy gateway. Health checkers expect 0 or 1.
const EXIT_UNHEALTHY: u8 = 1;

/// Why a command failed, with a message for the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommandError {
    /// The command line, or a file that it names, is invalid.
    Usage(String),
    /// An address or a gateway is unavailable.
    Unavailable(String),
    /// The gateway is unhealthy, or its health is unknown.
    Unhealthy(String),
    /// The machine lacks resources, or there is a bug.
    Software(String),
    /// The output or a file cannot be written.
    Write(String),
}

impl CommandError {
    /// Exit code from `sysexits.h`; 1 for [`Self::Unhealthy`].
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => exit::USAGE,
            Self::Unavailable(_) => exit::UNAVAILABLE,
            Self::Unhealthy(_) => EXIT_UNHEALTHY,
            Self::Software(_) => exit::SOFTWARE,
            Self::Write(_) => exit::WRITE,
        }
    }

    /// The same message, with the exit code of `health`.
    pub fn into_unhealthy(self) -> Self {
        Self::Unhealthy(self.to_string())
    }
}

impl Display for CommandError {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(message)
            | Self::Unavailable(message)
            | Self::Unhealthy(message)
            | Self::Software(message)
            | Self::Write(message) => f.write_str(message),
        }
    }
}
