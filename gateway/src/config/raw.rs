//! Walks a configuration as it was written and checks it, reporting every problem with the
//! path of its key. Unknown keys are problems: a misspelt limit must not go unnoticed.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use hyper::Uri;
use hyper::header::HeaderValue;
use inference_protocol::ids::is_plain_id;

use super::section::{Problems, Section};
use super::{ApiKey, Config, Limits, QueueTimeouts, StaticNode, Timeouts};
use crate::admission::Bounds;
use crate::limiter::KeyLimits;
use crate::routing::Policy;
use crate::secret::KeyDigest;
use crate::tls::{Acceptor, Dialler};

/// Every key, with `[]` for the items of a list: the reference configuration, the chart and
/// the documentation are compared with this.
pub const KEYS: &[&str] = &[
    "listen",
    "tls.cert_file",
    "tls.key_file",
    "keys[].name",
    "keys[].sha256",
    "keys[].class_max",
    "keys[].requests_per_minute",
    "keys[].tokens_per_minute",
    "keys[].concurrent_max",
    "keys[].models",
    "allow_anonymous",
    "nodes.join_key_file",
    "nodes.static[].url",
    "nodes.static[].key_file",
    "nodes.static[].ca_file",
    "limits.body_bytes_max",
    "limits.connections_max",
    "limits.queue_depth_max",
    "limits.queue_bytes_max",
    "limits.response_bytes_max",
    "limits.event_bytes_max",
    "timeouts.header_ms",
    "timeouts.body_ms",
    "timeouts.connect_ms",
    "timeouts.queue_ms",
    "timeouts.queue_interactive_ms",
    "timeouts.queue_batch_ms",
    "timeouts.first_token_ms",
    "timeouts.idle_ms",
    "timeouts.resume_ms",
    "timeouts.shutdown_ms",
    "retries_max",
    "routing.policy",
    "health.probe_interval_ms",
];

/// A join key shorter than this could be guessed.
const JOIN_KEY_BYTES_MIN: usize = 16;
const KEY_FILE_BYTES_MAX: u64 = 4096;

/// A configuration value as it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Node {
    /// Nothing, or null.
    Absent,
    /// true or false
    Bool(bool),
    /// A whole number, not negative.
    Number(u64),
    /// Text.
    Text(String),
    /// A list.
    List(Vec<Node>),
    /// Keys and values.
    Map(Vec<(String, Node)>),
    /// Something that no key takes.
    Other(&'static str),
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Where, such as `keys[1].sha256`.
    pub path: String,
    /// What, and what would be right.
    pub message: String,
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.path, self.message)
    }
}

/// Checks a configuration. Files are relative to `base`.
pub fn check(root: Node, base: &Path) -> Result<Config, Vec<Problem>> {
    let mut problems = Vec::new();
    let mut root = Section::new(root, String::new(), &mut problems);
    let listen = root.address("listen", "127.0.0.1:8080", &mut problems);
    let tls = read_tls(root.section("tls", &mut problems), base, &mut problems);
    let keys = read_keys(&mut root, &mut problems);
    let (join_key, static_nodes) =
        read_nodes(root.section("nodes", &mut problems), base, &mut problems);
    let limits = read_limits(root.section("limits", &mut problems), &mut problems);
    let timeouts = read_timeouts(root.section("timeouts", &mut problems), &mut problems);
    let retries_max = root.number("retries_max", 2, 0..=10, &mut problems) as usize;
    let policy = read_routing(root.section("routing", &mut problems), &mut problems);
    let probe_interval = read_health(root.section("health", &mut problems), &mut problems);
    root.finish(&mut problems);
    if problems.is_empty()
        && let Some(listen) = listen
    {
        return Ok(Config {
            listen,
            tls,
            keys,
            join_key,
            static_nodes,
            limits,
            timeouts,
            retries_max,
            policy,
            probe_interval,
        });
    }
    Err(problems)
}

fn read_tls(section: Option<Section>, base: &Path, problems: &mut Problems) -> Option<Acceptor> {
    let mut section = section?;
    let certificate = section.required_text("cert_file", problems);
    let key = section.required_text("key_file", problems);
    let path = section.path.clone();
    section.finish(problems);
    let acceptor = Acceptor::new(&base.join(certificate?), &base.join(key?));
    report(&path, acceptor, problems)
}

