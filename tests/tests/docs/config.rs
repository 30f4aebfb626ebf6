//! The schema of the configuration and its reference: made of the code, and right about files that
//! are used and about files that are wrong.

use std::path::PathBuf;

use fleet_tests::process::{Folder, program, run, run_command};
use fleet_tests::{config_validator, root};
use serde_json::Value;

use crate::current;

/// Wrong in ways that no schema sees: text that is not YAML, a key that stands there twice, files
/// that are missing.
const BEYOND: [&str; 3] = ["duplicate-key.yaml", "not-yaml.yaml", "files-missing.yaml"];

fn yaml(text: &str) -> Option<Value> {
    serde_yaml::from_str(text).ok()
}

fn invalid() -> Vec<PathBuf> {
    let files = std::fs::read_dir(root().join("configs/invalid")).unwrap();
    files.map(|file| file.unwrap().path()).collect()
}

#[test]
fn the_schema_and_the_reference_are_those_of_this_code() {
    let schema = run("flotilla-gateway", &["config", "schema"]);
    current::check("docs/gateway.schema.json", &schema.stdout);
    let reference = run("flotilla-gateway", &["config", "reference"]);
    current::check("docs/config.md", &reference.stdout);
}

#[test]
fn the_reference_configuration_is_right_and_names_its_schema() {
    let text = current::read("configs/gateway.yaml");
    let validator = config_validator();
    assert!(validator.is_valid(&yaml(&text).unwrap()));
    let named = text.lines().next().unwrap().split("$schema=").nth(1).unwrap();
    assert!(root().join("configs").join(named).exists(), "{named}");
    // With every key that is commented out, too.
    let bare = |line: &str| {
        let indent = line.len() - line.trim_start().len();
        match line.trim_start().strip_prefix('#') {
            Some(rest) if !rest.starts_with(' ') => format!("{}{rest}", &line[..indent]),
            _ => line.to_string(),
        }
    };
    let all: Vec<String> = text.lines().map(bare).collect();
    let mut all = yaml(&all.join("\n")).unwrap();
    // Not together with keys, and not together with tls.acme.
    all.as_object_mut().unwrap().remove("allow_anonymous");
    all["tls"].as_object_mut().unwrap().retain(|key, _| key == "acme");
    let wrong: Vec<String> = validator.iter_errors(&all).map(|e| e.to_string()).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn what_the_gateway_refuses_the_schema_refuses_too() {
    let validator = config_validator();
    let files = invalid();
    assert!(files.len() > 10);
    for file in files {
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        let tree = yaml(&std::fs::read_to_string(&file).unwrap());
        let accepted = tree.is_some_and(|tree| validator.is_valid(&tree));
        assert!(!accepted || BEYOND.contains(&name.as_str()), "{name} passes the schema");
    }
}

/// What the schema accepts and refuses, the gateway does as well: neither is stricter by itself.
#[test]
fn schema_and_gateway_agree_about_single_values() {
    let folder = Folder::new();
    let validator = config_validator();
    let minimal = "allow_anonymous: true\nnodes: {static: [{url: 'http://10.0.0.1:8080'}]}\n";
    let mut seen = [0, 0];
    for more in [
        "listen: '[::1]:8080'",
        "listen: localhost:8080",
        "listen:",
        "limits:",
        "limits: {queue_depth_max: 1}",
        "limits: {queue_depth_max: 1.5}",
        "limits: {queue_depth_max: '5'}",
        "limits: {queue_depth_max: null}",
        "timeouts: {header_ms: 86400001}",
        "retries_max: 0",
        "routing: {policy: fastest}",
        "routing: {policy: Fastest}",
        "trusted_proxies: [10.0.0.0/8, '::1']",
        "trusted_proxies: 10.0.0.0/8",
        "cors: {allowed_origins: ['*']}",
        "cors: {allowed_origins: ['https://a.example:8443']}",
        "aliases: {a: b}",
        "aliases: [a, b]",
        "aliases: {a: 1}",
        "aliases: {a: {model: b, class: batch}, c: d}",
        "aliases: {a: {model: b, class: null}}",
        "aliases: {a: {class: batch}}",
        "aliases: {a: {model: b, class: slow}}",
        "aliases: {a: {model: b, more: c}}",
        "aliases: [{model: b}]",
        "external: [{name: gpu, url: 'https://gpu/v1', models: [m], weight: 3}]",
        "external: [{name: g p u, url: 'https://gpu/v1', models: [m]}]",
        "external: [{name: gpu, url: 'gpu/v1', models: [m]}]",
        "external: [{name: gpu, url: 'https://gpu/v1', models: {a: b}, spend_per_day_max: -1}]",
        "traces: {otlp_endpoint: 'http://c:4318', sample_ratio: 1}",
        "traces: {sample_ratio: 1}",
        "health: {probe_interval_ms: 0}",
        "tls:",
        "tls: {acme: {domains: [a.example.com]}}",
        "tls: {acme: {domains: []}}",
        "tls: {acme: {domains: [10.0.0.7]}}",
        "tls: {acme: {domains: ['*.example.com']}}",
        "tls: {acme: {domains: [a.example.com], email: ops}}",
        "tls: {acme: {domains: [a.example.com], directory: 'http://a/dir'}}",
        "tls: {acme: {domains: [a.example.com], challenge: dns-01}}",
        "tls: {acme: {domains: [a.example.com], challenge: http-01, http_listen: '0.0.0.0:80'}}",
        "tls: {acme: {domains: [a.example.com], challenge: http-01}}",
        "tls: {acme: {domains: [a.example.com], staging: true, directory: 'https://a/dir'}}",
        "tls: {cert_file: a.pem, key_file: a.key, acme: {domains: [a.example.com]}}",
        "nonsense: 1",
    ] {
        let text = format!("{minimal}{more}\n");
        let file = folder.write("gateway.yaml", &text);
        let ran = run("flotilla-gateway", &["check", "--config", file.to_str().unwrap()]);
        let takes = ran.code == Some(0);
        let valid = validator.is_valid(&yaml(&text).unwrap());
        assert_eq!(takes, valid, "{more}: {}", ran.stderr);
        seen[usize::from(takes)] += 1;
    }
    assert!(seen[0] > 8 && seen[1] > 8, "{seen:?}");
}

#[test]
fn what_holds_is_printed_with_defaults_and_without_secrets() {
    let folder = Folder::new();
    folder.write("join.key", "a-join-key-for-this-test");
    let digest = "5".repeat(64);
    let file = folder.write(
        "gateway.yaml",
        format!("nodes: {{join_key_file: join.key}}\nkeys: [{{name: a, sha256: '{digest}'}}]\n"),
    );
    let print = |file: &std::path::Path| {
        run("flotilla-gateway", &["config", "print", "--config", file.to_str().unwrap()])
    };
    let ran = print(&file);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let printed = yaml(&ran.stdout).unwrap();
    assert_eq!(printed["timeouts"]["queue_ms"], 60_000);
    assert_eq!(printed["nodes"]["join_key_file"], "join.key");
    assert_eq!(printed["keys"][0]["class_max"], "interactive");
    assert!(!ran.stdout.contains(&digest) && !ran.stdout.contains("a-join-key"), "{}", ran.stdout);
    let wrong = folder.write("wrong.yaml", "lisen: 1\n");
    let ran = print(&wrong);
    assert_eq!(ran.code, Some(64));
    assert!(ran.stderr.contains("lisen: unknown key"), "{}", ran.stderr);
}

#[test]
fn a_reference_that_cannot_be_written_ends_with_its_code() {
    let mut command = std::process::Command::new("bash");
    let reference = program("flotilla-gateway", &[]).get_program().to_owned();
    command.arg("-c").arg("exec \"$0\" config reference > /dev/full").arg(reference);
    assert_eq!(run_command(command).code, Some(74));
}
