//! `flotilla-gateway key`: creates, lists, and revokes API keys. Their digests are in a file of
//! their own (`keys_file`), which the gateway reloads when it changes.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use hyper::header::HeaderName;
use inference_protocol::ids::is_plain_id;
use serde::Serialize;

use crate::access::keys::{Alias, ApiKey};
use crate::access::users::UserPolicy;
use crate::commands::error::CommandError;
use crate::config::api_keys::{NAME, SeenKeys, read_file};
use crate::config::yaml;
use crate::types::atomic_file::replace;
use crate::types::class::Class;
use crate::types::external::ExternalPolicy;
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
        yaml(std::slice::from_ref(&self.entry))
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
        let text = HEADER.to_string() + &yaml(&self.keys)?;
        let fail = |e| CommandError::Write(format!("{}: {e}", self.path.display()));
        replace(&self.path, &text, MODE).map_err(fail)
    }
}

/// An entry of the keys file.
#[derive(Debug, Serialize)]
struct Entry<'a> {
    name: &'a str,
    sha256: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    class_max: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    external: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    deadline_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_tokens: Option<u32>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    aliases: BTreeMap<&'a str, AliasEntry<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    requests_per_minute: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tokens_per_minute: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tokens_per_month: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    spend_per_month: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    concurrent_max: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    queue_depth_max: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    queue_bytes_max: Option<usize>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    models: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    users: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    user_header: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    users_max: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    user_limits: Option<UserLimits>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prefix_group: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    force_trace: Option<bool>,
}

/// Limits of each user of a key.
#[derive(Debug, PartialEq, Default, Serialize)]
struct UserLimits {
    #[serde(skip_serializing_if = "Option::is_none")]
    requests_per_minute: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tokens_per_minute: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    concurrent_max: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tokens_per_month: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    spend_per_month: Option<f64>,
}

impl From<&UserPolicy> for UserLimits {
    fn from(UserPolicy { limits, budget, .. }: &UserPolicy) -> Self {
        Self {
            requests_per_minute: limits.requests_per_minute.map(u32::from),
            tokens_per_minute: limits.tokens_per_minute.map(u32::from),
            concurrent_max: limits.concurrent_max.map(u32::from),
            tokens_per_month: budget.tokens.map(u64::from),
            spend_per_month: budget.spend,
        }
    }
}

/// An alias of the key: the model's name, or with its class.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum AliasEntry<'a> {
    Short(&'a str),
    Long { model: &'a str, class: &'static str },
}

impl<'a> From<&'a Alias> for AliasEntry<'a> {
    fn from(Alias { model, class }: &'a Alias) -> Self {
        match class {
            Some(class) => Self::Long { model, class: class.name() },
            None => Self::Short(model),
        }
    }
}

#[derive(Debug, Serialize)]
struct Entries<'a> {
    keys: Vec<Entry<'a>>,
}

fn yaml(keys: &[ApiKey]) -> Result<String, CommandError> {
    let entries = Entries { keys: keys.iter().map(Entry::from).collect() };
    yaml::to_yaml(&entries).map_err(CommandError::Write)
}

impl<'a> From<&'a ApiKey> for Entry<'a> {
    fn from(key: &'a ApiKey) -> Self {
        let ApiKey { name, digest, class_max, external, deadline, tokens_max, .. } = key;
        let ApiKey { aliases, limits, budget, users, prefix_group, force_trace, .. } = key;
        let defaults = UserPolicy::default();
        Self {
            name,
            sha256: digest.to_hex(),
            class_max: (*class_max != Class::Interactive).then(|| class_max.name()),
            external: (*external != ExternalPolicy::Overflow).then(|| external.name()),
            deadline_ms: deadline.map(|d| d.as_millis() as u64),
            max_tokens: tokens_max.map(u32::from),
            aliases: aliases.iter().map(|(name, alias)| (name.as_str(), alias.into())).collect(),
            requests_per_minute: limits.requests_per_minute.map(u32::from),
            tokens_per_minute: limits.tokens_per_minute.map(u32::from),
            tokens_per_month: budget.tokens.map(u64::from),
            spend_per_month: budget.spend,
            concurrent_max: limits.concurrent_max.map(u32::from),
            queue_depth_max: limits.queue.depth_max,
            queue_bytes_max: limits.queue.bytes_max,
            models: &limits.models,
            users: (users.source != defaults.source).then(|| users.source.name()),
            user_header: users.header.as_ref().map(HeaderName::as_str),
            users_max: (users.users_max != defaults.users_max).then_some(users.users_max),
            user_limits: Some(users.into()).filter(|limits| *limits != UserLimits::default()),
            prefix_group: prefix_group.as_deref(),
            force_trace: force_trace.then_some(true),
        }
    }
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