fn read_keys(root: &mut Section, problems: &mut Problems) -> Vec<ApiKey> {
    let before = problems.len();
    let items = root.list("keys", problems);
    let anonymous = root.boolean("allow_anonymous", false, problems);
    if items.is_empty() && !anonymous && problems.len() == before {
        let message = "there are none, so nobody could ask; make one with 'flotilla-gateway key \
                       new', or set allow_anonymous: true";
        problems.push(Problem { path: "keys".into(), message: message.into() });
    }
    if !items.is_empty() && anonymous {
        let message = "must be false where keys are given";
        problems.push(Problem { path: "allow_anonymous".into(), message: message.into() });
    }
    let mut names = BTreeSet::new();
    let mut keys = Vec::new();
    for mut item in items {
        let name = item.required_text("name", problems);
        let digest = item.required_text("sha256", problems);
        let class_max = item.class("class_max", problems);
        let limits = read_key_limits(&mut item, problems);
        if let Some(name) = &name {
            let wrong = match (is_plain_id(name), names.insert(name.clone())) {
                (false, _) => Some("expected 1 to 64 letters, digits, '.', '_' or '-'"),
                (true, false) => Some("this name is used twice"),
                (true, true) => None,
            };
            if let Some(message) = wrong {
                item.complain("name", message, problems);
            }
        }
        let parsed = digest.as_deref().map(|d| (d, KeyDigest::from_hex(d)));
        if let Some((_, None)) = parsed {
            item.complain("sha256", "expected 64 hex digits", problems);
        }
        if let (Some(name), Some((_, Some(digest)))) = (name, parsed) {
            keys.push(ApiKey { name, digest, class_max, limits });
        }
        item.finish(problems);
    }
    keys
}

fn read_key_limits(item: &mut Section, problems: &mut Problems) -> KeyLimits {
    KeyLimits {
        requests_per_minute: item.limit("requests_per_minute", problems),
        tokens_per_minute: item.limit("tokens_per_minute", problems),
        concurrent_max: item.limit("concurrent_max", problems),
        models: item.texts("models", problems),
    }
}

fn read_nodes(
    section: Option<Section>,
    base: &Path,
    problems: &mut Problems,
) -> (Option<KeyDigest>, Vec<StaticNode>) {
    let none = "there is no way to get any: set nodes.join_key_file or nodes.static";
    let Some(mut section) = section else {
        problems.push(Problem { path: "nodes".into(), message: none.into() });
        return (None, Vec::new());
    };
    let join_key_file = section.text("join_key_file", problems);
    let items = section.list("static", problems);
    if join_key_file.is_none() && items.is_empty() {
        problems.push(Problem { path: "nodes".into(), message: none.into() });
    }
    let join_key = join_key_file.and_then(|file| {
        let key = read_key(&base.join(file)).and_then(|key| match key.len() {
            JOIN_KEY_BYTES_MIN.. => Ok(KeyDigest::of(&key)),
            _ => Err(format!("the key must have at least {JOIN_KEY_BYTES_MIN} characters")),
        });
        report("nodes.join_key_file", key, problems)
    });
    let nodes = items.into_iter().filter_map(|item| read_static(item, base, problems)).collect();
    section.finish(problems);
    (join_key, nodes)
}

fn read_static(mut item: Section, base: &Path, problems: &mut Problems) -> Option<StaticNode> {
    let url = item.required_text("url", problems);
    let key_file = item.text("key_file", problems);
    let ca_file = item.text("ca_file", problems).map(|f| base.join(f));
    let path = item.path.clone();
    item.finish(problems);
    let authorization = match key_file {
        Some(file) => {
            let key = read_key(&base.join(file)).and_then(|key| header(&key));
            Some(report(&format!("{path}.key_file"), key, problems)?)
        }
        None => None,
    };
    let url = url?;
    let (host, port, secure) = report(&format!("{path}.url"), split_url(&url), problems)?;
    let tls = match secure {
        true => {
            let dialler = Dialler::new(ca_file.as_deref());
            Some(report(&format!("{path}.ca_file"), dialler, problems)?)
        }
        false => None,
    };
    Some(StaticNode { url, host, port, tls, authorization })
}

fn header(key: &str) -> Result<HeaderValue, String> {
    let mut value = HeaderValue::from_str(&format!("Bearer {key}"))
        .map_err(|_| "the key holds characters that a header cannot".to_string())?;
    value.set_sensitive(true);
    Ok(value)
}

fn split_url(url: &str) -> Result<(String, u16, bool), String> {
    let wrong = || "expected http://host:port or https://host:port".to_string();
    let uri: Uri = url.parse().map_err(|_| wrong())?;
    let secure = match uri.scheme_str() {
        Some("http") => false,
        Some("https") => true,
        _ => return Err(wrong()),
    };
    let host = uri.host().filter(|h| !h.is_empty()).ok_or_else(wrong)?;
    if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
        return Err(wrong());
    }
    let port = uri.port_u16().unwrap_or(if secure { 443 } else { 80 });
    Ok((host.trim_matches(['[', ']']).to_string(), port, secure))
}

fn read_routing(section: Option<Section>, problems: &mut Problems) -> Policy {
    let Some(mut section) = section else { return Policy::default() };
    let name = section.text("policy", problems);
    let policy = name.as_deref().map_or(Some(Policy::default()), Policy::named);
    if policy.is_none() {
        let names: Vec<&str> = Policy::ALL.iter().map(|policy| policy.name()).collect();
        let message = format!("expected one of {}", names.join(", "));
        section.complain("policy", &message, problems);
    }
    section.finish(problems);
    policy.unwrap_or_default()
}

