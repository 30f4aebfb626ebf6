//! Checks a parsed configuration and reports every problem with the path of its key. Unknown keys
//! are problems, too: a misspelled limit must not go unnoticed.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::edge::{read_cors, read_proxies, read_public_tls, read_tls};
use super::files::Files;
use super::key_recorder::{KeyRecorder, KeySchema};
use super::section::{Problems, QUEUE_BYTES_MAX, QUEUE_DEPTH_MAX, Section};
use super::values::{long_key, report};
use super::yaml::{Node, Problem};
use super::{
    Admin, Config, Limits, QueueTimeouts, Timeouts, api_keys, external, nodes, store, trace_export,
    webhooks,
};
use crate::access::responses;
use crate::config::{ADMIN_CONNECTIONS_MAX, ADMIN_CONNECTIONS_PER_IP};
use crate::scheduler::routing::Policy;
use crate::types::limits::QueueBounds;

/// Every key, with `[]` for list items. Tests compare the reference configuration, the chart, and
/// the documentation with this list.
pub const KEYS: &[&str] = &[
    "listen",
    "tls.cert_file",
    "tls.key_file",
    "tls.acme.domains",
    "tls.acme.email",
    "tls.acme.staging",
    "tls.acme.directory",
    "tls.acme.ca_file",
    "tls.acme.state_dir",
    "tls.acme.challenge",
    "tls.acme.http_listen",
    "admin.listen",
    "admin.key_file",
    "admin.connections_per_ip_max",
    "admin.tls.cert_file",
    "admin.tls.key_file",
    "trusted_proxies",
    "cors.allowed_origins",
    "keys[].name",
    "keys[].sha256",
    "keys[].class_max",
    "keys[].requests_per_minute",
    "keys[].tokens_per_minute",
    "keys[].concurrent_max",
    "keys[].queue_depth_max",
    "keys[].queue_bytes_max",
    "keys[].models",
    "keys[].external",
    "keys[].deadline_ms",
    "keys[].max_tokens",
    "keys[].aliases",
    "keys[].users",
    "keys[].user_header",
    "keys[].users_max",
    "keys[].user_limits.requests_per_minute",
    "keys[].user_limits.tokens_per_minute",
    "keys[].user_limits.concurrent_max",
    "keys[].user_limits.tokens_per_month",
    "keys[].user_limits.spend_per_month",
    "keys[].prefix_group",
    "keys[].force_trace",
    "keys[].resumable_streams",
    "keys[].tokens_per_month",
    "keys[].spend_per_month",
    "keys_file",
    "aliases",
    "allow_anonymous",
    "state_file",
    "store.dir",
    "store.postgres_url_file",
    "store.postgres_ca_file",
    "store.encryption_key_file",
    "store.keys",
    "store.s3.bucket",
    "store.s3.prefix",
    "store.s3.endpoint",
    "store.s3.region",
    "store.s3.access_key_id",
    "store.s3.secret_key_file",
    "store.s3.ca_file",
    "store.bytes_max",
    "store.bytes_per_tenant_max",
    "store.file_bytes_max",
    "store.age_days",
    "store.batches_per_tenant_max",
    "store.batch_lines_max",
    "store.lines_concurrent_max",
    "store.lines_concurrent_per_tenant_max",
    "store.background_per_tenant_max",
    "store.background_concurrent_max",
    "store.background_concurrent_per_tenant_max",
    "webhooks[].name",
    "webhooks[].url",
    "webhooks[].secret_file",
    "webhooks[].ca_file",
    "webhooks[].allow_private",
    "webhooks[].tenants",
    "webhooks[].events",
    "nodes.join_key_file",
    "nodes.client_ca_file",
    "nodes.static[].url",
    "nodes.static[].key_file",
    "nodes.static[].ca_file",
    "nodes.static[].cert_file",
    "nodes.static[].client_key_file",
    "nodes.price_per_hour",
    "nodes.hand_over",
    "external[].name",
    "external[].url",
    "external[].key_file",
    "external[].ca_file",
    "external[].models",
    "external[].concurrent_max",
    "external[].max_tokens_field",
    "external[].fields",
    "external[].weight",
    "external[].prompt_price_per_million",
    "external[].completion_price_per_million",
    "external[].price_per_hour",
    "external[].spend_per_day_max",
    "limits.body_bytes_max",
    "limits.connections_max",
    "limits.connections_per_ip_max",
    "limits.queue_depth_max",
    "limits.queue_bytes_max",
    "limits.queue_depth_per_model_max",
    "limits.queue_bytes_per_model_max",
    "limits.queue_depth_per_tenant_max",
    "limits.queue_bytes_per_tenant_max",
    "limits.response_bytes_max",
    "limits.event_bytes_max",
    "limits.stored_bytes_max",
    "limits.stored_bytes_per_tenant_max",
    "limits.stored_age_s",
    "timeouts.header_ms",
    "timeouts.body_ms",
    "timeouts.keep_alive_ms",
    "timeouts.write_ms",
    "timeouts.connect_ms",
    "timeouts.queue_ms",
    "timeouts.queue_interactive_ms",
    "timeouts.queue_batch_ms",
    "timeouts.first_token_ms",
    "timeouts.idle_ms",
    "timeouts.comment_ms",
    "timeouts.resume_ms",
    "timeouts.shutdown_ms",
    "retries_max",
    "routing.policy",
    "routing.hedge_ms",
    "health.probe_interval_ms",
    "traces.otlp_endpoint",
    "traces.sample_ratio",
];

