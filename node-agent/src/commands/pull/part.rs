//! The incomplete file: `FILE.part`, locked while we write it, with `FILE.part.json`, which
//! remembers what it is a part of.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, OFlags, RenameFlags};
use sha2::{Digest, Sha256};

use super::content::HEAD_BYTES;
use super::part_info::PartInfo;
use super::{EXIT_BUSY, EXIT_IO, io_failed, text};
use crate::types::exit::Failed;

/// Bytes to read and hash at a time.
const STEP_BYTES: usize = 1 << 20;
/// A part.json file is a few hundred bytes.
const INFO_BYTES_MAX: u64 = 64 * 1024;
/// How often a part may be replaced between opening and locking it.
const OPEN_TRIES: u32 = 8;

/// A part that no other process writes.
#[derive(Debug)]
pub(crate) struct Part {
    file: File,
    path: PathBuf,
    info: Option<PartInfo>,
    hash: Sha256,
    head: Vec<u8>,
    at: u64,
}

impl Part {
    /// Opens and locks the part of `target`. Its contents do not count before [`Part::hash_step`]
    /// has read them.
    pub(crate) fn open(target: &Path) -> Result<Self, Failed> {
        let path = with_suffix(target, ".part");
        for _ in 0..OPEN_TRIES {
            let mut options = OpenOptions::new();
            // A symbolic link placed there would lead the bytes elsewhere.
            options.custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
            let options = options.read(true).write(true).create(true).truncate(false);
            let file = options.open(&path).map_err(|e| io_failed(&path, &e))?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Err(busy(target)),
                Err(TryLockError::Error(e)) => return Err(io_failed(&path, &e)),
            }
            // Between opening and locking, its last owner may have renamed it.
            if is_still(&file, &path) {
                let hash = Sha256::new();
                return Ok(Self { file, path, info: None, hash, head: Vec::new(), at: 0 });
            }
        }
        Err(busy(target))
    }

    /// The length and description that an earlier pull left, if its download can be resumed.
    pub(crate) fn previous(&self) -> Result<Option<(u64, PartInfo)>, Failed> {
        let bytes = self.file.metadata().map_err(|e| io_failed(&self.path, &e))?.len();
        if bytes == 0 {
            return Ok(None);
        }
        let info_path = self.info_path();
        let mut text = String::new();
        match File::open(&info_path) {
            Ok(file) => {
                // An unreadable description counts as one of another file.
                let _ = file.take(INFO_BYTES_MAX).read_to_string(&mut text);
                Ok(serde_json::from_str(&text).ok().map(|info| (bytes, info)))
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => Err(Failed {
                code: EXIT_IO,
                message: format!(
                    "{} exists, but no earlier pull made it ({} is missing): move it away",
                    self.path.display(),
                    info_path.display()
                ),
            }),
            Err(e) => Err(io_failed(&info_path, &e)),
        }
    }

    /// Resumes: takes what an earlier pull left as the start of the file in `info`. Call
    /// [`Part::hash_step`] next.
    pub(crate) fn resume(&mut self, info: PartInfo) -> io::Result<()> {
        self.info = Some(info);
        self.file.seek(SeekFrom::Start(0)).map(drop)
    }

    /// Reads and hashes the next bytes of the part, up to `until`. Returns false when done; bytes
    /// after that are truncated.
    pub(crate) fn hash_step(&mut self, until: u64) -> io::Result<bool> {
        let step = (until - self.at).min(STEP_BYTES as u64);
        if step == 0 {
            self.file.set_len(until)?;
            return Ok(false);
        }
        let mut bytes = vec![0; step as usize];
        self.file.read_exact(&mut bytes)?;
        self.count(&bytes);
        Ok(true)
    }

    /// Starts a file from its first byte.
    pub(crate) fn begin(&mut self, info: PartInfo) -> io::Result<()> {
        self.reset()?;
        let text = serde_json::to_vec_pretty(&info).map_err(io::Error::other)?;
        let path = self.info_path();
        let new = with_suffix(&path, ".new");
        std::fs::write(&new, text)?;
        std::fs::rename(new, path)?;
        self.info = Some(info);
        Ok(())
    }

    pub(crate) fn reset(&mut self) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.seek(SeekFrom::Start(0))?;
        (self.info, self.hash, self.at) = (None, Sha256::new(), 0);
        self.head.clear();
        Ok(())
    }

    pub(crate) fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        self.count(bytes);
        Ok(())
    }

    fn count(&mut self, bytes: &[u8]) {
        self.hash.update(bytes);
        self.at += bytes.len() as u64;
        let missing = HEAD_BYTES - self.head.len();
        self.head.extend(bytes.iter().take(missing));
    }

    /// Number of bytes present and hashed.
    pub(crate) fn at(&self) -> u64 {
        self.at
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// What it is a part of.
    pub(crate) fn info(&self) -> Option<&PartInfo> {
        self.info.as_ref()
    }

    /// Its first [`HEAD_BYTES`].
    pub(crate) fn head(&self) -> &[u8] {
        &self.head
    }

    /// SHA-256 of all bytes so far.
    pub(crate) fn digest(&self) -> String {
        text::hex(&self.hash.clone().finalize())
    }

    /// Syncs it to disk and renames it to `target`. With `replace`, also over an existing file.
    pub(crate) fn finish(self, target: &Path, replace: bool) -> io::Result<()> {
        self.file.sync_all()?;
        rename(&self.path, target, replace)?;
        File::open(folder_of(target))?.sync_all()?;
        // A description without its part is never read.
        let _ = std::fs::remove_file(self.info_path());
        Ok(())
    }

    pub(crate) fn discard(&mut self) -> io::Result<()> {
        (self.info, self.at) = (None, 0);
        let _ = std::fs::remove_file(self.info_path());
        std::fs::remove_file(&self.path)
    }

    /// Deletes the part if it is empty; otherwise it stays for the next pull.
    pub(crate) fn remove_if_empty(&mut self) {
        if self.file.metadata().is_ok_and(|m| m.len() == 0) {
            let _ = self.discard();
        }
    }

    fn info_path(&self) -> PathBuf {
        with_suffix(&self.path, ".json")
    }

    #[cfg(test)]
    pub(crate) fn of_file(file: File, path: PathBuf) -> Self {
        Self { file, path, info: None, hash: Sha256::new(), head: Vec::new(), at: 0 }
    }
}

