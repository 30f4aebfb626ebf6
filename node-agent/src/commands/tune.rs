//! `flotilla-agent tune`: finds the best way to run a model on this machine, and stores it for
//! `serve`.

pub(crate) mod report;

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use inference_core::hardware::Kernel;
use inference_core::tools::tune::BUDGET;

use crate::commands::model::{local_file, with_local_draft};
use crate::engine::flags::EngineFlags;
use crate::engine::model_files::ModelFiles;
use crate::engine::tuning::TuneJob;
use crate::types::exit::Failed;
use crate::types::print::print_line;

/// `tune`
#[derive(Debug, Args)]
pub(crate) struct TuneArgs {
    /// Model file (GGUF), or a model in the cache: hf:owner/repo:quantization
    pub model: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Measure again even if a result is stored
    #[arg(long)]
    pub force: bool,
    /// Maximum seconds of the search
    #[arg(long, value_name = "SECONDS", default_value_t = BUDGET.as_secs(),
        value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub seconds: u64,
    /// Flags given here are fixed; tuning does not change them.
    #[command(flatten)]
    pub engine: EngineFlags,
}

impl TuneArgs {
    /// Measures and prints.
    pub(crate) fn run(&self, kernel: Kernel) -> Result<(), Failed> {
        let files = ModelFiles::open(&local_file(&self.model)?).map_err(Failed::data)?;
        let flags = with_local_draft(&self.engine)?;
        let job = TuneJob::new(&files, kernel, &flags).map_err(Failed::data)?;
        let known = if self.force { None } else { job.known_exactly() };
        let was_known = known.is_some();
        let entry = match known {
            Some(entry) => entry,
            None => job.measure(Duration::from_secs(self.seconds)).map_err(Failed::data)?,
        };
        let path = job.path();
        if self.json {
            let mut value = serde_json::to_value(&entry).map_err(Failed::data)?;
            value["file"] = path.map(|p| p.display().to_string()).into();
            print_line(&serde_json::to_string_pretty(&value).map_err(Failed::data)?)?;
            return Ok(());
        }
        print_line(&report::table(&entry))?;
        let outcome = match path {
            Some(path) if was_known => {
                format!("measured before, stored in {}; --force measures again", path.display())
            }
            Some(path) => format!("stored in {}; serve uses it", path.display()),
            None => "not stored: no cache folder (set FLOTILLA_CACHE_DIR)".into(),
        };
        Ok(print_line(&outcome)?)
    }
}
