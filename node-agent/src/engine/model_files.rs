//! The files of a model, opened once. The agent checks, fingerprints and loads the same open files,
//! whatever their paths lead to in the meantime: a file that replaces another has no effect on
//! them.

pub(crate) mod digest;
pub(crate) mod split;

use std::fs::File;
use std::io::{self, BufReader};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use inference_core::hardware::Kernel;
use inference_core::model_file::gguf::{self, Header};
use inference_core::model_file::memory_plan::weights::repacked_bytes;

use crate::engine::model_files::digest::Fingerprint;

/// Headers have some megabytes.
const HEADER_BUFFER_BYTES: usize = 256 * 1024;

/// The open files of a model.
#[derive(Debug)]
pub(crate) struct ModelFiles {
    path: PathBuf,
    parts: Vec<File>,
    header: Header,
    digest: Fingerprint,
    versions: Vec<Version>,
}

/// File metadata that changes when its content does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Version {
    bytes: u64,
    /// Modification time, in seconds and nanoseconds.
    modified: (i64, i64),
    /// Change time. It also changes when a file gets other permissions or loses a name.
    changed: (i64, i64),
}

/// Why a model file cannot be used.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ModelFileError {
    path: PathBuf,
    why: String,
}

impl ModelFileError {
    fn new(path: &Path, why: impl std::fmt::Display) -> Self {
        Self { path: path.to_path_buf(), why: why.to_string() }
    }
}

impl std::fmt::Display for ModelFileError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "model file {}: {}", self.path.display(), self.why)
    }
}

impl std::error::Error for ModelFileError {}

impl Version {
    fn of(file: &File) -> io::Result<Self> {
        let data = file.metadata()?;
        Ok(Self {
            bytes: data.len(),
            modified: (data.mtime(), data.mtime_nsec()),
            changed: (data.ctime(), data.ctime_nsec()),
        })
    }

    fn has_other_content(&self, now: &Self) -> bool {
        (self.bytes, self.modified) != (now.bytes, now.modified)
    }
}

impl ModelFiles {
    /// Opens a model file, and the other parts of a split model.
    pub(crate) fn open(path: &Path) -> Result<Self, ModelFileError> {
        let first = open_file(path)?;
        let fail = |e: io::Error| ModelFileError::new(path, e);
        let bytes = first.metadata().map_err(fail)?.len();
        // The clone shares the file position, but no other reader uses it.
        let reader =
            BufReader::with_capacity(HEADER_BUFFER_BYTES, first.try_clone().map_err(fail)?);
        let header = gguf::read_header(reader, bytes).map_err(|e| ModelFileError::new(path, e))?;
        let mut parts = vec![first];
        for other in other_parts(path, &header)? {
            parts.push(open_file(&other)?);
        }
        // Taken before the content is read, so that later changes are noticed.
        let versions = versions(&parts).map_err(fail)?;
        let digest = Fingerprint::of(&parts).map_err(fail)?.with_sampling(&header.sampling);
        Ok(Self { path: path.to_path_buf(), parts, header, digest, versions })
    }

    /// Path of the (first) file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Header of the (first) file.
    pub(crate) fn header(&self) -> &Header {
        &self.header
    }

    /// Bytes of the weights that a set of kernels repacks; 0 for a model in parts, of which
    /// only the first header is known. The MTP head counts if it is loaded.
    pub(crate) fn repacked_bytes(&self, kernel: Kernel, with_head: bool) -> u64 {
        match self.versions.as_slice() {
            [file] => repacked_bytes(&self.header, kernel, with_head).min(file.bytes),
            _ => 0,
        }
    }

    /// True if the file has the tensors that score a pair. Of a file in parts, only the first
    /// header is known.
    pub(crate) fn has_classifier(&self) -> bool {
        let mut tensors = self.header.tensor_list.iter();
        self.parts.len() > 1 || tensors.any(|tensor| tensor.name.starts_with("cls"))
    }

    /// Fingerprint of the weights.
    pub(crate) fn digest(&self) -> Fingerprint {
        self.digest
    }

    pub(crate) fn parts(&self) -> &[File] {
        &self.parts
    }

    /// Paths under which this process can reopen exactly these files.
    pub(crate) fn open_paths(&self) -> Vec<PathBuf> {
        let path = |part: &File| format!("/proc/self/fd/{}", part.as_raw_fd()).into();
        self.parts.iter().map(path).collect()
    }

