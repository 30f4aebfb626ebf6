//! The files that a configuration names.

use std::cell::RefCell;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const KEY_FILE_BYTES_MAX: u64 = 4096;

/// Where relative names start, and every file that was named: who waits for a change of the
/// configuration looks at all of them.
#[derive(Debug, Default)]
pub struct Files {
    base: PathBuf,
    named: RefCell<Vec<Named>>,
}

/// A file, and which version of it was there before it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    /// Where it is.
    pub path: PathBuf,
    /// Which version of it; `None` where it cannot be looked at.
    pub version: Option<Version>,
}

/// Which version of a file it is: length, inode, and time of its last change.
pub type Version = (u64, u64, i64, i64);

impl Named {
    /// A file as it is now.
    pub fn now(path: PathBuf) -> Self {
        let data = std::fs::metadata(&path).ok();
        let version = data.map(|d| (d.len(), d.ino(), d.mtime(), d.mtime_nsec()));
        Self { path, version }
    }
}

impl Files {
    /// Names are relative to the folder of `config`, which is the first file.
    pub fn beside(config: &Path) -> Self {
        let base = config.parent().unwrap_or(Path::new("")).to_path_buf();
        Self { base, named: RefCell::new(vec![Named::now(config.to_path_buf())]) }
    }

    /// The file of that name.
    pub fn path(&self, name: &str) -> PathBuf {
        let path = self.base.join(name);
        self.named.borrow_mut().push(Named::now(path.clone()));
        path
    }

    /// All files that were named.
    pub fn into_named(self) -> Vec<Named> {
        self.named.into_inner()
    }

    /// A key from a file, without the spaces around it.
    pub fn key(&self, name: &str) -> Result<String, String> {
        let path = self.path(name);
        let text = read(&path, KEY_FILE_BYTES_MAX)?;
        match text.trim() {
            "" => Err(format!("{}: is empty", path.display())),
            key => Ok(key.to_string()),
        }
    }
}

/// A text file of at most so many bytes.
pub fn read(path: &Path, bytes_max: u64) -> Result<String, String> {
    let fail = |e: &dyn std::fmt::Display| format!("{}: {e}", path.display());
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(|e| fail(&e))?;
    file.take(bytes_max + 1).read_to_string(&mut text).map_err(|e| fail(&e))?;
    match text.len() as u64 > bytes_max {
        true => Err(fail(&format!("larger than {bytes_max} bytes"))),
        false => Ok(text),
    }
}
