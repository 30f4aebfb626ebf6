//! Contents of files in a bucket of S3-compatible storage.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures_util::TryStreamExt;
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::path::Path as Key;
use object_store::{
    Certificate, ClientOptions, ObjectStore, ObjectStoreExt, RetryConfig, WriteMultipart,
};
use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{StoreError, failed};

/// Longest wait for a connection, and for a response to one request.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const TIMEOUT: Duration = Duration::from_secs(60);
/// Requests that failed are repeated for so long.
const RETRY_TIMEOUT: Duration = Duration::from_secs(15);
const RETRIES_MAX: usize = 3;
/// Bytes that are sent in one request, and such requests at a time for one file.
const PART_BYTES: usize = 8 * 1024 * 1024;
const PARTS_MAX: usize = 2;

/// Where a bucket is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketSettings {
    /// Its name.
    pub name: String,
    /// What the keys of all objects begin with.
    pub prefix: String,
    /// URL of the server; `None` for AWS.
    pub endpoint: Option<String>,
    /// The region.
    pub region: String,
    /// Id of the access key; `None` for what the environment or the machine's role says.
    pub access_key_id: Option<String>,
}

/// A bucket. Clones share its connections. Two are equal if they name the same place.
#[derive(Debug, Clone)]
pub struct Bucket {
    settings: BucketSettings,
    client: Arc<AmazonS3>,
}

impl PartialEq for Bucket {
    fn eq(&self, other: &Self) -> bool {
        self.settings == other.settings
    }
}

impl Eq for Bucket {}

impl Bucket {
    /// A bucket, with the secret of its access key, and CA certificates (PEM) to trust besides the
    /// system's.
    ///
    /// # Errors
    /// The settings are not right.
    pub fn new(
        settings: BucketSettings,
        secret: Option<&str>,
        roots: Option<&[u8]>,
    ) -> Result<Self, String> {
        let is_plain = |url: &String| url.starts_with("http://");
        let mut options = ClientOptions::new()
            .with_connect_timeout(CONNECT_TIMEOUT)
            .with_timeout(TIMEOUT)
            .with_allow_http(settings.endpoint.as_ref().is_some_and(is_plain));
        for certificate in
            roots.map(Certificate::from_pem_bundle).transpose().map_err(text)?.iter().flatten()
        {
            options = options.with_root_certificate(certificate.clone());
        }
        let retry = RetryConfig {
            max_retries: RETRIES_MAX,
            retry_timeout: RETRY_TIMEOUT,
            ..RetryConfig::default()
        };
        let mut builder = AmazonS3Builder::from_env()
            .with_bucket_name(&settings.name)
            .with_region(&settings.region)
            .with_client_options(options)
            .with_retry(retry);
        if let Some(endpoint) = &settings.endpoint {
            builder = builder.with_endpoint(endpoint.trim_end_matches('/'));
        }
        if let (Some(id), Some(secret)) = (&settings.access_key_id, secret) {
            builder = builder.with_access_key_id(id).with_secret_access_key(secret);
        }
        Ok(Self { client: Arc::new(builder.build().map_err(text)?), settings })
    }

    fn key(&self, id: &str) -> Key {
        Key::from(format!("{}/{id}", self.settings.prefix))
    }

    /// Stores a file under an id. It is there as a whole or not at all.
    pub(super) async fn put(&self, id: &str, path: &Path) -> Result<(), StoreError> {
        let mut file = File::open(path).await.map_err(failed)?;
        let first = part(&mut file).await?;
        if first.len() < PART_BYTES {
            let put = self.client.put(&self.key(id), first.into()).await;
            return put.map(|_| ()).map_err(|error| fault(&error));
        }
        let upload = self.client.put_multipart(&self.key(id)).await.map_err(|e| fault(&e))?;
        let mut writer = WriteMultipart::new_with_chunk_size(upload, PART_BYTES);
        let mut next = first;
        while !next.is_empty() {
            if let Err(error) = writer.wait_for_capacity(PARTS_MAX).await {
                let _ = writer.abort().await;
                return Err(fault(&error));
            }
            writer.put(next);
            next = match part(&mut file).await {
                Ok(next) => next,
                Err(error) => {
                    let _ = writer.abort().await;
                    return Err(error);
                }
            };
        }
        // It aborts by itself.
        writer.finish().await.map(|_| ()).map_err(|error| fault(&error))
    }

    /// Writes what is stored under an id into a file.
    pub(super) async fn get(&self, id: &str, file: &mut File) -> Result<(), StoreError> {
        let found = self.client.get(&self.key(id)).await.map_err(|error| fault(&error))?;
        let mut blocks = found.into_stream();
        while let Some(block) = blocks.try_next().await.map_err(|error| fault(&error))? {
            file.write_all(&block).await.map_err(failed)?;
        }
        file.flush().await.map_err(failed)
    }

    /// Deletes what is stored under an id.
    pub(super) async fn delete(&self, id: &str) -> Result<(), StoreError> {
        match self.client.delete(&self.key(id)).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(fault(&error)),
        }
    }

    /// Ids under which something is stored that is older than this.
    pub(super) async fn older_than(&self, age: Duration) -> Result<Vec<String>, StoreError> {
        let prefix = Key::from(self.settings.prefix.as_str());
        let before = SystemTime::now() - age;
        let found = self.client.list(Some(&prefix)).try_collect::<Vec<_>>().await;
        let found = found.map_err(|error| fault(&error))?.into_iter();
        let old = found.filter(|object| SystemTime::from(object.last_modified) < before);
        Ok(old.filter_map(|object| object.location.filename().map(Into::into)).collect())
    }
}

/// The next part of a file; empty at its end.
async fn part(file: &mut File) -> Result<Bytes, StoreError> {
    let mut part = Vec::new();
    file.take(PART_BYTES as u64).read_to_end(&mut part).await.map_err(failed)?;
    Ok(part.into())
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn fault(error: &object_store::Error) -> StoreError {
    if let object_store::Error::NotFound { .. } = error {
        return StoreError::Unknown;
    }
    tracing::error!(%error, "bucket of the store failed");
    StoreError::Unavailable
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_not_printed() {
        let settings = BucketSettings {
            name: "flotilla".into(),
            prefix: "files".into(),
            endpoint: Some("http://127.0.0.1:1".into()),
            region: "us-east-1".into(),
            access_key_id: Some("id".into()),
        };
        let bucket = Bucket::new(settings, Some("s3cret-of-the-key"), None).unwrap();
        assert!(!format!("{bucket:?}").contains("s3cret-of"), "{bucket:?}");
        assert_eq!(bucket.key("file-1").as_ref(), "files/file-1");
    }
}
