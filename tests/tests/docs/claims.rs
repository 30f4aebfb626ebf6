//! Claims name the tests that show them, and metrics and fields that exist.

use std::collections::BTreeSet;
use std::path::Path;

use fleet_tests::root;

use crate::current;

/// Pages whose every section names a test.
const CLAIMING: [&str; 4] = ["app-developer.md", "failures.md", "security.md", "users.md"];

fn collect(folder: &Path, text: &mut String) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, text);
        } else if path.extension().is_some_and(|e| e == "rs") {
            text.push_str(&std::fs::read_to_string(path).unwrap());
        }
    }
}

/// The text of all sources in these folders.
pub(crate) fn sources(folders: &[&str]) -> String {
    let mut text = String::new();
    folders.iter().for_each(|folder| collect(&root().join(folder), &mut text));
    text
}

/// Names of functions that are tests.
pub(crate) fn tests() -> BTreeSet<String> {
    let folders =
        ["gateway", "node-agent", "inference-core", "listeners", "manual", "tests", "fuzz"];
    let text = sources(&folders);
    let (mut names, mut is_test) = (BTreeSet::new(), false);
    for line in text.lines().map(str::trim) {
        if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
            is_test = true;
        } else if let Some((_, rest)) = line.split_once("fn ").filter(|_| is_test) {
            names.extend(rest.split('(').next().map(String::from));
            is_test = false;
        }
    }
    names
}

fn code(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

#[test]
fn every_claim_names_a_test_that_exists() {
    let tests = tests();
    assert!(tests.len() > 500, "only {} tests were found", tests.len());
    for page in CLAIMING {
        let text = current::read(&format!("docs/{page}"));
        for section in text.split("\n## ").skip(1) {
            let title = section.lines().next().unwrap();
            let shown: Vec<&str> = section.split("Shown by ").skip(1).collect();
            assert!(!shown.is_empty(), "{page}: '{title}' names no test");
            for names in shown.iter().map(|part| part.split(['.', '\n']).next().unwrap()) {
                for name in code(names) {
                    assert!(
                        tests.contains(name),
                        "{page}: '{title}' names {name}, which is no test"
                    );
                }
            }
        }
    }
}

#[test]
fn metrics_error_codes_and_keys_that_pages_name_exist() {
    let source = sources(&["gateway/src", "node-agent/src"]);
    let config = current::read("docs/config.md");
    for page in ["failures.md", "security.md", "gpu-overflow.md", "tuning.md", "capacity.md"] {
        let text = current::read(&format!("docs/{page}"));
        for name in code(&text) {
            let is_metric = name.starts_with("gateway_") || name.starts_with("node_");
            if is_metric
                && name.bytes().all(|b| b.is_ascii_lowercase() || b"_0123456789".contains(&b))
            {
                let short = name.trim_start_matches("gateway_");
                let known = [name, short].iter().any(|n| source.contains(&format!("\"{n}\"")));
                assert!(known, "{page}: there is no metric {name}");
            }
            let section = ["limits.", "timeouts.", "nodes.", "admin.", "cors.", "health."];
            if let Some((_, key)) =
                name.split_once('.').filter(|_| section.iter().any(|s| name.starts_with(s)))
            {
                let key = key.rsplit('.').next().unwrap();
                assert!(config.contains(&format!("`{key}`")), "{page}: there is no key {name}");
            }
        }
    }
}
