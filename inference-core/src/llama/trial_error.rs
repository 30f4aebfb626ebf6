//! Why a set of CPU kernels failed its trial.

/// Why a trial failed.
#[derive(Debug, Clone, PartialEq)]
pub enum TrialError {
    /// The kernel of the system does not let this process use AMX tiles.
    NoTilePermission,
    /// AMX tiles lost what they held.
    LostTiles,
    /// The CPU backend could not be initialized.
    NoBackend,
    /// The threads that compute could not be started.
    NoThreads,
    /// A tensor or a graph could not be allocated.
    NoMemory,
    /// An operation failed.
    Computation,
    /// A product of matrices is wrong.
    WrongProduct {
        /// ggml's number of the weights' type.
        kind: u32,
        /// The wrong number.
        number: f32,
        /// What it should be.
        expected: f32,
    },
    /// The result of attention is wrong.
    WrongAttention {
        /// ggml's number of the type of keys and values.
        kind: u32,
        /// The wrong number.
        number: f32,
        /// What it should be.
        expected: f32,
    },
}

impl std::fmt::Display for TrialError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoTilePermission => f.write_str("this machine gives no permission for AMX tiles"),
            Self::LostTiles => {
                f.write_str("AMX tiles of this machine do not survive switches of threads")
            }
            Self::NoBackend => f.write_str("the CPU backend could not be initialized"),
            Self::NoThreads => f.write_str("the threads of a trial could not be started"),
            Self::NoMemory => f.write_str("no memory for a trial"),
            Self::Computation => f.write_str("a trial computation failed"),
            Self::WrongProduct { kind, number, expected } => {
                write!(f, "type {kind}: a number is {number}, not {expected}")
            }
            Self::WrongAttention { kind, number, expected } => {
                write!(f, "attention, type {kind}: a number is {number}, not {expected}")
            }
        }
    }
}

impl std::error::Error for TrialError {}
