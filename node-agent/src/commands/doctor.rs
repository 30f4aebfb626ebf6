//! `flotilla-agent doctor`: finds what keeps this machine from serving well, and how to fix it.
//! `doctor/facts.rs` collects the facts, `doctor/checks.rs` evaluates them.

pub(crate) mod checks;
pub(crate) mod facts;
pub(crate) mod finding;
mod gateways;
pub(crate) mod sandbox_trial;

use std::path::{Path, PathBuf};

use clap::Args;
use inference_core::hardware::files::Root;
use inference_core::model_file::memory_plan::{LoadMode, RequestedSettings};

use crate::commands::model::local_file;
use crate::commands::pull::reference::is_remote;
use crate::engine::kernel_trial::{describe, try_kernels};
use crate::engine::model_files::ModelFiles;
use crate::serve::join::flags::JoinFlags;
use crate::types::cache_folder;
use crate::types::exit::Failed;
use crate::types::print::print_line;
use checks::diagnose;
use facts::{Disk, Facts, JoinCheck, Model};
use finding::{Level, Report};

/// Exit code if something must be fixed.
const EXIT_ILL: u8 = 1;
/// Where the packages store models and the join key.
const MODELS: &str = "/var/lib/flotilla/models";
const JOIN_KEY: &str = "/etc/flotilla/join.key";

/// `doctor`
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Model to serve, as for `serve`; one that is not downloaded yet is not checked
    /// [default: none]
    #[arg(long, env = "FLOTILLA_MODEL", value_name = "MODEL")]
    pub model: Option<PathBuf>,
    /// Parallel requests, as for `serve` [default: as many as are useful and fit]
    #[arg(long, env = "FLOTILLA_SLOTS", value_name = "SLOTS")]
    pub slots: Option<u64>,
    /// Context tokens per request, as for `serve` [default: the model's trained context, or what
    /// fits]
    #[arg(long, env = "FLOTILLA_CONTEXT_TOKENS", value_name = "TOKENS")]
    pub context_tokens: Option<u64>,
    /// How to load the weights, as for `serve`
    #[arg(long, env = "FLOTILLA_LOAD", value_name = "MODE", default_value = "mmap")]
    pub load: LoadMode,
    /// Folder that stores models [default: the model's folder, or /var/lib/flotilla/models]
    #[arg(long, value_name = "FOLDER")]
    pub models: Option<PathBuf>,
    /// Gateways to join; the doctor asks each whether it would accept this node
    #[command(flatten)]
    pub gateways: JoinFlags,
    /// Skip the tests of CPU kernels and sandbox; only read the operating system's files
    #[arg(long)]
    pub quick: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Folder that contains the /proc and /sys to read
    #[arg(long, value_name = "FOLDER", default_value = "/", hide = true)]
    pub root: PathBuf,
}

impl DoctorArgs {
    /// Prints the report; fails if something must be fixed.
    pub(crate) fn run(&self) -> Result<(), Failed> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(Failed::software)?;
        let report = diagnose(&runtime.block_on(self.collect()));
        print_line(&self.text(&report).map_err(Failed::software)?)?;
        match report.level {
            Level::Fail => {
                Err(Failed::new(EXIT_ILL, "this machine cannot serve well: fix the failed checks"))
            }
            Level::Ok | Level::Warn => Ok(()),
        }
    }

    fn text(&self, report: &Report) -> serde_json::Result<String> {
        match self.json {
            true => serde_json::to_string_pretty(report),
            false => Ok(report.to_string()),
        }
    }

    async fn collect(&self) -> Facts {
        let mut facts = Facts::read(&Root(self.root.clone()), std::env::consts::ARCH);
        if !self.quick {
            facts.kernel = Some(describe(&try_kernels().await));
            facts.sandbox = Some(sandbox_trial::run().await);
        }
        facts.disk = self.disk();
        facts.model = self.model.as_deref().map(|file| self.read_model(file));
        facts.gateways = self.check_gateways().await;
        facts
    }

    fn read_model(&self, named: &Path) -> Model {
        let file = local_file(named);
        let wanted = RequestedSettings {
            slots: self.slots,
            context_tokens: self.context_tokens,
            load: self.load,
            ..RequestedSettings::default()
        };
        Model {
            file: named.display().to_string(),
            bytes: file.as_ref().map_or(0, |f| std::fs::metadata(f).map_or(0, |data| data.len())),
            header: file.map_err(|e| e.message).and_then(|file| {
                let files = ModelFiles::open(&file).map_err(|e| e.to_string())?;
                Ok(files.header().clone())
            }),
            wanted,
        }
    }

    fn disk(&self) -> Disk {
        let is_named = self.model.as_deref().and_then(Path::to_str).is_some_and(is_remote);
        let cache = cache_folder::find().filter(|folder| is_named && folder.is_dir());
        let beside = self.model.as_deref().filter(|_| !is_named).and_then(Path::parent);
        let beside = beside.or(cache.as_deref());
        let folder = self.models.as_deref().or(beside).unwrap_or(Path::new(MODELS));
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        let room = rustix::fs::statvfs(folder).ok();
        let free = room.map(|room| room.f_bavail.saturating_mul(room.f_frsize));
        Disk { folder: folder.display().to_string(), free }
    }

    /// Uses the package's join key if no other is given.
    async fn check_gateways(&self) -> Vec<(String, JoinCheck)> {
        let mut flags = self.gateways.clone();
        let packaged = Path::new(JOIN_KEY);
        if flags.join_key_file.is_none() && flags.join_key.is_none() && packaged.exists() {
            flags.join_key_file = Some(packaged.to_path_buf());
        }
        gateways::check_gateways(&flags).await
    }
}
