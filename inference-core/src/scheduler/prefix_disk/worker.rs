//! The threads that read and write prefix files. They own no bookkeeping: they do what they are
//! told, and report it.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender};
use std::time::{Duration, Instant};

use super::file_format::{Header, Key};
use super::folder::{FileId, PrefixFolder};
use crate::types::request::{Tenant, Token};

/// After an error, nothing is written for this long: a full disk stays full for a while.
const PAUSE: Duration = Duration::from_secs(60);
/// Errors are told no more often than this.
const TELL_INTERVAL: Duration = Duration::from_secs(600);

/// Tells of an error, for the operator.
pub type Tell = Box<dyn Fn(String) + Send>;

/// A prefix and its file.
#[derive(Debug, Clone)]
pub(super) struct Named {
    pub(super) file: FileId,
    pub(super) tenant: Tenant,
    pub(super) tokens: Arc<[Token]>,
    pub(super) state_bytes: u64,
}

impl Named {
    fn of(file: FileId, header: Header) -> Self {
        let Header { tenant, tokens, state_bytes, .. } = header;
        Self { file, tenant, tokens: tokens.into(), state_bytes }
    }
}

/// A command to the writing thread.
#[derive(Debug)]
pub(super) enum Write {
    State(Named, Arc<Box<[u8]>>),
    Remove(Vec<FileId>),
    /// Makes the incoming file with the first number the file with the second.
    Take(u64, FileId),
}

/// What the threads report.
#[derive(Debug)]
pub(super) enum Report {
    /// A file of an earlier run.
    Found(Named),
    /// A file with another key, and its size.
    Foreign(FileId, u64),
    /// A file came from another node.
    Taken(Named),
    /// All files of earlier runs were reported.
    Listed,
    /// A state was written, or not.
    Written(Named, bool),
    /// A state was read; `None` if its file is missing or damaged.
    Read(Named, Option<Box<[u8]>>),
}

/// What both threads use.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) folder: PrefixFolder,
    pub(super) key: Key,
}

/// Reports the files of earlier runs, then writes until the commands end.
pub(super) fn write_all(
    place: &Place,
    commands: &Receiver<Write>,
    reports: &SyncSender<Report>,
    tell: Tell,
) {
    let mut trouble = Trouble { tell, told: None, failed: None };
    if let Err(error) = list(place, reports) {
        trouble.record("listing saved prefixes", &error);
    }
    let mut report = reports.send(Report::Listed);
    while report.is_ok()
        && let Ok(command) = commands.recv()
    {
        match command {
            Write::Remove(files) => files.iter().for_each(|file| place.folder.remove(*file)),
            Write::Take(number, file) => match place.folder.take(number, file, &place.key) {
                Ok(header) => report = reports.send(Report::Taken(Named::of(file, header))),
                Err(error) => trouble.tell("taking another node's prefix", &error),
            },
            Write::State(named, state) => {
                let is_written = trouble.allows_writing() && {
                    let Named { file, tenant, tokens, .. } = &named;
                    let written = place.folder.write(*file, &place.key, (*tenant, tokens), &state);
                    let told = written.inspect_err(|e| trouble.record("writing a prefix", e));
                    told.is_ok()
                };
                // Freed before the engine counts it as done.
                drop(state);
                report = reports.send(Report::Written(named, is_written));
            }
        }
    }
}

fn list(place: &Place, reports: &SyncSender<Report>) -> std::io::Result<()> {
    for file in place.folder.list()? {
        let report = match place.folder.header(file) {
            Ok(header) => {
                let bytes = header.state_bytes + size_of_val(&header.tokens[..]) as u64;
                match header.key == place.key {
                    true => Report::Found(Named::of(file, header)),
                    false => Report::Foreign(file, bytes),
                }
            }
            Err(_) => {
                place.folder.remove(file);
                continue;
            }
        };
        if reports.send(report).is_err() {
            return Ok(());
        }
    }
    Ok(())
}

/// Reads until the commands end.
pub(super) fn read_all(place: &Place, commands: &Receiver<Named>, reports: &SyncSender<Report>) {
    while let Ok(named) = commands.recv() {
        let Named { file, tenant, tokens, .. } = &named;
        let state = place.folder.read(*file, &place.key, (*tenant, tokens));
        if state.is_err() {
            place.folder.remove(*file);
        }
        if reports.send(Report::Read(named, state.ok())).is_err() {
            return;
        }
    }
}

/// Remembers errors, so that one disk full of them is told once.
struct Trouble {
    tell: Tell,
    told: Option<Instant>,
    failed: Option<Instant>,
}

impl Trouble {
    fn record(&mut self, what: &str, error: &std::io::Error) {
        self.failed = Some(Instant::now());
        self.tell(what, error);
    }

    fn tell(&mut self, what: &str, error: &std::io::Error) {
        if self.told.is_none_or(|told| told.elapsed() >= TELL_INTERVAL) {
            self.told = Some(Instant::now());
            (self.tell)(format!("{what} failed: {error}"));
        }
    }

    fn allows_writing(&self) -> bool {
        self.failed.is_none_or(|failed| failed.elapsed() >= PAUSE)
    }
}
