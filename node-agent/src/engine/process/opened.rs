//! What the process opens before it is confined.

use std::fs::File;

use inference_core::hardware::files::Root;
use inference_core::llama::{MappedFiles, Weights, spread_memory};
use inference_core::scheduler::prefix_disk::SlotFolder;

use super::prefixes::Prefixes;
use crate::engine::model_files::{ModelFileError, ModelFiles};
use crate::engine::options::EngineOptions;
use crate::engine::sandbox::{self, Sandbox};
use crate::engine::{prefix_disk, slot_files};

/// The open files of the models.
pub(super) struct Files {
    pub(super) model: ModelFiles,
    pub(super) draft: Option<ModelFiles>,
}

impl Files {
    /// True if the content of a file has changed since it was opened.
    pub(super) fn detect_change(&mut self) -> Result<bool, ModelFileError> {
        for files in [&mut self.model].into_iter().chain(&mut self.draft) {
            if files.detect_change()? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// What this process has opened before it was confined.
pub(super) struct Confined {
    pub(super) sandbox: Sandbox,
    pub(super) prefixes: Prefixes,
    /// Where what slots hold is saved, if it is.
    pub(super) slots: Option<SlotFolder>,
    /// The models' files, unless the system hides its mappings.
    pub(super) mapped: Option<MappedFiles>,
    /// How many NUMA nodes its memory is spread over, or why it is not.
    pub(super) memory_nodes: Result<usize, String>,
}

impl Confined {
    /// Unmaps the pages that the models, which are mapped, were loaded from.
    pub(super) fn release_pages(&mut self, loaded: &[&Weights]) {
        // Without it, the models need more memory.
        let _ = self.mapped.as_mut().map(|mapped| mapped.release_pages(loaded));
    }
}

/// Opens the models' files, if they are the intended ones, and the folders of saved prefixes and
/// slots, and confines this process to them.
pub(super) fn open(options: &EngineOptions) -> Result<(Files, Confined), String> {
    let memory_nodes = spread_memory(&Root::machine()).map_err(|e| e.to_string());
    let files = ModelFiles::open(&options.model).map_err(|e| e.to_string())?;
    let draft = options.draft_model.as_deref().map(ModelFiles::open);
    let draft = draft.transpose().map_err(|e| format!("--draft-model: {e}"))?;
    let all = [&files].into_iter().chain(&draft).flat_map(ModelFiles::parts);
    let all: Vec<&File> = all.collect();
    let mapped = MappedFiles::new(all.iter().copied()).ok();
    if files.digest() != options.digest {
        return Err("the model file was replaced while the engine started".into());
    }
    let prefixes = prefix_disk::open(options);
    let slots = slot_files::open(options)?;
    let folders = prefixes.iter().flatten().map(|(folder, _)| folder.handle());
    let folders: Vec<&File> = folders.chain(slots.iter().map(SlotFolder::handle)).collect();
    let sandbox = sandbox::confine(options.sandbox, &all, &folders)?;
    if slots.is_some() && !sandbox.allows_writing() {
        return Err("--slot-save-path: the engine's sandbox needs Landlock for it, or --sandbox \
                    off"
        .into());
    }
    let prefixes = match &prefixes {
        Ok(Some(_)) if !sandbox.allows_writing() => {
            Err("the engine's sandbox needs Landlock for it, or --sandbox off".into())
        }
        _ => prefixes,
    };
    let confined = Confined { sandbox, prefixes, slots, mapped, memory_nodes };
    Ok((Files { model: files, draft }, confined))
}
