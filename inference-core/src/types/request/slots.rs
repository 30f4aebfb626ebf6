//! What slots hold, in files: as in llama-server's API.

use serde::{Deserialize, Serialize};

use super::Tenant;

/// Longest name of a file in bytes.
pub const FILE_NAME_BYTES_MAX: usize = 128;

/// The slot that a response is remembered for, so that what it holds can be saved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum SlotName {
    /// The one it runs in.
    Own,
    /// This one, wherever it runs.
    Number(u32),
}

/// A request about what a slot holds: the prompt and response that ended last in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotRequest {
    /// Whose prompts may begin with it. Others' are neither found nor replaced.
    pub owner: Tenant,
    /// The slot.
    pub slot: u32,
    /// What to do.
    pub action: SlotAction,
}

/// What to do with what a slot holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum SlotAction {
    /// Write it to the file of this name.
    Save(String),
    /// Read it from the file of this name.
    Restore(String),
    /// Forget it.
    Erase,
}

/// What a [`SlotRequest`] has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotResult {
    /// Tokens that were saved, restored or forgotten.
    pub tokens: u32,
    /// Size of the file; 0 without one.
    pub bytes: u64,
}

/// Why a [`SlotRequest`] failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum SlotFailure {
    /// The slot holds nothing, or no longer.
    Empty(u32),
    /// There is no such file.
    NoFile(String),
    /// The file is damaged, of another model, version or setting, another tenant's, or something
    /// else altogether.
    Unusable(String),
    /// There is not enough memory for saved prefixes.
    TooLarge,
    /// The folder would exceed its maximum size in bytes.
    FolderFull(u64),
    /// The file cannot be read or written; the reason.
    Disk(String),
}

impl std::fmt::Display for SlotFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Empty(slot) => {
                write!(f, "slot {slot} holds nothing of yours, or no longer; send its prompt again")
            }
            Self::NoFile(name) => write!(f, "no slot is saved as '{name}'"),
            Self::Unusable(name) => write!(
                f,
                "'{name}' is damaged, of another model, version or setting of the agent, or not \
                 yours"
            ),
            Self::TooLarge => write!(
                f,
                "it needs more memory than there is for saved prefixes (--saved-prefix-mib), or a \
                 longer context"
            ),
            Self::FolderFull(bytes_max) => write!(
                f,
                "saved slots may take {} MiB (--slot-save-mib); delete some of their files",
                bytes_max >> 20
            ),
            Self::Disk(reason) => write!(f, "the slot's file cannot be read or written: {reason}"),
        }
    }
}

/// True if a file of a slot may have this name: letters, digits, '.', '_', '-' and spaces, and no
/// '.' or space at its start. It leads to no other folder, and names no file that is being written.
pub fn is_slot_file_name(name: &str) -> bool {
    let is_plain = |c: char| c.is_alphanumeric() || matches!(c, '.' | '_' | '-' | ' ');
    (1..=FILE_NAME_BYTES_MAX).contains(&name.len())
        && name.chars().all(is_plain)
        && !name.starts_with(['.', ' '])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_in_the_folder() {
        for name in ["a", "chat 1.bin", "été-2_x", &"x".repeat(128)] {
            assert!(is_slot_file_name(name), "{name}");
        }
        let bad = ["", ".", "..", "../x", "a/b", "a\\b", ".x", " x", "a\0", "a\nb", "a:b", "a*"];
        for name in bad.into_iter().chain([&*"x".repeat(129)]) {
            assert!(!is_slot_file_name(name), "{name:?}");
        }
    }
}
