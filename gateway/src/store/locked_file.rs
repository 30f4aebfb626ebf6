//! Files that one process uses.

use std::fs::{File, TryLockError};
use std::ops::Deref;

/// A file, locked until this is dropped or the process ends.
///
/// The end of the file alone would not unlock it: a child that the process is just starting has a
/// copy of each open file until it runs its own program.
#[derive(Debug)]
pub(super) struct LockedFile(File);

impl LockedFile {
    /// Locks a file, or says why not: `WouldBlock` if it is locked.
    pub(super) fn new(file: File) -> Result<Self, TryLockError> {
        file.try_lock()?;
        Ok(Self(file))
    }
}

impl Deref for LockedFile {
    type Target = File;

    fn deref(&self) -> &File {
        &self.0
    }
}

impl Drop for LockedFile {
    fn drop(&mut self) {
        // What fails here unlocks when the file is closed.
        let _ = self.0.unlock();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_unlocked_at_the_end_although_a_child_has_a_copy_of_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let locked = LockedFile::new(File::create(&path).unwrap()).unwrap();
        let open = || LockedFile::new(File::open(&path).unwrap());
        assert!(matches!(open(), Err(TryLockError::WouldBlock)));
        let _of_a_child = locked.try_clone().unwrap();
        drop(locked);
        open().unwrap();
    }
}
