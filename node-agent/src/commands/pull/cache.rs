//! Downloaded models in the cache folder, `models/`: a folder for each repository or URL, in it a
//! folder for each content, and `refs/`, which remembers what a name led to. A model that is there
//! is found without network access.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::hub::{self, RemoteModel, short_digest};
use super::reference::Reference;
use super::source::{Source, check_name};
use super::transfer::{Job, Tools};
use super::{EXIT_IO, fetch_all, io_failed, space};
use crate::types::cache_folder;
use crate::types::exit::Failed;

/// Maximum size of a record in bytes: a model has at most 1,000 files.
const RECORD_BYTES_MAX: u64 = 512 * 1024;
/// How often to look whether another process has finished its download.
const LOCK_INTERVAL: Duration = Duration::from_millis(500);

/// What a name led to.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    /// [`Reference::identity`]
    source: String,
    commit: Option<String>,
    /// Folder of the files.
    folder: String,
    files: Vec<CachedFile>,
}

#[derive(Debug, Serialize, Deserialize)]
struct CachedFile {
    name: String,
    bytes: u64,
}

/// The place of a model in the cache.
#[derive(Debug)]
pub(crate) struct CacheEntry {
    /// Folder of the repository or URL.
    folder: PathBuf,
    identity: String,
}

impl CacheEntry {
    /// The place of a model in the user's cache folder.
    pub(crate) fn of(reference: &Reference) -> Result<Self, Failed> {
        let cache = cache_folder::find().ok_or_else(|| {
            let why = "no folder for downloaded models: set FLOTILLA_CACHE_DIR, XDG_CACHE_HOME or \
                       HOME";
            Failed::new(EXIT_IO, why)
        })?;
        Ok(Self::below(&cache.join("models"), reference))
    }

    fn below(models: &Path, reference: &Reference) -> Self {
        let identity = reference.identity();
        let folder = match reference {
            Reference::Repository { repo, .. } | Reference::File(Source::Hub { repo, .. }) => {
                models.join("hub").join(repo)
            }
            Reference::File(Source::Web(_)) => models.join("web").join(short_digest(&identity)),
        };
        Self { folder, identity }
    }

    /// The (first) file of the model, if all of its files are here.
    pub(crate) fn find(&self) -> Option<PathBuf> {
        let mut text = String::new();
        let file = File::open(self.record_path()).ok()?;
        file.take(RECORD_BYTES_MAX).read_to_string(&mut text).ok()?;
        let record: Record = serde_json::from_str(&text).ok()?;
        let is_safe = |name: &str| check_name(name).is_ok();
        if record.source != self.identity || !is_safe(&record.folder) {
            return None;
        }
        let folder = self.folder.join(&record.folder);
        let is_here = |file: &CachedFile| {
            let found = is_safe(&file.name).then(|| std::fs::metadata(folder.join(&file.name)));
            matches!(found, Some(Ok(found)) if found.is_file() && found.len() == file.bytes)
        };
        let first = record.files.first()?;
        record.files.iter().all(is_here).then(|| folder.join(&first.name))
    }

    fn record_path(&self) -> PathBuf {
        self.folder.join("refs").join(format!("{}.json", short_digest(&self.identity)))
    }

    /// Remembers what the name led to. The error is one line for the operator.
    fn write_record(&self, model: &RemoteModel) -> Result<(), Failed> {
        let files = model.files.iter().map(|file| {
            let path = self.folder.join(&model.key).join(&file.name);
            let bytes = std::fs::metadata(&path).map_err(|e| io_failed(&path, &e))?.len();
            Ok(CachedFile { name: file.name.clone(), bytes })
        });
        let record = Record {
            source: self.identity.clone(),
            commit: model.commit.clone(),
            folder: model.key.clone(),
            files: files.collect::<Result<_, Failed>>()?,
        };
        let path = self.record_path();
        // The lock of the folder keeps other writers away.
        let new = path.with_extension("json.new");
        let text = serde_json::to_vec_pretty(&record).map_err(Failed::software)?;
        let written = File::create(&new).and_then(|mut file| {
            file.write_all(&text)?;
            file.sync_all()?;
            std::fs::rename(&new, &path)
        });
        written.map_err(|e| io_failed(&path, &e))
    }

    /// Waits until no other process downloads into this folder. The file unlocks it when dropped,
    /// or when this process dies.
    async fn lock(&self, tools: &Tools) -> Result<File, Failed> {
        let path = self.folder.join("lock");
        let options = OpenOptions::new().write(true).create(true).truncate(false).open(&path);
        let file = options.map_err(|e| io_failed(&path, &e))?;
        let mut is_told = false;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(TryLockError::Error(e)) if e.kind() != ErrorKind::Interrupted => {
                    return Err(io_failed(&path, &e));
                }
                Err(_) if !is_told => {
                    is_told = true;
                    tools.progress.print("another process downloads this model: waiting for it");
                }
                Err(_) => {}
            }
            let waited = tools.stop.unless(tokio::time::sleep(LOCK_INTERVAL)).await;
            waited.map_err(|code| Failed::new(code, "interrupted"))?;
        }
    }
}

