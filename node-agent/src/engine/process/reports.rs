//! Writes the engine's reports to the agent.

use std::io::{self, BufWriter, Write};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::Receiver;

use inference_core::types::request::{Event, Failure};

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
