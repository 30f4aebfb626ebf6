//! Models of `serve` that are not files of this machine, or may not be yet.

use std::path::PathBuf;

use crate::commands::model;
use crate::commands::pull::reference::Reference;
use crate::commands::pull::stop::Stop;
use crate::types::exit::Failed;

/// The model and the draft model, each if it is not just a file.
#[derive(Debug, Default)]
pub(crate) struct RemoteModels {
    pub model: Option<Reference>,
    pub draft: Option<Reference>,
}

/// Where they were downloaded to.
#[derive(Debug, Default)]
pub(crate) struct Files {
    pub model: Option<PathBuf>,
    pub draft: Option<PathBuf>,
}

impl RemoteModels {
    pub(crate) fn is_empty(&self) -> bool {
        self.model.is_none() && self.draft.is_none()
    }

    /// Downloads those that are not in the cache, one after the other.
    pub(crate) async fn download(&self, stop: &Stop) -> Result<Files, Failed> {
        let mut files = Files::default();
        if let Some(reference) = &self.model {
            files.model = Some(model::download(reference, stop).await?);
        }
        if let Some(reference) = &self.draft {
            let draft = model::download(reference, stop).await;
            files.draft = Some(draft.map_err(model::of_draft)?);
        }
        Ok(files)
    }
}