/// The id of this boot of the machine; empty if the kernel provides none.
pub(crate) fn boot_id() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.trim().to_string()
}

/// The folder of a file.
pub(crate) fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn busy(target: &Path) -> Failed {
    let message = format!("another pull of {} is running: wait for it", target.display());
    Failed { code: EXIT_BUSY, message }
}

fn is_still(file: &File, path: &Path) -> bool {
    let (Ok(ours), Ok(there)) = (file.metadata(), std::fs::symlink_metadata(path)) else {
        return false;
    };
    ours.dev() == there.dev() && ours.ino() == there.ino()
}

fn rename(from: &Path, to: &Path, replace: bool) -> io::Result<()> {
    if replace {
        return std::fs::rename(from, to);
    }
    use rustix::io::Errno;
    match rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // Some file systems cannot; then a file that appears at this moment is replaced.
        Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) if !to.exists() => {
            std::fs::rename(from, to)
        }
        Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => Err(Errno::EXIST.into()),
        other => other.map_err(Into::into),
    }
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder that is deleted on drop.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let name = format!("flotilla-part-{name}-{}", std::process::id());
            let path = std::env::temp_dir().join(name);
            std::fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        fn names(&self) -> Vec<String> {
            let entries = std::fs::read_dir(&self.0).unwrap();
            let name = |e: io::Result<std::fs::DirEntry>| e.unwrap().file_name();
            let mut names: Vec<_> =
                entries.map(|e| name(e).to_str().unwrap().to_string()).collect();
            names.sort();
            names
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn info() -> PartInfo {
        PartInfo {
            source: "s".into(),
            length: Some(9),
            validator: None,
            sha256: None,
            boot: boot_id(),
        }
    }

    #[test]
    fn a_part_is_gone_on_with_and_becomes_the_file() {
        let folder = Folder::new("whole");
        let target = folder.0.join("m.gguf");
        let mut part = Part::open(&target).unwrap();
        assert_eq!(part.previous().unwrap(), None);
        part.begin(info()).unwrap();
        part.append(b"GGUF56").unwrap();
        drop(part);

        let mut part = Part::open(&target).unwrap();
        let (bytes, left) = part.previous().unwrap().unwrap();
        assert_eq!((bytes, &left), (6, &info()));
        part.resume(left).unwrap();
        while part.hash_step(5).unwrap() {}
        part.append(b"6789").unwrap();
        assert_eq!((part.at(), part.head()), (9, &b"GGUF56789"[..]));
        assert_eq!(part.digest(), text::hex(&Sha256::digest(b"GGUF56789")));
        part.finish(&target, false).unwrap();
        assert_eq!(std::fs::read(&target).unwrap(), b"GGUF56789");
        assert_eq!(folder.names(), ["m.gguf"]);
    }

    #[test]
    fn one_part_has_one_writer() {
        let folder = Folder::new("lock");
        let target = folder.0.join("m.gguf");
        let mut first = Part::open(&target).unwrap();
        assert_eq!(Part::open(&target).unwrap_err().code, EXIT_BUSY);
        first.remove_if_empty();
        drop(first);
        assert!(folder.names().is_empty());
        assert!(Part::open(&target).is_ok());
    }

    #[test]
    fn what_is_not_ours_is_not_touched() {
        let folder = Folder::new("foreign");
        let target = folder.0.join("m.gguf");
        std::fs::write(folder.0.join("m.gguf.part"), "a browser's").unwrap();
        let failed = Part::open(&target).unwrap().previous().unwrap_err();
        assert!(failed.message.contains("no earlier pull"), "{failed:?}");

        std::fs::write(folder.0.join("m.gguf.part.json"), "{\"source\":").unwrap();
        assert_eq!(Part::open(&target).unwrap().previous().unwrap(), None, "a broken description");

        let other = folder.0.join("other.gguf");
        std::os::unix::fs::symlink("m.gguf.part", folder.0.join("other.gguf.part")).unwrap();
        assert!(Part::open(&other).is_err(), "a link is followed");

        let mut part = Part::open(&target).unwrap();
        part.begin(info()).unwrap();
        part.append(b"new").unwrap();
        std::fs::write(&target, "appeared meanwhile").unwrap();
        assert_eq!(part.finish(&target, false).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read(&target).unwrap(), b"appeared meanwhile");
    }

    #[test]
    fn a_full_disk_is_seen_as_such() {
        let file = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let mut part = Part::of_file(file, "/dev/full".into());
        let error = part.append(b"GGUF").unwrap_err();
        assert_eq!((error.kind(), part.at()), (io::ErrorKind::StorageFull, 0));
        assert!(io_failed(part.path(), &error).message.contains("full"));
    }
}
