//! The folder in which what slots hold is saved under names that clients choose.
//!
//! A file is like that of a saved prefix, and is trusted as little. Agents may share a folder: each
//! writes under a name of its own, and renames what is whole.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::file_format::{Header, Key, encode};
use super::folder::read_header;
use crate::types::request::{Failure, SlotFailure, Tenant, Token, is_slot_file_name};

/// How the name of a file begins that is being written. No slot's file begins with a '.'.
const PARTIAL: &str = ".being-written-";
/// What is older belongs to an agent that was killed.
const PARTIAL_AGE_MAX: Duration = Duration::from_secs(3600);
/// Files that are counted before another one is refused.
const FILES_MAX: usize = 4096;

/// What a file has.
#[derive(Debug)]
pub struct SavedSlot {
    /// Tokens of a prompt and of its response.
    pub tokens: Vec<Token>,
    /// Their state.
    pub state: Box<[u8]>,
    /// Size of the file.
    pub bytes: u64,
}

/// What a folder and a state may take, in bytes.
#[derive(Debug, Clone, Copy)]
pub struct SlotLimits {
    /// All files together.
    pub files: u64,
    /// A state that is read: memory.
    pub state: u64,
}

/// The folder. See the module.
#[derive(Debug)]
pub struct SlotFolder {
    path: PathBuf,
    handle: File,
    key: Key,
    limits: SlotLimits,
    partial: PathBuf,
}

impl SlotFolder {
    /// Opens or creates a folder for states with `key`. `writer`: a number that no other process
    /// has which uses the folder.
    ///
    /// # Errors
    /// It cannot be created or opened.
    pub fn open(path: &Path, key: Key, limits: SlotLimits, writer: u128) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        let partial = path.join(format!("{PARTIAL}{writer:032x}"));
        Ok(Self { path: path.into(), handle: File::open(path)?, key, limits, partial })
    }

    /// The open folder.
    pub fn handle(&self) -> &File {
        &self.handle
    }

    /// Writes a state to the file `name`, in place of what its owner has saved there; returns the
    /// size of the file. After an error, that is as before.
    ///
    /// # Errors
    /// [`Failure::Slot`] with the reason.
    pub fn save(
        &self,
        name: &str,
        (owner, tokens): (Tenant, &[Token]),
        state: &[u8],
    ) -> Result<u64, Failure> {
        let path = self.file(name)?;
        let replaced = self.replaced(name, &path, owner)?;
        let header = encode(&self.key, owner, tokens, state);
        let bytes = (header.len() + state.len()) as u64;
        let (files, taken) = self.size()?;
        let is_full = files >= FILES_MAX && replaced.is_none();
        if is_full || taken - replaced.unwrap_or(0).min(taken) + bytes > self.limits.files {
            return Err(SlotFailure::FolderFull(self.limits.files).into());
        }
        let written = || -> io::Result<()> {
            let mut options = OpenOptions::new();
            let mut file = options.write(true).create_new(true).mode(0o600).open(&self.partial)?;
            file.write_all(&header)?;
            file.write_all(state)?;
            // A saved slot must survive a power failure after the response.
            file.sync_data()?;
            std::fs::rename(&self.partial, &path)?;
            self.handle.sync_all()
        };
        let failed = |_: &io::Error| drop(std::fs::remove_file(&self.partial));
        written().inspect_err(failed).map_err(disk)?;
        Ok(bytes)
    }

    /// Reads the file `name`, if it is whole and `owner`'s.
    ///
    /// # Errors
    /// [`Failure::Slot`] with the reason.
    pub fn load(&self, name: &str, owner: Tenant) -> Result<SavedSlot, Failure> {
        let unusable = || SlotFailure::Unusable(name.into());
        let opened = open_file(&self.file(name)?)?;
        let mut file = opened.ok_or_else(|| SlotFailure::NoFile(name.into()))?;
        let (header, bytes) = read_header(&mut file).map_err(|_| unusable())?;
        if header.state_bytes > self.limits.state {
            return Err(SlotFailure::TooLarge.into());
        }
        if header.key != self.key || header.tenant != owner {
            return Err(unusable().into());
        }
        let mut state = Vec::new();
        state.try_reserve_exact(bytes).map_err(|_| SlotFailure::TooLarge)?;
        file.take(bytes as u64).read_to_end(&mut state).map_err(disk)?;
        if !header.matches(&state) {
            return Err(unusable().into());
        }
        let bytes = header.file_bytes();
        Ok(SavedSlot { tokens: header.tokens, state: state.into(), bytes })
    }

    fn file(&self, name: &str) -> Result<PathBuf, SlotFailure> {
        let is_fine = is_slot_file_name(name);
        is_fine.then(|| self.path.join(name)).ok_or_else(|| SlotFailure::NoFile(name.into()))
    }

    /// Size of the file that is replaced, if there is one. Only a slot of the same owner is.
    fn replaced(&self, name: &str, path: &Path, owner: Tenant) -> Result<Option<u64>, Failure> {
        let Some(mut file) = open_file(path)? else { return Ok(None) };
        match read_header(&mut file) {
            Ok((Header { tenant, .. }, _)) if tenant == owner => {
                Ok(Some(file.metadata().map_err(disk)?.len()))
            }
            _ => Err(SlotFailure::Unusable(name.into()).into()),
        }
    }

    /// Number and size of all files. Deletes what killed agents left.
    fn size(&self) -> Result<(usize, u64), Failure> {
        let (mut files, mut bytes) = (0, 0);
        for entry in std::fs::read_dir(&self.path).map_err(disk)?.take(FILES_MAX) {
            let entry = entry.map_err(disk)?;
            // Another agent may have renamed it.
            let Ok(found) = entry.metadata() else { continue };
            let age = found.modified().ok().and_then(|modified| modified.elapsed().ok());
            let is_partial = entry.file_name().to_string_lossy().starts_with(PARTIAL);
            if is_partial && age.is_some_and(|age| age > PARTIAL_AGE_MAX) {
                drop(std::fs::remove_file(entry.path()));
                continue;
            }
            files += 1;
            bytes += found.len();
        }
        Ok((files, bytes))
    }
}

impl From<SlotFailure> for Failure {
    fn from(failure: SlotFailure) -> Self {
        Self::Slot(failure)
    }
}

fn disk(error: io::Error) -> Failure {
    SlotFailure::Disk(error.to_string()).into()
}

/// Opens a file for reading, but nothing that only looks like one, such as a pipe.
fn open_file(path: &Path) -> Result<Option<File>, Failure> {
    match std::fs::symlink_metadata(path) {
        Ok(found) if found.is_file() => File::open(path).map(Some).map_err(disk),
        Ok(_) => Err(SlotFailure::Disk("it is not a file".into()).into()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(disk(error)),
    }
}

#[cfg(test)]
mod tests;
