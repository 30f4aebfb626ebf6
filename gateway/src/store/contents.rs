//! Contents of files, each a file of its own in the folder `files`, or an object in a bucket. With
//! a bucket, the folder holds what is on its way there, and copies of what was read lately. All of
//! them are encrypted if records are.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use tokio::fs::{self, File, OpenOptions};
use tokio::io::AsyncWriteExt;

use super::bucket::Bucket;
use super::keyring::{Binding, Keyring};
use super::quota::Claim;
use super::{Store, StoreError, failed};
use crate::types::random::random;

mod chunks;
mod content;
#[cfg(test)]
mod tests;

pub use content::Content;

use chunks::Sealing;

const FOLDER: &str = "files";
/// What is being written has this extension and no record.
const PART: &str = "part";
const MODE: u32 = 0o600;
const FOLDER_MODE: u32 = 0o700;
/// How long a copy is kept after it was read.
const COPY_AGE_MAX: Duration = Duration::from_secs(60 * 60);
/// How long a content without a record may be the upload of another gateway.
const UPLOAD_AGE_MAX: Duration = Duration::from_secs(24 * 60 * 60);

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
    /// `None` if it is not encrypted.
    sealing: Option<Sealing>,
    keyring: Keyring,
    binding: Binding,
    /// Where it goes in the end, if that is not the folder.
    bucket: Option<Bucket>,
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
        let Some(sealing) = &mut self.sealing else {
            return self.file.write_all(data).await.map_err(failed);
        };
        let sealed = sealing.add(data)?;
        self.file.write_all(&sealed).await.map_err(failed)
    }

    /// Writes the rest. Nothing can be appended to what is encrypted then.
    async fn end(&mut self) -> Result<(), StoreError> {
        if let Some(sealing) = &mut self.sealing {
            self.file.write_all(&sealing.end()?).await.map_err(failed)?;
        }
        self.file.flush().await.map_err(failed)
    }

    /// Ends it, and opens it for reading.
    ///
    /// # Errors
    /// The disk fails.
    pub(crate) async fn reopen(&mut self) -> Result<Content, StoreError> {
        self.end().await?;
        let path = self.part.as_ref().unwrap_or(&self.path);
        let file = File::open(path).await.map_err(failed)?.into_std().await;
        Content::open(file, self.keyring.clone(), self.binding.clone()).await
    }

    /// Flushes it to the disk under its final name. Without a record, a later start of a gateway
    /// deletes it.
    pub(super) async fn flush(&mut self) -> Result<(), StoreError> {
        self.end().await?;
        self.file.sync_all().await.map_err(failed)?;
        if let Some(part) = &self.part {
            fs::rename(part, &self.path).await.map_err(failed)?;
            self.part = Some(self.path.clone());
        }
        if let Some(bucket) = &self.bucket {
            return bucket.put(&self.id, &self.path).await;
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
        let id = format!("file-{:032x}", random());
        let (keyring, binding) = (self.keyring().clone(), binding(tenant, &id));
        let begun = Sealing::begin(&keyring, &binding)?;
        let (file, part) = self.part(&id).await?;
        let (path, claim) = (self.path_of(&id), self.claim(tenant));
        let bucket = self.0.place.bucket.clone();
        let (part, bytes, sealing) = (Some(part), 0, None);
        let mut upload =
            Upload { file, part, path, id, bytes, claim, sealing, keyring, binding, bucket };
        if let Some((header, sealing)) = begun {
            upload.file.write_all(&header).await.map_err(failed)?;
            upload.sealing = Some(sealing);
        }
        Ok(upload)
    }

    /// A new file in the folder, which is created if need be, and its path.
    async fn part(&self, name: &str) -> Result<(File, PathBuf), StoreError> {
        let folder = self.folder().join(FOLDER);
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true).mode(FOLDER_MODE).create(&folder).await.map_err(failed)?;
        let path = folder.join(name).with_extension(PART);
        let mut options = OpenOptions::new();
        let options = options.write(true).create_new(true).mode(MODE);
        Ok((options.open(&path).await.map_err(failed)?, path))
    }

    fn path_of(&self, id: &str) -> PathBuf {
        self.folder().join(FOLDER).join(id)
    }

    /// Opens the content of a tenant's file; [`StoreError::Unknown`] if there is none.
    pub(crate) async fn open(&self, tenant: &str, id: &str) -> Result<Content, StoreError> {
        let file = self.open_file(id).await?;
        Content::open(file, self.keyring().clone(), binding(tenant, id)).await
    }

    async fn open_file(&self, id: &str) -> Result<std::fs::File, StoreError> {
        let path = self.path_of(id);
        let Some(bucket) = &self.0.place.bucket else { return open(&path).await };
        match open(&path).await {
            Err(StoreError::Unknown) => self.copy(bucket, id).await?,
            opened => return opened,
        }
        open(&path).await
    }

    /// Copies a content into the folder. Two that do so at once get the same.
    async fn copy(&self, bucket: &Bucket, id: &str) -> Result<(), StoreError> {
        let (mut file, part) = self.part(&format!("{id}-{:x}", random())).await?;
        let copied = bucket.get(id, &mut file).await;
        let moved = match copied {
            Ok(()) => fs::rename(&part, self.path_of(id)).await.map_err(failed),
            Err(error) => Err(error),
        };
        if moved.is_err() {
            let _ = fs::remove_file(&part).await;
        }
        moved
    }

    /// Deletes the content of a file whose record is gone. What is left is deleted at a later
    /// start.
    pub(super) async fn remove(&self, id: &str) {
        let path = self.path_of(id);
        let removed = fs::remove_file(&path).await;
        match &self.0.place.bucket {
            Some(bucket) => {
                let _ = bucket.delete(id).await;
            }
            None => removed.unwrap_or_else(|error| {
                let path = path.display();
                tracing::warn!(%path, %error, "content of a deleted file not deleted");
            }),
        }
    }

    /// Deletes all contents but those of these files. Another gateway may be writing some of them.
    pub(super) async fn remove_others(&self, ids: HashSet<String>) -> Result<(), StoreError> {
        let place = &self.0.place;
        let is_shared_folder = self.is_shared() && place.bucket.is_none();
        let age_min = if is_shared_folder { UPLOAD_AGE_MAX } else { Duration::ZERO };
        self.remove_from_folder(age_min, |name| !ids.contains(name)).await?;
        if let Some(bucket) = &place.bucket {
            let old = bucket.older_than(UPLOAD_AGE_MAX).await?;
            for id in old.iter().filter(|id| id.starts_with("file-") && !ids.contains(*id)) {
                bucket.delete(id).await?;
            }
        }
        Ok(())
    }

    /// Deletes copies that nobody has read lately.
    pub(crate) async fn remove_copies(&self) -> Result<(), StoreError> {
        match self.0.place.bucket {
            Some(_) => self.remove_from_folder(COPY_AGE_MAX, |name| !name.ends_with(PART)).await,
            None => Ok(()),
        }
    }

    /// Deletes from the folder what has not changed for so long.
    async fn remove_from_folder(
        &self,
        age_min: Duration,
        is_left: impl Fn(&str) -> bool,
    ) -> Result<(), StoreError> {
        let mut entries = match fs::read_dir(self.folder().join(FOLDER)).await {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(failed(error)),
        };
        while let Some(entry) = entries.next_entry().await.map_err(failed)? {
            let changed = entry.metadata().await.and_then(|metadata| metadata.modified());
            let age = changed.ok().and_then(|changed| changed.elapsed().ok()).unwrap_or_default();
            if age >= age_min && entry.file_name().to_str().is_none_or(&is_left) {
                let _ = fs::remove_file(entry.path()).await;
            }
        }
        Ok(())
    }
}

fn binding(tenant: &str, id: &str) -> Binding {
    Binding::new("files.content", tenant, id)
}

/// Opens a file, which counts as read lately.
async fn open(path: &Path) -> Result<std::fs::File, StoreError> {
    match File::open(path).await {
        Ok(file) => {
            let file = file.into_std().await;
            let _ = file.set_modified(SystemTime::now());
            Ok(file)
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(StoreError::Unknown),
        Err(error) => Err(failed(error)),
    }
}
