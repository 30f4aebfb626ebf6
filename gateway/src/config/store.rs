//! Checks `store`: where files, batches and responses in the background are kept, and their limits.

use std::sync::Arc;

use super::files::{self, Files};
use super::section::{Problems, Section};
use super::tls;
use super::values::{report, server_url};
use crate::store::{Bucket, BucketSettings, Keyring, Place, PostgresSettings, StorageLimits};

/// Where files, batches and responses in the background are kept, and their limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreSettings {
    /// Where it is.
    pub place: Place,
    /// Bytes of all files.
    pub storage: StorageLimits,
    /// Bytes of one uploaded file.
    pub file_bytes_max: u64,
    /// Age at which files, and batches and responses that have ended, are deleted, in seconds.
    pub age_s_max: u64,
    /// Batches and their lines.
    pub batches: BatchLimits,
    /// Responses in the background.
    pub background: BackgroundLimits,
    /// True if it holds API keys.
    pub has_keys: bool,
}

/// Limits of responses in the background.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BackgroundLimits {
    /// Those of a tenant that have not ended.
    pub per_tenant_max: usize,
    /// Those of all tenants that run or wait in the queue.
    pub concurrent_max: usize,
    /// Those of one tenant that run or wait in the queue.
    pub tenant_concurrent_max: usize,
}

/// Limits of batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchLimits {
    /// Batches of a tenant that have not ended.
    pub per_tenant_max: usize,
    /// Lines of one batch.
    pub lines_max: usize,
    /// Lines of all batches that run or wait in the queue.
    pub concurrent_max: usize,
    /// Lines of one tenant's batches that run or wait in the queue.
    pub tenant_concurrent_max: usize,
}

const CERTIFICATES_BYTES_MAX: u64 = 1024 * 1024;
const KEYS_BYTES_MAX: u64 = 16 * 1024;
const MIB: u64 = 1024 * 1024;
const TIB: u64 = 1024 * 1024 * MIB;
const DAY_S: u64 = 24 * 60 * 60;

/// Reads the section. `None` without a folder, or after a problem.
pub(super) fn read(
    section: Option<Section>,
    files: &Files,
    problems: &mut Problems,
) -> Option<StoreSettings> {
    let mut section = section?;
    let dir = section.required_text("dir", problems).map(|dir| files.written_path(&dir));
    if dir.as_ref().is_some_and(|dir| dir.exists() && !dir.is_dir()) {
        section.report("dir", "is a file; expected a folder", problems);
    }
    let (before, postgres) = (problems.len(), read_postgres(&mut section, files, problems));
    let bucket = section.section("s3", problems).and_then(|s3| read_bucket(s3, files, problems));
    let keyring = read_keyring(&mut section, files, problems);
    let has_keys = section.boolean("keys", false, problems);
    let is_right = problems.len() == before;
    let mut number = |key, default, max| section.number(key, default, 1..=max, problems);
    let bytes_max = number("bytes_max", 16 * 1024 * MIB, 1024 * TIB);
    let tenant_bytes_max = number("bytes_per_tenant_max", 2 * 1024 * MIB, 1024 * TIB);
    let file_bytes_max = number("file_bytes_max", 200 * MIB, 64 * 1024 * MIB);
    let age_days = number("age_days", 30, 3650);
    let batches = BatchLimits {
        per_tenant_max: number("batches_per_tenant_max", 32, 100_000) as usize,
        lines_max: number("batch_lines_max", 50_000, 10_000_000) as usize,
        concurrent_max: number("lines_concurrent_max", 512, 100_000) as usize,
        tenant_concurrent_max: number("lines_concurrent_per_tenant_max", 256, 100_000) as usize,
    };
    let background = BackgroundLimits {
        per_tenant_max: number("background_per_tenant_max", 1000, 1_000_000) as usize,
        concurrent_max: number("background_concurrent_max", 256, 100_000) as usize,
        tenant_concurrent_max: number("background_concurrent_per_tenant_max", 64, 100_000) as usize,
    };
    section.finish(problems);
    Some(StoreSettings {
        place: Place { folder: dir.filter(|_| is_right)?, bucket, postgres, keyring },
        storage: StorageLimits { bytes_max, tenant_bytes_max },
        file_bytes_max,
        age_s_max: age_days * DAY_S,
        batches,
        background,
        has_keys,
    })
}

