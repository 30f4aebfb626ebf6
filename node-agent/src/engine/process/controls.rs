//! What commands about files reach, once a model that generates text is loaded.

use std::sync::mpsc::SyncSender;
use std::time::Duration;

use inference_core::scheduler::engine_thread::{EngineHandle, FileCommands};
use inference_core::scheduler::prefix_disk::SlotFolder;
use inference_core::scheduler::sequence::Job;
use inference_core::types::request::{Failure, RequestId, SlotRequest};

use super::slots::Slots;
use crate::engine::ipc::Report;

/// See the module.
#[derive(Debug)]
pub(super) struct Controls {
    prefixes: Option<FileCommands<Job>>,
    slots: Option<Slots>,
}

impl Controls {
    /// Starts the thread for slots, if there is a folder for them.
    pub(super) fn start(
        engine: &EngineHandle<Job>,
        has_prefix_files: bool,
        slots: Option<SlotFolder>,
        reports: &SyncSender<Report>,
    ) -> std::io::Result<Self> {
        let slots =
            slots.map(|folder| Slots::start(folder, engine.file_commands(), reports.clone()));
        let prefixes = has_prefix_files.then(|| engine.file_commands());
        Ok(Self { prefixes, slots: slots.transpose()? })
    }

    /// Has what should survive a restart written, until it is, or for `limit`.
    pub(super) fn finish_writing(&self, limit: Duration) {
        self.prefixes.iter().for_each(|files| files.finish_writing(limit));
    }

    /// Has it written soon.
    pub(super) fn write_soon(&self) {
        self.prefixes.iter().for_each(FileCommands::write_soon);
    }

    /// Has the file with a prefix taken that came in under this number.
    pub(super) fn take_prefix(&self, number: u64) {
        self.prefixes.iter().for_each(|files| files.take_file(number));
    }

    /// Has something done with what a slot holds.
    pub(super) fn slot(&self, id: RequestId, request: SlotRequest) -> Result<(), Failure> {
        self.slots.as_ref().ok_or(Failure::NotGenerative)?.push(id, request)
    }
}
