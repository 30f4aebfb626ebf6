//! What drafts for a model: a draft model, or the MTP head in its own file.

use std::path::Path;

use inference_core::model_file::gguf::Header;
use inference_core::model_file::memory_plan::{MachineFacts, draft};
use inference_core::model_file::mtp_head;

use super::{EngineFlags, SettingsError};
use crate::engine::model_files::ModelFiles;

impl EngineFlags {
    /// The draft model, unless speculative decoding is disabled.
    pub(crate) fn draft_model(&self) -> Option<&Path> {
        self.draft_model.as_deref().filter(|_| !self.no_speculation)
    }

    /// True if the MTP head in the file drafts.
    pub(super) fn uses_mtp_head(&self, header: &Header, embeds: bool) -> bool {
        let drafts = !self.no_speculation && !self.no_mtp && self.draft_model.is_none();
        drafts && !embeds && mtp_head::is_usable(header)
    }

    /// Memory that the draft model takes, as far as it is known.
    pub(super) fn draft_bytes(&self, facts: &MachineFacts) -> Result<u64, SettingsError> {
        let Some(path) = self.draft_model() else { return Ok(0) };
        let files = ModelFiles::open(path).map_err(SettingsError::Draft)?;
        let bytes = draft::bytes(files.header(), facts, self.load).unwrap_or_else(|why| {
            tracing::warn!("no memory plan for the draft model: {why}");
            0
        });
        tracing::info!(file = %path.display(), bytes, "draft model");
        Ok(bytes)
    }
}
