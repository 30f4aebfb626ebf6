//! The folder of saved prefixes: only its owner may use it, and only one process at a time.

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::file_format::{FIXED_BYTES, Header, Key, encode, header_bytes, parse};
use crate::types::request::{Tenant, Token};

/// Names a file; later files have higher numbers.
pub type FileId = u64;

const PREFIX: &str = "prefix";
/// Extension of a file that is being written.
const PARTIAL: &str = "part";
/// Bytes that are read at once for a digest.
const BUFFER_BYTES: usize = 64 * 1024;
/// Maximum number of files that are looked at.
pub(super) const FILES_MAX: usize = 1024;
/// Maximum number of entries of a folder in use that are looked at.
const ENTRIES_MAX: usize = 2 * FILES_MAX;

/// Where a file from another node is written in a folder of prefixes, which may be in use, before
/// the engine takes it.
pub fn incoming_file(folder: &Path, number: u64) -> PathBuf {
    folder.join(format!("incoming-{number}.{PARTIAL}"))
}

/// The folder, locked until it is dropped or the process ends.
#[derive(Debug)]
pub struct PrefixFolder {
    path: PathBuf,
    /// Holds the lock.
    handle: File,
}

impl PrefixFolder {
    /// Opens or creates a folder.
    ///
    /// # Errors
    /// [`ErrorKind::WouldBlock`] if another process uses it.
    pub fn open(path: &Path) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        let handle = File::open(path)?;
        handle.set_permissions(Permissions::from_mode(0o700))?;
        handle.try_lock()?;
        Ok(Self { path: path.to_path_buf(), handle })
    }

    /// The open folder.
    pub fn handle(&self) -> &File {
        &self.handle
    }

    /// Deletes all files.
    pub fn clear(&self) -> io::Result<()> {
        for entry in std::fs::read_dir(&self.path)? {
            let path = entry?.path();
            if !path.symlink_metadata()?.is_dir() {
                std::fs::remove_file(path)?;
            }
        }
        Ok(())
    }

    /// The prefixes, oldest first. Deletes all other files, and the oldest ones if there are too
    /// many.
    pub(super) fn list(&self) -> io::Result<Vec<FileId>> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir(&self.path)? {
            let entry = entry?;
            let id = id_of(&entry.path()).filter(|_| entry.file_type().is_ok_and(|t| t.is_file()));
            match id {
                Some(id) => found.push(id),
                None => drop(std::fs::remove_file(entry.path())),
            }
        }
        found.sort_unstable();
        for id in found.drain(..found.len().saturating_sub(FILES_MAX)) {
            self.remove(id);
        }
        Ok(found)
    }

    /// Makes an incoming file one of the folder's, if it is whole and has this key. Deletes it
    /// otherwise.
    pub(super) fn take(&self, number: u64, id: FileId, key: &Key) -> io::Result<Header> {
        let incoming = incoming_file(&self.path, number);
        let taken = || {
            let mut file = File::open(&incoming)?;
            let (header, bytes) = read_header(&mut file)?;
            let digest = digest_of(file.take(bytes as u64))?;
            if header.key != *key || !header.has_digest(digest) {
                return Err(damaged());
            }
            std::fs::rename(&incoming, self.path(id, PREFIX))?;
            Ok(header)
        };
        taken().inspect_err(|_| drop(std::fs::remove_file(&incoming)))
    }

    /// Reads the header of a file that is whole.
    pub(super) fn header(&self, id: FileId) -> io::Result<Header> {
        Ok(read_header(&mut File::open(self.path(id, PREFIX))?)?.0)
    }

    /// Reads the state of a file, if the file is the one with this key and these tokens.
    pub(super) fn read(
        &self,
        id: FileId,
        key: &Key,
        (tenant, tokens): (Tenant, &[Token]),
    ) -> io::Result<Box<[u8]>> {
        let mut file = File::open(self.path(id, PREFIX))?;
        let (header, bytes) = read_header(&mut file)?;
        let is_it = header.key == *key && header.tenant == tenant && header.tokens == *tokens;
        if !is_it {
            return Err(damaged());
        }
        let mut state = Vec::new();
        state.try_reserve_exact(bytes)?;
        file.take(bytes as u64).read_to_end(&mut state)?;
        if header.matches(&state) { Ok(state.into()) } else { Err(damaged()) }
    }

    /// Writes a file under another name, and renames it when it is complete.
    pub(super) fn write(
        &self,
        id: FileId,
        key: &Key,
        (tenant, tokens): (Tenant, &[Token]),
        state: &[u8],
    ) -> io::Result<()> {
        let partial = self.path(id, PARTIAL);
        let written = || -> io::Result<()> {
            let mut file =
                OpenOptions::new().write(true).create_new(true).mode(0o600).open(&partial)?;
            file.write_all(&encode(key, tenant, tokens, state))?;
            file.write_all(state)?;
            std::fs::rename(&partial, self.path(id, PREFIX))
        };
        written().inspect_err(|_| drop(std::fs::remove_file(&partial)))
    }

    /// Deletes a file, if it exists.
    pub(super) fn remove(&self, id: FileId) {
        // Nothing else can be done about it: the next start tries again.
        let _ = std::fs::remove_file(self.path(id, PREFIX));
    }

    fn path(&self, id: FileId, extension: &str) -> PathBuf {
        path_of(&self.path, id, extension)
    }
}

