//! The thread that saves what slots hold, and restores it: no file holds up a step, or the
//! preparation of prompts.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use inference_core::scheduler::engine_thread::FileCommands;
use inference_core::scheduler::prefix_disk::SlotFolder;
use inference_core::scheduler::sequence::Job;
use inference_core::scheduler::slots::{SlotAct, SlotContent, SlotOrder};
use inference_core::types::request::{
    Event, Failure, RequestId, SlotAction, SlotFailure, SlotRequest, SlotResult,
};

use super::ExitOnPanic;
use crate::engine::ipc::Report;

/// Requests that wait for the thread.
const QUEUE_MAX: usize = 4;

/// Hands requests to the thread.
#[derive(Debug)]
pub(super) struct Slots(SyncSender<(RequestId, SlotRequest)>);

impl Slots {
    /// Starts the thread.
    pub(super) fn start(
        folder: SlotFolder,
        engine: FileCommands<Job>,
        reports: SyncSender<Report>,
    ) -> std::io::Result<Self> {
        let (requests, incoming) = sync_channel(QUEUE_MAX);
        let run = move || {
            let _exit = ExitOnPanic;
            serve(&folder, &engine, &reports, &incoming);
        };
        std::thread::Builder::new().name("slots".into()).spawn(run)?;
        Ok(Self(requests))
    }

    /// Queues a request, whose event the thread reports.
    pub(super) fn push(&self, id: RequestId, request: SlotRequest) -> Result<(), Failure> {
        self.0.try_send((id, request)).map_err(|_| Failure::QueueFull)
    }
}

fn serve(
    folder: &SlotFolder,
    engine: &FileCommands<Job>,
    reports: &SyncSender<Report>,
    requests: &Receiver<(RequestId, SlotRequest)>,
) {
    for (id, request) in requests {
        let event = match handle(folder, engine, request) {
            Ok(result) => Event::SlotDone(result),
            Err(failure) => Event::Failed(failure),
        };
        // The writer ends only with the process.
        let _ = reports.send(Report::Event(id, event));
    }
}

fn handle(
    folder: &SlotFolder,
    engine: &FileCommands<Job>,
    request: SlotRequest,
) -> Result<SlotResult, Failure> {
    let SlotRequest { owner, slot, action } = request;
    let order = |act| engine.order_slot(SlotOrder { owner, slot, act });
    let (content, bytes) = match action {
        SlotAction::Save(name) => {
            let content = order(SlotAct::Copy)?;
            let SlotContent { tokens, state } = &content;
            let state = state.as_ref().ok_or(Failure::Slot(SlotFailure::Empty(slot)))?;
            let bytes = folder.save(&name, (owner, tokens), state)?;
            (content, bytes)
        }
        SlotAction::Restore(name) => {
            let saved = folder.load(&name, owner)?;
            (order(SlotAct::Fill(saved.tokens.into(), saved.state))?, saved.bytes)
        }
        SlotAction::Erase => (order(SlotAct::Erase)?, 0),
    };
    Ok(SlotResult { tokens: content.tokens.len() as u32, bytes })
}
