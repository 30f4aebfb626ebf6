//! Saved prefixes on disk, in the engine's process.

use std::sync::mpsc::SyncSender;
use std::time::Duration;

use inference_core::llama::LlamaModel;
use inference_core::scheduler::prefix_disk::{Key, PrefixDisk, PrefixFolder};
use inference_core::scheduler::step::Engine;

use crate::engine::ipc::Report;
use crate::engine::options::EngineOptions;

/// How long loading waits until the files are known.
const LIST_LIMIT: Duration = Duration::from_secs(2);

/// The folder of saved prefixes, if there is one that can be used; the error says why not.
pub(super) type Prefixes = Result<Option<(PrefixFolder, Key)>, String>;

/// Starts the threads that read and write saved prefixes, or reports why there are none.
pub(super) fn start(
    prefixes: Prefixes,
    options: &EngineOptions,
    reports: &SyncSender<Report>,
) -> Option<PrefixDisk> {
    let reports = reports.clone();
    let tell = move |why| drop(reports.send(Report::PrefixesNotSaved(why)));
    let bytes = options.prefix_disk.as_ref().map_or(0, |disk| disk.bytes);
    let started = prefixes.and_then(|found| {
        let Some((folder, key)) = found else { return Ok(None) };
        let disk = PrefixDisk::start(folder, key, bytes, Box::new(tell.clone()));
        disk.map(Some).map_err(|e| e.to_string())
    });
    started.inspect_err(|why| tell(why.clone())).ok().flatten()
}

/// Lets an engine use the files, as soon as it is known which there are.
pub(super) fn add(engine: Engine<LlamaModel>, mut disk: PrefixDisk) -> Engine<LlamaModel> {
    disk.wait_until_listed(LIST_LIMIT);
    engine.with_prefix_disk(disk)
}