/// Checks a configuration.
pub fn check(root: Node, files: Files) -> Result<Config, Vec<Problem>> {
    walk(root, files, &KeyRecorder::default())
}

/// Every configuration key, in the order in which keys are read.
pub fn keys() -> Vec<KeySchema> {
    let trace = KeyRecorder::for_keys();
    // The empty configuration is refused, but by then every key has been read.
    let _ = walk(Node::Absent, Files::default(), &trace);
    trace.into_keys()
}

/// The effective configuration: every key with its value, including defaults.
pub fn effective(root: Node, files: Files) -> Result<Vec<(String, Node)>, Vec<Problem>> {
    let trace = KeyRecorder::for_values();
    walk(root, files, &trace)?;
    Ok(trace.into_values())
}

fn walk(root: Node, files: Files, trace: &KeyRecorder) -> Result<Config, Vec<Problem>> {
    let mut problems = Vec::new();
    let mut root = Section::new(root, String::new(), trace, &mut problems);
    let listen = root.address("listen", "127.0.0.1:8080", &mut problems);
    let tls = root.section("tls", &mut problems);
    let admin = read_admin(root.section("admin", &mut problems), &files, &mut problems);
    let aliases = root.aliases("aliases", &mut problems);
    let key_settings = api_keys::read(&mut root, &files, &mut problems);
    let state_file = read_state_file(&mut root, &files, &mut problems);
    let store = store::read(root.section("store", &mut problems), &files, &mut problems);
    let has_stored_keys = store.as_ref().is_some_and(|store| store.has_keys);
    api_keys::check(&key_settings, has_stored_keys, &mut problems);
    let webhooks = webhooks::read(&mut root, &files, &mut problems);
    if store.is_none() && !webhooks.is_empty() {
        root.report("webhooks", "needs a store: set store.dir", &mut problems);
    }
    let externals = external::read(&mut root, &files, &mut problems);
    let nodes = root.section("nodes", &mut problems);
    let nodes = match (nodes, externals.is_empty()) {
        (None, false) => nodes::Nodes::default(),
        (section, _) => nodes::read(section, &files, &mut problems),
    };
    if nodes.authority.is_some() && tls.is_none() {
        let message = "client certificates need TLS: set tls";
        problems.push(Problem { path: "nodes.client_ca_file".into(), message: message.into() });
    }
    let (tls, acme) = read_public_tls(tls, nodes.authority.clone(), &files, &mut problems);
    let trusted_proxies = read_proxies(&mut root, &mut problems);
    let cors = read_cors(root.section("cors", &mut problems), &mut problems);
    let mut limits = read_limits(root.section_or_empty("limits", &mut problems), &mut problems);
    // Adding or removing a key makes another configuration, so this stays correct.
    limits.queue.has_tenants = key_settings.keys.len() > 1 || has_stored_keys;
    let timeouts = read_timeouts(root.section_or_empty("timeouts", &mut problems), &mut problems);
    let retries_max = root.number("retries_max", 2, 0..=10, &mut problems) as usize;
    let (policy, hedge) =
        read_routing(root.section_or_empty("routing", &mut problems), &mut problems);
    let probe_interval = read_health(root.section_or_empty("health", &mut problems), &mut problems);
    let traces = trace_export::read(root.section("traces", &mut problems), &mut problems);
    root.finish(&mut problems);
    if problems.is_empty()
        && let Some(listen) = listen
    {
        let api_keys::KeySettings { keys, keys_file, has_keys_file, .. } = key_settings;
        return Ok(Config {
            files: files.into_named(),
            listen,
            tls,
            acme,
            admin,
            aliases,
            trusted_proxies,
            cors,
            keys,
            keys_file,
            has_keys_file,
            state_file,
            store,
            webhooks,
            allow_anonymous: key_settings.allow_anonymous,
            join_key: nodes.join_key,
            join_key_file: nodes.join_key_file,
            node_authority: nodes.authority,
            static_nodes: nodes.listed,
            node_price_per_hour: nodes.price_per_hour,
            hand_over: nodes.hand_over,
            externals,
            limits,
            timeouts,
            retries_max,
            policy,
            hedge,
            probe_interval,
            traces,
        });
    }
    Err(problems)
}