/// The server of the database; `None` if it is a file, or after a problem.
fn read_postgres(
    section: &mut Section,
    files: &Files,
    problems: &mut Problems,
) -> Option<PostgresSettings> {
    let url_file = section.text("postgres_url_file", problems);
    let ca_file = section.text("postgres_ca_file", problems);
    let path = |key| format!("store.{key}");
    let roots = ca_file.map(|file| files::read(&files.path(&file), CERTIFICATES_BYTES_MAX));
    let roots = report(&path("postgres_ca_file"), roots.transpose(), problems)?;
    if url_file.is_none() && roots.is_some() {
        section.report("postgres_ca_file", "needs postgres_url_file", problems);
    }
    let url = report(&path("postgres_url_file"), files.key(&url_file?), problems)?;
    let client = report(&path("postgres_ca_file"), tls::client(roots.as_deref()), problems)?;
    let settings = PostgresSettings::new(&url, Arc::new(client));
    let expected = |why| format!("expected postgres://user:password@host/database: {why}");
    report(&path("postgres_url_file"), settings.map_err(expected), problems)
}

/// The keys that encrypt what is stored; none without a file, or after a problem.
fn read_keyring(section: &mut Section, files: &Files, problems: &mut Problems) -> Keyring {
    let Some(name) = section.text("encryption_key_file", problems) else {
        return Keyring::default();
    };
    let path = files.path(&name);
    let read = || {
        let text = files::read(&path, KEYS_BYTES_MAX)?;
        files::check_private(&path)?;
        Keyring::read(&text).map_err(|why| format!("{}: {why}", path.display()))
    };
    report("store.encryption_key_file", read(), problems).unwrap_or_default()
}

/// The bucket of contents; `None` after a problem.
fn read_bucket(mut section: Section, files: &Files, problems: &mut Problems) -> Option<Bucket> {
    let before = problems.len();
    let name = section.required_text("bucket", problems);
    let prefix = section.text("prefix", problems);
    let endpoint = section.text("endpoint", problems);
    section.pattern("endpoint", "^[Hh][Tt][Tt][Pp][Ss]?://[^/?#]+[^?#]*$");
    if endpoint.as_deref().is_some_and(|url| server_url(url).is_none()) {
        section.report("endpoint", "expected http://host:port or https://host", problems);
    }
    let region = section.text("region", problems);
    let access_key_id = section.text("access_key_id", problems);
    let secret_file = section.text("secret_key_file", problems);
    let ca_file = section.text("ca_file", problems);
    if access_key_id.is_some() != secret_file.is_some() {
        let message = "access_key_id and secret_key_file need each other";
        section.report("access_key_id", message, problems);
    }
    let path = section.path.clone();
    section.finish(problems);
    let of = |key| format!("{path}.{key}");
    let secret = secret_file.map(|file| files.key(&file)).transpose();
    let secret = report(&of("secret_key_file"), secret, problems)?;
    let roots = ca_file.map(|file| files::read(&files.path(&file), CERTIFICATES_BYTES_MAX));
    let roots = report(&of("ca_file"), roots.transpose(), problems)?;
    if problems.len() > before {
        return None;
    }
    let settings = BucketSettings {
        name: name?,
        prefix: prefix.unwrap_or_else(|| "flotilla".into()),
        endpoint,
        region: region.unwrap_or_else(|| "us-east-1".into()),
        access_key_id,
    };
    let roots = roots.as_deref().map(str::as_bytes);
    report(&path, Bucket::new(settings, secret.as_deref(), roots), problems)
}

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, set_permissions};
    use std::os::unix::fs::PermissionsExt;

    use crate::config::document::check;
    use crate::config::files::Files;
    use crate::config::yaml::parse;
    use crate::store::Keyring;

    #[test]
    fn a_file_with_keys_must_have_some_and_be_read_by_its_owner_and_group_only() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("store.keys");
        let text = format!(
            "allow_anonymous: true\nnodes: {{static: [{{url: 'http://10.0.0.1:8080'}}]}}\n\
             store: {{dir: '{}', encryption_key_file: '{}'}}\n",
            folder.path().display(),
            file.display()
        );
        let read = || match check(parse(&text).unwrap(), Files::default()) {
            Ok(config) => Ok(config.store.unwrap().place.keyring),
            Err(problems) => Err(problems.iter().map(ToString::to_string).collect::<String>()),
        };
        let fails = |part: &str| {
            let why = read().unwrap_err();
            assert!(why.contains("store.encryption_key_file") && why.contains(part), "{why}");
            assert!(!why.contains("abab"), "{why}");
        };
        fails("No such file");
        let key = "ab".repeat(32);
        std::fs::write(&file, &key).unwrap();
        for (mode, is_right) in [(0o644, false), (0o604, false), (0o440, true), (0o600, true)] {
            set_permissions(&file, Permissions::from_mode(mode)).unwrap();
            match is_right {
                true => assert_eq!(read(), Keyring::read(&key)),
                false => fails("every user of this machine may read it"),
            }
        }
        std::fs::write(&file, key + "x").unwrap();
        fails("line 1: expected 64 hex digits");
        std::fs::write(&file, "a".repeat(20_000)).unwrap();
        fails("larger than");
    }
}