fn path_of(folder: &Path, id: FileId, extension: &str) -> PathBuf {
    folder.join(format!("{id:016x}.{extension}"))
}

/// A file in a folder that may be in use, so that it may be gone at any time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SavedFile {
    /// Its number.
    pub id: FileId,
    /// Where it is.
    pub path: PathBuf,
    /// Number of tokens of its prefix.
    pub tokens: u32,
    /// Its size.
    pub bytes: u64,
}

/// The whole files with this key in a folder that may be in use. Changes nothing there.
///
/// # Errors
/// The folder cannot be read.
pub fn files_with(folder: &Path, key: &Key) -> io::Result<Vec<SavedFile>> {
    let names = std::fs::read_dir(folder)?.take(ENTRIES_MAX);
    let ids = names.filter_map(|entry| id_of(&entry.ok()?.path()));
    let files = ids.filter_map(|id| {
        let path = path_of(folder, id, PREFIX);
        let (header, _) = read_header(&mut File::open(&path).ok()?).ok()?;
        let (tokens, bytes) = (header.tokens.len() as u32, header.file_bytes());
        (header.key == *key).then_some(SavedFile { id, path, tokens, bytes })
    });
    Ok(files.take(FILES_MAX).collect())
}

/// The number in the name of a prefix.
fn id_of(path: &Path) -> Option<FileId> {
    let digits = path.file_stem()?.to_str()?;
    let is_ours = path.extension()? == PREFIX && digits.len() == 16;
    FileId::from_str_radix(digits, 16).ok().filter(|_| is_ours)
}

/// Reads a header, and returns as well the size of the state, which the file has.
pub(super) fn read_header(file: &mut File) -> io::Result<(Header, usize)> {
    let length = file.metadata()?.len();
    let mut header = vec![0; FIXED_BYTES];
    file.read_exact(&mut header)?;
    let bytes = header.first_chunk().and_then(header_bytes).ok_or_else(damaged)?;
    if length < bytes as u64 {
        return Err(damaged());
    }
    header.resize(bytes, 0);
    file.read_exact(header.get_mut(FIXED_BYTES..).unwrap_or_default())?;
    let header = parse(&header).ok_or_else(damaged)?;
    let is_whole = (bytes as u64).checked_add(header.state_bytes) == Some(length);
    let state = usize::try_from(header.state_bytes).ok().filter(|_| is_whole);
    Ok((header, state.ok_or_else(damaged)?))
}

/// SHA-256 of everything that a reader has.
///
/// # Errors
/// It cannot be read.
pub fn digest_of(mut reader: impl Read) -> io::Result<[u8; 32]> {
    let (mut hash, mut buffer) = (Sha256::new(), vec![0; BUFFER_BYTES]);
    loop {
        let read = reader.read(&mut buffer)?;
        if read == 0 {
            return Ok(hash.finalize().into());
        }
        hash.update(buffer.get(..read).unwrap_or_default());
    }
}

fn damaged() -> io::Error {
    ErrorKind::InvalidData.into()
}

#[cfg(test)]
pub(crate) mod tests;
