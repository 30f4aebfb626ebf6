//! Reads API keys from the configuration and from the file that `flotilla-gateway key` writes.

use std::collections::{BTreeSet, HashSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper::header::{self, HeaderName};
use inference_protocol::ids::is_plain_id;

use super::files::{self, Files};
use super::key_recorder::KeyRecorder;
use super::section::{Problems, Section};
use super::yaml::parse;
use crate::access::keys::ApiKey;
use crate::access::limiter::KeyLimits;
use crate::access::spend::Budget;
use crate::access::users::{USERS_MAX, UserPolicy, UserSource};
use crate::config::yaml::{Node, Problem};
use crate::types::class::Class;
use crate::types::external::ExternalPolicy;
use crate::types::secret::KeyDigest;

/// A few hundred bytes per key.
pub(crate) const FILE_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// One day.
const DEADLINE_MS_MAX: u64 = 24 * 60 * 60 * 1000;

/// Largest `users_max`.
const USERS_BOUND: u64 = 10_000;

/// Names of headers, for editors.
const HEADER_PATTERN: &str = "^[A-Za-z0-9!#$%&'*+.^_`|~-]+$";

/// Rule for tenant names.
pub(crate) const NAME: &str = "expected 1 to 64 letters, digits, '.', '_' or '-'";
/// The same rule as a pattern, for editors.
pub(super) const NAME_PATTERN: &str = "^[A-Za-z0-9._-]{1,64}$";

const NONE: &str =
    "there are none; create one with 'flotilla-gateway key new', or set allow_anonymous: true";

/// A keys file must contain a list, even an empty one, so that a truncated file is not mistaken for
/// one without keys.
const NO_LIST: &str = "the list of keys is missing; write 'keys: []' if there are none";

/// Reads `keys`, `keys_file`, and `allow_anonymous`. A keys file may be empty or not exist yet:
/// keys may be added while the gateway runs.
pub(super) fn read(root: &mut Section, files: &Files, problems: &mut Problems) -> KeySettings {
    let before = problems.len();
    let items = root.list("keys", problems);
    let keys_file = root.text("keys_file", problems);
    let allow_anonymous = root.boolean("allow_anonymous", false, problems);
    let places = match !items.is_empty() || keys_file.is_some() {
        true => Places::Some,
        false if problems.len() == before => Places::None,
        false => Places::Unknown,
    };
    let mut seen = SeenKeys::default();
    let mut keys = read_entries(items, &mut seen, problems);
    let keys_file = keys_file.map(|file| files.path(&file));
    let from_file = keys_file.as_ref().and_then(|path| read_file(path, &mut seen, problems));
    let has_keys_file = from_file.is_some();
    keys.extend(from_file.into_iter().flatten());
    KeySettings { keys, keys_file, has_keys_file, allow_anonymous, places }
}

/// Reports a gateway that no key can open, or that has keys and needs none.
pub(super) fn check(settings: &KeySettings, has_stored: bool, problems: &mut Problems) {
    let has_keys = has_stored || settings.places == Places::Some;
    if !has_stored && settings.places == Places::None && !settings.allow_anonymous {
        problems.push(Problem { path: "keys".into(), message: NONE.into() });
    }
    if has_keys && settings.allow_anonymous {
        let message = "must be false if keys are configured";
        problems.push(Problem { path: "allow_anonymous".into(), message: message.into() });
    }
}

/// Whether the configuration says where keys are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Places {
    Some,
    None,
    /// There was a problem.
    Unknown,
}

/// What the configuration says about keys.
#[derive(Debug)]
pub(super) struct KeySettings {
    pub keys: Vec<ApiKey>,
    pub keys_file: Option<PathBuf>,
    pub has_keys_file: bool,
    pub allow_anonymous: bool,
    pub places: Places,
}

/// Names and digests of the keys read so far.
#[derive(Debug, Default)]
pub(crate) struct SeenKeys {
    names: BTreeSet<String>,
    digests: HashSet<KeyDigest>,
}

/// Reads a keys file. `None` if it does not exist. An unreadable file is a problem, not a file
/// without keys.
pub(crate) fn read_file(
    path: &Path,
    seen: &mut SeenKeys,
    problems: &mut Vec<Problem>,
) -> Option<Vec<ApiKey>> {
    let at = |message| Problem { path: "keys_file".into(), message };
    let exists = path.try_exists().map_err(|e| format!("{}: {e}", path.display()));
    let read = exists.and_then(|exists| match exists {
        true => files::read(path, FILE_BYTES_MAX).and_then(|text| parse(&text)).map(Some),
        false => Ok(None),
    });
    match read {
        Ok(tree) => {
            let tree = tree?;
            if !has_list(&tree) {
                problems.push(at(format!("{}: {NO_LIST}", path.display())));
            }
            Some(read_tree(tree, "keys_file", seen, problems))
        }
        Err(message) => {
            problems.push(at(message));
            Some(Vec::new())
        }
    }
}

/// Reads keys in the format of a keys file, which may be JSON, too.
pub(crate) fn read_text(text: &str) -> Result<Vec<ApiKey>, Vec<Problem>> {
    let at = |message| vec![Problem { path: String::new(), message }];
    let tree = parse(text).map_err(at)?;
    if !has_list(&tree) {
        return Err(at(NO_LIST.into()));
    }
    let mut problems = Vec::new();
    let keys = read_tree(tree, "", &mut SeenKeys::default(), &mut problems);
    if problems.is_empty() { Ok(keys) } else { Err(problems) }
}

