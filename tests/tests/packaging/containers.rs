//! Images and the compose file, as far as they can be looked at without an engine for containers.

use std::path::{Path, PathBuf};
use std::process::Command;

use fleet_tests::client::Client;
use fleet_tests::process::{Folder, Server};
use fleet_tests::root;
use serde_yaml::Value;

use crate::text;
use fleet_tests::tools::output;

const COMPOSE: &str = "examples/compose/compose.yaml";

/// Tools that the Makefile installs.
fn tool(name: &str) -> Option<PathBuf> {
    let path = root().join("target/tools/containers/bin").join(name);
    if !path.exists() {
        eprintln!("skipped: this test needs {name} (make setup-test)");
        return None;
    }
    Some(path)
}

#[test]
fn hadolint_finds_nothing_in_the_dockerfiles() {
    let Some(hadolint) = tool("hadolint") else { return };
    for part in ["gateway", "agent"] {
        let file = root().join(format!("packaging/docker/{part}.Dockerfile"));
        let said = output(Command::new(&hadolint).args(["--failure-threshold", "style"]).arg(file));
        assert_eq!(said.trim(), "", "{part}");
    }
    let folder = Folder::new();
    let bad = folder.write("Dockerfile", "FROM debian\nRUN cd / && apt-get install curl\n");
    assert!(!Command::new(&hadolint).arg(bad).output().unwrap().status.success());
}

#[test]
fn images_run_without_rights_and_ask_their_own_program_how_it_is() {
    for (part, health) in [("gateway", "\"health\", \"--live\""), ("agent", "\"health\"")] {
        let file = text(&format!("packaging/docker/{part}.Dockerfile"));
        let lines: Vec<&str> = file.lines().collect();
        assert!(lines.contains(&"USER 65532:65532"), "{part}");
        assert!(lines.contains(&"STOPSIGNAL SIGTERM"), "{part}");
        assert!(file.contains(&format!("CMD [\"/usr/bin/flotilla-{part}\", {health}")), "{part}");
        assert!(file.contains(&format!("ENTRYPOINT [\"/usr/bin/flotilla-{part}\"]")), "{part}");
        assert!(file.contains("org.opencontainers.image.revision"), "{part}");
    }
    // What compiles llama.cpp is what setup.sh installs for it.
    let setup = text("scripts/setup.sh");
    for package in ["cmake", "g++", "libclang-dev"] {
        assert!(text("packaging/docker/agent.Dockerfile").contains(package));
        assert!(setup.contains(package));
    }
    // What compiles the allocator; the image for Rust has a compiler, and no make.
    assert!(text("packaging/docker/gateway.Dockerfile").contains("make"));
    let rust = text("Cargo.toml");
    let version = rust.lines().find_map(|line| line.strip_prefix("rust-version = ")).unwrap();
    for part in ["gateway", "agent"] {
        let from = format!("FROM rust:{}-slim-bookworm", version.trim_matches('"'));
        assert!(text(&format!("packaging/docker/{part}.Dockerfile")).contains(&from));
    }
}

fn compose() -> Value {
    let mut value: Value = serde_yaml::from_str(&text(COMPOSE)).unwrap();
    value.apply_merge().unwrap();
    value
}

/// The same of Open WebUI before a gateway.
const OPEN_WEBUI: &str = "examples/open-webui/compose.yaml";

/// Compose's own schema, as the Python package that was its first implementation brings it.
#[test]
fn the_compose_files_are_such() {
    let Some(python) = tool("python") else { return };
    let schema = output(Command::new(python).args([
        "-c",
        "import pathlib, sysconfig; print(pathlib.Path(sysconfig.get_paths()['purelib'], \
         'compose/config/compose_spec.json').read_text())",
    ]));
    let schema: serde_json::Value = serde_json::from_str(&schema).unwrap();
    let validator = jsonschema::validator_for(&schema).unwrap();
    let open_webui: serde_json::Value = serde_yaml::from_str(&text(OPEN_WEBUI)).unwrap();
    let value = serde_json::to_value(compose()).unwrap();
    for value in [&value, &open_webui] {
        let problems: Vec<String> =
            validator.iter_errors(value).map(|e| format!("{}: {e}", e.instance_path())).collect();
        assert_eq!(problems, Vec::<String>::new());
    }
    let variables = &open_webui["services"]["open-webui"]["environment"];
    let defaults = variables["DEFAULT_MODEL_METADATA"].as_str().unwrap();
    let defaults: serde_json::Value = serde_json::from_str(defaults).unwrap();
    assert_eq!(defaults["capabilities"]["builtin_tools"], false);
    let mut wrong = value;
    wrong["services"]["gateway"]["no_such_key"] = true.into();
    assert!(!validator.is_valid(&wrong));
}

