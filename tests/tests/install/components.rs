//! The lists of what each program is made of (SBOM).

use std::collections::BTreeSet;
use std::process::Command;

use fleet_tests::process::Folder;
use fleet_tests::root;
use fleet_tests::tools::output;
use serde_json::Value;

/// The crates that cargo links into a package's program, each as "name version".
fn linked(package: &str) -> BTreeSet<String> {
    let mut cargo = Command::new("cargo");
    cargo.current_dir(root()).args(["tree", "--locked", "--package", package, "--edges", "normal"]);
    let tree = output(cargo.args(["--target", "all", "--prefix", "none", "--no-dedupe"]));
    let mut crates = BTreeSet::new();
    for line in tree.lines() {
        let mut words = line.split(' ');
        let (name, version) = (words.next().unwrap(), words.next().unwrap());
        crates.insert(format!("{name} {}", version.trim_start_matches('v')));
    }
    crates.remove(&format!("{package} {}", env!("CARGO_PKG_VERSION")));
    crates
}

#[test]
#[ignore = "compiles cargo-cyclonedx: make test-install"]
fn every_crate_of_a_program_is_in_its_list_of_components_with_version_and_license() {
    let (folder, version) = (Folder::new(), env!("CARGO_PKG_VERSION"));
    let mut script = Command::new(root().join("scripts/release.sh"));
    output(script.arg("components").env("RELEASES", folder.path()));
    for program in ["gateway", "agent"] {
        let file = folder.path().join(format!("{version}/flotilla-{program}-{version}.cdx.json"));
        let text = std::fs::read_to_string(file).unwrap();
        let list: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            (list["bomFormat"].as_str(), list["specVersion"].as_str()),
            (Some("CycloneDX"), Some("1.5")),
        );
        assert!(!text.contains(root().to_str().unwrap()), "{program}: names a folder of the build");
        let mut listed = BTreeSet::new();
        for component in list["components"].as_array().unwrap() {
            let licenses = component["licenses"].as_array();
            assert!(licenses.is_some_and(|licenses| !licenses.is_empty()), "{component}");
            let (name, version) = (&component["name"], &component["version"]);
            listed.insert(format!("{} {}", name.as_str().unwrap(), version.as_str().unwrap()));
        }
        let missing: Vec<_> =
            linked(&format!("flotilla-{program}")).difference(&listed).cloned().collect();
        assert!(missing.is_empty(), "{program}: not listed: {missing:?}");
    }
}
