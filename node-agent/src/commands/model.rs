//! The model argument of commands: a file of this machine, or a name that leads to a downloaded
//! one.

use std::path::{Path, PathBuf};
use std::time::Duration;

use flotilla_listeners::systemd::notify_starting;
use tokio::time::interval;

use crate::commands::pull::cache::{self, CacheEntry, CacheUse};
use crate::commands::pull::progress::DownloadProgress;
use crate::commands::pull::reference::{Reference, is_remote};
use crate::commands::pull::stop::Stop;
use crate::commands::pull::transfer::Tools;
use crate::commands::pull::{EXIT_USAGE, RETRIES, STALL_SECONDS, hub_client};
use crate::engine::flags::EngineFlags;
use crate::types::exit::{EXIT_UNAVAILABLE, Failed};

/// How often to tell systemd that a download makes progress.
const NOTIFY_INTERVAL: Duration = Duration::from_secs(10);
/// Time that the start may take after the last of those notices: the model is still to be loaded.
const START_TIMEOUT: Duration = Duration::from_secs(900);

/// A model that is not a file of this machine, or may not be yet.
pub(crate) fn remote(model: &Path) -> Result<Option<Reference>, Failed> {
    match model.to_str().filter(|text| is_remote(text)) {
        Some(text) => {
            let reference = Reference::parse(text, None);
            reference.map(Some).map_err(|why| Failed::new(EXIT_USAGE, why))
        }
        None => Ok(None),
    }
}

/// The file of a model for commands that download nothing.
pub(crate) fn local_file(model: &Path) -> Result<PathBuf, Failed> {
    let Some(reference) = remote(model)? else { return Ok(model.to_path_buf()) };
    CacheEntry::of(&reference)?.find().ok_or_else(|| {
        let why = format_args!(
            "{} is not in the cache: run 'flotilla-agent pull --cache {}' first",
            reference.shown(),
            model.display()
        );
        Failed::new(EXIT_UNAVAILABLE, why)
    })
}

/// Flags of a command that downloads nothing, with the draft model's file.
pub(crate) fn with_local_draft(flags: &EngineFlags) -> Result<EngineFlags, Failed> {
    let draft = flags.draft_model().map(local_file).transpose().map_err(of_draft)?;
    Ok(EngineFlags { draft_model: draft, ..flags.clone() })
}

/// A failure that names the flag of the draft model.
pub(crate) fn of_draft(failed: Failed) -> Failed {
    Failed { message: format!("--draft-model: {}", failed.message), ..failed }
}

/// The file of a model, downloaded into the cache if it is not there.
pub(crate) async fn download(reference: &Reference, stop: &Stop) -> Result<PathBuf, Failed> {
    if let Some(found) = CacheEntry::of(reference)?.find() {
        tracing::info!(model = reference.shown(), file = %found.display(), "model found in the cache");
        return Ok(found);
    }
    let mut tools = Tools {
        client: hub_client(Duration::from_secs(STALL_SECONDS.into()))?,
        progress: DownloadProgress::of_service(),
        stop: stop.clone(),
        retries: RETRIES,
        seed: crate::types::random::random() as u64,
    };
    tracing::info!(model = reference.shown(), "model is downloaded");
    let mut notices = interval(NOTIFY_INTERVAL);
    let how = CacheUse::default();
    let mut fetched = std::pin::pin!(cache::fetch(reference, &how, &mut tools));
    let file = loop {
        tokio::select! {
            file = &mut fetched => break file?,
            _ = notices.tick() => {
                notify_starting(&format!("downloading {}", reference.shown()), START_TIMEOUT);
            }
        }
    };
    tracing::info!(model = reference.shown(), file = %file.display(), "model downloaded");
    Ok(file)
}