/// How to use the cache.
#[derive(Debug, Clone, Default)]
pub(crate) struct CacheUse {
    /// Ask for a new version even if the model is here.
    pub update: bool,
    /// Required SHA-256 of each file, instead of the hub's.
    pub sha256: Vec<Option<String>>,
}

/// The model's (first) file: from the cache, or downloaded into it.
pub(crate) async fn fetch(
    reference: &Reference,
    how: &CacheUse,
    tools: &mut Tools,
) -> Result<PathBuf, Failed> {
    let entry = CacheEntry::of(reference)?;
    if let Some(found) = entry.find().filter(|_| !how.update) {
        return Ok(found);
    }
    let refs = entry.folder.join("refs");
    std::fs::create_dir_all(&refs).map_err(|e| io_failed(&refs, &e))?;
    let _lock = entry.lock(tools).await?;
    if let Some(found) = entry.find().filter(|_| !how.update) {
        return Ok(found);
    }
    let model = hub::resolve(reference, tools).await?;
    if !how.sha256.is_empty() && how.sha256.len() != model.files.len() {
        let (given, files) = (how.sha256.len(), model.files.len());
        let why = format!("{files} files, but {given} --sha256: set one for each file, in order");
        return Err(Failed::new(super::EXIT_USAGE, why));
    }
    let folder = entry.folder.join(&model.key);
    std::fs::create_dir_all(&folder).map_err(|e| io_failed(&folder, &e))?;
    check_space(&folder, &model)?;
    fetch_all(jobs(&model, &folder, &how.sha256), tools).await?;
    entry.write_record(&model)?;
    let first = model.files.first().map(|file| folder.join(&file.name));
    first.ok_or_else(|| Failed::software("a model without files"))
}

fn jobs(model: &RemoteModel, folder: &Path, sha256: &[Option<String>]) -> Vec<Job> {
    let job = |(number, file): (usize, &super::hub::RemoteFile)| Job {
        source: file.source.clone(),
        target: folder.join(&file.name),
        sha256: sha256.get(number).cloned().flatten().or_else(|| file.sha256.clone()),
        // Nothing else writes into the cache: a file that differs is broken, or outdated.
        force: true,
    };
    model.files.iter().enumerate().map(job).collect()
}

/// Checks the disk space for all files together; each file checks again for itself.
fn check_space(folder: &Path, model: &RemoteModel) -> Result<(), Failed> {
    let length = |name: String| std::fs::metadata(folder.join(name)).map_or(0, |file| file.len());
    let missing = model.files.iter().map(|file| {
        let here = length(file.name.clone()).max(length(format!("{}.part", file.name)));
        file.bytes.unwrap_or(0).saturating_sub(here)
    });
    space::check(folder, missing.fold(0, u64::saturating_add))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_has_its_place_below_the_cache() {
        let place = |text: &str| {
            let reference = Reference::parse(text, None).unwrap();
            CacheEntry::below(Path::new("/c/models"), &reference)
        };
        let one = place("hf:o/r:Q4_K_M");
        assert_eq!(one.folder, Path::new("/c/models/hub/o/r"));
        assert_eq!(place("hf:o/r:q4_k_m").record_path(), one.record_path());
        assert_ne!(place("hf:o/r").record_path(), one.record_path());
        assert_ne!(place("hf:o/r:Q8_0").record_path(), one.record_path());
        let web = place("https://h/m.gguf?sig=1");
        assert!(web.folder.starts_with("/c/models/web") && web.find().is_none());
        assert_ne!(place("https://h/m.gguf?sig=2").folder, web.folder);
    }

    #[test]
    fn a_record_is_believed_only_if_its_files_are_here() {
        let folder = std::env::temp_dir().join(format!("flotilla-cache-{}", std::process::id()));
        let reference = Reference::parse("hf:o/r:Q4_K_M", None).unwrap();
        let entry = CacheEntry::below(&folder, &reference);
        let content = entry.folder.join("0123456789abcdef");
        std::fs::create_dir_all(entry.folder.join("refs")).unwrap();
        std::fs::create_dir_all(&content).unwrap();
        std::fs::write(content.join("m.gguf"), "GGUF").unwrap();
        let record = |source: &str, folder: &str, name: &str, bytes: u64| {
            let files = [serde_json::json!({"name": name, "bytes": bytes})];
            let record = serde_json::json!({"source": source, "folder": folder, "files": files});
            std::fs::write(entry.record_path(), record.to_string()).unwrap();
            entry.find()
        };
        let (ours, key) = ("hf:o/r:Q4_K_M at main", "0123456789abcdef");
        assert_eq!(record(ours, key, "m.gguf", 4), Some(content.join("m.gguf")));
        assert_eq!(record(ours, key, "m.gguf", 5), None, "another size");
        assert_eq!(record(ours, key, "n.gguf", 4), None, "no such file");
        assert_eq!(record("hf:o/other at main", key, "m.gguf", 4), None);
        assert_eq!(record(ours, "..", "m.gguf", 4), None);
        assert_eq!(record(ours, key, "../0123456789abcdef/m.gguf", 4), None);
        std::fs::write(entry.record_path(), "{").unwrap();
        assert_eq!(entry.find(), None);
        std::fs::remove_dir_all(folder).unwrap();
    }
}
