//! `flotilla-gateway key`: creates, lists, and revokes API keys. Their digests are in a file of
//! their own (`keys_file`), which the gateway reloads when it changes.

use std::fs::File;
use std::path::{Path, PathBuf};

use inference_protocol::ids::is_plain_id;

use crate::access::keys::ApiKey;
use crate::commands::error::CommandError;
use crate::config::api_keys::{NAME, SeenKeys, read_file};
use crate::config::key_entries::to_yaml;
use crate::types::atomic_file::replace;
use crate::types::secret::KeyDigest;

const HEADER: &str = "# API keys, as digests. Written by 'flotilla-gateway key new' and 'key revoke'; you may edit the \
                      limits.\n";

/// Digests need no protection: keys have 256 random bits.
const MODE: u32 = 0o644;

/// A new key, shown once, and its entry.
#[derive(Debug)]
pub struct NewKey {
    /// The key itself.
    pub secret: String,
    /// The entry to store.
    pub entry: ApiKey,
}

impl NewKey {
    /// Creates a random key; `allows` makes its entry.
    ///
    /// # Errors
    /// The name or that of its group is not valid, or the system has no randomness.
    pub fn generate(
        name: &str,
        allows: impl FnOnce(KeyDigest) -> ApiKey,
    ) -> Result<Self, CommandError> {
        if !is_plain_id(name) {
            return Err(CommandError::Usage(format!("--name: {NAME}")));
        }
        let secret = format!("sk-flotilla-{}", random_hex()?);
        let entry = allows(KeyDigest::of(&secret));
        if entry.prefix_group.as_ref().is_some_and(|group| !is_plain_id(group)) {
            return Err(CommandError::Usage(format!("--prefix-group: {NAME}")));
        }
        Ok(Self { secret, entry })
    }

    /// The entry as YAML for a configuration.
    ///
    /// # Errors
    /// It cannot be formatted.
    pub fn yaml(&self) -> Result<String, CommandError> {
        to_yaml(std::slice::from_ref(&self.entry)).map_err(CommandError::Write)
    }
}

/// 256 random bits.
///
/// # Errors
/// The system has no randomness.
pub(super) fn random_hex() -> Result<String, CommandError> {
    let mut random = [0u8; 32];
    let fail = |e| CommandError::Software(format!("cannot read random bytes: {e}"));
    getrandom::fill(&mut random).map_err(fail)?;
    Ok(random.iter().map(|b| format!("{b:02x}")).collect())
}

/// A keys file, locked against other writers.
#[derive(Debug)]
pub struct KeysFile {
    path: PathBuf,
    /// Its keys.
    pub keys: Vec<ApiKey>,
    /// Lock on its folder.
    _lock: File,
}

impl KeysFile {
    /// Opens a keys file, which need not exist yet.
    ///
    /// # Errors
    /// It is unreadable or invalid.
    pub fn open(path: &Path) -> Result<Self, CommandError> {
        let folder = path.parent().filter(|p| !p.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new("."));
        let fail = |e: std::io::Error| CommandError::Usage(format!("{}: {e}", folder.display()));
        let lock = File::open(folder).map_err(fail)?;
        lock.lock().map_err(fail)?;
        let mut problems = Vec::new();
        let keys = read_file(path, &mut SeenKeys::default(), &mut problems).unwrap_or_default();
        match problems.is_empty() {
            true => Ok(Self { path: path.to_path_buf(), keys, _lock: lock }),
            false => {
                let lines: Vec<String> = problems.iter().map(|p| format!("  {p}")).collect();
                let message = format!("{} is invalid:\n{}", path.display(), lines.join("\n"));
                Err(CommandError::Usage(message))
            }
        }
    }

    /// Writes the file atomically.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn save(&self) -> Result<(), CommandError> {
        let text = file(&self.keys)?;
        let fail = |e| CommandError::Write(format!("{}: {e}", self.path.display()));
        replace(&self.path, &text, MODE).map_err(fail)
    }
}

/// The text of a keys file.
///
/// # Errors
/// It cannot be formatted.
pub fn file(keys: &[ApiKey]) -> Result<String, CommandError> {
    Ok(HEADER.to_string() + &to_yaml(keys).map_err(CommandError::Write)?)
}

/// Formats the keys as a table.
pub fn table(keys: &[ApiKey]) -> String {
    let limit = |n: Option<std::num::NonZeroU32>| n.map_or("-".into(), |n| n.to_string());
    let rows = keys.iter().map(|ApiKey { name, digest, class_max, external, limits, .. }| {
        vec![
            name.clone(),
            digest.to_hex().chars().take(8).collect(),
            class_max.name().into(),
            external.name().into(),
            limit(limits.requests_per_minute),
            limit(limits.tokens_per_minute),
            limit(limits.concurrent_max),
            if limits.models.is_empty() { "all".into() } else { limits.models.join(",") },
        ]
    });
    let head = [
        "NAME",
        "SHA256",
        "CLASS MAX",
        "EXTERNAL",
        "REQUESTS/MIN",
        "TOKENS/MIN",
        "CONCURRENT",
        "MODELS",
    ];
    super::nodes::columns(&head, rows.collect())
}
