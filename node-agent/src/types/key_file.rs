//! Files that contain a key.

use std::path::Path;

/// A key file is one line.
const KEY_BYTES_MAX: u64 = 4096;

/// Reads a key from a file: its first line, trimmed.
pub(crate) fn read_key(path: &Path) -> Result<String, String> {
    use std::io::Read;
    let fail = |e: &dyn std::fmt::Display| format!("key file {}: {e}", path.display());
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(|e| fail(&e))?;
    file.take(KEY_BYTES_MAX).read_to_string(&mut text).map_err(|e| fail(&e))?;
    match text.trim() {
        "" => Err(fail(&"is empty")),
        key => Ok(key.to_string()),
    }
}