#[test]
fn everything_that_the_compose_file_names_is_there() {
    let value = compose();
    let folder = root().join("examples/compose");
    let services = value["services"].as_mapping().unwrap();
    assert_eq!(services.len(), 5);
    let mut mounts = 0;
    for (name, service) in services {
        if let Some(build) = service["build"].as_mapping() {
            let context = folder.join(build["context"].as_str().unwrap());
            assert!(context.join(build["dockerfile"].as_str().unwrap()).exists(), "{name:?}");
            assert_eq!(service["read_only"], Value::Bool(true), "{name:?}");
        }
        for mount in service["volumes"].as_sequence().into_iter().flatten() {
            let mount = mount.as_str().unwrap();
            // ${NAME:-usual}
            let source = match mount.strip_prefix("${") {
                Some(rest) => rest.split_once(":-").unwrap().1.split_once('}').unwrap().0,
                None => mount.split(':').next().unwrap(),
            };
            if source.starts_with('.') && !is_to_come(source) {
                assert!(folder.join(source).exists(), "{name:?} mounts {source}");
                mounts += 1;
            }
        }
    }
    assert!(mounts >= 4, "only {mounts} mounts were found");
    scrapes_what_there_is(&value, &folder);
}

/// Dashboards and rules are parts of this repository of their own.
fn is_to_come(source: &str) -> bool {
    let missing = !root().join("configs/prometheus").exists() && source.contains("/configs/");
    if missing {
        eprintln!("skipped: {source} is not there");
    }
    missing
}

fn scrapes_what_there_is(compose: &Value, folder: &Path) {
    let prometheus = std::fs::read_to_string(folder.join("prometheus.yml")).unwrap();
    let prometheus: Value = serde_yaml::from_str(&prometheus).unwrap();
    for job in prometheus["scrape_configs"].as_sequence().unwrap() {
        for target in job["static_configs"][0]["targets"].as_sequence().unwrap() {
            let (name, _) = target.as_str().unwrap().split_once(':').unwrap();
            assert!(compose["services"].get(name).is_some(), "{name} is no service");
        }
    }
}

/// The gateway of the compose file, outside of a container, with what keys.sh made.
#[tokio::test(flavor = "multi_thread")]
async fn the_keys_of_the_compose_file_are_taken() {
    let folder = Folder::new();
    let (here, there) = (root().join("examples/compose"), folder.path().join("compose"));
    std::fs::create_dir_all(there.join("gateway")).unwrap();
    for file in ["keys.sh", "gateway/gateway.yaml"] {
        std::fs::copy(here.join(file), there.join(file)).unwrap();
    }
    let key = output(&mut Command::new(there.join("keys.sh")));
    assert_eq!(output(&mut Command::new(there.join("keys.sh"))), "", "they are kept");
    let config = there.join("gateway/gateway.yaml");
    let text = std::fs::read_to_string(&config).unwrap();
    let text = text.replace("/run/secrets", there.join("secrets").to_str().unwrap());
    let text = text.replace("0.0.0.0:8080", "127.0.0.1:0").replace("0.0.0.0:8081", "127.0.0.1:0");
    std::fs::write(&config, text).unwrap();
    let gateway = Server::start("flotilla-gateway", &["run", "--config", config.to_str().unwrap()]);
    // The operators' port is told first.
    gateway.address();
    let address = gateway.address();
    assert_eq!(Client::new(address, Some(key.trim())).get("/v1/models").await.status, 200);
    assert_eq!(Client::new(address, None).get("/v1/models").await.status, 401);
}
