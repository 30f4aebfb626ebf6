//! Contents of files, each a file of its own in the folder `files`.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::fs::{self, File, OpenOptions};
use tokio::io::AsyncWriteExt;

use super::quota::Claim;
use super::{Store, StoreError};
use crate::types::random::random;

const FOLDER: &str = "files";
/// What is being written has this extension and no record.
const PART: &str = "part";
const MODE: u32 = 0o600;
const FOLDER_MODE: u32 = 0o700;

/// A file that is being written. Dropped before it is finished, it is deleted.
#[derive(Debug)]
pub struct Upload {
    file: File,
    /// Where it is now; `None` once it is finished.
    part: Option<PathBuf>,
    path: PathBuf,
    id: String,
    bytes: u64,
    claim: Claim,
}

impl Drop for Upload {
    fn drop(&mut self) {
        if let Some(part) = &self.part {
            let _ = std::fs::remove_file(part);
        }
    }
}

impl Upload {
    /// Its id.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// Bytes so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Appends.
    ///
    /// # Errors
    /// The tenant's limit is reached, or the disk fails.
    pub(crate) async fn write(&mut self, data: &[u8]) -> Result<(), StoreError> {
        self.claim.grow(data.len() as u64)?;
        self.append(data).await
    }

    /// Appends, whatever the limits are.
    ///
    /// # Errors
    /// The disk fails.
    pub(crate) async fn force(&mut self, data: &[u8]) -> Result<(), StoreError> {
        self.claim.force(data.len() as u64);
        self.append(data).await
    }

    async fn append(&mut self, data: &[u8]) -> Result<(), StoreError> {
        self.bytes += data.len() as u64;
        self.file.write_all(data).await.map_err(failed)
    }

    /// Flushes it to the disk under its final name. Without a record, a later start of a gateway
    /// deletes it.
    pub(super) async fn flush(&mut self) -> Result<(), StoreError> {
        self.file.flush().await.map_err(failed)?;
        self.file.sync_all().await.map_err(failed)?;
        if let Some(part) = &self.part {
            fs::rename(part, &self.path).await.map_err(failed)?;
            self.part = Some(self.path.clone());
        }
        let folder = self.path.parent().unwrap_or(&self.path);
        File::open(folder).await.map_err(failed)?.sync_all().await.map_err(failed)
    }

    /// It stays if it has a record, or if that is not known: without a record, it is deleted later.
    pub(super) fn finish<T>(mut self, recorded: &Result<T, StoreError>) {
        match recorded {
            Ok(_) => {
                self.part = None;
                self.claim.keep();
            }
            Err(StoreError::Unavailable) => self.part = None,
            Err(_) => {}
        }
    }
}

impl Store {
    /// Begins a file of a tenant.
    pub(crate) async fn upload(&self, tenant: &str) -> Result<Upload, StoreError> {
        self.restore().await?;
        let folder = self.folder().join(FOLDER);
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true).mode(FOLDER_MODE).create(&folder).await.map_err(failed)?;
        let id = format!("file-{:032x}", random());
        let path = folder.join(&id);
        let part = path.with_extension(PART);
        let mut options = OpenOptions::new();
        let options = options.write(true).create_new(true).mode(MODE);
        let file = options.open(&part).await.map_err(failed)?;
        let claim = self.claim(tenant);
        Ok(Upload { file, part: Some(part), path, id, bytes: 0, claim })
    }

    /// Where the content of a file is.
    pub(crate) fn content(&self, id: &str) -> PathBuf {
        self.folder().join(FOLDER).join(id)
    }
}

/// Deletes the content of a file whose record is gone.
pub(super) async fn remove(path: &Path) {
    if let Err(error) = fs::remove_file(path).await {
        tracing::warn!(path = %path.display(), %error, "content of a deleted file not deleted");
    }
}

/// Deletes everything but the contents of these files, if it has not changed for this long: another
/// gateway may be writing it.
pub(super) async fn remove_others(
    folder: &Path,
    ids: HashSet<String>,
    age_min: Duration,
) -> Result<(), StoreError> {
    let mut entries = match fs::read_dir(folder.join(FOLDER)).await {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(error)),
    };
    while let Some(entry) = entries.next_entry().await.map_err(failed)? {
        if entry.file_name().to_str().is_some_and(|name| ids.contains(name)) {
            continue;
        }
        let changed = entry.metadata().await.and_then(|metadata| metadata.modified());
        let age = changed.ok().and_then(|changed| changed.elapsed().ok()).unwrap_or_default();
        if age >= age_min {
            remove(&entry.path()).await;
        }
    }
    Ok(())
}

#[expect(clippy::needless_pass_by_value, reason = "it maps errors")]
pub(super) fn failed(error: std::io::Error) -> StoreError {
    tracing::error!(%error, "folder of the store failed");
    StoreError::Unavailable
}
