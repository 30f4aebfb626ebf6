//! Files with tuning results in the user's cache folder, each replaced atomically.

use std::io::{ErrorKind, Read, Write};
use std::path::PathBuf;

use super::cache::{CacheFile, CacheKey};
use crate::types::cache_folder;

/// Maximum size of a file in bytes.
const FILE_BYTES_MAX: u64 = 256 * 1024;

/// The folder of the files; `None` if there is none.
#[derive(Debug, Clone)]
pub(crate) struct Store {
    folder: Option<PathBuf>,
}

impl Store {
    /// The store in the user's cache folder.
    pub(crate) fn of_user() -> Self {
        Self { folder: cache_folder::find() }
    }

    /// Path of the file for a key.
    pub(crate) fn path(&self, key: &CacheKey) -> Option<PathBuf> {
        Some(self.folder.as_ref()?.join("tune").join(key.file_name()))
    }

    /// Reads the stored results; logs and ignores a file that cannot be used.
    pub(crate) fn read(&self, key: &CacheKey) -> Option<CacheFile> {
        let path = self.path(key)?;
        let file = match std::fs::File::open(&path) {
            Ok(file) => file,
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                return None;
            }
            Err(e) => {
                tracing::warn!(file = %path.display(), error = %e, "tuning results ignored");
                return None;
            }
        };
        let mut text = String::new();
        let read = file.take(FILE_BYTES_MAX).read_to_string(&mut text).map_err(|e| e.to_string());
        match read.and_then(|_| CacheFile::parse(&text, key)) {
            Ok(file) => Some(file),
            Err(why) => {
                tracing::warn!(file = %path.display(), error = why, "tuning results ignored");
                None
            }
        }
    }

    /// Stores results; returns the path, or `None` if there is no folder.
    pub(crate) fn write(&self, file: &CacheFile) -> Result<Option<PathBuf>, String> {
        let Some(path) = self.path(&file.key) else { return Ok(None) };
        let fail = |e: &dyn std::fmt::Display| format!("cannot write {}: {e}", path.display());
        let text = serde_json::to_string_pretty(file).map_err(|e| fail(&e))?;
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent).map_err(|e| fail(&e))?;
        }
        // Readers see the old file or the new one; two writers do not share a temporary file.
        let part = path.with_extension(format!("{}.part", std::process::id()));
        let written = std::fs::File::create(&part).and_then(|mut file| {
            file.write_all(text.as_bytes())?;
            file.sync_all()
        });
        if let Err(e) = written.and_then(|()| std::fs::rename(&part, &path)) {
            let _ = std::fs::remove_file(&part);
            return Err(fail(&e));
        }
        Ok(Some(path))
    }
}
