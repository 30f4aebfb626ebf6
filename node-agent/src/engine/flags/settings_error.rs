//! Why the engine's flags cannot be used.

use super::{CONTEXT_MIN, KV_CELLS_MAX};
use crate::engine::model_files::ModelFileError;

/// Why the flags cannot be used with a model on this machine.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SettingsError {
    /// Quantized values, and no flash attention.
    QuantizedWithoutFlashAttention,
    /// This list of CPUs cannot be parsed.
    Cpus(String),
    /// More context tokens than this, which the model was trained for, or too few.
    ContextTokens(u32),
    /// Fewer KV cells than this, which one request needs, or too many.
    KvCells(u32),
    /// The sizes do not fit into memory, with what the memory plan says about it.
    DoesNotFit(String),
    /// The draft model's file cannot be used.
    Draft(ModelFileError),
}

impl std::fmt::Display for SettingsError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::QuantizedWithoutFlashAttention => {
                write!(f, "--kv-type: quantized values need flash attention")
            }
            Self::Cpus(list) => {
                write!(f, "--cpus '{list}': expected numbers and ranges such as 0-3,8")
            }
            Self::ContextTokens(most) => {
                write!(f, "--context-tokens must be {CONTEXT_MIN} to {most} for this model")
            }
            Self::KvCells(least) => {
                write!(f, "--kv-cells must be {least} (one request) to {KV_CELLS_MAX}")
            }
            Self::DoesNotFit(why) => {
                write!(f, "{why} (use --no-memory-plan to load it anyway)")
            }
            Self::Draft(why) => write!(f, "--draft-model: {why}"),
        }
    }
}

impl std::error::Error for SettingsError {}