fn read_admin(section: Option<Section>, files: &Files, problems: &mut Problems) -> Option<Admin> {
    let mut section = section?;
    let listen = section.address("listen", "127.0.0.1:8081", problems);
    let key_file = section.text("key_file", problems);
    let key = key_file
        .as_ref()
        .and_then(|file| report("admin.key_file", long_key(files, file), problems));
    let per_ip_max = section.number(
        "connections_per_ip_max",
        ADMIN_CONNECTIONS_PER_IP as u64,
        1..=ADMIN_CONNECTIONS_MAX as u64,
        problems,
    );
    let tls = read_tls(section.section("tls", problems), files, problems);
    section.finish(problems);
    let key_file = key_file.map(|file| files.path(&file));
    let cert_file = tls.as_ref().and_then(|tls| tls.certificate()).map(Path::to_path_buf);
    let connections_per_ip_max = per_ip_max as usize;
    Some(Admin { listen: listen?, key, key_file, tls, cert_file, connections_per_ip_max })
}

/// Reads the path of the state file; its folder must exist.
fn read_state_file(root: &mut Section, files: &Files, problems: &mut Problems) -> Option<PathBuf> {
    let path = files.written_path(&root.text("state_file", problems)?);
    if path.is_dir() {
        root.report("state_file", "is a folder; expected a file", problems);
    } else if !path.parent().is_some_and(Path::is_dir) {
        root.report("state_file", "its folder does not exist", problems);
    }
    Some(path)
}

/// Reads the routing policy and the hedge delay.
fn read_routing(mut section: Section, problems: &mut Problems) -> (Policy, Option<Duration>) {
    let policy =
        section.choice("policy", (&Policy::ALL, Policy::name), Policy::default(), problems);
    let hedge_ms = section.number("hedge_ms", 0, 0..=3_600_000, problems);
    section.finish(problems);
    let hedge = (hedge_ms > 0).then(|| Duration::from_millis(hedge_ms));
    (policy.unwrap_or_default(), hedge)
}

/// Reads how long a node may answer nothing before a health check; `None` turns checks off.
fn read_health(mut section: Section, problems: &mut Problems) -> Option<Duration> {
    let ms = section.number("probe_interval_ms", 30_000, 0..=86_400_000, problems);
    section.finish(problems);
    (ms > 0).then(|| Duration::from_millis(ms))
}

fn read_limits(mut section: Section, problems: &mut Problems) -> Limits {
    const MIB: u64 = 1024 * 1024;
    const DAY_S: u64 = 24 * 60 * 60;
    let mut number = |key, default, max| section.number(key, default, 1..=max, problems) as usize;
    let mut limits = Limits {
        body_bytes_max: number("body_bytes_max", 4 * MIB, 8 * MIB),
        connections_max: number("connections_max", 4096, 1_000_000),
        connections_per_ip_max: number("connections_per_ip_max", 512, 1_000_000),
        queue: QueueBounds::new(
            number("queue_depth_max", 1024, QUEUE_DEPTH_MAX),
            number("queue_bytes_max", 256 * MIB, QUEUE_BYTES_MAX),
        ),
        response_bytes_max: number("response_bytes_max", 64 * MIB, 1024 * MIB),
        event_bytes_max: number("event_bytes_max", MIB, 64 * MIB),
        stored: responses::Limits {
            bytes_max: number("stored_bytes_max", 64 * MIB, 64 * 1024 * MIB),
            tenant_bytes_max: number("stored_bytes_per_tenant_max", 16 * MIB, 64 * 1024 * MIB),
            age_s_max: number("stored_age_s", DAY_S, 30 * DAY_S) as u64,
        },
    };
    let mut share = |of: &str| {
        let keys = [format!("queue_depth_per_{of}_max"), format!("queue_bytes_per_{of}_max")];
        section.queue_share([&keys[0], &keys[1]], problems)
    };
    (limits.queue.per_model, limits.queue.per_tenant) = (share("model"), share("tenant"));
    section.finish(problems);
    limits
}