    /// True if the content of a file has changed since it was opened. A file that only lost its
    /// name to another one, or got other permissions, still has its content.
    pub(crate) fn detect_change(&mut self) -> Result<bool, ModelFileError> {
        let fail = |e: io::Error| ModelFileError::new(&self.path, e);
        let now = versions(&self.parts).map_err(fail)?;
        if now == self.versions {
            return Ok(false);
        }
        let is_other = self.versions.iter().zip(&now).any(|(old, now)| old.has_other_content(now));
        // Writers can set the modification time back, but not the change time.
        let digest = Fingerprint::of(&self.parts).map_err(fail)?;
        if is_other || digest.with_sampling(&self.header.sampling) != self.digest {
            return Ok(true);
        }
        self.versions = now;
        Ok(false)
    }
}

fn open_file(path: &Path) -> Result<File, ModelFileError> {
    let fail = |e: io::Error| ModelFileError::new(path, e);
    let file = File::open(path).map_err(fail)?;
    let is_file = file.metadata().map_err(fail)?.is_file();
    if is_file { Ok(file) } else { Err(ModelFileError::new(path, "is not a regular file")) }
}

fn versions(parts: &[File]) -> io::Result<Vec<Version>> {
    parts.iter().map(Version::of).collect()
}

/// The second and further files of a split model.
fn other_parts(path: &Path, header: &Header) -> Result<Vec<PathBuf>, ModelFileError> {
    let count = header.numbers.get("split.count").and_then(|numbers| numbers.first());
    let Some(count @ 2..) = count.copied() else { return Ok(Vec::new()) };
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let names = split::all_files(name).map_err(|e| ModelFileError::new(path, e))?;
    if names.len() as u64 != count {
        let why = format_args!(
            "is one of {count} parts of a model: name the first one, \
             NAME-00001-of-{count:05}.gguf, and keep the others beside it"
        );
        return Err(ModelFileError::new(path, why));
    }
    Ok(names.iter().skip(1).map(|name| path.with_file_name(name)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;

    /// A copy of the demo model in its own folder, which the system cleans up.
    fn copied(name: &str) -> PathBuf {
        let demo = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../inference-core/demo-model/flotilla-demo.gguf");
        let folder = std::env::temp_dir()
            .join(format!("flotilla-{:016x}", crate::types::random::random() as u64));
        std::fs::create_dir(&folder).unwrap();
        let path = folder.join(name);
        std::fs::copy(demo, &path).unwrap();
        path
    }

    fn remove(path: &Path) {
        std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }

    #[test]
    fn a_file_that_is_replaced_stays_what_it_was_and_one_that_is_written_to_does_not() {
        let path = copied("m.gguf");
        let mut files = ModelFiles::open(&path).unwrap();
        assert_eq!(files.detect_change(), Ok(false));
        let other = path.with_file_name("other");
        std::fs::write(&other, "something else").unwrap();
        std::fs::rename(&other, &path).unwrap();
        assert_eq!(files.detect_change(), Ok(false), "the open file is the old one");
        let digest = files.digest();
        let again = ModelFiles::open(&files.open_paths()[0]).unwrap();
        assert_eq!(again.digest(), digest, "opened by its number it is, too");
        remove(&path);
    }

    #[test]
    fn writing_into_a_file_is_noticed_and_other_permissions_are_none() {
        let path = copied("m.gguf");
        let mut files = ModelFiles::open(&path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(files.detect_change(), Ok(false));
        let modified = std::fs::metadata(&path).unwrap().modified().unwrap();
        let mut file = File::options().append(true).open(&path).unwrap();
        file.write_all(b"x").unwrap();
        assert_eq!(files.detect_change(), Ok(true));
        file.set_len(file.metadata().unwrap().len() - 1).unwrap();
        file.set_modified(modified).unwrap();
        assert_eq!(files.detect_change(), Ok(false), "the content is as it was");
        use std::os::unix::fs::FileExt;
        let file = File::options().write(true).open(&path).unwrap();
        file.write_at(b"y", 1_000_000).unwrap();
        file.set_modified(modified).unwrap();
        assert_eq!(files.detect_change(), Ok(true), "whatever its times say");
        remove(&path);
    }

    #[test]
    fn the_parts_of_a_split_model_are_found_beside_the_first() {
        let count = |n: u64| Header {
            numbers: [("split.count".to_string(), vec![n])].into(),
            ..Header::default()
        };
        let of = |path: &str, n| other_parts(Path::new(path), &count(n));
        let parts = of("/m/a-00001-of-00003.gguf", 3).unwrap();
        let expected = ["/m/a-00002-of-00003.gguf", "/m/a-00003-of-00003.gguf"];
        assert_eq!(parts, expected.map(PathBuf::from));
        assert_eq!(of("/m/a.gguf", 1).unwrap(), Vec::<PathBuf>::new());
        for path in ["/m/a.gguf", "/m/a-00002-of-00003.gguf", "/m/a-00001-of-00002.gguf"] {
            assert!(of(path, 3).unwrap_err().why.contains("name the first one"), "{path}");
        }
    }
}
