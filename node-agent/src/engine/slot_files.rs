//! The folder in which what slots hold is saved, as the agent and its engine find it.

use std::path::{Path, PathBuf};

use inference_core::scheduler::prefix_disk::{SlotFolder, SlotLimits};
use serde::{Deserialize, Serialize};

use crate::engine::options::EngineOptions;
use crate::engine::prefix_disk::state_key;
use crate::types::random::random;

/// Where what slots hold is saved, and how many bytes all files may take.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SlotFileOptions {
    pub folder: PathBuf,
    pub bytes: u64,
}

/// The options for `--slot-save-path` and `--slot-save-mib`. Creates the folder. Blocks.
///
/// # Errors
/// It cannot be created, or its name is not UTF-8.
pub(crate) fn options(folder: Option<&Path>, mib: u64) -> Result<Option<SlotFileOptions>, String> {
    let Some(folder) = folder else { return Ok(None) };
    let at = |why: &dyn std::fmt::Display| format!("--slot-save-path {}: {why}", folder.display());
    let absolute = std::path::absolute(folder).map_err(|e| at(&e))?;
    if absolute.to_str().is_none() {
        return Err(at(&"its name is not UTF-8"));
    }
    // The engine opens it again, when it knows the key of its states.
    let limits = SlotLimits { files: 0, state: 0 };
    SlotFolder::open(&absolute, [0; 32], limits, 0).map_err(|e| at(&e))?;
    Ok(Some(SlotFileOptions { folder: absolute, bytes: mib << 20 }))
}

/// Opens the folder, in the engine.
pub(crate) fn open(options: &EngineOptions) -> Result<Option<SlotFolder>, String> {
    let Some(SlotFileOptions { folder, bytes }) = &options.slot_files else { return Ok(None) };
    let limits = SlotLimits { files: *bytes, state: options.saved_prefix_bytes };
    let opened = state_key(options).and_then(|key| SlotFolder::open(folder, key, limits, random()));
    opened.map(Some).map_err(|e| format!("--slot-save-path {}: {e}", folder.display()))
}