fn read_timeouts(mut section: Section, problems: &mut Problems) -> Timeouts {
    const DAY_MS: u64 = 24 * 60 * 60 * 1000;
    let mut ms =
        |key, default| Duration::from_millis(section.number(key, default, 1..=DAY_MS, problems));
    let timeouts = Timeouts {
        header: ms("header_ms", 10_000),
        body: ms("body_ms", 30_000),
        keep_alive: ms("keep_alive_ms", 75_000),
        write: ms("write_ms", 30_000),
        connect: ms("connect_ms", 3_000),
        queue: QueueTimeouts {
            interactive: ms("queue_interactive_ms", 30_000),
            standard: ms("queue_ms", 60_000),
            batch: ms("queue_batch_ms", 600_000),
        },
        first_token: ms("first_token_ms", 600_000),
        idle: ms("idle_ms", 120_000),
        comment: ms("comment_ms", 10_000),
        resume: ms("resume_ms", 30_000),
        shutdown: ms("shutdown_ms", 30_000),
    };
    section.finish(problems);
    timeouts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::yaml::parse;

    fn problems(text: &str) -> Vec<String> {
        let files = Files::beside(Path::new("/nonexistent/gateway.yaml"));
        let checked = check(parse(text).unwrap(), files);
        checked.unwrap_err().iter().map(Problem::to_string).collect()
    }

    const MINIMAL: &str =
        "allow_anonymous: true\nnodes: {static: [{url: 'http://10.0.0.1:8080'}]}\n";

    #[test]
    fn the_least_that_is_needed_is_little() {
        let config = check(parse(MINIMAL).unwrap(), Files::default()).unwrap();
        assert_eq!(config.listen.to_string(), "127.0.0.1:8080");
        let node = &config.static_nodes[0];
        assert_eq!((node.host.as_str(), node.port), ("10.0.0.1", 8080));
    }

    #[test]
    fn every_problem_is_reported_at_once_with_its_path() {
        let text = "listen: nowhere\nkeys: [{name: 'a b', sha256: 12, extra: 1}]\n\
            nodes: {join_key_file: missing, static: [{url: 'ftp://x'}]}\n\
            limits: {body_bytes_max: -1, bodybytes: 2}\ntimeouts: 5\nretries_max: 99\n\
            external: [{name: gpu, url: 'ftp://x', spend_per_day_max: much}]\n";
        let found = problems(text);
        for path in [
            "listen: expected an address",
            "keys[0].name: expected 1 to 64",
            "keys[0].sha256: expected a string",
            "keys[0].extra: unknown key; known here: name, sha256, class_max, external",
            "nodes.join_key_file: /nonexistent/missing:",
            "nodes.static[0].url: expected http://host:port",
            "limits.body_bytes_max: expected a whole number",
            "limits.bodybytes: unknown key",
            "timeouts: expected keys and values",
            "retries_max: expected a whole number, 0 to 10",
            "external[0].url: expected http://host/v1",
            "external[0].spend_per_day_max: expected a number, such as 0.15",
        ] {
            assert!(found.iter().any(|p| p.starts_with(path)), "{path} in {found:#?}");
        }
        assert_eq!(found.len(), 12, "{found:#?}");
    }

    #[test]
    fn no_part_of_a_url_is_dropped_silently() {
        let of_node =
            |url| format!("allow_anonymous: true\nnodes: {{static: [{{url: '{url}'}}]}}\n");
        for url in ["http://h:1#f", "http://me@h:1", "http://h:1?q=1", "http://h:1/v1"] {
            let found = problems(&of_node(url));
            assert_eq!(found.len(), 1, "{url}: {found:?}");
            assert!(found[0].starts_with("nodes.static[0].url: expected"), "{url}: {found:?}");
        }
        for url in ["http://h:1#f", "http://h:1?q=1"] {
            let found = problems(&format!("{MINIMAL}traces: {{otlp_endpoint: '{url}'}}\n"));
            assert_eq!(found.len(), 1, "{url}: {found:?}");
            assert!(found[0].starts_with("traces.otlp_endpoint: expected"), "{url}: {found:?}");
        }
    }

    #[test]
    fn a_gateway_that_nobody_could_use_is_refused() {
        let found = problems("{}");
        assert!(found[0].starts_with("keys: there are none"), "{found:?}");
        assert!(
            found[1].starts_with("nodes: there are none: set nodes.join_key_file"),
            "{found:?}"
        );
    }

    #[test]
    fn text_that_is_not_yaml_says_where() {
        assert!(parse("listen: [").unwrap_err().contains("line"));
    }
}
