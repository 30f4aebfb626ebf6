//! Collects the engine's reports, and writes them to the agent.

use std::io::{self, BufWriter, Write};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, SyncSender};

use inference_core::scheduler::engine_thread::Listener;
use inference_core::types::request::{EngineStats, Event, Failure, RequestId};

use super::{ExitOnPanic, Flags, finish};
use crate::engine::ipc::{Report, encode};

/// Writes reports until there is nobody to read them.
pub(super) fn write_reports(socket: UnixStream, outbox: &Receiver<Report>) {
    let mut writer = BufWriter::new(socket);
    while let Ok(report) = outbox.recv() {
        let mut next = Some(report);
        // One system call for all reports that are ready.
        while let Some(report) = next {
            if write_report(&mut writer, report).is_err() {
                return;
            }
            next = outbox.try_recv().ok();
        }
        if writer.flush().is_err() {
            return;
        }
    }
}

/// A report that is too large for a frame fails only its own request.
fn write_report(writer: &mut impl Write, report: Report) -> io::Result<()> {
    let frame = match (encode(&report), report) {
        (Err(_), Report::Event(id, _)) => {
            encode(&Report::Event(id, Event::Failed(Failure::TooLarge)))?
        }
        (frame, _) => frame?,
    };
    writer.write_all(&frame)
}

/// Forwards the engine thread's events and statistics.
pub(super) struct Reporter {
    reports: SyncSender<Report>,
    flags: Flags,
    /// Dropped with the engine thread.
    _exit: ExitOnPanic,
}

impl Reporter {
    pub(super) fn new(reports: SyncSender<Report>, flags: Flags) -> Self {
        Self { reports, flags, _exit: ExitOnPanic }
    }
}

impl Listener for Reporter {
    fn event(&mut self, id: RequestId, event: Event) {
        if event.is_last() {
            finish(&self.reports, &self.flags, id, event);
        } else {
            let _ = self.reports.send(Report::Event(id, event));
        }
    }

    fn stats(&mut self, stats: EngineStats) {
        let _ = self.reports.send(Report::Stats(stats));
    }
}
