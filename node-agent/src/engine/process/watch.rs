//! Looks after the files of a loaded model.

use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use super::{EndsWithPanic, end_process};
use crate::engine::ipc::Report;
use crate::engine::model_files::ModelFiles;

/// How often somebody looks whether the model file is still what it was.
const LOOK: Duration = Duration::from_secs(1);

/// What is told of files that somebody has written into.
pub(super) const CHANGED: &str = "somebody wrote into the model file while it was in use; replace model files \
                       by renaming another one over them, as 'flotilla-agent pull' does";

/// Ends the engine when somebody writes into its model's files: weights that are mapped change with
/// them. Started once the model is loaded; before, the loader looks itself. Ends when the result is
/// dropped.
pub(super) fn watch(mut files: ModelFiles, reports: SyncSender<Report>) -> SyncSender<()> {
    let (watched, end) = sync_channel(0);
    let look = move || {
        let _ends = EndsWithPanic;
        while end.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
            let why = match files.have_changed() {
                Ok(false) => continue,
                Ok(true) => CHANGED.to_string(),
                Err(why) => why,
            };
            // The agent ends this process as soon as it knows.
            let _ = reports.send(Report::LoadFailed(why));
            return;
        }
    };
    if std::thread::Builder::new().name("model file".into()).spawn(look).is_err() {
        end_process();
    }
    watched
}
