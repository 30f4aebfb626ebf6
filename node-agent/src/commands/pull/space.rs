//! Checks for disk space before the first byte.

use std::path::Path;

use super::{EXIT_IO, io_failed, text};
use crate::types::exit::Failed;

/// Checks that `folder` has room for `needed` more bytes.
pub(crate) fn check(folder: &Path, needed: u64) -> Result<(), Failed> {
    let room = rustix::fs::statvfs(folder).map_err(|e| io_failed(folder, &e.into()))?;
    let free = room.f_bavail.saturating_mul(room.f_frsize);
    enough(needed, free)
        .map_err(|why| Failed::new(EXIT_IO, format_args!("{}: {why}", folder.display())))
}

fn enough(needed: u64, free: u64) -> Result<(), String> {
    if needed <= free {
        return Ok(());
    }
    Err(format!(
        "not enough disk space: the file needs {} ({needed} bytes) more, {} ({free} bytes) are free",
        text::bytes(needed),
        text::bytes(free)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_numbers_are_told() {
        assert!(enough(10, 10).is_ok());
        let why = enough(2_500_000_000, 1_000_000).unwrap_err();
        assert!(why.contains("2.5 GB (2500000000 bytes)") && why.contains("1.0 MB"), "{why}");
        assert!(check(Path::new("/"), 0).is_ok());
        assert_eq!(check(Path::new("/"), u64::MAX).unwrap_err().code, EXIT_IO);
    }
}
