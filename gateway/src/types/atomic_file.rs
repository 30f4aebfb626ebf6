//! Atomic file writes.

use std::fs::{File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::Path;

/// Replaces a file atomically. Keeps its owner and mode; a new file gets `mode`.
///
/// # Errors
/// The file cannot be written. The old one is unchanged.
pub(crate) fn replace(path: &Path, text: &str, mode: u32) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(".new");
    let new = path.with_file_name(name);
    let written = write(&new, path, text, mode).and_then(|()| std::fs::rename(&new, path));
    if written.is_err() {
        let _ = std::fs::remove_file(&new);
    }
    written
}

fn write(new: &Path, old: &Path, text: &str, mut mode: u32) -> io::Result<()> {
    let mut file = File::create(new)?;
    if let Ok(old) = std::fs::metadata(old) {
        mode = old.mode() & 0o777;
        // The gateway must still be able to read the file. Only root may change its owner.
        let _ = fchown(&file, Some(old.uid()), Some(old.gid()));
    }
    file.set_permissions(Permissions::from_mode(mode))?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}
