//! What is watched: metrics, rules, alerts and dashboards, tried with a real Prometheus that
//! scrapes a real gateway with two agents, with promtool, and with Grafana's own types.
//!
//! Prometheus and promtool are those of the path, or those that `make setup-test` unpacked.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]
#![allow(clippy::print_stderr, reason = "skipped tests say so")]

mod agent;
mod example;
mod expressions;
mod fleet;
mod gateway;
mod grafana;
mod prometheus;
mod reference;
mod rules;

use std::path::PathBuf;

use fleet_tests::root;

/// The text of a file of the repository.
fn read(path: &str) -> String {
    let path = root().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// A program of the path, or of what was unpacked for tests; `None`, with a message, where there is
/// neither.
fn tool(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    folders.push(root().join("target/prometheus/usr/bin"));
    let found = folders.into_iter().map(|folder| folder.join(name)).find(|file| file.exists());
    if found.is_none() {
        eprintln!(
            "skipped: this test needs {name} (Debian: prometheus; see scripts/prometheus.sh)"
        );
    }
    found
}
