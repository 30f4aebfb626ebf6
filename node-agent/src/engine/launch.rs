//! What an engine is started with. The agent renews it before each restart: the model file may have
//! been replaced by one with other weights and other memory needs.

use std::path::Path;

use inference_core::hardware::Kernel;

use crate::engine::flags::tuned::Tuned;
use crate::engine::flags::{EngineFlags, SettingsError};
use crate::engine::model_files::{ModelFileError, ModelFiles};
use crate::engine::options::EngineOptions;
use crate::engine::prefix_disk::PrefixDiskOptions;
use crate::engine::slot_files::SlotFileOptions;
use crate::engine::template::TemplateChoice;
use crate::engine::tuning::TuneJob;

/// How to start an engine for a model.
#[derive(Debug, Clone)]
pub(crate) struct Launch {
    flags: EngineFlags,
    kernel: Kernel,
    /// Options that the engine gets.
    pub options: EngineOptions,
}

/// Why no engine can be started for a model.
#[derive(Debug)]
pub(crate) enum LaunchError {
    File(ModelFileError),
    /// The settings cannot be used with this model on this machine.
    Settings(SettingsError),
}

impl std::fmt::Display for LaunchError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::File(e) => write!(f, "{e}"),
            Self::Settings(e) => write!(f, "{e}"),
        }
    }
}

impl std::error::Error for LaunchError {}

impl From<ModelFileError> for LaunchError {
    fn from(error: ModelFileError) -> Self {
        Self::File(error)
    }
}

impl From<SettingsError> for LaunchError {
    fn from(error: SettingsError) -> Self {
        Self::Settings(error)
    }
}

impl Launch {
    /// Plans for the model at `path`. Blocks.
    pub(crate) fn new(
        path: &Path,
        flags: EngineFlags,
        kernel: Kernel,
    ) -> Result<Self, LaunchError> {
        let files = ModelFiles::open(path)?;
        let options = flags.check(&files, kernel, None)?;
        Ok(Self { flags, kernel, options })
    }

    /// Lets the engine use this chat template.
    pub(crate) fn with_template(mut self, template: TemplateChoice) -> Self {
        self.options.template = template;
        self
    }

    /// Lets the engine keep saved prefixes on disk.
    pub(crate) fn with_prefix_disk(mut self, disk: Option<PrefixDiskOptions>) -> Self {
        self.options.prefix_disk = disk;
        self
    }

    /// Lets the engine save what slots hold.
    pub(crate) fn with_slot_files(mut self, files: Option<SlotFileOptions>) -> Self {
        self.options.slot_files = files;
        self
    }

    /// Like [`Self::new`] with settings tuned for this machine. With `measure`, tunes first if no
    /// settings are stored.
    pub(crate) fn tuned(
        path: &Path,
        flags: EngineFlags,
        kernel: Kernel,
        measure: bool,
    ) -> Result<Self, LaunchError> {
        let files = ModelFiles::open(path)?;
        let options = options(&files, &flags, kernel, measure)?;
        Ok(Self { flags, kernel, options })
    }

    /// Opens the model file again, and plans again if it contains other weights. Blocks.
    pub(crate) fn renew(self) -> Result<Self, LaunchError> {
        let files = ModelFiles::open(&self.options.model)?;
        if files.digest() == self.options.digest {
            return Ok(self);
        }
        let options = options(&files, &self.flags, self.kernel, false)?;
        let EngineOptions { template, prefix_disk, slot_files, .. } = self.options.clone();
        tracing::warn!(
            file = %options.model.display(),
            before = %self.options.digest,
            digest = %options.digest,
            "the model file was replaced"
        );
        let launch = Self { options, ..self }.with_template(template);
        Ok(launch.with_prefix_disk(prefix_disk).with_slot_files(slot_files))
    }
}

fn options(
    files: &ModelFiles,
    flags: &EngineFlags,
    kernel: Kernel,
    measure: bool,
) -> Result<EngineOptions, SettingsError> {
    let tuned: Option<Tuned> = match flags.pooling {
        // Embedding models have nothing to tune.
        Some(_) => None,
        None => TuneJob::new(files, kernel, flags)?.for_serving(measure),
    };
    flags.check(files, kernel, tuned.as_ref())
}
