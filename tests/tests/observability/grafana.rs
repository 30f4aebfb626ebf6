//! Dashboards and their provisioning are what Grafana reads.

use std::collections::BTreeSet;
use std::process::Command;

use fleet_tests::process::Folder;
use fleet_tests::root;

use super::expressions::{DASHBOARDS, dashboard};
use super::read;

/// Grafana's own types, by TypeScript's compiler: a key that Grafana does not know is an error.
#[test]
fn dashboards_have_the_types_of_grafanas_schema() {
    let sdk = root().join("target/sdk/grafana");
    if !sdk.join("done").exists() {
        eprintln!("skipped: the types of dashboards need npm (make setup-test)");
        return;
    }
    let folder = Folder::new();
    std::os::unix::fs::symlink(sdk.join("node_modules"), folder.path().join("node_modules"))
        .unwrap();
    folder.write("types.ts", read("tests/grafana/types.ts"));
    let mut command = Command::new(sdk.join("node_modules/.bin/tsc"));
    command.args(["--noEmit", "--strict", "--skipLibCheck", "--preserveSymlinks"]);
    command.args(["--module", "nodenext", "--moduleResolution", "nodenext"]);
    let mut check = |name: &str, json: &str| {
        let import = "import type { Checked } from './types';";
        let file = format!("{import}\nexport const dashboard: Checked = {json};\n");
        command.arg(folder.write(&format!("{name}.ts"), file));
    };
    for name in DASHBOARDS {
        check(name, &read(&format!("configs/grafana/dashboards/{name}.json")));
    }
    // What is wrong is found: the check itself works.
    let wrong = read("configs/grafana/dashboards/slo.json");
    check(
        "wrong",
        &wrong.replacen("\"lastNotNull\"", "7", 1).replacen("\"graphMode\"", "\"graf\"", 1),
    );
    let output = command.current_dir(folder.path()).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let files: BTreeSet<&str> =
        said.lines().filter_map(|line| Some(line.split_once(".ts(")?.0)).collect();
    assert_eq!(files, BTreeSet::from(["wrong"]), "{said}");
}

#[test]
fn panels_have_their_own_place_and_dashboards_their_own_name() {
    let mut uids = BTreeSet::new();
    for name in DASHBOARDS {
        let dashboard = dashboard(name);
        assert!(uids.insert(dashboard["uid"].as_str().unwrap().to_string()));
        let (mut ids, mut taken) = (BTreeSet::new(), BTreeSet::new());
        for panel in dashboard["panels"].as_array().unwrap() {
            assert!(ids.insert(panel["id"].as_u64().unwrap()), "{name}: an id twice");
            let at = |key: &str| panel["gridPos"][key].as_u64().unwrap();
            assert!(at("x") + at("w") <= 24, "{name}: {}", panel["title"]);
            for y in at("y")..at("y") + at("h") {
                for x in at("x")..at("x") + at("w") {
                    assert!(taken.insert((x, y)), "{name}: {} covers another", panel["title"]);
                }
            }
        }
    }
}

#[test]
fn provisioning_names_the_data_source_and_the_dashboards() {
    let file = |path: &str| -> serde_yaml::Value {
        serde_yaml::from_str(&read(&format!("configs/grafana/provisioning/{path}"))).unwrap()
    };
    let source = file("datasources/prometheus.yaml");
    assert_eq!(source["apiVersion"].as_u64(), Some(1));
    assert_eq!(source["datasources"][0]["type"].as_str(), Some("prometheus"));
    let provider = file("dashboards/flotilla.yaml");
    assert_eq!(provider["providers"][0]["type"].as_str(), Some("file"));
    assert!(provider["providers"][0]["options"]["path"].as_str().is_some());
}