fn read_tree(tree: Node, path: &str, seen: &mut SeenKeys, problems: &mut Problems) -> Vec<ApiKey> {
    let mut section = Section::new(tree, path.into(), &KeyRecorder::default(), problems);
    let items = section.list("keys", problems);
    section.finish(problems);
    read_entries(items, seen, problems)
}

/// True if the file has a `keys` entry, even an empty one.
fn has_list(tree: &Node) -> bool {
    match tree {
        Node::Map(entries) => entries.iter().any(|(k, v)| k == "keys" && *v != Node::Absent),
        Node::Absent => false,
        // Reported as another problem.
        _ => true,
    }
}

fn read_entries(items: Vec<Section>, seen: &mut SeenKeys, problems: &mut Problems) -> Vec<ApiKey> {
    items.into_iter().filter_map(|item| read_entry(item, seen, problems)).collect()
}

fn read_entry(mut item: Section, seen: &mut SeenKeys, problems: &mut Problems) -> Option<ApiKey> {
    let name = item.required_text("name", problems);
    let hex = item.required_text("sha256", problems);
    item.pattern("name", NAME_PATTERN);
    item.pattern("sha256", "^[0-9A-Fa-f]{64}$");
    let class_max =
        item.choice("class_max", (&Class::ALL, Class::name), Class::Interactive, problems);
    let external = item.choice(
        "external",
        (&ExternalPolicy::ALL, ExternalPolicy::name),
        ExternalPolicy::Overflow,
        problems,
    );
    let deadline_ms = item.optional_number("deadline_ms", 1..=DEADLINE_MS_MAX, problems);
    let deadline = deadline_ms.map(Duration::from_millis);
    let tokens_max = item.limit("max_tokens", problems);
    let aliases = item.aliases("aliases", problems);
    let users = read_users(&mut item, problems);
    let prefix_group = item.text("prefix_group", problems);
    item.pattern("prefix_group", NAME_PATTERN);
    if prefix_group.as_ref().is_some_and(|group| !is_plain_id(group)) {
        item.report("prefix_group", NAME, problems);
    }
    let force_trace = item.boolean("force_trace", false, problems);
    let resumable_streams = item.boolean("resumable_streams", false, problems);
    let limits = KeyLimits {
        requests_per_minute: item.limit("requests_per_minute", problems),
        tokens_per_minute: item.limit("tokens_per_minute", problems),
        concurrent_max: item.limit("concurrent_max", problems),
        queue: item.queue_share(["queue_depth_max", "queue_bytes_max"], problems),
        models: item.texts("models", problems),
    };
    let budget = Budget {
        tokens: item.count("tokens_per_month", problems),
        spend: item.optional_decimal("spend_per_month", problems),
    };
    if let Some(name) = &name {
        let wrong = match (is_plain_id(name), seen.names.insert(name.clone())) {
            (false, _) => Some(NAME),
            (true, false) => Some("this name is used twice"),
            (true, true) => None,
        };
        wrong.into_iter().for_each(|message| item.report("name", message, problems));
    }
    let digest = hex.as_deref().and_then(KeyDigest::from_hex);
    if hex.is_some() && digest.is_none() {
        item.report("sha256", "expected 64 hex digits", problems);
    }
    if digest.as_ref().is_some_and(|digest| !seen.digests.insert(digest.clone())) {
        item.report("sha256", "this key is used twice", problems);
    }
    item.finish(problems);
    Some(ApiKey {
        name: name?,
        digest: digest?,
        class_max: class_max?,
        external: external?,
        deadline,
        tokens_max,
        aliases,
        limits,
        budget,
        users: users?,
        prefix_group,
        force_trace,
        resumable_streams,
    })
}

/// Reads where the requests of a key name their users, and the limits of each user.
fn read_users(item: &mut Section, problems: &mut Problems) -> Option<UserPolicy> {
    let sources = (&UserSource::ALL[..], UserSource::name as fn(UserSource) -> &'static str);
    let source = item.choice("users", sources, UserSource::None, problems);
    let written = item.text("user_header", problems);
    item.pattern("user_header", HEADER_PATTERN);
    let header = written.as_ref().and_then(|name| header_name(name));
    if written.is_some() && header.is_none() {
        item.report("user_header", "expected the name of a header, such as x-user-id", problems);
    }
    let users_max = item.number("users_max", USERS_MAX as u64, 1..=USERS_BOUND, problems) as usize;
    let mut policy = UserPolicy { header, users_max, ..UserPolicy::default() };
    if let Some(section) = item.section("user_limits", problems) {
        (policy.limits, policy.budget) = read_user_limits(section, problems);
    }
    Some(UserPolicy { source: source?, ..policy })
}

fn read_user_limits(mut section: Section, problems: &mut Problems) -> (KeyLimits, Budget) {
    let limits = KeyLimits {
        requests_per_minute: section.limit("requests_per_minute", problems),
        tokens_per_minute: section.limit("tokens_per_minute", problems),
        concurrent_max: section.limit("concurrent_max", problems),
        ..KeyLimits::default()
    };
    let budget = Budget {
        tokens: section.count("tokens_per_month", problems),
        spend: section.optional_decimal("spend_per_month", problems),
    };
    section.finish(problems);
    (limits, budget)
}

/// A header that may name a user: not one that holds a secret.
fn header_name(name: &str) -> Option<HeaderName> {
    let name = name.parse().ok()?;
    (name != header::AUTHORIZATION && name != header::COOKIE).then_some(name)
}