/// How long a node may answer nothing before it is asked something; absent: for ever.
fn read_health(section: Option<Section>, problems: &mut Problems) -> Option<Duration> {
    let mut section = section.unwrap_or_else(|| Section::empty("health"));
    let ms = section.number("probe_interval_ms", 30_000, 0..=86_400_000, problems);
    section.finish(problems);
    (ms > 0).then(|| Duration::from_millis(ms))
}

fn read_limits(section: Option<Section>, problems: &mut Problems) -> Limits {
    const MIB: u64 = 1024 * 1024;
    let mut section = section.unwrap_or_else(|| Section::empty("limits"));
    let mut number = |key, default, max| section.number(key, default, 1..=max, problems) as usize;
    let limits = Limits {
        body_bytes_max: number("body_bytes_max", 4 * MIB, 8 * MIB),
        connections_max: number("connections_max", 4096, 1_000_000),
        queue: Bounds {
            depth_max: number("queue_depth_max", 1024, 1_000_000),
            bytes_max: number("queue_bytes_max", 256 * MIB, 64 * 1024 * MIB),
        },
        response_bytes_max: number("response_bytes_max", 16 * MIB, 1024 * MIB),
        event_bytes_max: number("event_bytes_max", MIB, 64 * MIB),
    };
    section.finish(problems);
    limits
}

fn read_timeouts(section: Option<Section>, problems: &mut Problems) -> Timeouts {
    const DAY_MS: u64 = 24 * 60 * 60 * 1000;
    let mut section = section.unwrap_or_else(|| Section::empty("timeouts"));
    let mut ms =
        |key, default| Duration::from_millis(section.number(key, default, 1..=DAY_MS, problems));
    let timeouts = Timeouts {
        header: ms("header_ms", 10_000),
        body: ms("body_ms", 30_000),
        connect: ms("connect_ms", 3_000),
        queue: QueueTimeouts {
            interactive: ms("queue_interactive_ms", 30_000),
            standard: ms("queue_ms", 60_000),
            batch: ms("queue_batch_ms", 600_000),
        },
        first_token: ms("first_token_ms", 600_000),
        idle: ms("idle_ms", 120_000),
        resume: ms("resume_ms", 30_000),
        shutdown: ms("shutdown_ms", 30_000),
    };
    section.finish(problems);
    timeouts
}

/// A key from a file, without the spaces around it.
fn read_key(path: &Path) -> Result<String, String> {
    use std::io::Read;
    let fail = |e: &dyn std::fmt::Display| format!("{}: {e}", path.display());
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(|e| fail(&e))?;
    file.take(KEY_FILE_BYTES_MAX).read_to_string(&mut text).map_err(|e| fail(&e))?;
    match text.trim() {
        "" => Err(fail(&"is empty")),
        key => Ok(key.to_string()),
    }
}

fn report<T>(path: &str, result: Result<T, String>, problems: &mut Problems) -> Option<T> {
    result.map_err(|message| problems.push(Problem { path: path.into(), message })).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::load::parse;

    fn problems(text: &str) -> Vec<String> {
        let checked = check(parse(text).unwrap(), Path::new("/nonexistent"));
        checked.unwrap_err().iter().map(Problem::to_string).collect()
    }

    const MINIMAL: &str =
        "allow_anonymous: true\nnodes: {static: [{url: 'http://10.0.0.1:8080'}]}\n";

    #[test]
    fn the_least_that_is_needed_is_little() {
        let config = check(parse(MINIMAL).unwrap(), Path::new("")).unwrap();
        assert_eq!(config.listen.to_string(), "127.0.0.1:8080");
        let node = &config.static_nodes[0];
        assert_eq!((node.host.as_str(), node.port), ("10.0.0.1", 8080));
    }

    #[test]
    fn every_problem_is_reported_at_once_with_its_path() {
        let text = "listen: nowhere\nkeys: [{name: 'a b', sha256: 12, extra: 1}]\n\
            nodes: {join_key_file: missing, static: [{url: 'ftp://x'}]}\n\
            limits: {body_bytes_max: -1, bodybytes: 2}\ntimeouts: 5\nretries_max: 99\n";
        let found = problems(text);
        for path in [
            "listen: expected an address",
            "keys[0].name: expected 1 to 64",
            "keys[0].sha256: expected text",
            "keys[0].extra: unknown key; known here: name, sha256, class_max, requests",
            "nodes.join_key_file: /nonexistent/missing:",
            "nodes.static[0].url: expected http://host:port",
            "limits.body_bytes_max: expected a whole number",
            "limits.bodybytes: unknown key",
            "timeouts: expected keys and values",
            "retries_max: expected a whole number, 0 to 10",
        ] {
            assert!(found.iter().any(|p| p.starts_with(path)), "{path} in {found:#?}");
        }
        assert_eq!(found.len(), 10, "{found:#?}");
    }

    #[test]
    fn a_gateway_that_nobody_could_use_is_refused() {
        let found = problems("{}");
        assert!(found[0].starts_with("keys: there are none"), "{found:?}");
        assert!(found[1].starts_with("nodes: there is no way"), "{found:?}");
    }

    #[test]
    fn text_that_is_not_yaml_says_where() {
        assert!(parse("listen: [").unwrap_err().contains("line"));
    }
}
