//! Watches the files of a loaded model.

use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use super::{ExitOnPanic, Files, end_process};
use crate::engine::ipc::Report;

/// Interval of checks for changes of the model files.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Error for a model file that was modified in place.
pub(super) const CHANGED: &str = "the model file was modified while in use; replace model files by renaming \
                       another file over them, as 'flotilla-agent pull' does";

/// Ends the engine when someone modifies its model's files: mapped weights change with them.
/// Started once the model is loaded; before that, the loader checks itself. Ends when the result is
/// dropped.
pub(super) fn watch(mut files: Files, reports: SyncSender<Report>) -> SyncSender<()> {
    let (watched, end) = sync_channel(0);
    let check = move || {
        let _exit = ExitOnPanic;
        while end.recv_timeout(CHECK_INTERVAL) == Err(RecvTimeoutError::Timeout) {
            let why = match files.detect_change() {
                Ok(false) => continue,
                Ok(true) => CHANGED.to_string(),
                Err(e) => e.to_string(),
            };
            // The agent kills this process as soon as it receives this.
            let _ = reports.send(Report::LoadFailed(why));
            return;
        }
    };
    if std::thread::Builder::new().name("model file".into()).spawn(check).is_err() {
        end_process();
    }
    watched
}
