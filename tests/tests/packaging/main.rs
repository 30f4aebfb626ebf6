//! What is installed: services and what they tell systemd, packages, the doctor, images. With the
//! real tools, and with a systemd of its own where this may be started.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]
#![allow(clippy::print_stderr, reason = "skipped tests say so")]

mod containers;
mod doctor;
mod examples;
mod health;
mod machine;
mod notify;
mod packages;
mod tls;
mod units;
mod vps;

use fleet_tests::root;

/// A file of the repository.
fn text(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// Shell commands of a page of the documentation: the block with that name in the comment before
/// it.
fn block(page: &str, name: &str) -> String {
    let text = text(page);
    let start = format!("<!-- block: {name} -->\n```sh\n");
    assert_eq!(text.matches(&start).count(), 1, "blocks called '{name}' in {page}");
    let (_, rest) = text.split_once(&start).unwrap();
    rest.split_once("```").unwrap().0.to_string()
}
